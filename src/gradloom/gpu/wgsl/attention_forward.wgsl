// attention_forward.wgsl: y = softmax(scores) v and lse = log of the softmax's divisor, a workgroup per 32 queries of a head and
// up to 256 dimensions of y. $DIMS: dimensions of a thread. Further arguments: y, lse. See attention.wgsl.
//
// For each block of 32 keys that some query sees: most' = max(most, scores), y = y e^(most - most') + e^(scores - most') v.
var<workgroup> most: array<f32, 32>;
var<workgroup> total: array<f32, 32>;
var<workgroup> fade: array<f32, 32>;

@compute @workgroup_size(256)
fn attention(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let piece = group % word(10u) * 16u * $DIMSu;
  let t0 = group / word(10u) % word(9u) * 32u;
  let h = group / (word(10u) * word(9u)) % word(1u);
  let b = group / (word(10u) * word(9u) * word(1u));
  let n = h / (word(1u) / word(4u));
  let x = lane & 15u;
  let y = lane >> 4u;
  let keys = look(lane, b, t0);
  var out: array<f32, 2 * $DIMS>;
  for (var j = 0u; j < 2u * $DIMSu; j++) { out[j] = 0.0; }
  if (lane < 32u) {
    most[lane] = NOTHING;
    total[lane] = 0.0;
  }
  for (var s0 = keys.x; s0 < keys.y; s0 += 32u) {
    scores(lane, b, h, n, t0, s0);
    for (var j = 0u; j < 4u; j++) {
      let i = y + 16u * (j >> 1u);
      let key = x + 16u * (j & 1u);
      weights[i * 32u + key] = select(NOTHING, score[j], sees(i, s0 + key));
    }
    workgroupBarrier();
    if (lane < 32u) {
      var high = most[lane];
      for (var key = 0u; key < 32u; key++) { high = larger(high, weights[lane * 32u + key]); }
      high = reference(high);
      fade[lane] = exp_(most[lane] - high);
      most[lane] = high;
    }
    workgroupBarrier();
    for (var j = 0u; j < 4u; j++) {
      let i = y + 16u * (j >> 1u);
      let key = x + 16u * (j & 1u);
      weights[i * 32u + key] = select(0.0, exp_(score[j] - most[i]), sees(i, s0 + key));
    }
    workgroupBarrier();
    if (lane < 32u) {
      var sum = 0.0;
      for (var key = 0u; key < 32u; key++) { sum += weights[lane * 32u + key]; }
      total[lane] = fma(total[lane], fade[lane], sum);
    }
    if (ROUNDED) {
      workgroupBarrier();
      for (var j = 0u; j < 4u; j++) {
        let at = (y + 16u * (j >> 1u)) * 32u + x + 16u * (j & 1u);
        weights[at] = as_operand(weights[at]);
      }
    }
    for (var c = 0u; c < $DIMSu; c++) {
      workgroupBarrier();
      for (var t = lane; t < 512u; t += 256u) {
        tile_b[t / 16u * STEP + t % 16u] = v_at(b, n, s0 + t / 16u, piece + 16u * c + t % 16u);
      }
      workgroupBarrier();
      var a0 = 0.0;
      var a1 = 0.0;
      for (var key = 0u; key < 32u; key++) {
        let v = tile_b[key * STEP + x];
        a0 = fma(weights[y * 32u + key], v, a0);
        a1 = fma(weights[(y + 16u) * 32u + key], v, a1);
      }
      out[2u * c] = fma(out[2u * c], fade[y], a0);
      out[2u * c + 1u] = fma(out[2u * c + 1u], fade[y + 16u], a1);
    }
    workgroupBarrier();
  }
  workgroupBarrier();
  for (var r = 0u; r < 2u; r++) {
    let i = y + 16u * r;
    if (t0 + i >= word(0u)) { continue; }
    for (var c = 0u; c < $DIMSu; c++) {
      let d = piece + 16u * c + x;
      if (d < word(2u)) { set_4(query_place(b, h, t0 + i, d), out[2u * c + r] / total[i]); }
    }
    if (x == 0u && piece == 0u && HAS_5) {
      set_5((b * word(0u) + t0 + i) * word(1u) + h, log_(total[i]) + most[i]);
    }
  }
}
