// labels.wgsl: an id that is neither a class nor -100 stops the run: the first of them. One workgroup.
// Argument: labels. Word: classes.
@compute @workgroup_size(256)
fn check_labels(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var r = lane; r < size_0(); r += 256u) {
    let id = at_0(r);
    if (id != -100 && (id < 0 || u32(id) >= word(0u))) { bad = min(bad, r); }
  }
  let first = first_256(lane, bad);
  if (lane == 0u && first != ABSENT) {
    let id = at_0(first);
    fail(STOP_INDEX, first, bitcast<u32>(id), select(0u, 0xffffffffu, id < 0));
  }
}
