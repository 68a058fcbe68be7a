// simd_check.cpp: every operation of the Vec<T> vocabulary against plain C++, lane by lane.
// Compiled once per instruction set with GL_ISA and GL_ISA_* defined; prints the first difference.
#include "../../csrc/simd/simd.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace gradloom::GL_ISA;

static const float kValues[] = {
    0.0f,  -0.0f,      1.0f,        -1.0f,    0.5f,     -0.5f,   1.5f,     2.5f,      -2.5f,    3.7f,     -3.7f,
    1e-3f, 123456.78f, -8388609.0f, 1e10f,    -1e10f,   3e38f,   1e-40f,   -1e-45f,   65504.0f, 65519.9f, 65520.0f,
    6e-5f, 6.1e-5f,    5.96e-8f,    2.98e-8f, 2.99e-8f, 8.9e-8f, INFINITY, -INFINITY, NAN,      -NAN,     0.33333334f};
constexpr int kCount = sizeof kValues / sizeof *kValues;
static int checks = 0;

static bool same(float a, float b) {
  return (a != a && b != b) || __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}
static bool same(int32_t a, int32_t b) { return a == b; }

template <class T>
static void expect(const char* what, const T* got, T want, int lane, float a, float b) {
  checks++;
  if (same(got[lane], want)) return;
  std::printf("%s: lane %d: %.9g, want %.9g, for %.9g %.9g\n", what, lane, double(got[lane]), double(want), a, b);
  std::exit(1);
}

