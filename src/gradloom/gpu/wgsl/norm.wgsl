// norm.wgsl: layer_norm and rms_norm, a workgroup per row of the last axis; inputs dense. An output may lie in any of its
// inputs: every thread writes only elements that it has read itself, after the sums over all of them.
// Arguments: x, y. Words: the row's width, eps.

fn stats_of(lane: u32, row: u32, n: u32, unit: f32) -> Stats {
  var sum = 0.0;
  for (var i = lane; i < n; i += 256u) { sum += at_0(row + i) * unit; }
  let mean = sum_256(lane, sum) / f32(n);
  var sums = vec2<f32>(0.0, 0.0);
  for (var i = lane; i < n; i += 256u) { sums = about(sums, at_0(row + i) * unit, mean); }
  return stats(lane, sums, mean, f32(n), eps_of(param(1u), unit));
}
fn squares_of(lane: u32, row: u32, n: u32, unit: f32) -> f32 {
  var square = 0.0;
  for (var i = lane; i < n; i += 256u) {
    let x = at_0(row + i) * unit;
    square = fma(x, x, square);
  }
  return sum_256(lane, square);
}

@compute @workgroup_size(256)
fn layer_norm(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let n = word(0u);
  let row = group * n;
  var unit = 1.0;
  var s = stats_of(lane, row, n, unit);
  if (by_all(lane, s.overflow)) {
    unit = SMALLER;
    s = stats_of(lane, row, n, unit);
  }
  for (var i = lane; i < n; i += 256u) { set_1(row + i, ((at_0(row + i) * unit - s.mean) - s.rest) * s.inverse); }
}

@compute @workgroup_size(256)
fn rms_norm(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let n = word(0u);
  let row = group * n;
  var unit = 1.0;
  var square = squares_of(lane, row, n, unit);
  if (by_all(lane, !finite(square))) {
    unit = SMALLER;
    square = squares_of(lane, row, n, unit);
  }
  let scale = 1.0 / sqrt(square / f32(n) + eps_of(param(1u), unit));
  for (var i = lane; i < n; i += 256u) { set_1(row + i, at_0(row + i) * unit * scale); }
}
