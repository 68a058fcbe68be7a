// stats.wgsl: mean and variance, for norms. Two passes, as on the CPU: sums of x - mean and of its square; the first, 0 but
// for rounding, corrects mean and variance.

// The mean, what is left of it, 1 / sqrt(variance + eps); whether these sums overflowed f32.
struct Stats { mean: f32, rest: f32, inverse: f32, overflow: bool }

// Rows whose squares overflow f32 (|x| above about 1e18) are multiplied by SMALLER = 2^-80 first; others by 1.
const SMALLER = 8.271806125530277e-25;

// eps for a row times unit: of a smaller row no more than keeps the root above 0.
fn eps_of(eps: f32, unit: f32) -> f32 { return select(1.2e-38, eps, unit == 1.0); }

// The value of lane 0, in uniform control flow.
fn by_all(lane: u32, value: bool) -> bool {
  if (lane == 0u) { tree_u[0] = u32(value); }
  return workgroupUniformLoad(&tree_u[0]) != 0u;
}

fn stats(lane: u32, sums: vec2<f32>, mean: f32, n: f32, eps: f32) -> Stats {
  let rest = sum_256(lane, sums.x) / n;
  let variance = sum_256(lane, sums.y) / n - rest * rest;
  return Stats(mean, rest, 1.0 / sqrt(max(variance, 0.0) + eps), !finite(variance));
}
// What one more number adds to the sums about a mean and of their squares.
fn about(sums: vec2<f32>, x: f32, mean: f32) -> vec2<f32> {
  let d = x - mean;
  return vec2<f32>(sums.x + d, fma(d, d, sums.y));
}
