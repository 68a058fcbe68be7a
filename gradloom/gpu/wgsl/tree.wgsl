// tree.wgsl: fixed trees over a workgroup of 256; every thread calls them, and all get the result.

var<workgroup> tree_f: array<f32, 256>;
var<workgroup> tree_u: array<u32, 256>;

fn sum_256(lane: u32, x: f32) -> f32 {
  tree_f[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > 0u; half = half >> 1u) {
    if (lane < half) { tree_f[lane] = tree_f[lane] + tree_f[lane + half]; }
    workgroupBarrier();
  }
  let total = tree_f[0];
  workgroupBarrier();
  return total;
}

fn max_256(lane: u32, x: f32) -> f32 {
  tree_f[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > 0u; half = half >> 1u) {
    if (lane < half) { tree_f[lane] = larger(tree_f[lane], tree_f[lane + half]); }
    workgroupBarrier();
  }
  let most = tree_f[0];
  workgroupBarrier();
  return most;
}

fn first_256(lane: u32, x: u32) -> u32 {
  tree_u[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > 0u; half = half >> 1u) {
    if (lane < half) { tree_u[lane] = min(tree_u[lane], tree_u[lane + half]); }
    workgroupBarrier();
  }
  let least = tree_u[0];
  workgroupBarrier();
  return least;
}
