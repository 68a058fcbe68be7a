// rope.wgsl: rotary positions: a thread per token and pair of dimensions, for all heads.
//
// An angle is position * frequency; only the part of a revolution that is left counts. It is found in whole numbers: the
// frequency in revolutions, its fraction as 64 bits (128 bits of product with 1 / 2 pi), times the position modulo 2^64. So
// the angle is as exact as with double precision, on every device.
//
// Arguments: x, positions, frequencies, y. Words: heads, D, pairs n, 1 for pairs (i, i + n) or 0 for (2i, 2i + 1), 1 for the
// inverse, scale.

// The fraction of |frequency| / 2 pi as (low, high) of 64 bits.
fn revolutions(frequency: f32) -> vec2<u32> {
  let bits = bitcast<u32>(frequency);
  let power = i32((bits >> 23u) & 255u);
  if (power == 0) { return vec2<u32>(0u, 0u); }
  let m = (bits & 0x7fffffu) | 0x800000u;  // frequency = m 2^(power - 150)
  // m / 2 pi in units of 2^-96, four words: 1 / 2 pi = 0.28be60db 9391054a 7f09d5f4
  var p = array<u32, 6>(m * 0x7f09d5f4u, 0u, 0u, 0u, 0u, 0u);
  let low = mul_high(m, 0x7f09d5f4u);
  let b = m * 0x9391054au;
  p[1] = low + b;
  let carry = select(0u, 1u, p[1] < low);
  let middle = mul_high(m, 0x9391054au) + carry;
  let c = m * 0x28be60dbu;
  p[2] = middle + c;
  p[3] = mul_high(m, 0x28be60dbu) + select(0u, 1u, p[2] < middle);
  // times 2^(power - 150) in units of 2^-64
  let down = 182 - power;
  if (down < 0 || down >= 128) { return vec2<u32>(0u, 0u); }
  let words = u32(down) / 32u;
  let part = u32(down) % 32u;
  if (part == 0u) { return vec2<u32>(p[words], p[words + 1u]); }
  return vec2<u32>(
    (p[words] >> part) | (p[words + 1u] << (32u - part)), (p[words + 1u] >> part) | (p[words + 2u] << (32u - part)));
}

@compute @workgroup_size(256)
fn rope(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let heads = word(0u);
  let d = word(1u);
  let n = word(2u);
  let own = d - n;  // pairs, and the dimensions that are copied
  let i = group_of(wid, nwg) * 256u + lane;
  let token = i / own;
  let pair = i % own;
  if (token >= size_1()) { return; }
  if (pair >= n) {
    for (var h = 0u; h < heads; h++) {
      let at = (token * heads + h) * d + n + pair;
      set_3(at, at_0(at));
    }
    return;
  }
  let frequency = at_2(pair);
  let position = at_1(token);
  let f = revolutions(frequency);
  let steps = u32(abs(position));
  let turn = mul_high(f.x, steps) + f.y * steps;  // the fraction of a revolution in units of 2^-32
  let quarter = (turn + 0x20000000u) >> 30u;
  let r = f32(bitcast<i32>(turn - (quarter << 30u))) * 1.4629180792671596e-9;  // 2 pi / 2^32
  let c = trig_value(r, i32(quarter) + 1) * param(5u);
  var s = trig_value(r, i32(quarter)) * param(5u);
  if (((position < 0) != (frequency < 0.0)) != (word(4u) == 1u)) { s = -s; }
  let first = select(2u * pair, pair, word(3u) == 1u);
  let second = select(2u * pair + 1u, pair + n, word(3u) == 1u);
  for (var h = 0u; h < heads; h++) {
    let at = (token * heads + h) * d;
    let a = at_0(at + first);
    let b = at_0(at + second);
    set_3(at + first, a * c - b * s);
    set_3(at + second, a * s + b * c);
  }
}
