// conv_forward.wgsl: y[n, o, pixel] = sum over p = (i, ky, kx) of w[o, p] * x under it. M: O; N: images and pixels; K: I KH KW.
// Arguments: w, x, y, then bias. See conv.wgsl.

fn left_at(o: u32, p: u32) -> f32 { return at_0(o * word(2u) + from_k + p); }
fn right_at(j: u32, p: u32) -> f32 {
  let pixels = word(16u) * word(17u);
  let window = word(18u) * word(19u);
  let i = (from_k + p) / window;
  let k = (from_k + p) % window;
  let found = under(j % pixels / word(17u), j % word(17u), k / word(19u), k % word(19u));
  if (found == ABSENT) { return 0.0; }
  return at_1((j / pixels * word(12u) + i) * word(13u) * word(14u) + found);
}
fn place_of(slot: u32, o: u32, j: u32) -> u32 {
  let pixels = word(16u) * word(17u);
  return slot * word(0u) * word(1u) + (j / pixels * word(15u) + o) * pixels + j % pixels;
}