static float nearest_half(float x) { return std::nearbyint(x); }
// Not inline: GCC turns the conversion there and back into a truncation, which keeps the sign of a zero.
__attribute__((noinline)) static int32_t whole(float x) { return static_cast<int32_t>(x); }
static float mn(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
static float mx(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }

template <class V, class S>
static void binary(const char* what, V vec, S scalar) {
  float x[F::N], y[F::N], z[F::N];
  for (int i = 0; i < kCount; i++)
    for (int j = 0; j < kCount; j++) {
      for (int l = 0; l < F::N; l++) x[l] = kValues[(i + l) % kCount], y[l] = kValues[(j + 3 * l) % kCount];
      vec(F::load(x), F::load(y)).store(z);
      for (int l = 0; l < F::N; l++) expect(what, z, float(scalar(x[l], y[l])), l, x[l], y[l]);
    }
}
template <class V, class S>
static void compare(const char* what, V vec, S scalar) {
  binary(
      what, [&](F a, F b) { return select(vec(a, b), F::set1(1), F::zero()); },
      [&](float a, float b) { return scalar(a, b) ? 1.0f : 0.0f; });
}
template <class V, class S>
static void integers(const char* what, V vec, S scalar) {
  static const int32_t v[] = {0, 1, -1, 2, 77, -12345, 65536, INT32_MAX, INT32_MIN, 0x12345678};
  int32_t x[I::N], y[I::N], z[I::N];
  for (int i = 0; i < 10; i++)
    for (int j = 0; j < 10; j++) {
      for (int l = 0; l < I::N; l++) x[l] = v[(i + l) % 10], y[l] = v[(j + 3 * l) % 10];
      vec(I::load(x), I::load(y)).store(z);
      for (int l = 0; l < I::N; l++) expect(what, z, int32_t(scalar(x[l], y[l])), l, float(x[l]), float(y[l]));
    }
}
using U = uint32_t;

int main() {
  binary("add", [](F a, F b) { return a + b; }, [](float a, float b) { return a + b; });
  binary("sub", [](F a, F b) { return a - b; }, [](float a, float b) { return a - b; });
  binary("mul", [](F a, F b) { return a * b; }, [](float a, float b) { return a * b; });
  binary("div", [](F a, F b) { return a / b; }, [](float a, float b) { return a / b; });
  binary("neg", [](F a, F) { return -a; }, [](float a, float) { return -a; });
  binary("fma", [](F a, F b) { return fma(a, b, a); }, [](float a, float b) { return std::fma(a, b, a); });
  binary("fnma", [](F a, F b) { return fnma(a, b, b); }, [](float a, float b) { return std::fma(-a, b, b); });
  // The sign of a zero is free when zeros of both signs meet.
  binary("min", [](F a, F b) { return min(a, b) + F::set1(0); }, [](float a, float b) { return mn(a, b) + 0.0f; });
  binary("max", [](F a, F b) { return max(a, b) + F::set1(0); }, [](float a, float b) { return mx(a, b) + 0.0f; });
  binary("abs", [](F a, F) { return abs(a); }, [](float a, float) { return std::fabs(a); });
  binary("sqrt", [](F a, F) { return sqrt(a); }, [](float a, float) { return std::sqrt(a); });
  binary("round", [](F a, F) { return round(a); }, [](float a, float) { return nearest_half(a); });
  binary("floor", [](F a, F) { return floor(a); }, [](float a, float) { return std::floor(a); });
  binary("ceil", [](F a, F) { return ceil(a); }, [](float a, float) { return std::ceil(a); });
  binary("trunc", [](F a, F) { return trunc(a); }, [](float a, float) { return std::trunc(a); });
  binary("copysign", [](F a, F b) { return copysign(a, b); }, [](float a, float b) { return std::copysign(a, b); });
  binary("bits", [](F a, F) { return from_int_bits(to_int_bits(a)); }, [](float a, float) { return a; });
  binary(
      "to_i32", [](F a, F) { return to_f32(to_i32(a)); },
      [](float a, float) { return std::fabs(a) < 2e9f ? float(whole(a)) : -2147483648.0f; });
  binary(
      "round_to_i32", [](F a, F) { return to_f32(round_to_i32(a)); },
      [](float a, float) { return std::fabs(a) < 2e9f ? float(whole(std::nearbyint(a))) : -2147483648.0f; });
  compare("lt", [](F a, F b) { return lt(a, b); }, [](float a, float b) { return a < b; });
  compare("le", [](F a, F b) { return le(a, b); }, [](float a, float b) { return a <= b; });
  compare("gt", [](F a, F b) { return gt(a, b); }, [](float a, float b) { return a > b; });
  compare("ge", [](F a, F b) { return ge(a, b); }, [](float a, float b) { return a >= b; });
  compare("eq", [](F a, F b) { return eq(a, b); }, [](float a, float b) { return a == b; });
  compare("ne", [](F a, F b) { return ne(a, b); }, [](float a, float b) { return a != b; });
  compare("is_nan", [](F a, F) { return is_nan(a); }, [](float a, float) { return a != a; });
  compare(
      "mask and", [](F a, F b) { return lt(a, b) & gt(a, F::zero()); },
      [](float a, float b) { return a < b && a > 0; });
  compare(
      "mask or", [](F a, F b) { return lt(a, b) | gt(a, F::zero()); }, [](float a, float b) { return a < b || a > 0; });
  compare(
      "mask xor", [](F a, F b) { return lt(a, b) ^ gt(a, F::zero()); },
      [](float a, float b) { return (a < b) != (a > 0); });
  compare("mask not", [](F a, F b) { return ~lt(a, b); }, [](float a, float b) { return !(a < b); });

  integers("i add", [](I a, I b) { return a + b; }, [](U a, U b) { return a + b; });
  integers("i sub", [](I a, I b) { return a - b; }, [](U a, U b) { return a - b; });
  integers("i mul", [](I a, I b) { return a * b; }, [](U a, U b) { return a * b; });
  integers("i neg", [](I a, I) { return -a; }, [](U a, U) { return 0u - a; });
  integers("i and", [](I a, I b) { return a & b; }, [](U a, U b) { return a & b; });
  integers("i or", [](I a, I b) { return a | b; }, [](U a, U b) { return a | b; });
  integers("i xor", [](I a, I b) { return a ^ b; }, [](U a, U b) { return a ^ b; });
  integers("i not", [](I a, I) { return ~a; }, [](U a, U) { return ~a; });
  integers("i shl", [](I a, I) { return a << 7; }, [](U a, U) { return a << 7; });
  integers("i shr", [](I a, I) { return a >> 7; }, [](int32_t a, int32_t) { return a >> 7; });
  integers("i shr logical", [](I a, I) { return shift_right_logical(a, 7); }, [](U a, U) { return a >> 7; });
  integers("i mul_hi", [](I a, I b) { return mul_hi_u32(a, b); }, [](U a, U b) { return (uint64_t(a) * b) >> 32; });
  integers("i min", [](I a, I b) { return min(a, b); }, [](int32_t a, int32_t b) { return a < b ? a : b; });
  integers("i max", [](I a, I b) { return max(a, b); }, [](int32_t a, int32_t b) { return a > b ? a : b; });
  integers("i abs", [](I a, I) { return abs(a); }, [](int32_t a, int32_t) { return a < 0 ? 0u - U(a) : U(a); });
#define COMPARE(name, op)                                                             \
  integers(                                                                           \
      "i " #name, [](I a, I b) { return select(name(a, b), I::set1(1), I::zero()); }, \
      [](int32_t a, int32_t b) { return a op b; });
  COMPARE(lt, <)
  COMPARE(le, <=)
  COMPARE(gt, >) COMPARE(ge, >=) COMPARE(eq, ==) COMPARE(ne, !=)

      // Partial loads and stores touch n lanes only; gathers follow the stride.
      for (int n = 0; n <= F::N; n++) {
    float src[4 * 16 + 1], dst[F::N + 2];
    int32_t isrc[4 * 16 + 1], idst[F::N + 2];
    for (int i = 0; i < 65; i++) src[i] = 1.0f + float(i), isrc[i] = 1 + i;
    for (int l = 0; l < F::N + 2; l++) dst[l] = -7, idst[l] = -7;
    F::load_n(src, n).store_n(dst + 1, n), I::load_n(isrc, n).store_n(idst + 1, n);
    for (int l = 0; l < F::N + 2; l++) {
      expect("store_n", dst, l >= 1 && l <= n ? src[l - 1] : -7.0f, l, float(n), 0);
      expect("i store_n", idst, l >= 1 && l <= n ? isrc[l - 1] : -7, l, float(n), 0);
    }
    F::load_n(src, n).store(dst), I::load_n(isrc, n).store(idst);
    for (int l = 0; l < F::N; l++) {
      expect("load_n", dst, l < n ? src[l] : 0.0f, l, float(n), 0);
      expect("i load_n", idst, l < n ? isrc[l] : 0, l, float(n), 0);
    }
    F::gather_n(src, 3, n).store(dst), I::gather_n(isrc, 3, n).store(idst);
    for (int l = 0; l < F::N; l++) {
      expect("gather_n", dst, l < n ? src[3 * l] : 0.0f, l, float(n), 0);
      expect("i gather_n", idst, l < n ? isrc[3 * l] : 0, l, float(n), 0);
    }
    select(Mask<float>::first_n(n), F::set1(1), F::set1(2)).store(dst);
    for (int l = 0; l < F::N; l++) expect("first_n", dst, l < n ? 1.0f : 2.0f, l, float(n), 0);
    const int bits = int(Mask<float>::first_n(n).bits()), want_bits = int((uint64_t(1) << n) - 1);
    const int any = Mask<float>::first_n(n).any(), want_any = n > 0, all = Mask<float>::first_n(n).all(),
              want_all = n == F::N;
    expect("bits", &bits, want_bits, 0, float(n), 0), expect("any", &any, want_any, 0, float(n), 0),
        expect("all", &all, want_all, 0, float(n), 0);
  }
  {
    float src[64], dst[16];
    int32_t isrc[64], idst[16];
    for (int i = 0; i < 64; i++) src[i] = float(i * i % 23), isrc[i] = i * i % 23;
    F::gather(src, 3).store(dst), I::gather(isrc, 3).store(idst);
    float sum = 0, big = 0, small = 99;
    for (int l = 0; l < F::N; l++) {
      expect("gather", dst, src[3 * l], l, 0, 0), expect("i gather", idst, isrc[3 * l], l, 0, 0);
      sum += dst[l], big = mx(big, dst[l]), small = mn(small, dst[l]);
    }
    const float rs[] = {reduce_add(F::load(dst)), reduce_max(F::load(dst)), reduce_min(F::load(dst))};
    const int32_t ri[] = {reduce_add(I::load(idst)), reduce_max(I::load(idst)), reduce_min(I::load(idst))};
    expect("reduce_add", rs, sum, 0, 0, 0), expect("reduce_max", rs, big, 1, 0, 0),
        expect("reduce_min", rs, small, 2, 0, 0);
    expect("i reduce_add", ri, int32_t(sum), 0, 0, 0), expect("i reduce_max", ri, int32_t(big), 1, 0, 0),
        expect("i reduce_min", ri, int32_t(small), 2, 0, 0);
    for (int l = 0; l < F::N; l++) {  // one NaN anywhere makes the maximum and the minimum NaN
      float t[16];
      std::memcpy(t, dst, sizeof t), t[l] = NAN;
      const float r[] = {reduce_max(F::load(t)), reduce_min(F::load(t))};
      expect("reduce_max nan", r, NAN, 0, float(l), 0), expect("reduce_min nan", r, NAN, 1, float(l), 0);
    }
    I::iota().store(idst);
    for (int l = 0; l < I::N; l++) expect("iota", idst, l, l, 0, 0);
  }
  // Narrow types: all 65536 halves there and back; rounding of neighbours; bytes.
  for (int h = 0; h < 65536; h += F::N) {
    uint16_t in[16], out[16];
    float x[16], want[16], b[16];
    for (int l = 0; l < F::N; l++) {
      in[l] = uint16_t(h + l);
      const int e = (in[l] >> 10) & 31, m = in[l] & 1023;
      const float v = e == 31 ? (m ? NAN : INFINITY)
                      : e     ? std::ldexp(float(1024 + m), e - 25)
                              : std::ldexp(float(m), -24);
      want[l] = in[l] & 0x8000 ? -v : v;
    }
    load_f16(in).store(x), load_bf16(in).store(b);
    for (int l = 0; l < F::N; l++)
      expect("load_f16", x, want[l], l, float(in[l]), 0),
          expect("load_bf16", b, __builtin_bit_cast(float, uint32_t(in[l]) << 16), l, float(in[l]), 0);
    for (int l = 0; l < F::N; l++) x[l] = half_to_float(in[l]);
    for (int l = 0; l < F::N; l++) expect("half_to_float", x, want[l], l, float(in[l]), 0);
    int32_t got[16];
    store_f16(out, F::load(x));
    for (int l = 0; l < F::N; l++)
      got[l] = out[l], expect("store_f16", got, x[l] != x[l] ? int32_t(in[l] | 0x200) : int32_t(in[l]), l, x[l], 0);
    store_bf16(out, F::load(b));
    for (int l = 0; l < F::N; l++)
      got[l] = out[l], expect("store_bf16", got, b[l] != b[l] ? int32_t(in[l] | 0x40) : int32_t(in[l]), l, b[l], 0);
  }
  for (uint32_t u = 0x33000000u; u < 0x48000000u; u += 977) {  // 2^-25 .. 2^17: nearest half, ties to even
    const float a = __builtin_bit_cast(float, u);
    float x[16];
    uint16_t out[16];
    for (int l = 0; l < F::N; l++) x[l] = a;
    store_f16(out, F::load(x));
    int e;
    std::frexp(a, &e);
    const double step = std::ldexp(1.0, (e < -13 ? -13 : e) - 11), q = std::nearbyint(double(a) / step) * step;
    const float want = q >= 65536 ? INFINITY : float(q);
    load_f16(out).store(x);
    expect("f16 rounding", x, want, 0, a, 0);
    for (int l = 0; l < F::N; l++) x[l] = a;
    store_bf16(out, F::load(x)), load_bf16(out).store(x);
    const double bstep = std::ldexp(1.0, e - 8);
    expect("bf16 rounding", x, float(std::nearbyint(double(a) / bstep) * bstep), 0, a, 0);
  }
  for (int b = 0; b < 256; b += F::N) {
    uint8_t u[16];
    int8_t s[16];
    float x[16], y[16];
    for (int l = 0; l < F::N; l++) u[l] = uint8_t(b + l), s[l] = int8_t(b + l);
    int32_t i[16];
    load_u8(u).store(x), load_i8(s).store(y), load_bytes(u).store(i);
    for (int l = 0; l < F::N; l++) expect("load_bytes", i, int32_t(u[l]), l, 0, 0);
    for (int l = 0; l < F::N; l++)
      expect("load_u8", x, float(u[l]), l, 0, 0), expect("load_i8", y, float(s[l]), l, 0, 0);
  }
  std::printf("N = %d: %d checks\n", F::N, checks);
}
