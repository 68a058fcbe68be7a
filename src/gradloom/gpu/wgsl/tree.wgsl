// tree.wgsl: fixed trees over a workgroup of 256; every thread calls them, and all get the result. Rounds of more than APART between two
// numbers go through workgroup memory, the others as tree_plain.wgsl or tree_subgroups.wgsl says: the same pairs, the same bits.

var<workgroup> tree_f: array<f32, 256>;
var<workgroup> tree_u: array<u32, 256>;

fn sum_256(lane: u32, x: f32) -> f32 {
  tree_f[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > APART; half = half >> 1u) {
    if (lane < half) { tree_f[lane] = tree_f[lane] + tree_f[lane + half]; }
    workgroupBarrier();
  }
  var v = tree_f[spot()];
  for (var half = APART; half > 0u; half = half >> 1u) {
    let pair = pair_f(v, half);
    v = pair.x + pair.y;
  }
  workgroupBarrier();
  return v;
}

fn max_256(lane: u32, x: f32) -> f32 {
  tree_f[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > APART; half = half >> 1u) {
    if (lane < half) { tree_f[lane] = larger(tree_f[lane], tree_f[lane + half]); }
    workgroupBarrier();
  }
  var v = tree_f[spot()];
  for (var half = APART; half > 0u; half = half >> 1u) {
    let pair = pair_f(v, half);
    v = larger(pair.x, pair.y);
  }
  workgroupBarrier();
  return v;
}

fn first_256(lane: u32, x: u32) -> u32 {
  tree_u[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > APART; half = half >> 1u) {
    if (lane < half) { tree_u[lane] = min(tree_u[lane], tree_u[lane + half]); }
    workgroupBarrier();
  }
  var v = tree_u[spot()];
  for (var half = APART; half > 0u; half = half >> 1u) {
    let pair = pair_u(v, half);
    v = min(pair.x, pair.y);
  }
  workgroupBarrier();
  return v;
}
