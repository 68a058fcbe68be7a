// checks.wgsl: what a checked run does between instructions. Argument: the bytes, as i32, or the numbers to look at.

@compute @workgroup_size(256)
fn fill(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { put_0(i, word(0u)); }
}

// The bytes must still be what `fill` wrote; word 1: the byte of the arena at which they begin. One workgroup.
@compute @workgroup_size(256)
fn intact(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var i = lane; i < size_0(); i += 256u) {
    if (get_0(i) != word(0u)) { bad = min(bad, i); }
  }
  let first = first_256(lane, bad);
  if (lane == 0u && first != ABSENT) { fail(4u, word(1u) + 4u * first, 0u, 0u); }
}
