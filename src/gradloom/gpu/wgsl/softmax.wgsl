// softmax.wgsl: softmax over the last axis, its logarithm. A workgroup per row. Arguments: y, x, the mask spread over x.
// word 0: elements of a row; word 1: rows; param 2: the scale.

fn logit(r: u32, i: u32) -> f32 { return $LOGIT; }

// (the largest of a row, the sum of exp(x - largest))
fn row_sums(lane: u32, r: u32) -> vec2<f32> {
  var top = -infinity();
  for (var i = lane; i < word(0u); i += 256u) { top = larger(top, logit(r, i)); }
  top = max_256(lane, top);
  var sum = 0.0;
  if (finite(top)) {
    for (var i = lane; i < word(0u); i += 256u) { sum += exp_(logit(r, i) - top); }
  }
  return vec2<f32>(top, sum_256(lane, sum));
}

@compute @workgroup_size(256)
fn softmax(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let r = group_of(wid, nwg);
  if (r >= word(1u)) { return; }
  let s = row_sums(lane, r);
  for (var i = lane; i < word(0u); i += 256u) {
    if (finite(s.x)) { set_0(r * word(0u) + i, $RESULT); }
    else { set_0(r * word(0u) + i, nan()); }
  }
}
