// fill.wgsl: the number of word 0 everywhere. Argument: the output.
@compute @workgroup_size(256)
fn fill(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { put_0(i, word(0u)); }
}
