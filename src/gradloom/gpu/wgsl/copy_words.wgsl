// copy_words.wgsl: dense words as they are. Arguments: from, to.
@compute @workgroup_size(256)
fn copy_words(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { put_1(i, get_0(i)); }
}
