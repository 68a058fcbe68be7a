// attention_back.wgsl: what both backward kernels of attention share. Further arguments: g, lse, delta.
var<workgroup> slopes: array<f32, 1024>;  // dZ [query][key]

fn g_at(b: u32, h: u32, t: u32, d: u32) -> f32 {
  if (t >= word(0u) || d >= word(2u)) { return 0.0; }
  return at_4(query_place(b, h, t, d));
}
// weights = P = exp(scores - lse), slopes = dZ = P (g v^T - delta) scale, softcap: times 1 - (score / cap)^2; both 0 where a query
// does not see a key.
fn weights_and_slopes(lane: u32, b: u32, h: u32, n: u32, t0: u32, s0: u32) {
  let x = lane & 15u;
  let y = lane >> 4u;
  scores(lane, b, h, n, t0, s0);
  var z = score;
  for (var j = 0u; j < 4u; j++) { score[j] = 0.0; }
  for (var d0 = 0u; d0 < word(2u); d0 += 16u) {
    workgroupBarrier();
    for (var t = lane; t < 512u; t += 256u) {
      tile_a[t / 16u * STEP + t % 16u] = g_at(b, h, t0 + t / 16u, d0 + t % 16u);
      tile_b[t / 16u * STEP + t % 16u] = v_at(b, n, s0 + t / 16u, d0 + t % 16u);
    }
    workgroupBarrier();
    add_tiles(lane);
  }
  for (var j = 0u; j < 4u; j++) {
    let i = y + 16u * (j >> 1u);
    let key = x + 16u * (j & 1u);
    var p = 0.0;
    var dz = 0.0;
    if (sees(i, s0 + key)) {
      let row = (b * word(0u) + t0 + i) * word(1u) + h;
      p = exp_(z[j] - at_5(row));
      dz = p * (score[j] - at_6(row)) * param(7u);
      if (param(8u) != 0.0) {
        let share = z[j] / param(8u);
        dz *= fma(-share, share, 1.0);
      }
    }
    weights[i * 32u + key] = select(p, as_operand(p), ROUNDED);
    slopes[i * 32u + key] = select(dz, as_operand(dz), ROUNDED);
  }
  workgroupBarrier();
}
