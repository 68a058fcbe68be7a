// ids.wgsl: the first id outside of 0 .. word 0 - 1 stops the run. Argument: ids. One workgroup.
@compute @workgroup_size(256)
fn check_ids(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var i = lane; i < size_0(); i += 256u) {
    let id = at_0(i);
    if (id < 0 || u32(id) >= word(0u)) { bad = min(bad, i); }
  }
  let first = first_256(lane, bad);
  if (lane == 0u && first != ABSENT) {
    let id = at_0(first);
    fail(STOP_INDEX, first, bitcast<u32>(id), select(0u, 0xffffffffu, id < 0));
  }
}
