// conv_back_weight.wgsl: dw[o, j] of a convolution, j = (i, ky, kx): sum over images and pixels of g * x under it. M: O; N: I KH KW; K:
// images and pixels. Arguments: g, x, dw. See conv.wgsl.

fn left_at(o: u32, p: u32) -> f32 {
  let pixels = word(16u) * word(17u);
  let at = from_k + p;
  return at_0((at / pixels * word(15u) + o) * pixels + at % pixels);
}
fn right_at(j: u32, p: u32) -> f32 {
  let pixels = word(16u) * word(17u);
  let window = word(18u) * word(19u);
  let at = from_k + p;
  let k = j % window;
  let found = under(at % pixels / word(17u), at % word(17u), k / word(19u), k % word(19u));
  if (found == ABSENT) { return 0.0; }
  return at_1((at / pixels * word(12u) + j / window) * word(13u) * word(14u) + found);
}
fn place_of(slot: u32, o: u32, j: u32) -> u32 { return (slot * word(0u) + o) * word(1u) + j; }
