// layout.wgsl: the same elements in another place. Arguments: the output (strided where it is a window), x.

@compute @workgroup_size(256)
fn relocate(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { put_0(offset(0u, i), get_1(offset(1u, i))); }
}
