// attention_keys.wgsl: dk = dZ^T q and dv = P^T g, a workgroup per 32 keys of a key head and up to 256 dimensions, over all queries
// that see some of them, head by head. Further arguments: dk, dv.
@compute @workgroup_size(256)
fn attention_keys(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let piece = group % word(10u) * 16u * $DIMSu;
  let s0 = group / word(10u) % word(9u) * 32u;
  let n = group / (word(10u) * word(9u)) % word(4u);
  let b = group / (word(10u) * word(9u) * word(4u));
  let share = word(1u) / word(4u);
  let x = lane & 15u;
  let y = lane >> 4u;
  var dk: array<f32, 2 * $DIMS>;
  var dv: array<f32, 2 * $DIMS>;
  for (var j = 0u; j < 2u * $DIMSu; j++) {
    dk[j] = 0.0;
    dv[j] = 0.0;
  }
  for (var t0 = s0; t0 < word(0u); t0 += 32u) {  // query t sees no key behind its own
    let keys = look(lane, b, t0);
    if (keys.x >= s0 + 32u || keys.y <= s0) { continue; }
    for (var h = n * share; h < (n + 1u) * share; h++) {
      weights_and_slopes(lane, b, h, n, t0, s0);
      for (var c = 0u; c < $DIMSu; c++) {
        workgroupBarrier();
        for (var t = lane; t < 512u; t += 256u) {
          tile_a[t / 16u * STEP + t % 16u] = q_at(b, h, t0 + t / 16u, piece + 16u * c + t % 16u);
          tile_b[t / 16u * STEP + t % 16u] = g_at(b, h, t0 + t / 16u, piece + 16u * c + t % 16u);
        }
        workgroupBarrier();
        var k0 = 0.0;
        var k1 = 0.0;
        var v0 = 0.0;
        var v1 = 0.0;
        for (var i = 0u; i < 32u; i++) {
          let q = tile_a[i * STEP + x];
          let g = tile_b[i * STEP + x];
          k0 = fma(slopes[i * 32u + y], q, k0);
          k1 = fma(slopes[i * 32u + y + 16u], q, k1);
          v0 = fma(weights[i * 32u + y], g, v0);
          v1 = fma(weights[i * 32u + y + 16u], g, v1);
        }
        dk[2u * c] += k0;
        dk[2u * c + 1u] += k1;
        dv[2u * c] += v0;
        dv[2u * c + 1u] += v1;
      }
      workgroupBarrier();
    }
  }
  for (var r = 0u; r < 2u; r++) {
    let s = s0 + y + 16u * r;
    for (var c = 0u; c < $DIMSu; c++) {
      let d = piece + 16u * c + x;
      if (s < word(3u) && d < word(2u)) {
        set_7(key_place(b, n, s, d), dk[2u * c + r]);
        set_8(key_place(b, n, s, d), dv[2u * c + r]);
      }
    }
  }
}
