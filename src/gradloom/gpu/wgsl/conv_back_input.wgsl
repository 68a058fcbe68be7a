// conv_back_input.wgsl: dx of a convolution. The numbers of x whose place, the padding before it, leaves the same rest when it is
// divided by the stride, lie under the same elements of the window: they are one product. M: I; N: images, rows and columns of x
// with this rest; K: O, elements of the window.
// Arguments: w, g, dx. Words behind those of conv.wgsl, each down and across: how many such places, the first one; elements of the
// window, the first one, from one to the next; the place in g of the first of both, and how much it falls from one element to the next.

fn left_at(i: u32, p: u32) -> f32 {
  let window = word(31u) * word(32u);
  let k = (from_k + p) % window;
  let ky = word(33u) + k / word(32u) * word(35u);
  let kx = word(34u) + k % word(32u) * word(36u);
  return at_0((((from_k + p) / window * word(12u) + i) * word(18u) + ky) * word(19u) + kx);
}
fn right_at(j: u32, p: u32) -> f32 {
  let window = word(31u) * word(32u);
  let places = word(27u) * word(28u);
  let k = (from_k + p) % window;
  let oy = word(37u) + j % places / word(28u) - k / word(32u) * word(39u);  // below 0: a large number
  let ox = word(38u) + j % word(28u) - k % word(32u) * word(40u);
  if (oy >= word(16u) || ox >= word(17u)) { return 0.0; }
  return at_1(((j / places * word(15u) + (from_k + p) / window) * word(16u) + oy) * word(17u) + ox);
}
fn place_of(slot: u32, i: u32, j: u32) -> u32 {
  let places = word(27u) * word(28u);
  let y = word(29u) + j % places / word(28u) * word(20u);
  let x = word(30u) + j % word(28u) * word(21u);
  let numbers = word(26u) * word(12u) * word(13u) * word(14u);
  return slot * numbers + ((j / places * word(12u) + i) * word(13u) + y) * word(14u) + x;
}
