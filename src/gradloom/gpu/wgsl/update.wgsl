// update.wgsl: the end of a step, one group of arrays at a time: scalars, then the group's arrays, written where they lie.
// The gradient's divisor is the weight of the rows; a step in which none counts (weight 0) has no gradient.

@compute @workgroup_size(256)
fn update(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (stopped() || i >= size_$W()) { return; }
  $BODY
}
