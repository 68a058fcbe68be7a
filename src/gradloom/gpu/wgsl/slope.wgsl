// slope.wgsl: what the rules of optimisers share, in f32 and in 8 bits.

fn slope_of(g: f32, weight: f32) -> f32 {
  if (weight == 0.0) { return 0.0; }
  return divided(g, weight);
}
// 1 - beta^t, without what 1 - beta loses in f32
fn unbiased(beta: f32, t: f32) -> f32 { return -expm1_(t * log1p_(keep(beta - 1.0))); }
