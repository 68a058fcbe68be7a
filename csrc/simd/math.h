// math.h: elementary functions on Vec<float>, to about 2 units in the last place, with NumPy's answers at inf, NaN,
// signed zeros and denormals. Polynomials are minimax fits of our own; each says over which interval.
#pragma once
#include "simd.h"

namespace gradloom::GL_ISA {

// c0 + x (c1 + x (c2 + ...))
template <class... C> inline F horner(F x, float c0, C... rest) {
  if constexpr (sizeof...(rest) == 0) return F::set1(c0);
  else return mul_add(horner(x, rest...), x, F::set1(c0));
}

// NaN passes through.
inline F clamp(F x, float low, float high) {
  const F l = F::set1(low), h = F::set1(high);
  return select(lt(x, l), l, select(gt(x, h), h, x));
}

// p * 2^n for whole n in [-252, 254], rounded once.
inline F scale_pow2(F p, F n) {
#if defined(GL_ISA_AVX512)
  return {_mm512_scalef_ps(p.v, n.v)};
#else
  const I i = to_i32(n), half = i >> 1, bias = I::set1(127);
  return p * from_int_bits((half + bias) << 23) * from_int_bits((i - half + bias) << 23);
#endif
}

// x = n ln 2 + r with |r| <= ln 2 / 2. The high part of ln 2 has few bits, so that n times it is exact.
struct ExpParts { F n, r; };
inline ExpParts exp_reduce(F x) {
  const F n = round(x * F::set1(1.44269504e+00f));
  F r = mul_add(n, F::set1(-6.93359375e-01f), x);
  r = mul_add(n, F::set1(2.12194440e-04f), r);
  return {n, r};
}

inline F exp(F x) {
  const ExpParts e = exp_reduce(clamp(x, -104.0f, 89.0f));
  const F q = horner(e.r, 4.999999404e-01f, 1.666651219e-01f, 4.166829959e-02f, 8.369827643e-03f, 1.382064307e-03f);
  return scale_pow2(mul_add(e.r * e.r, q, e.r) + F::set1(1.0f), e.n);  // q on |r| <= 0.36
}

inline F exp2(F x) {
  const F y = clamp(x, -151.0f, 129.0f), n = round(y), r = (y - n) * F::set1(6.93147182e-01f);  // r is 0 at whole numbers
  const F q = horner(r, 4.999999404e-01f, 1.666651219e-01f, 4.166829959e-02f, 8.369827643e-03f, 1.382064307e-03f);
  return scale_pow2(mul_add(r * r, q, r) + F::set1(1.0f), n);
}

inline F expm1(F x) {
  const ExpParts e = exp_reduce(clamp(x, -25.0f, 89.0f));
  const F q = horner(e.r, 5.000000000e-01f, 1.666666567e-01f, 4.166647792e-02f, 8.333537728e-03f, 1.393412473e-03f,
                     1.977130305e-04f);
  const F p = mul_add(e.r * e.r, q, e.r);  // exp(r) - 1
  // 2^n p + (2^n - 1), halved inside, so that n = 128 does not overflow too early.
  const F half = F::set1(0.5f), s = scale_pow2(half, e.n);
  const F y = (s * p + (s - half)) * F::set1(2.0f);
  return select(lt(abs(x), F::set1(1e-8f)), x, y);
}

// x = m 2^e, sqrt(1/2) <= m < sqrt(2), for positive normal x: m and e.
struct LogParts { F m, e; };
inline LogParts log_reduce(F x) {
  // Adding the distance from sqrt(1/2) to 1 makes the exponent field roll over at sqrt(2).
  const I bits = to_int_bits(x) + I::set1(0x3f800000 - 0x3f3504f3);
  const F e = to_f32((bits >> 23) - I::set1(127));
  return {from_int_bits((bits & I::set1(0x007fffff)) + I::set1(0x3f3504f3)), e};
}

// log(1 + f) + e ln 2, f in [sqrt(1/2) - 1, sqrt(2) - 1]; `low` is added to the small parts.
inline F log_sum(F f, F e, F low) {
  const F q = horner(f, 3.333331347e-01f, -2.500000894e-01f, 2.000207305e-01f, -1.666799635e-01f, 1.422032714e-01f,
                     -1.240603179e-01f, 1.188356802e-01f, -1.167144924e-01f, 6.750956178e-02f);
  const F f2 = f * f;
  F y = mul_add(e, F::set1(-2.12194440e-04f), f2 * f * q);
  y = mul_add(f2, F::set1(-0.5f), y) + low;
  return mul_add(e, F::set1(6.93359375e-01f), f + y);
}

inline F log(F x) {
  const F tiny = F::set1(1.17549435e-38f), inf = from_int_bits(I::set1(0x7f800000));
  const Mask<float> small = lt(x, tiny);
  const LogParts p = log_reduce(select(small, x * F::set1(33554432.0f), x));  // a denormal times 2^25 is normal
  const F y = log_sum(p.m - F::set1(1.0f), select(small, p.e - F::set1(25.0f), p.e), F::zero());
  const F nan = from_int_bits(I::set1(0x7fc00000));
  const F edge = select(eq(x, F::zero()), -inf, select(eq(x, inf), inf, nan));  // 0, inf, negative, NaN
  return select(gt(x, F::zero()) & lt(x, inf), y, edge);
}

inline F log1p(F x) {
  const F one = F::set1(1.0f), inf = from_int_bits(I::set1(0x7f800000));
  const F u = one + x;
  // What rounding took from 1 + x, times 2^-e, goes to the small parts.
  const F lost = select(gt(x, one), one - (u - x), x - (u - one));
  const LogParts p = log_reduce(select(gt(u, F::zero()) & lt(u, inf), u, one));
  const I down = (I::set1(127) - to_i32(p.e)) << 23;  // e <= 126 where the lost part still counts
  // Divided by m; 2 - m is near enough to 1 / m for so small a term.
  const F low = select(lt(p.e, F::set1(100.0f)), lost * from_int_bits(down) * (F::set1(2.0f) - p.m), F::zero());
  const Mask<float> near = eq(p.e, F::zero());  // then x itself is f, nothing is lost
  const F y = log_sum(select(near, x, p.m - one), p.e, select(near, F::zero(), low));
  const F nan = from_int_bits(I::set1(0x7fc00000));
  const F edge = select(eq(x, F::set1(-1.0f)), -inf, select(eq(x, inf), inf, nan));
  const F inside = select(lt(abs(x), F::set1(1e-8f)), x, y);
  return select(gt(x, F::set1(-1.0f)) & lt(x, inf), inside, edge);
}

// ---- sin, cos -------------------------------------------------------------------------------------------

// Any |x| >= 4: multiply the 24 bits of x by the window of 2/pi's bits that matters for its exponent.
inline float trig_reduce_large(float x, int32_t* quadrant) {
  // 2/pi = 0.A2F9836E 4E441529 FC2757D1 ..., one 32-bit window per 8 bits.
  static const uint32_t window[24] = {0xa2,       0xa2f9,     0xa2f983,   0xa2f9836e, 0xf9836e4e, 0x836e4e44,
                                      0x6e4e4415, 0x4e441529, 0x441529fc, 0x1529fc27, 0x29fc2757, 0xfc2757d1,
                                      0x2757d1f5, 0x57d1f534, 0xd1f534dd, 0xf534ddc0, 0x34ddc0db, 0xddc0db62,
                                      0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041};
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t* at = window + ((bits >> 26) & 15);
  const uint32_t m = ((bits & 0xffffffu) | 0x800000u) << ((bits >> 23) & 7);
  const uint64_t high = static_cast<uint64_t>(m * at[0]) << 32;
  const uint64_t low = (static_cast<uint64_t>(m) * at[8]) >> 32;
  uint64_t quarters = (high | low) + static_cast<uint64_t>(m) * at[4];  // in units of 2^-62 quarter turns, modulo 4
  const uint64_t n = (quarters + (uint64_t{1} << 61)) >> 62;
  quarters -= n << 62;
  const double r = static_cast<double>(static_cast<int64_t>(quarters)) * (1.57079632679489661923 / 4611686018427387904.0);
  *quadrant = static_cast<int32_t>(bits >> 31 ? 4 - n : n);
  return static_cast<float>(bits >> 31 ? -r : r);
}

// x = n pi/2 + r, |r| <= pi/4, n modulo 4.
struct TrigParts { F r; I n; };
inline TrigParts trig_reduce(F x) {
  const F n = round(x * F::set1(6.36619747e-01f));
  // pi/2 in pieces of 8, 11 and 11 bits, then the rest: n times a piece is exact for n < 2^13.
  F r = mul_add(n, F::set1(-1.5703125f), x);
  r = mul_add(n, F::set1(-4.837512969970703125e-4f), r);
  r = mul_add(n, F::set1(-7.54953362047672271729e-8f), r);
  r = mul_add(n, F::set1(-2.56334406825708960298e-12f), r);
  TrigParts p{r, to_i32(n)};
  const Mask<float> far = ge(abs(x), F::set1(8192.0f));
  if (__builtin_expect(far.any(), 0)) {
    float xs[F::N], rs[F::N];
    int32_t ns[F::N];
    x.store(xs);
    p.r.store(rs);
    p.n.store(ns);
    for (int i = 0; i < F::N; i++) {
      if (__builtin_fabsf(xs[i]) < 8192.0f) continue;
      if (__builtin_fabsf(xs[i]) < __builtin_inff()) {
        rs[i] = trig_reduce_large(xs[i], &ns[i]);
      } else {
        rs[i] = xs[i] - xs[i];
        ns[i] = 0;
      }
    }
    p = {F::load(rs), I::load(ns)};
  }
  return p;
}

inline F trig_value(TrigParts p) {
  const F z = p.r * p.r;
  const F s = mul_add(z * p.r, horner(z, -1.666665375e-01f, 8.332107216e-03f, -1.950805890e-04f), p.r);
  const F c = mul_add(z * z, horner(z, 4.166664556e-02f, -1.388729783e-03f, 2.443008816e-05f),
                      mul_add(z, F::set1(-0.5f), F::set1(1.0f)));
  const F y = select(eq(p.n & I::set1(1), I::zero()), s, c);
  return from_int_bits(to_int_bits(y) ^ ((p.n & I::set1(2)) << 30));
}

inline F sin(F x) { return select(eq(x, F::zero()), x, trig_value(trig_reduce(x))); }  // keeps -0
inline F cos(F x) {
  TrigParts p = trig_reduce(x);
  p.n = p.n + I::set1(1);
  return trig_value(p);
}

// ---- what is made of these ------------------------------------------------------------------------------

inline F tanh(F x) {
  const F m = expm1(F::set1(2.0f) * clamp(abs(x), 0.0f, 15.0f));
  return copysign(m / (m + F::set1(2.0f)), x);
}

inline F sigmoid(F x) {  // no overflow on either side
  const F e = exp(-abs(x)), one = F::set1(1.0f);
  return select(lt(x, F::zero()), e, one) / (one + e);
}

inline F softplus(F x) {  // max(x, 0) + log1p(t), t = exp(-|x|) in [0, 1]: log1p without its edges
  const F t = exp(-abs(x)), one = F::set1(1.0f), half = F::set1(0.5f), u = one + t;
  const Mask<float> near = lt(u, F::set1(1.41421354f));
  const F m = half * u, lost = half * (t - (u - one)) * (F::set1(2.0f) - m);
  return max(x, F::zero()) + log_sum(select(near, t, m - one), select(near, F::zero(), one),
                                     select(near, F::zero(), lost));
}

// erf for |x| < 1, else 1 - erf(|x|): what each caller can use without cancellation.
struct ErfParts { Mask<float> near; F erf_near, rest_far; };
inline ErfParts erf_parts(F x) {
  const F t = clamp(abs(x), 0.0f, 10.2f), z = x * x;
  const F small = horner(z, 1.283791661e-01f, -3.761262596e-01f, 1.128357872e-01f, -2.685334720e-02f,
                         5.187162198e-03f, -7.997853099e-04f, 7.806903159e-05f);
  const F p = horner(t, -1.128694296e+00f, -6.349697113e-01f, -1.065305471e-01f, 2.400977910e-02f, -3.757333383e-03f,
                     3.505552013e-04f, -1.395859726e-05f);  // log(1 - erf(t)) / t on [1, 4]
  return {lt(abs(x), F::set1(1.0f)), mul_add(small, x, x), exp(t * p)};
}

inline F erf(F x) {
  const ErfParts p = erf_parts(x);
  return select(p.near, p.erf_near, copysign(F::set1(1.0f) - p.rest_far, x));
}

// Distribution function of the standard normal: (1 + erf(x / sqrt 2)) / 2.
inline F normal_cdf(F x) {
  const F half = F::set1(0.5f);
  const ErfParts p = erf_parts(x * F::set1(7.07106781e-01f));
  const F far = half * p.rest_far;
  return select(p.near, mul_add(half, p.erf_near, half), select(lt(x, F::zero()), far, F::set1(1.0f) - far));
}
inline F normal_density(F x) { return F::set1(3.98942280e-01f) * exp(F::set1(-0.5f) * x * x); }

// ---- remainder ------------------------------------------------------------------------------------------

// |x| modulo |y|, exact, with the sign of x; then what NumPy's mod does: the sign of y.
inline F remainder(F x, F y) {
  const F a = abs(x), b = abs(y), zero = F::zero();
  F m = fnma(trunc(a / b), b, a);  // exact where the quotient, which may be off by 1, is below 2^22
  m = select(lt(m, zero), m + b, select(ge(m, b), m - b, m));
  const Mask<float> near = lt(a, b * F::set1(4194304.0f)) & lt(b, F::set1(__builtin_inff()));
  if (__builtin_expect(!near.all(), 0)) {
    float xs[F::N], ys[F::N], ms[F::N];
    a.store(xs);
    b.store(ys);
    m.store(ms);
    for (int i = 0; i < F::N; i++) {
      if (!(xs[i] < ys[i] * 4194304.0f && ys[i] < __builtin_inff())) ms[i] = __builtin_fmodf(xs[i], ys[i]);
    }
    m = F::load(ms);
  }
  m = copysign(m, x);
  const F moved = select(lt(m, zero) ^ lt(y, zero), m + y, m);
  return select(eq(m, zero), copysign(zero, y), moved);
}

// ---- pow ------------------------------------------------------------------------------------------------

// One lane in double precision, without branches, so that the compiler takes several at once.
GL_INLINE float pow_one(float x, float y) {
  const float ax = __builtin_fabsf(x);
  // log2 |x| = e + log2 m, m in [sqrt(1/2), sqrt(2)): 2/ln 2 artanh(s), s = (m - 1) / (m + 1)
  const double d = ax;  // exact, normal also where x is denormal
  const uint64_t bits = __builtin_bit_cast(uint64_t, d) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
  const int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  const double m = __builtin_bit_cast(double, (bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double a = 1.0 / 15;
  a = a * z + 1.0 / 13;
  a = a * z + 1.0 / 11;
  a = a * z + 1.0 / 9;
  a = a * z + 1.0 / 7;
  a = a * z + 1.0 / 5;
  a = a * z + 1.0 / 3;
  a = a * z + 1.0;
  double l = static_cast<double>(static_cast<int32_t>(e)) + 2.88539008177792681472 * s * a;
  l = ax == 0.0f ? -__builtin_inf() : l;
  l = ax == __builtin_inff() ? __builtin_inf() : l;
  l = ax != ax ? static_cast<double>(ax) : l;
  double p = static_cast<double>(y) * l;
  p = p > 200.0 ? 200.0 : p;
  p = p < -200.0 ? -200.0 : p;
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding and taking it away rounds to a whole number
  const double n = (p + shift) - shift, f = (p - n) * 0.69314718055994530942;
  double q = 1.0 / 3628800;
  q = q * f + 1.0 / 362880;
  q = q * f + 1.0 / 40320;
  q = q * f + 1.0 / 5040;
  q = q * f + 1.0 / 720;
  q = q * f + 1.0 / 120;
  q = q * f + 1.0 / 24;
  q = q * f + 1.0 / 6;
  q = q * f + 0.5;
  q = q * f + 1.0;
  q = q * f + 1.0;
  const uint64_t scale = (__builtin_bit_cast(uint64_t, p + shift) + 1023) << 52;  // the low bits of the sum hold n
  float r = static_cast<float>(q * __builtin_bit_cast(double, scale));
  r = p != p ? static_cast<float>(p) : r;
  // Negative base: a whole y gives the sign by its parity, any other y gives NaN.
  const float half = 0.5f * y;
  const bool whole = __builtin_floorf(y) == y, odd = whole && __builtin_floorf(half) != half;
  const bool negative = __builtin_bit_cast(int32_t, x) < 0;
  r = negative && odd ? -r : r;
  r = x < 0.0f && !whole && ax < __builtin_inff() ? __builtin_nanf("") : r;
  r = ax == 1.0f && __builtin_fabsf(y) == __builtin_inff() ? 1.0f : r;
  return x == 1.0f || y == 0.0f ? 1.0f : r;
}

inline F pow(F x, F y) {
  float xs[F::N], ys[F::N];
  x.store(xs);
  y.store(ys);
  for (int i = 0; i < F::N; i++) xs[i] = pow_one(xs[i], ys[i]);
  return F::load(xs);
}

// The multiple of log 2 next to m, so that exp(x - m) has the same digits for any m; m itself where f32 has none near.
inline F next_power(F m) {
  const F near = F::set1(1e6f), n = round(m * F::set1(1.44269504e+00f)) * F::set1(6.93147182e-01f);
  return select(lt(m, near) & gt(m, F::zero() - near), n, m);
}

}  // namespace gradloom::GL_ISA
