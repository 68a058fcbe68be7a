// powers.wgsl: what weights are e^(score - it): the largest score; where they are rounded to bf16 ($ROUNDED) the multiple of log 2
// next to it, so that each rounds alike whatever block it stands in. As ops/rounding.py: next_power.
const ROUNDED = $ROUNDED;

fn reference(most: f32) -> f32 {
  const power = 0.6931471805599453;
  if (!ROUNDED || abs(most) >= 1e6) { return most; }
  return round(most / power) * power;
}
