// layout_wide.wgsl: move numbers of 8 bytes. Arguments: the output, x.
@compute @workgroup_size(256)
fn move_wide(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { set_0(i, at_1(offset(1u, i))); }
}
