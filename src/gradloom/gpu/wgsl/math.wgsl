// math.wgsl: elementary functions on f32, by the polynomials of csrc/simd/math.h; NaN and infinity are told by their bits,
// and `keep` holds what a compiler may not put in another order.

fn scale_pow2(p: f32, n: i32) -> f32 {  // p 2^n for whole n in [-252, 254]
  let half = n >> 1u;
  return p * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}

// e^r 2^n for |r| <= ln(2) / 2 and whole n
fn exp_near(r: f32, n: f32) -> f32 {
  var q = 1.382064307e-3;
  q = fma(q, r, 8.369827643e-3);
  q = fma(q, r, 4.166829959e-2);
  q = fma(q, r, 1.666651219e-1);
  q = fma(q, r, 4.999999404e-1);
  return scale_pow2(fma(r * r, q, r) + 1.0, i32(n));
}

fn exp_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (bitcast<u32>(x) == 0x7f800000u || x > 88.8) { return infinity(); }
  if (x < -104.0) { return 0.0; }
  let n = round(x * 1.44269504);
  var r = keep(fma(n, -6.93359375e-1, x));
  r = fma(n, 2.12194440e-4, r);
  return exp_near(r, n);
}

fn exp2_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (bitcast<u32>(x) == 0x7f800000u || x >= 128.0) { return infinity(); }
  if (x < -151.0) { return 0.0; }
  let n = round(x);
  let r = (x - n) * 6.93147182e-1;  // 0 at whole numbers
  return exp_near(r, n);
}

fn expm1_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (bitcast<u32>(x) == 0x7f800000u || x > 88.8) { return infinity(); }
  if (x < -25.0) { return -1.0; }
  if (abs(x) < 1e-8) { return x; }
  let n = round(x * 1.44269504);
  var r = keep(fma(n, -6.93359375e-1, x));
  r = fma(n, 2.12194440e-4, r);
  var q = 1.977130305e-4;
  q = fma(q, r, 1.393412473e-3);
  q = fma(q, r, 8.333537728e-3);
  q = fma(q, r, 4.166647792e-2);
  q = fma(q, r, 1.666666567e-1);
  q = fma(q, r, 5.000000000e-1);
  let p = fma(r * r, q, r);
  let s = scale_pow2(0.5, i32(n));
  return (s * p + (s - 0.5)) * 2.0;
}

// log(1 + f) + e ln 2 + low, f in [sqrt(1/2) - 1, sqrt(2) - 1]
fn log_sum(f: f32, e: f32, low: f32) -> f32 {
  var q = 6.750956178e-2;
  q = fma(q, f, -1.167144924e-1);
  q = fma(q, f, 1.188356802e-1);
  q = fma(q, f, -1.240603179e-1);
  q = fma(q, f, 1.422032714e-1);
  q = fma(q, f, -1.666799635e-1);
  q = fma(q, f, 2.000207305e-1);
  q = fma(q, f, -2.500000894e-1);
  q = fma(q, f, 3.333331347e-1);
  let f2 = f * f;
  var y = fma(e, -2.12194440e-4, f2 * f * q);
  y = fma(f2, -0.5, y) + low;
  return fma(e, 6.93359375e-1, keep(f + y));
}

// x = m 2^e, sqrt(1/2) <= m < sqrt(2), of the bits of a positive normal x: (m, e)
fn log_parts(bits: u32) -> vec2<f32> {
  let moved = bits + 0x3f800000u - 0x3f3504f3u;
  return vec2<f32>(bitcast<f32>((moved & 0x7fffffu) + 0x3f3504f3u), f32(i32(moved >> 23u) - 127));
}

