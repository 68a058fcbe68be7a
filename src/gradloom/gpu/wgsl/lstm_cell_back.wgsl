// lstm_cell_back.wgsl: the gradient of lstm_cell, an element of [N, H] per thread, as there.
// Arguments: g, g_c, gates, c, c_new, dx, dc. word 0: width.
@compute @workgroup_size(256)
fn cell_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
  let e = group_of(wid, nwg) * 256u + lane;
  if (e >= size_3()) { return; }
  let width = word(0u);
  let at = e / width * 4u * width + e % width;
  let i = at_2(offset(2u, at));
  let f = at_2(offset(2u, at + width));
  let n = at_2(offset(2u, at + 2u * width));
  let o = at_2(offset(2u, at + 3u * width));
  let g = at_0(offset(0u, e));
  let old = at_3(offset(3u, e));
  let t = tanh_(at_4(offset(4u, e)));
  let d = at_1(offset(1u, e)) + g * o * ((1.0 - t) * (1.0 + t));
  set_5(at, d * n * (i * (1.0 - i)));
  set_5(at + width, d * old * (f * (1.0 - f)));
  set_5(at + 2u * width, d * i * ((1.0 - n) * (1.0 + n)));
  set_5(at + 3u * width, g * t * (o * (1.0 - o)));
  set_6(e, d * f);
}
