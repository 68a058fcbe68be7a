// attention_queries.wgsl: dq = dZ k, a workgroup per 32 queries of a head and up to 256 dimensions. Further argument: dq. It may lie
// in q or g: a workgroup reads only its own queries of these, and writes at its end.
@compute @workgroup_size(256)
fn attention_queries(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
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
  for (var s0 = keys.x; s0 < keys.y; s0 += 32u) {
    weights_and_slopes(lane, b, h, n, t0, s0);
    for (var c = 0u; c < $DIMSu; c++) {
      workgroupBarrier();
      for (var t = lane; t < 512u; t += 256u) {
        tile_b[t / 16u * STEP + t % 16u] = k_at(b, n, s0 + t / 16u, piece + 16u * c + t % 16u);
      }
      workgroupBarrier();
      var a0 = 0.0;
      var a1 = 0.0;
      for (var key = 0u; key < 32u; key++) {
        let k = tile_b[key * STEP + x];
        a0 = fma(slopes[y * 32u + key], k, a0);
        a1 = fma(slopes[(y + 16u) * 32u + key], k, a1);
      }
      out[2u * c] += a0;
      out[2u * c + 1u] += a1;
    }
    workgroupBarrier();
  }
  for (var r = 0u; r < 2u; r++) {
    let t = t0 + y + 16u * r;
    for (var c = 0u; c < $DIMSu; c++) {
      let d = piece + 16u * c + x;
      if (t < word(0u) && d < word(2u)) { set_7(query_place(b, h, t, d), out[2u * c + r]); }
    }
  }
}
