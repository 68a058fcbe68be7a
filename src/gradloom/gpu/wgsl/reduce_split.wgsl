// reduce_split.wgsl, behind reduce.wgsl and reduce_group.wgsl: few outputs of many elements: a workgroup per slice of one, then
// the slices in their order.

@compute @workgroup_size(256)
fn slice(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
  let g = group_of(wid, nwg);
  let o = g / word(1u);
  let s = g - o * word(1u);
  let each = (word(0u) + word(1u) - 1u) / word(1u);
  let total = merge_256(lane, fold(o, s * each + lane, min((s + 1u) * each, word(0u)), 256u));
  if (lane == 0u && g < call.groups) { set_3(g, total); }
}

@compute @workgroup_size(256)
fn join(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg) * 256u + lane;
  if (o >= size_0()) { return; }
  var total = $START;
  for (var s = 0u; s < word(1u); s++) { total = $MERGE(total, at_3(o * word(1u) + s)); }
  set_0(o, $FINISH(total, word(0u)));
}
