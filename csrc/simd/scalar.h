// scalar.h: one lane, plain C++. The definition of what every operation means; compiles for any machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradloom::GL_ISA {

template <class T> struct Vec;

struct LaneMask {
  static constexpr int N = 1;
  bool m;
  static LaneMask first_n(int n) { return {n > 0}; }
  bool any() const { return m; }
  bool all() const { return m; }
  uint32_t bits() const { return m ? 1u : 0u; }
};
template <class T> using Mask = LaneMask;  // float and int32 lanes have the same size
inline LaneMask operator&(LaneMask a, LaneMask b) { return {a.m && b.m}; }
inline LaneMask operator|(LaneMask a, LaneMask b) { return {a.m || b.m}; }
inline LaneMask operator^(LaneMask a, LaneMask b) { return {a.m != b.m}; }
inline LaneMask operator~(LaneMask a) { return {!a.m}; }

template <> struct Vec<float> {
  static constexpr int N = 1;
  float v;
  static Vec load(const float* p) { return {*p}; }
  static Vec load_n(const float* p, int n) { return {n > 0 ? *p : 0.0f}; }
  static Vec set1(float x) { return {x}; }
  static Vec zero() { return {0.0f}; }
  static Vec gather(const float* p, int64_t) { return {*p}; }
  static Vec gather_n(const float* p, int64_t, int n) { return {n > 0 ? *p : 0.0f}; }
  void store(float* p) const { *p = v; }
  void store_n(float* p, int n) const {
    if (n > 0) *p = v;
  }
};

template <> struct Vec<int32_t> {
  static constexpr int N = 1;
  int32_t v;
  static Vec load(const int32_t* p) { return {*p}; }
  static Vec load_n(const int32_t* p, int n) { return {n > 0 ? *p : 0}; }
  static Vec set1(int32_t x) { return {x}; }
  static Vec zero() { return {0}; }
  static Vec iota() { return {0}; }
  static Vec gather(const int32_t* p, int64_t) { return {*p}; }
  static Vec gather_n(const int32_t* p, int64_t, int n) { return {n > 0 ? *p : 0}; }
  void store(int32_t* p) const { *p = v; }
  void store_n(int32_t* p, int n) const {
    if (n > 0) *p = v;
  }
};

inline Vec<float> operator+(Vec<float> a, Vec<float> b) { return {a.v + b.v}; }
inline Vec<float> operator-(Vec<float> a, Vec<float> b) { return {a.v - b.v}; }
inline Vec<float> operator*(Vec<float> a, Vec<float> b) { return {a.v * b.v}; }
inline Vec<float> operator/(Vec<float> a, Vec<float> b) { return {a.v / b.v}; }
inline Vec<float> operator-(Vec<float> a) { return {-a.v}; }
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
inline Vec<float> fnma(Vec<float> a, Vec<float> b, Vec<float> c) { return {__builtin_fmaf(-a.v, b.v, c.v)}; }
inline Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return {a.v * b.v + c.v}; }
inline Vec<float> min(Vec<float> a, Vec<float> b) { return {a.v < b.v || a.v != a.v ? a.v : b.v}; }
inline Vec<float> max(Vec<float> a, Vec<float> b) { return {a.v > b.v || a.v != a.v ? a.v : b.v}; }
inline Vec<float> abs(Vec<float> a) { return {__builtin_fabsf(a.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {__builtin_sqrtf(a.v)}; }
inline Vec<float> round(Vec<float> a) { return {__builtin_rintf(a.v)}; }
inline Vec<float> floor(Vec<float> a) { return {__builtin_floorf(a.v)}; }
inline Vec<float> ceil(Vec<float> a) { return {__builtin_ceilf(a.v)}; }
inline Vec<float> trunc(Vec<float> a) { return {__builtin_truncf(a.v)}; }
inline Vec<float> copysign(Vec<float> a, Vec<float> b) { return {__builtin_copysignf(a.v, b.v)}; }

inline LaneMask lt(Vec<float> a, Vec<float> b) { return {a.v < b.v}; }
inline LaneMask le(Vec<float> a, Vec<float> b) { return {a.v <= b.v}; }
inline LaneMask gt(Vec<float> a, Vec<float> b) { return {a.v > b.v}; }
inline LaneMask ge(Vec<float> a, Vec<float> b) { return {a.v >= b.v}; }
inline LaneMask eq(Vec<float> a, Vec<float> b) { return {a.v == b.v}; }
inline LaneMask ne(Vec<float> a, Vec<float> b) { return {a.v != b.v}; }
inline Vec<float> select(LaneMask m, Vec<float> a, Vec<float> b) { return m.m ? a : b; }
inline float reduce_add(Vec<float> a) { return a.v; }
inline float reduce_max(Vec<float> a) { return a.v; }
inline float reduce_min(Vec<float> a) { return a.v; }

// Sums wrap around, as they do in the wide versions.
inline Vec<int32_t> operator+(Vec<int32_t> a, Vec<int32_t> b) {
  return {static_cast<int32_t>(static_cast<uint32_t>(a.v) + static_cast<uint32_t>(b.v))};
}
inline Vec<int32_t> operator-(Vec<int32_t> a, Vec<int32_t> b) {
  return {static_cast<int32_t>(static_cast<uint32_t>(a.v) - static_cast<uint32_t>(b.v))};
}
inline Vec<int32_t> operator*(Vec<int32_t> a, Vec<int32_t> b) {
  return {static_cast<int32_t>(static_cast<uint32_t>(a.v) * static_cast<uint32_t>(b.v))};
}
inline Vec<int32_t> operator-(Vec<int32_t> a) { return Vec<int32_t>::zero() - a; }
inline Vec<int32_t> operator&(Vec<int32_t> a, Vec<int32_t> b) { return {a.v & b.v}; }
inline Vec<int32_t> operator|(Vec<int32_t> a, Vec<int32_t> b) { return {a.v | b.v}; }
inline Vec<int32_t> operator^(Vec<int32_t> a, Vec<int32_t> b) { return {a.v ^ b.v}; }
inline Vec<int32_t> operator~(Vec<int32_t> a) { return {~a.v}; }
inline Vec<int32_t> operator<<(Vec<int32_t> a, int s) {
  return {static_cast<int32_t>(static_cast<uint32_t>(a.v) << s)};
}
inline Vec<int32_t> operator>>(Vec<int32_t> a, int s) { return {a.v >> s}; }
inline Vec<int32_t> shift_right_logical(Vec<int32_t> a, int s) {
  return {static_cast<int32_t>(static_cast<uint32_t>(a.v) >> s)};
}
inline Vec<int32_t> mul_hi_u32(Vec<int32_t> a, Vec<int32_t> b) {
  return {static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(a.v)) * static_cast<uint32_t>(b.v)) >> 32)};
}
inline Vec<int32_t> min(Vec<int32_t> a, Vec<int32_t> b) { return a.v < b.v ? a : b; }
inline Vec<int32_t> max(Vec<int32_t> a, Vec<int32_t> b) { return a.v > b.v ? a : b; }
inline Vec<int32_t> abs(Vec<int32_t> a) { return a.v < 0 ? -a : a; }
inline LaneMask lt(Vec<int32_t> a, Vec<int32_t> b) { return {a.v < b.v}; }
inline LaneMask le(Vec<int32_t> a, Vec<int32_t> b) { return {a.v <= b.v}; }
inline LaneMask gt(Vec<int32_t> a, Vec<int32_t> b) { return {a.v > b.v}; }
inline LaneMask ge(Vec<int32_t> a, Vec<int32_t> b) { return {a.v >= b.v}; }
inline LaneMask eq(Vec<int32_t> a, Vec<int32_t> b) { return {a.v == b.v}; }
inline LaneMask ne(Vec<int32_t> a, Vec<int32_t> b) { return {a.v != b.v}; }
inline Vec<int32_t> select(LaneMask m, Vec<int32_t> a, Vec<int32_t> b) { return m.m ? a : b; }
inline int32_t reduce_add(Vec<int32_t> a) { return a.v; }
inline int32_t reduce_max(Vec<int32_t> a) { return a.v; }
inline int32_t reduce_min(Vec<int32_t> a) { return a.v; }

