// linear_gather.wgsl: the listed rows of x from number `first` on, one after the other. Arguments: x, list, rows.
// Words: first, d, x's strides.
@compute @workgroup_size(256)
fn gather_rows(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  let row = word(0u) + i / word(1u);
  if (i >= size_2() || row >= u32(at_1(0u))) { return; }
  set_2(i, at_0(u32(at_1(1u + row)) * word(2u) + i % word(1u) * word(3u)));
}
