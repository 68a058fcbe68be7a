// norm_back.wgsl: the gradients of layer_norm and rms_norm, a workgroup per row; in place as in norm.wgsl.
// Arguments: g, x, dx. Words: the row's width, eps.

fn stats_of(lane: u32, row: u32, n: u32, unit: f32) -> Stats {
  var sum = 0.0;
  for (var i = lane; i < n; i += 256u) { sum += at_1(row + i) * unit; }
  let mean = sum_256(lane, sum) / f32(n);
  var sums = vec2<f32>(0.0, 0.0);
  for (var i = lane; i < n; i += 256u) { sums = about(sums, at_1(row + i) * unit, mean); }
  return stats(lane, sums, mean, f32(n), eps_of(param(1u), unit));
}

// sums of x * x and of g * x
fn sums_of(lane: u32, row: u32, n: u32, unit: f32) -> vec2<f32> {
  var square = 0.0;
  var product = 0.0;
  for (var i = lane; i < n; i += 256u) {
    let x = at_1(row + i) * unit;
    square = fma(x, x, square);
    product = fma(at_0(row + i), x, product);
  }
  return vec2<f32>(sum_256(lane, square), sum_256(lane, product));
}

// dx = (g - mean(g) - h * mean(g * h)) / sqrt(var + eps), h = the normalised x
@compute @workgroup_size(256)
fn layer_norm_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
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
  var a = 0.0;
  var b = 0.0;
  for (var i = lane; i < n; i += 256u) {
    let g = at_0(row + i);
    a += g;
    b = fma(g, (at_1(row + i) * unit - s.mean) - s.rest, b);
  }
  let mean_g = sum_256(lane, a) / f32(n);
  let mean_gh = sum_256(lane, b) / f32(n) * s.inverse;
  for (var i = lane; i < n; i += 256u) {
    let h = ((at_1(row + i) * unit - s.mean) - s.rest) * s.inverse;
    set_2(row + i, fma(-h, mean_gh, at_0(row + i) - mean_g) * s.inverse * unit);
  }
}

// dx = (g - h * mean(g * h)) / sqrt(mean(x * x) + eps), h = the normalised x
@compute @workgroup_size(256)
fn rms_norm_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let n = word(0u);
  let row = group * n;
  var unit = 1.0;
  var sums = sums_of(lane, row, n, unit);
  if (by_all(lane, !finite(sums.x))) {
    unit = SMALLER;
    sums = sums_of(lane, row, n, unit);
  }
  let scale = 1.0 / sqrt(sums.x / f32(n) + eps_of(param(1u), unit));
  let pull = sums.y / f32(n) * scale * scale;
  for (var i = lane; i < n; i += 256u) { set_2(row + i, fma(-at_1(row + i) * unit, pull, at_0(row + i)) * scale * unit); }
}
