// stats.wgsl: mean and variance, for norms. Two passes, as on the CPU: sums of x - mean and of its square; the first, 0 but
// for rounding, corrects mean and variance.

// The mean, what is left of it, 1 / sqrt(variance + eps)
struct Stats { mean: f32, rest: f32, inverse: f32 }

fn stats(lane: u32, sums: vec2<f32>, mean: f32, n: f32, eps: f32) -> Stats {
  let rest = sum_256(lane, sums.x) / n;
  let variance = max(sum_256(lane, sums.y) / n - rest * rest, 0.0);
  return Stats(mean, rest, 1.0 / sqrt(variance + eps));
}
// What one more number adds to the sums about a mean and of their squares.
fn about(sums: vec2<f32>, x: f32, mean: f32) -> vec2<f32> {
  let d = x - mean;
  return vec2<f32>(sums.x + d, fma(d, d, sums.y));
}
