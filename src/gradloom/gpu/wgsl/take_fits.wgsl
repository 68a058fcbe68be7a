// take_fits.wgsl, behind take_batch.wgsl: 64-bit numbers that do not fit i32 stop the run. One workgroup.
@compute @workgroup_size(256)
fn check_fits(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var e = lane; e < word(3u) * word(0u); e += 256u) {
    let i = e / word(0u);
    let row = row_of(i);
    if (row == ABSENT) { continue; }
    let x = at_1(row * word(0u) + (e - i * word(0u)));
    if (x.y != select(0u, 0xffffffffu, (x.x & 0x80000000u) != 0u)) { bad = min(bad, e); }
  }
  let first = first_256(lane, bad);
  if (lane == 0u && first != ABSENT) {
    let i = first / word(0u);
    let x = at_1(row_of(i) * word(0u) + (first - i * word(0u)));
    fail(STOP_INDEX, i, x.x, x.y);
  }
}
