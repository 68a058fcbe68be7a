// linear_round.wgsl: slopes of a chunk's logits as the gradient of x reads them in bf16: e^(z - m) is rounded before it becomes
// a slope, but that of the label, whose slope is the sum of the others'. A workgroup per row.
//
// Arguments: slopes, labels, list, shares. Words: classes, the chunk's first row.
@compute @workgroup_size(256)
fn linear_round(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg);
  if (i >= call.groups || word(1u) + i >= u32(at_2(0u))) { return; }
  let label = u32(at_1(u32(at_2(1u + word(1u) + i))));
  let classes = word(0u);
  let share = at_3(i);
  if (share == 0.0) { return; }
  for (var c = lane; c < classes; c += 256u) {
    let at = i * classes + c;
    if (c != label) { set_0(at, from_bf16(bf16_bits(at_0(at) / share)) * share); }
  }
}
