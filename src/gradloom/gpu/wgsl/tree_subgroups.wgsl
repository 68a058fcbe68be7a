// tree_subgroups.wgsl: the last rounds of tree.wgsl go from thread to thread of a subgroup, which has $SUBGROUP threads at least. Each
// subgroup makes them all, of the same numbers: nothing is asked of which threads it has, and all threads get the result.
const APART = $SUBGROUPu / 2u;
var<private> subgroup_lane: u32;  // set where an entry begins (source.py)
fn spot() -> u32 { return subgroup_lane & ($SUBGROUPu - 1u); }

// The numbers of this thread and of the one that is `half` apart, that of the lower thread first.
fn pair_f(v: f32, half: u32) -> vec2<f32> {
  let other = subgroupShuffleXor(v, half);
  return select(vec2<f32>(other, v), vec2<f32>(v, other), (subgroup_lane & half) == 0u);
}
fn pair_u(v: u32, half: u32) -> vec2<u32> {
  let other = subgroupShuffleXor(v, half);
  return select(vec2<u32>(other, v), vec2<u32>(v, other), (subgroup_lane & half) == 0u);
}
