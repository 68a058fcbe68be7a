// reduce_group.wgsl, behind reduce.wgsl: a workgroup per output, or per slice of one.

fn merge_256(lane: u32, x: f32) -> f32 {
  tree_f[lane] = x;
  workgroupBarrier();
  for (var half = 128u; half > APART; half = half >> 1u) {
    if (lane < half) { tree_f[lane] = $MERGE(tree_f[lane], tree_f[lane + half]); }
    workgroupBarrier();
  }
  var v = tree_f[spot()];
  for (var half = APART; half > 0u; half = half >> 1u) {
    let pair = pair_f(v, half);
    v = $MERGE(pair.x, pair.y);
  }
  workgroupBarrier();
  return v;
}

@compute @workgroup_size(256)
fn by_group(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg);
  let total = merge_256(lane, fold(o, lane, word(0u), 256u));
  if (lane == 0u && o < size_0()) { set_0(o, $FINISH(total, word(0u))); }
}
