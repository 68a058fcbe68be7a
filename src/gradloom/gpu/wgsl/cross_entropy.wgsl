// cross_entropy.wgsl: cross entropy of rows of logits with its gradient, a workgroup per row.
//
// Arguments: logits, labels, weights, grad, sums [rows][2] (weighted loss, weight). Word: classes. An ignored row (id -100)
// adds exactly 0, whatever its logits hold; a row with NaN or +inf has a loss that is not finite. grad may lie in the
// logits: a thread writes only what it has read itself.

// log of the sum of exp(x - top) and top, of a row.
struct Row { top: f32, sum: f32 }
fn row_of(lane: u32, row: u32) -> Row {
  let classes = word(0u);
  var most = -infinity();
  for (var c = lane; c < classes; c += 256u) { most = larger(most, at_0(row + c)); }
  let top = max_256(lane, most);
  var sum = 0.0;
  for (var c = lane; c < classes; c += 256u) { sum += exp_(at_0(row + c) - top); }
  return Row(top, sum_256(lane, sum));
}
fn weight_of(r: u32) -> f32 {
  if (HAS_2) { return at_2(r); }
  return 1.0;
}
// What a row adds: its loss where the largest logit is a number.
fn finish(lane: u32, r: u32, top: f32, loss: f32, weight: f32) {
  if (lane != 0u) { return; }
  set_4(2u * r, select(nan(), weight * loss, finite(top)));
  set_4(2u * r + 1u, weight);
}
