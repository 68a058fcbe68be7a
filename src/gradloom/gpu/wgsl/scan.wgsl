// scan.wgsl: the first number that is not finite stops a checked run. One workgroup.
@compute @workgroup_size(256)
fn scan(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var i = lane; i < size_0(); i += 256u) {
    if (!finite(at_0(i))) { bad = min(bad, i); }
  }
  let first = first_256(lane, bad);
  if (lane == 0u && first != ABSENT) { fail(STOP_NONFINITE, first, 0u, 0u); }
}
