// quant.wgsl: numbers of quantised blocks as f32, one at a time: <dtype>(e) is number e of argument 1.
//
// A block holds 32 or 256 neighbours: scales (f16, little-endian) and packed integers. All formats and the order of
// their arithmetic are those of csrc/kernels/quant.h. Every block has an even number of bytes and begins at an even
// one, so a half never crosses a word. Scales are decoded by integer operations: a device may flush small ones otherwise.

fn byte_at(at: u32) -> u32 { return u8_$K(at); }
fn signed_at(at: u32) -> f32 { return f32(bitcast<i32>(u8_$K(at) << 24u) >> 24u); }
fn scale_at(at: u32) -> f32 { return from_f16(half_$K(at >> 1u)); }

// Number i of a block of 32 whose low four bits begin at byte `at`: the first half in the low nibbles.
fn nibble(at: u32, i: u32) -> u32 { return (byte_at(at + (i & 15u)) >> ((i >> 4u) * 4u)) & 15u; }
// The same with a fifth bit each, in the four bytes before.
fn five_bits(at: u32, i: u32) -> f32 {
  let top = (half_$K((at - 4u + ((i >> 4u) * 2u)) >> 1u) >> (i & 15u)) & 1u;
  return f32(nibble(at, i) | (top << 4u));
}
fn q4_0(e: u32) -> f32 {
  let block = (e >> 5u) * 18u;
  return scale_at(block) * (f32(nibble(block + 2u, e & 31u)) - 8.0);
}
fn q4_1(e: u32) -> f32 {
  let block = (e >> 5u) * 20u;
  let product = scale_at(block) * f32(nibble(block + 4u, e & 31u));
  return product + scale_at(block + 2u);
}
fn q5_0(e: u32) -> f32 {
  let block = (e >> 5u) * 22u;
  return scale_at(block) * (five_bits(block + 6u, e & 31u) - 16.0);
}
fn q5_1(e: u32) -> f32 {
  let block = (e >> 5u) * 24u;
  let product = scale_at(block) * five_bits(block + 8u, e & 31u);
  return product + scale_at(block + 2u);
}
fn q8_0(e: u32) -> f32 {
  let block = (e >> 5u) * 34u;
  return scale_at(block) * signed_at(block + 2u + (e & 31u));
}

// Blocks of 256: number i of chunk c of 32. q2_k, q3_k: bits 2 (c % 4) and up of 32 bytes; a scale for 16 numbers.
fn q2_k(e: u32) -> f32 {
  let block = (e >> 8u) * 84u;
  let c = (e >> 5u) & 7u;
  let i = e & 31u;
  let s = byte_at(block + 2u * c + (i >> 4u));
  let q = (byte_at(block + 16u + 32u * (c >> 2u) + i) >> (2u * (c & 3u))) & 3u;
  let product = scale_at(block + 80u) * f32(s & 15u) * f32(q);
  return product - scale_at(block + 82u) * f32(s >> 4u);
}
fn q3_k(e: u32) -> f32 {
  let block = (e >> 8u) * 110u;
  let c = (e >> 5u) & 7u;
  let i = e & 31u;
  let k = 2u * c + (i >> 4u);
  let low = (byte_at(block + 96u + (k & 7u)) >> (4u * (k >> 3u))) & 15u;
  let high = (byte_at(block + 104u + (k & 3u)) >> (2u * (k >> 2u))) & 3u;
  let scale = scale_at(block + 108u) * f32(i32(low | (high << 4u)) - 32);
  let q = (byte_at(block + 32u + 32u * (c >> 2u) + i) >> (2u * (c & 3u))) & 3u;
  let less = select(4, 0, ((byte_at(block + i) >> c) & 1u) == 1u);
  return scale * f32(i32(q) - less);
}
// The six-bit scale and minimum of chunk c of q4_k and q5_k, times those of the block.
fn scale_min(block: u32, c: u32) -> vec2<f32> {
  var scale = 0u;
  var least = 0u;
  if (c < 4u) {
    scale = byte_at(block + 4u + c) & 63u;
    least = byte_at(block + 8u + c) & 63u;
  } else {
    let both = byte_at(block + 8u + c);
    scale = (both & 15u) | ((byte_at(block + c) >> 2u) & 0x30u);
    least = (both >> 4u) | ((byte_at(block + 4u + c) >> 2u) & 0x30u);
  }
  return vec2<f32>(scale_at(block) * f32(scale), scale_at(block + 2u) * f32(least));
}
fn q4_k(e: u32) -> f32 {
  let block = (e >> 8u) * 144u;
  let c = (e >> 5u) & 7u;
  let s = scale_min(block, c);
  let q = (byte_at(block + 16u + 32u * (c >> 1u) + (e & 31u)) >> (4u * (c & 1u))) & 15u;
  return s.x * f32(q) - s.y;
}
fn q5_k(e: u32) -> f32 {
  let block = (e >> 8u) * 176u;
  let c = (e >> 5u) & 7u;
  let i = e & 31u;
  let s = scale_min(block, c);
  let q = (byte_at(block + 48u + 32u * (c >> 1u) + i) >> (4u * (c & 1u))) & 15u;
  let top = (byte_at(block + 16u + i) >> c) & 1u;
  return s.x * f32(q | (top << 4u)) - s.y;
}
fn q6_k(e: u32) -> f32 {
  let block = (e >> 8u) * 210u;
  let c = (e >> 5u) & 7u;
  let i = e & 31u;
  let scale = scale_at(block + 208u) * signed_at(block + 192u + 2u * c + (i >> 4u));
  let q = (byte_at(block + 64u * (c >> 2u) + 32u * (c & 1u) + i) >> (4u * ((c >> 1u) & 1u))) & 15u;
  let top = (byte_at(block + 128u + 32u * (c >> 2u) + i) >> (2u * (c & 3u))) & 3u;
  return scale * f32(i32(q | (top << 4u)) - 32);
}
