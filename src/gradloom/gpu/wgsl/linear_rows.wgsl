// linear_rows.wgsl: loss of each row of a chunk from its logits, which become weight * (softmax - label). A workgroup per row.
//
// Arguments: logits, labels, weights, list, sums [rows][2], losses, shares. Words: classes, the chunk's first row, 1 where the
// gradient is wanted. $ROUNDED: for linear_round.wgsl, exp is taken from a multiple of log 2 on, and the share is kept by which
// each becomes a slope. The label's class is left out of the sum over the others: what is left of a row that is nearly right does not
// drown in rounding.
var<workgroup> own: vec2<u32>;  // the row, its label

@compute @workgroup_size(256)
fn linear_rows(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg);
  if (i >= call.groups) { return; }
  if (lane == 0u) {
    own = vec2<u32>(ABSENT, 0u);
    if (word(1u) + i < u32(at_3(0u))) {
      let r = u32(at_3(1u + word(1u) + i));
      own = vec2<u32>(r, u32(at_1(r)));
    }
  }
  let found = workgroupUniformLoad(&own);
  if (found.x == ABSENT) { return; }
  let classes = word(0u);
  let row = i * classes;
  var most = -infinity();
  for (var c = lane; c < classes; c += 256u) { most = larger(most, at_0(row + c)); }
  let top = reference(max_256(lane, most));
  let label = at_0(row + found.y);
  var sum = 0.0;
  for (var c = lane; c < classes; c += 256u) {
    if (c != found.y) { sum += exp_(at_0(row + c) - top); }
  }
  let others = sum_256(lane, sum);
  let mine = exp_(label - top);
  var weight = 1.0;
  if (HAS_2) { weight = at_2(found.x); }
  if (lane == 0u) {
    var loss = log_(others + mine) + (top - label);
    if (others <= mine) { loss = log1p_(others / mine); }
    loss = select(nan(), loss, finite(top));
    set_4(2u * found.x, weight * loss);
    set_5(found.x, loss);
  }
  if (word(2u) == 0u) { return; }
  let share = weight / (others + mine);
  if (ROUNDED && lane == 0u) { set_6(i, share); }
  for (var c = lane; c < classes; c += 256u) {
    set_0(row + c, select(exp_(at_0(row + c) - top), -others, c == found.y) * share);
  }
}
