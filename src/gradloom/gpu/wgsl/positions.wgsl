// positions.wgsl: a position that cannot be stops the run: the first of them. One workgroup.
// Argument: positions [B, T]. Words: T, keys of the cache; 0: positions count within the sequence, query t has at most t.
@compute @workgroup_size(256)
fn check_positions(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var i = lane; i < size_0(); i += 256u) {
    let p = at_0(i);
    let most = select(i % word(0u), word(1u) - 1u, word(1u) != 0u);
    if (p < 0 || u32(p) > most) { bad = min(bad, i); }
  }
  let first_bad = first_256(lane, bad);
  if (lane == 0u && first_bad != ABSENT) {
    let p = at_0(first_bad);
    fail(STOP_INDEX, first_bad, bitcast<u32>(p), select(0u, 0xffffffffu, p < 0));
  }
}
