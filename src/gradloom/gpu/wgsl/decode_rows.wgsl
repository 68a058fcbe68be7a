// decode_rows.wgsl: rows of a table by ids. Arguments: y, table, ids. Words: width, rows of the table.
@compute @workgroup_size(256)
fn decode_rows(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  let row = i / word(0u);
  let id = at_2(row);
  if (id >= 0 && u32(id) < word(1u)) { set_0(i, number(u32(id) * word(0u) + (i - row * word(0u)))); }
}
