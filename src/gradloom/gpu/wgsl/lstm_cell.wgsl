// lstm_cell.wgsl: the elementwise part of a step of an LSTM, an element of [N, H] per thread. Its four gates are `width`
// apart in rows of 4 width; all that it needs is read before it writes: outputs may lie in inputs.
// Arguments: x, h, c, y, c_new, gates. word 0: width.
@compute @workgroup_size(256)
fn cell(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let e = group_of(wid, nwg) * 256u + lane;
  if (e >= size_2()) { return; }
  let width = word(0u);
  let at = e / width * 4u * width + e % width;
  let i = sigmoid_(at_0(offset(0u, at)) + at_1(offset(1u, at)));
  let f = sigmoid_(at_0(offset(0u, at + width)) + at_1(offset(1u, at + width)));
  let g = tanh_(at_0(offset(0u, at + 2u * width)) + at_1(offset(1u, at + 2u * width)));
  let o = sigmoid_(at_0(offset(0u, at + 3u * width)) + at_1(offset(1u, at + 3u * width)));
  let c = f * at_2(offset(2u, e)) + i * g;
  set_3(e, o * tanh_(c));
  set_4(e, c);
  set_5(at, i);
  set_5(at + width, f);
  set_5(at + 2u * width, g);
  set_5(at + 3u * width, o);
}
