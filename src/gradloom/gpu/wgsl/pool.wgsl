// pool.wgsl: pooling of images [N, C, H, W]. Words: H W, OH OW, KH KW, strides, padding.

// The place in its image of the number under element (ky, kx) of the window at (oy, ox), or ABSENT in the padding.
fn under(oy: u32, ox: u32, ky: u32, kx: u32) -> u32 {
  let y = oy * word(6u) + ky;
  let x = ox * word(7u) + kx;
  if (y < word(8u) || x < word(9u) || y - word(8u) >= word(0u) || x - word(9u) >= word(1u)) { return ABSENT; }
  return (y - word(8u)) * word(1u) + x - word(9u);
}
// Along one axis, place `at` of the padded image: the window that has it at element k, or ABSENT.
fn window(at: u32, k: u32, stride: u32, count: u32) -> u32 {
  if (k > at || (at - k) % stride != 0u || (at - k) / stride >= count) { return ABSENT; }
  return (at - k) / stride;
}
