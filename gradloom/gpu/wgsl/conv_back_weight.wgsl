// conv_back_weight.wgsl: dw and db of a convolution, a workgroup per number: a sum over images and positions. Arguments: g, x, dw,
// db. Words as in conv.wgsl, then images.
@compute @workgroup_size(256)
fn conv_back_weight(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                    @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg);
  if (at >= call.groups) { return; }
  let kx = at % word(7u);
  let ky = at / word(7u) % word(6u);
  let i = at / (word(7u) * word(6u)) % word(0u);
  let o = at / (word(7u) * word(6u) * word(0u));
  let pixels = word(4u) * word(5u);
  var z = 0.0;
  for (var p = lane; p < word(14u) * pixels; p += 256u) {
    let n = p / pixels;
    let found = under(p % pixels / word(5u), p % word(5u), ky, kx);
    if (found != ABSENT) {
      z = fma(at_0((n * word(3u) + o) * pixels + p % pixels), at_1((n * word(0u) + i) * word(1u) * word(2u) + found), z);
    }
  }
  z = sum_256(lane, z);
  if (lane == 0u) { set_2(at, z); }
}

@compute @workgroup_size(256)
fn conv_back_bias(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg);
  if (o >= call.groups) { return; }
  let pixels = word(4u) * word(5u);
  var z = 0.0;
  for (var p = lane; p < word(14u) * pixels; p += 256u) { z += at_0((p / pixels * word(3u) + o) * pixels + p % pixels); }
  z = sum_256(lane, z);
  if (lane == 0u) { set_3(o, z); }
}
