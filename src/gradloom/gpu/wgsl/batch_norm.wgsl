// batch_norm.wgsl: batch_norm, a workgroup per channel (axis 1 of [N, C, ...]); inputs dense.
// Arguments: x, weight, bias, y, mean, var. Words: numbers of a channel, channels, pixels of an image, eps.

fn place(c: u32, i: u32) -> u32 { return (i / word(2u) * word(1u) + c) * word(2u) + i % word(2u); }

@compute @workgroup_size(256)
fn batch_norm(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let c = group_of(wid, nwg);
  if (c >= call.groups) { return; }
  let n = word(0u);
  var sum = 0.0;
  for (var i = lane; i < n; i += 256u) { sum += at_0(place(c, i)); }
  let mean = sum_256(lane, sum) / f32(n);
  var sums = vec2<f32>(0.0, 0.0);
  for (var i = lane; i < n; i += 256u) { sums = about(sums, at_0(place(c, i)), mean); }
  let rest = sum_256(lane, sums.x) / f32(n);
  let spread = sum_256(lane, sums.y) / f32(n) - rest * rest;
  let variance = select(infinity(), max(spread, 0.0), finite(spread));
  // a variance that f32 does not hold makes y NaN, so that the guard refuses the step
  let scale = select(nan(), at_1(c) / sqrt(variance + param(3u)), finite(spread));
  let bias = at_2(c);
  for (var i = lane; i < n; i += 256u) {
    let at = place(c, i);
    set_3(at, fma((at_0(at) - mean) - rest, scale, bias));
  }
  if (lane == 0u) {
    set_4(c, mean + rest);
    set_5(c, variance);
  }
}
