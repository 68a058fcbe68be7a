// update.wgsl: the end of a step, one group of arrays at a time: scalars, then the group's arrays, written where they lie.
// The gradient's divisor is the weight of the rows; a step in which none counts (weight 0) has no gradient.

fn slope_of(g: f32, weight: f32) -> f32 {
  if (weight == 0.0) { return 0.0; }
  return divided(g, weight);
}
// 1 - beta^t, without what 1 - beta loses in f32
fn unbiased(beta: f32, t: f32) -> f32 { return -expm1_(t * log1p_(keep(beta - 1.0))); }

@compute @workgroup_size(256)
fn update(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (stopped() || i >= size_$W()) { return; }
  $BODY
}
