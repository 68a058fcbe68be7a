// index.wgsl: rows by ids.

@compute @workgroup_size(256)
fn get_rows(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {  // y, table, ids; word 0: width; word 1: rows of the table
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  let row = i / word(0u);
  let id = at_2(row);
  if (id >= 0 && u32(id) < word(1u)) { set_0(i, at_1(u32(id) * word(0u) + (i - row * word(0u)))); }
}