inline Vec<int32_t> to_int_bits(Vec<float> a) { return {__builtin_bit_cast(int32_t, a.v)}; }
inline Vec<float> from_int_bits(Vec<int32_t> a) { return {__builtin_bit_cast(float, a.v)}; }
inline Vec<float> to_f32(Vec<int32_t> a) { return {static_cast<float>(a.v)}; }
// Out of range and NaN give INT32_MIN, as on x86.
inline Vec<int32_t> to_i32(Vec<float> a) {
  return {a.v >= -2147483648.0f && a.v < 2147483648.0f ? static_cast<int32_t>(a.v) : INT32_MIN};
}
inline Vec<int32_t> round_to_i32(Vec<float> a) { return to_i32(round(a)); }

inline Vec<int32_t> load_bytes(const uint8_t* p) { return {*p}; }
inline Vec<float> load_u8(const uint8_t* p) { return {static_cast<float>(*p)}; }
inline Vec<float> load_i8(const int8_t* p) { return {static_cast<float>(*p)}; }
inline Vec<float> load_bf16(const uint16_t* p) {
  return {__builtin_bit_cast(float, static_cast<uint32_t>(*p) << 16)};
}
inline void store_bf16(uint16_t* p, Vec<float> a) {
  const uint32_t u = __builtin_bit_cast(uint32_t, a.v);
  // To nearest even; a NaN stays a (quiet) NaN.
  *p = static_cast<uint16_t>(a.v != a.v ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline Vec<float> load_f16(const uint16_t* p) {
  const uint32_t h = *p, sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
    const float x = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return {__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) | sign)};
  }
  if (exponent == 31) {  // inf, or NaN made quiet
    return {__builtin_bit_cast(float, sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u))};
  }
  return {__builtin_bit_cast(float, sign | ((exponent + 112u) << 23) | (fraction << 13))};
}
inline float half_to_float(uint16_t h) { return load_f16(&h).v; }
inline Vec<float> set1_f16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return load_f16(&bits);
}
inline void store_f16(uint16_t* p, Vec<float> a) {
  const uint32_t u = __builtin_bit_cast(uint32_t, a.v), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
  uint32_t h;
  if (m > 0x7f800000u) {
    h = 0x7e00u | ((m >> 13) & 0x3ffu);
  } else if (m >= 0x477ff000u) {  // rounds to 65536 or more
    h = 0x7c00u;
  } else if (m < 0x38800000u) {  // subnormal: adding 0.5 leaves fraction * 2^24 in the low bits, rounded to even
    const float x = __builtin_bit_cast(float, m) + 0.5f;
    h = __builtin_bit_cast(uint32_t, x) - 0x3f000000u;
  } else {
    h = (m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13;
  }
  *p = static_cast<uint16_t>(sign | h);
}

}  // namespace gradloom::GL_ISA
