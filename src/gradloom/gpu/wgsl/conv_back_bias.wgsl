// conv_back_bias.wgsl: db of a convolution: g summed over images and pixels, a workgroup per channel. Arguments: g, db. Words: channels,
// pixels, images times pixels.
@compute @workgroup_size(256)
fn conv_back_bias(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg);
  if (o >= call.groups) { return; }
  var z = 0.0;
  for (var p = lane; p < word(2u); p += 256u) { z += at_0((p / word(1u) * word(0u) + o) * word(1u) + p % word(1u)); }
  z = sum_256(lane, z);
  if (lane == 0u) { set_1(o, z); }
}
