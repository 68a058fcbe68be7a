// where.wgsl: x where the condition is not 0, else y. Arguments: the output, condition, x, y.
@compute @workgroup_size(256)
fn choose(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  if (at_1(offset(1u, i)) != 0) { set_0(i, at_2(offset(2u, i))); }
  else { set_0(i, at_3(offset(3u, i))); }
}
