// conv.wgsl: convolutions of images [N, I, H, W] with [O, I, KH, KW] as products of matmul.wgsl, all dense: one operand is gathered from
// the images as it is read, never written (im2col). Words behind the first 12: I H W, O OH OW, KH KW, strides, padding, dilation, N.
var<private> from_k: u32;

fn begin(matrix: u32, first: u32) { from_k = first; }

// The number of x under element (ky, kx) of the window at (oy, ox): its place in an image of H x W, or ABSENT in the padding.
fn under(oy: u32, ox: u32, ky: u32, kx: u32) -> u32 {
  let y = oy * word(20u) + ky * word(24u);
  let x = ox * word(21u) + kx * word(25u);
  if (y < word(22u) || x < word(23u) || y - word(22u) >= word(13u) || x - word(23u) >= word(14u)) { return ABSENT; }
  return (y - word(22u)) * word(14u) + x - word(23u);
}
