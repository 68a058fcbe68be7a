// batch_norm_back.wgsl: the gradient of batch_norm, a workgroup per channel (axis 1 of [N, C, ...]); inputs dense.
// Arguments: g, x, weight, mean, var, dx, dweight, dbias. Words: numbers of a channel, channels, pixels of an image, eps.

fn place(c: u32, i: u32) -> u32 { return (i / word(2u) * word(1u) + c) * word(2u) + i % word(2u); }

@compute @workgroup_size(256)
fn batch_norm_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
  let c = group_of(wid, nwg);
  if (c >= call.groups) { return; }
  let n = word(0u);
  let mean = at_3(c);
  let inverse = select(nan(), 1.0 / sqrt(at_4(c) + param(3u)), finite(at_4(c)));
  var a = 0.0;
  var b = 0.0;
  for (var i = lane; i < n; i += 256u) {
    let at = place(c, i);
    a += at_0(at);
    b = fma(at_0(at), (at_1(at) - mean) * inverse, b);
  }
  let sum_g = sum_256(lane, a);
  let sum_gh = sum_256(lane, b);
  if (lane == 0u) {
    set_6(c, sum_gh);
    set_7(c, sum_g);
  }
  if (!HAS_5) { return; }
  let scale = at_2(c) * inverse;
  for (var i = lane; i < n; i += 256u) {
    let at = place(c, i);
    let h = (at_1(at) - mean) * inverse;
    set_5(at, fma(-h, sum_gh / f32(n), at_0(at) - sum_g / f32(n)) * scale);
  }
}
