// prelude.wgsl: what every kernel has. The bindings and the accessors of arguments are made by source.py.

const ABSENT = 0xffffffffu;
const RECORD = 24u;  // words of an argument: slot dtype rank size word byte dense 0, shape[6], strides[6], 0 0 0 0
const STOP_GUARD = 1u;
const STOP_INDEX = 2u;
const STOP_NONFINITE = 3u;

fn word(i: u32) -> u32 { return call.words[i / 4u][i % 4u]; }
fn param(i: u32) -> f32 { return bitcast<f32>(word(i)); }

fn group_of(wid: vec3<u32>, nwg: vec3<u32>) -> u32 { return wid.y * nwg.x + wid.x; }

fn rank(k: u32) -> u32 { return tape[call.args + k * RECORD + 2u]; }
fn dim(k: u32, axis: u32) -> u32 { return tape[call.args + k * RECORD + 8u + axis]; }
fn stride(k: u32, axis: u32) -> u32 { return tape[call.args + k * RECORD + 14u + axis]; }

// Element offset of the index-th element of argument k.
fn offset(k: u32, index: u32) -> u32 {
  let r = call.args + k * RECORD;
  if (tape[r + 6u] != 0u) { return index; }
  var rest = index;
  var at = 0u;
  for (var axis = tape[r + 2u]; axis > 0u; axis--) {
    let n = tape[r + 7u + axis];
    let next = rest / n;
    at += (rest - next * n) * tape[r + 13u + axis];
    rest = next;
  }
  return at;
}

// ---- the run's status: words 0 to 4 of `fixed` are code, node, index, value low, value high ----------------

fn stopped() -> bool { return fixed[0] != 0u; }
fn fail(code: u32, index: u32, low: u32, high: u32) {
  if (fixed[0] == 0u) {
    fixed[1] = call.node;
    fixed[2] = index;
    fixed[3] = low;
    fixed[4] = high;
    fixed[0] = code;
  }
}

// ---- numbers by their bits: a compiler may assume that NaN and infinity do not occur -------------------------------------

// x, through an operation that a compiler cannot see through: without it, sums and products are put in another order.
fn keep(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ call.zero); }

fn finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn infinity() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn nan() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }

fn from_bf16(half: u32) -> f32 { return bitcast<f32>(half << 16u); }
fn bf16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return (bits >> 16u) | 0x40u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
fn from_f16(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let power = (half >> 10u) & 31u;
  let mantissa = half & 0x3ffu;
  if (power == 31u) { return bitcast<f32>(sign | 0x7f800000u | (mantissa << 13u)); }
  if (power != 0u) { return bitcast<f32>(sign | ((power + 112u) << 23u) | (mantissa << 13u)); }
  let tiny = f32(mantissa) * 5.9604644775390625e-8;  // 2^-24
  return bitcast<f32>(sign | bitcast<u32>(tiny));
}
fn f16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }  // 65520 and above
  if (size >= 0x38800000u) {  // 2^-14 and above
    let round = size + 0xfffu + ((size >> 13u) & 1u);
    return sign | ((round - 0x38000000u) >> 13u);
  }
  if (size < 0x33000000u) { return sign; }  // below 2^-25
  let shift = 126u - (size >> 23u);  // of the mantissa with its leading 1; 14 .. 24
  let mantissa = (size & 0x7fffffu) | 0x800000u;
  let kept = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  return sign | (kept + select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u)));
}

// A double's bits (low, high) as f32, rounded to nearest even; denormal results too.
fn from_f64(v: vec2<u32>) -> f32 {
  let sign = v.y & 0x80000000u;
  let power = i32((v.y >> 20u) & 0x7ffu) - 1023;
  if (power == 1024) {
    let some = (v.y & 0xfffffu) | v.x;
    return bitcast<f32>(sign | select(0x7f800000u, 0x7fc00000u, some != 0u));
  }
  if (power < -150) { return bitcast<f32>(sign); }
  if (power > 127) { return bitcast<f32>(sign | 0x7f800000u); }
  var mantissa = 0x800000u | ((v.y & 0xfffffu) << 3u) | (v.x >> 29u);  // 24 bits
  var lost = v.x & 0x1fffffffu;  // 29 bits behind them
  var shift = 0u;
  if (power < -126) { shift = u32(-126 - power); }
  var half = 0x10000000u;
  if (shift > 0u) {
    let sticky = select(0u, 1u, lost != 0u);
    lost = ((mantissa & ((1u << shift) - 1u)) << 1u) | sticky;
    half = 1u << shift;
    mantissa = mantissa >> shift;
  }
  if (lost > half || (lost == half && (mantissa & 1u) == 1u)) { mantissa++; }
  if (shift > 0u) { return bitcast<f32>(sign | mantissa); }
  return bitcast<f32>(sign | ((u32(power + 126) << 23u) + mantissa));
}

// A signed whole number of 64 bits as i32: the nearest one where it does not fit.
fn saturated(v: vec2<u32>) -> i32 {
  let low = bitcast<i32>(v.x);
  let negative = (v.y & 0x80000000u) != 0u;
  let fits = v.y == select(0u, 0xffffffffu, low < 0);
  return select(bitcast<i32>(select(0x7fffffffu, 0x80000000u, negative)), low, fits);
}

// A signed whole number of 64 bits as f32, rounded to nearest even.
fn from_i64(v: vec2<u32>) -> f32 {
  let negative = (v.y & 0x80000000u) != 0u;
  var low = v.x;
  var high = v.y;
  if (negative) {
    low = ~low + 1u;
    high = ~high + select(0u, 1u, low == 0u);
  }
  var value = 0.0;
  if (high == 0u) {
    value = from_u32(low, 0u, 0);
  } else {
    let zeros = countLeadingZeros(high);
    var top = high;
    var rest = low;
    if (zeros > 0u) {
      top = (high << zeros) | (low >> (32u - zeros));
      rest = low << zeros;
    }
    value = from_u32(top, rest, 32 - i32(zeros));
  }
  return select(value, -value, negative);
}
// (top + sticky bits below it) 2^power, rounded to nearest even.
fn from_u32(top: u32, sticky: u32, power: i32) -> f32 {
  if (top == 0u) { return 0.0; }
  let zeros = countLeadingZeros(top);
  let bits = top << zeros;
  var mantissa = bits >> 8u;
  let rest = bits & 0xffu;
  if (rest > 128u || (rest == 128u && (sticky != 0u || (mantissa & 1u) == 1u))) { mantissa++; }
  let biased = u32(158 + power - i32(zeros));
  return bitcast<f32>(((biased - 1u) << 23u) + mantissa);
}

// high word of a 32 by 32 bit product
fn mul_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let mid2 = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (mid2 >> 16u);
}

// a / b, rounded as the division of whole numbers is: adapters may divide to 2.5 units only.
fn divided(a: f32, b: f32) -> f32 {
  let q = keep(a / b);
  let r = q + fma(-q, b, a) / b;
  return select(q, r, finite(r));
}

// The larger of two; NaN where one is NaN.
fn larger(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return a; }
  if (is_nan(b)) { return b; }
  return select(b, a, a > b);
}
fn smaller(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return a; }
  if (is_nan(b)) { return b; }
  return select(b, a, a < b);
}

fn relu(x: f32) -> f32 { return select(x, 0.0, x < 0.0); }  // NaN stays

// A whole number as f32, rounded to nearest even.
fn whole(x: i32) -> f32 {
  let v = bitcast<u32>(x);
  return from_i64(vec2<u32>(v, select(0u, 0xffffffffu, x < 0)));
}
