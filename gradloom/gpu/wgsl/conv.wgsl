// conv.wgsl: convolution of images [N, I, H, W] with [O, I, KH, KW], a thread per number of the result; all dense.
// Words: I H W, O OH OW, KH KW, strides, padding, dilation.

// The number of x under element (ky, kx) of the window at (oy, ox): its place in an image of H x W, or ABSENT in the padding.
fn under(oy: u32, ox: u32, ky: u32, kx: u32) -> u32 {
  let y = oy * word(8u) + ky * word(12u);
  let x = ox * word(9u) + kx * word(13u);
  if (y < word(10u) || x < word(11u) || y - word(10u) >= word(1u) || x - word(11u) >= word(2u)) { return ABSENT; }
  return (y - word(10u)) * word(2u) + x - word(11u);
}
