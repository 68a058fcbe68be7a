// cross_entropy_ids.wgsl: labels are ids. See cross_entropy.wgsl.
@compute @workgroup_size(256)
fn cross_entropy(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
  let r = group_of(wid, nwg);
  if (r >= call.groups) { return; }
  let classes = word(0u);
  let row = r * classes;
  if (lane == 0u) { tree_u[0] = u32(at_1(r)); }
  let id = workgroupUniformLoad(&tree_u[0]);
  if (id >= classes) {  // ignored, or the run stops
    if (lane == 0u) {
      set_4(2u * r, 0.0);
      set_4(2u * r + 1u, 0.0);
    }
    if (HAS_3) {
      for (var c = lane; c < classes; c += 256u) { set_3(row + c, 0.0); }
    }
    return;
  }
  let label = at_0(row + id);
  let s = row_of(lane, row);
  let weight = weight_of(r);
  finish(lane, r, s.top, log_(s.sum) + (s.top - label), weight);
  if (!HAS_3) { return; }
  let share = weight / s.sum;
  for (var c = lane; c < classes; c += 256u) {
    set_3(row + c, fma(exp_(at_0(row + c) - s.top), share, select(0.0, -weight, c == id)));
  }
}
