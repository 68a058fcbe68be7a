// correct.wgsl: how many rows have their first largest logit at the label; rows of weight 0 do not count. One workgroup, a
// thread for every 256th row. Arguments: logits, labels, weights, count. Word: classes.
fn beats(x: f32, y: f32) -> bool { return !is_nan(y) && (is_nan(x) || x > y); }

@compute @workgroup_size(256)
fn correct(@builtin(local_invocation_index) lane: u32) {
  let classes = word(0u);
  var count = 0.0;
  for (var r = lane; r < size_0() / classes; r += 256u) {
    if (HAS_2 && at_2(r) == 0.0) { continue; }
    var best = 0u;
    for (var c = 1u; c < classes; c++) {
      if (beats(at_0(r * classes + c), at_0(r * classes + best))) { best = c; }
    }
    if (best == label_of(r)) { count += 1.0; }
  }
  count = sum_256(lane, count);
  if (lane == 0u) { set_3(0u, count); }
}