fn log_(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) == 0u) { return -infinity(); }
  if (is_nan(x) || bits == 0x7f800000u) { return x; }
  if ((bits & 0x80000000u) != 0u) { return nan(); }
  if (bits < 0x800000u) {  // a denormal: whole times 2^-149
    let p = log_parts(bitcast<u32>(f32(bits)));
    return log_sum(p.x - 1.0, p.y - 149.0, 0.0);
  }
  let p = log_parts(bits);
  return log_sum(p.x - 1.0, p.y, 0.0);
}

fn log1p_(x: f32) -> f32 {
  if (is_nan(x) || bitcast<u32>(x) == 0x7f800000u) { return x; }
  if (x == -1.0) { return -infinity(); }
  if (x < -1.0) { return nan(); }
  if (abs(x) < 1e-8) { return x; }
  let u = keep(1.0 + x);
  var lost = x - keep(u - 1.0);
  if (x > 1.0) { lost = 1.0 - keep(u - x); }
  let p = log_parts(bitcast<u32>(u));
  if (p.y == 0.0) { return log_sum(x, 0.0, 0.0); }
  var low = 0.0;
  if (p.y < 100.0) { low = lost * bitcast<f32>(u32(127 - i32(p.y)) << 23u) * (2.0 - p.x); }
  return log_sum(p.x - 1.0, p.y, low);
}

// ---- sin, cos ----------------------------------------------------------------------------------------------------------

struct Angle { r: f32, n: i32 }

// 32 bits of 2/pi that begin 8 i bits behind the point, less 24
fn two_over_pi(i: u32) -> u32 {
  switch (i) {
    case 0u: { return 0xa2u; } case 1u: { return 0xa2f9u; } case 2u: { return 0xa2f983u; }
    case 3u: { return 0xa2f9836eu; } case 4u: { return 0xf9836e4eu; } case 5u: { return 0x836e4e44u; }
    case 6u: { return 0x6e4e4415u; } case 7u: { return 0x4e441529u; } case 8u: { return 0x441529fcu; }
    case 9u: { return 0x1529fc27u; } case 10u: { return 0x29fc2757u; } case 11u: { return 0xfc2757d1u; }
    case 12u: { return 0x2757d1f5u; } case 13u: { return 0x57d1f534u; } case 14u: { return 0xd1f534ddu; }
    case 15u: { return 0xf534ddc0u; } case 16u: { return 0x34ddc0dbu; } case 17u: { return 0xddc0db62u; }
    case 18u: { return 0xc0db6295u; } case 19u: { return 0xdb629599u; } case 20u: { return 0x6295993cu; }
    case 21u: { return 0x95993c43u; } case 22u: { return 0x993c4390u; } default: { return 0x3c439041u; }
  }
}

// |x| >= 4: the 24 bits of x times the window of 2/pi that matters for its exponent; 64-bit sums in pairs of words
fn angle_large(x: f32) -> Angle {
  let bits = bitcast<u32>(x);
  let at = (bits >> 26u) & 15u;
  let m = ((bits & 0xffffffu) | 0x800000u) << ((bits >> 23u) & 7u);
  let middle = two_over_pi(at + 4u);
  var low = mul_high(m, two_over_pi(at + 8u));
  var high = m * two_over_pi(at);
  let add = m * middle;
  low = low + add;
  high = high + mul_high(m, middle) + select(0u, 1u, low < add);
  // in units of 2^-62 quarter turns: the nearest quarter, and what is left as a signed pair
  let n = ((high + 0x20000000u) >> 30u) & 3u;
  high = high - (n << 30u);
  let negative = (high & 0x80000000u) != 0u;
  if (negative) {
    low = ~low + 1u;
    high = ~high + select(0u, 1u, low == 0u);
  }
  // the largest 32 bits as f32: the rest is below its rounding
  var value = 0.0;
  if (high != 0u || low != 0u) {
    let zeros = select(countLeadingZeros(high), 32u + countLeadingZeros(low), high == 0u);
    var top = high;
    if (zeros >= 32u) { top = low << (zeros - 32u); }
    else if (zeros > 0u) { top = (high << zeros) | (low >> (32u - zeros)); }
    value = f32(top) * bitcast<f32>((127u - 30u - zeros) << 23u) * 1.57079632679;  // top 2^(32 - zeros) 2^-62
  }
  if (negative) { value = -value; }
  if ((bits & 0x80000000u) != 0u) { return Angle(-value, i32(4u - n)); }
  return Angle(value, i32(n));
}

