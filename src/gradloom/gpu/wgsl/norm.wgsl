// norm.wgsl: layer_norm and rms_norm, a workgroup per row of the last axis; inputs dense. An output may lie in any of its
// inputs: every thread writes only elements that it has read itself, after the sums over all of them.
// Arguments: x, y. Words: the row's width, eps.

@compute @workgroup_size(256)
fn layer_norm(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let n = word(0u);
  let row = group * n;
  var sum = 0.0;
  for (var i = lane; i < n; i += 256u) { sum += at_0(row + i); }
  let mean = sum_256(lane, sum) / f32(n);
  var sums = vec2<f32>(0.0, 0.0);
  for (var i = lane; i < n; i += 256u) { sums = about(sums, at_0(row + i), mean); }
  let s = stats(lane, sums, mean, f32(n), param(1u));
  for (var i = lane; i < n; i += 256u) { set_1(row + i, ((at_0(row + i) - s.mean) - s.rest) * s.inverse); }
}

@compute @workgroup_size(256)
fn rms_norm(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let n = word(0u);
  let row = group * n;
  var square = 0.0;
  for (var i = lane; i < n; i += 256u) { square = fma(at_0(row + i), at_0(row + i), square); }
  let scale = 1.0 / sqrt(sum_256(lane, square) / f32(n) + param(1u));
  for (var i = lane; i < n; i += 256u) { set_1(row + i, at_0(row + i) * scale); }
}
