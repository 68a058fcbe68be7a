// cross_entropy_rows.wgsl: labels are rows of any sum; a class that a label does not name adds nothing. See cross_entropy.wgsl.
@compute @workgroup_size(256)
fn cross_entropy(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
  let r = group_of(wid, nwg);
  if (r >= call.groups) { return; }
  let classes = word(0u);
  let row = r * classes;
  let s = row_of(lane, row);
  let log_sum = log_(s.sum);
  var loss = 0.0;
  var total = 0.0;
  for (var c = lane; c < classes; c += 256u) {
    let label = at_1(row + c);
    if (label != 0.0) { loss = fma(label, (s.top - at_0(row + c)) + log_sum, loss); }
    total += label;
  }
  loss = sum_256(lane, loss);
  total = sum_256(lane, total);
  let weight = weight_of(r);
  finish(lane, r, s.top, loss, weight);
  if (!HAS_3) { return; }
  let share = weight * total / s.sum;
  for (var c = lane; c < classes; c += 256u) {
    let label = at_1(row + c);
    set_3(row + c, fma(exp_(at_0(row + c) - s.top), share, -weight * label));
  }
}