fn angle(x: f32) -> Angle {
  if (abs(x) >= 8192.0) { return angle_large(x); }
  let n = round(x * 6.36619747e-1);
  var r = keep(fma(n, -1.5703125, x));
  r = keep(fma(n, -4.837512969970703125e-4, r));
  r = keep(fma(n, -7.54953362047672271729e-8, r));
  r = fma(n, -2.56334406825708960298e-12, r);
  return Angle(r, i32(n));
}

fn trig_value(r: f32, n: i32) -> f32 {
  let z = r * r;
  var y = 0.0;
  if ((n & 1) == 0) {
    y = fma(z * r, fma(fma(-1.950805890e-4, z, 8.332107216e-3), z, -1.666665375e-1), r);
  } else {
    y = fma(z * z, fma(fma(2.443008816e-5, z, -1.388729783e-3), z, 4.166664556e-2), fma(z, -0.5, 1.0));
  }
  return select(y, -y, (n & 2) != 0);
}
fn sin_(x: f32) -> f32 {
  if (!finite(x)) { return nan(); }
  if (x == 0.0) { return x; }
  let a = angle(x);
  return trig_value(a.r, a.n);
}
fn cos_(x: f32) -> f32 {
  if (!finite(x)) { return nan(); }
  let a = angle(x);
  return trig_value(a.r, a.n + 1);
}

// ---- what is made of these ---------------------------------------------------------------------------------------------

fn signed(size: f32, sign: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(size) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
fn tanh_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let m = expm1_(2.0 * min(abs(x), 15.0));
  return signed(m / (m + 2.0), x);
}
fn sigmoid_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let e = exp_(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}
fn softplus_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  return max(x, 0.0) + log1p_(exp_(-abs(x)));
}
// (1 + tanh(u)) / 2 = sigmoid(2u); here 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
fn gelu_2u(x: f32) -> f32 { return x * fma(x * x, 0.0713548163, 1.59576912); }
// x (2u)'(x); beyond the bound, where x^3 would pass f32, it is multiplied by 0
fn gelu_x_slope(x: f32) -> f32 {
  let y = clamp(x, -1e6, 1e6);
  return y * fma(y * y, 0.214064449, 1.59576912);
}
fn erf_near(x: f32) -> f32 {  // |x| < 1
  let z = x * x;
  var q = 7.806903159e-5;
  q = fma(q, z, -7.997853099e-4);
  q = fma(q, z, 5.187162198e-3);
  q = fma(q, z, -2.685334720e-2);
  q = fma(q, z, 1.128357872e-1);
  q = fma(q, z, -3.761262596e-1);
  q = fma(q, z, 1.283791661e-1);
  return fma(q, x, x);
}
fn erf_rest(x: f32) -> f32 {  // 1 - erf(|x|) for |x| >= 1
  let t = min(abs(x), 10.2);
  var p = -1.395859726e-5;
  p = fma(p, t, 3.505552013e-4);
  p = fma(p, t, -3.757333383e-3);
  p = fma(p, t, 2.400977910e-2);
  p = fma(p, t, -1.065305471e-1);
  p = fma(p, t, -6.349697113e-1);
  p = fma(p, t, -1.128694296e+0);
  return exp_(t * p);
}
fn erf_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (abs(x) < 1.0) { return erf_near(x); }
  return signed(1.0 - erf_rest(x), x);
}
fn normal_cdf_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let t = x * 7.07106781e-1;
  if (abs(t) < 1.0) { return fma(0.5, erf_near(t), 0.5); }
  let far = 0.5 * erf_rest(t);
  return select(1.0 - far, far, x < 0.0);
}
fn normal_density_(x: f32) -> f32 { return 3.98942280e-1 * exp_(-0.5 * x * x); }

// |x| modulo |y| with the sign of x, in whole numbers and so exact: of mantissas, 8 bits of the quotient at a time. Then
// what NumPy's mod does: the sign of y.
fn remainder_(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return nan(); }
  var m = a;
  if (b < 0x7f800000u && a >= b) {
    let e = max(b >> 23u, 1u);
    let size = (b & 0x7fffffu) | select(0u, 0x800000u, b >= 0x800000u);
    m = ((a & 0x7fffffu) | select(0u, 0x800000u, a >= 0x800000u)) % size;
    var n = max(a >> 23u, 1u) - e;
    while (n > 0u) {
      let step = min(n, 8u);
      m = (m << step) % size;
      n -= step;
    }
    if (m != 0u) {
      let up = min(countLeadingZeros(m) - 8u, e - 1u);  // to 24 bits, or a denormal number
      m = m << up;
      if (m >= 0x800000u) { m = (m & 0x7fffffu) | ((e - up) << 23u); }
    }
  }
  let sign = bitcast<u32>(y) & 0x80000000u;
  if (m == 0u) { return bitcast<f32>(sign); }
  let r = bitcast<f32>(m | (bitcast<u32>(x) & 0x80000000u));
  if ((bitcast<u32>(x) & 0x80000000u) != sign) { return r + y; }
  return r;
}

// x^y. log2 |x| = e + l, so that y e, which may be large, is split into its whole part and the rest without loss.
fn pow_(x: f32, y: f32) -> f32 {
  if (x == 1.0 || y == 0.0) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return nan(); }
  let size = abs(x);
  let endless = !finite(y);
  if (endless && size == 1.0) { return 1.0; }
  let whole = endless || floor(y) == y;
  let half = 0.5 * y;
  let odd = !endless && whole && floor(half) != half;
  let minus = (bitcast<u32>(x) & 0x80000000u) != 0u;
  if (x < 0.0 && !whole && finite(x)) { return nan(); }
  var r = 0.0;
  let bits = bitcast<u32>(size);
  let up = (bitcast<u32>(y) & 0x80000000u) == 0u;
  if (bits == 0u || bits == 0x7f800000u || endless) {
    let grows = select(size > 1.0, bits != 0u, bits == 0u || bits == 0x7f800000u) == up;
    if (grows) { r = infinity(); }
  } else {
    var p = log_parts(bits);
    if (bits < 0x800000u) {
      p = log_parts(bitcast<u32>(f32(bits)));
      p.y -= 149.0;
    }
    // log2 m = 2 / ln 2 artanh(s), s = (m - 1) / (m + 1), as a sum of two numbers
    let s = (p.x - 1.0) / (p.x + 1.0);
    let left = fma(-keep(s), p.x + 1.0, p.x - 1.0) / (p.x + 1.0);
    let z = s * s;
    let a = fma(fma(fma(fma(fma(1.0 / 11.0, z, 1.0 / 9.0), z, 1.0 / 7.0), z, 0.2), z, 1.0 / 3.0), z, 0.0);
    let l = keep(2.885390043 * s);
    let l_low = fma(2.885390043, s, -l) + 2.88539008 * fma(s, a, left) + 3.9e-8 * s;
    let whole_part = y * p.y;
    let product = keep(y * l);
    let sum = whole_part + product;
    if (sum > 200.0) { r = infinity(); }
    else if (sum > -200.0) {
      let n = round(sum);
      var f = keep(fma(y, p.y, -n)) + product;
      f = keep(f) + (fma(y, l, -product) + y * l_low);
      r = scale_pow2(exp_(f * 0.693147181), i32(n));
    }
  }
  return select(r, -r, minus && odd);
}
