// simd.h: Vec<T>, the small vocabulary in which every kernel is written once.
//
// The including file defines GL_ISA (the namespace: scalar, avx2 or avx512) and one of GL_ISA_SCALAR, GL_ISA_AVX2,
// GL_ISA_AVX512. Everything lives in gradloom::GL_ISA, so that code compiled for one instruction set is never linked
// into another. Lanes are 4 bytes: Vec<float> and Vec<int32_t> have the same N, and share their masks.
//
//   Vec<T>::N  load load_n store store_n set1 zero gather gather_n  Vec<int32_t>::iota
//   + - * / unary-  fma(a,b,c) = a*b+c  fnma(a,b,c) = c-a*b  mul_add = fma where it is one instruction, else a*b+c
//   min max (NaN if either is NaN)  abs sqrt round (to nearest, ties to even) floor ceil trunc copysign
//   lt le gt ge eq ne -> Mask<T>  & | ^ ~ any() all() bits()  select(mask, a, b)  is_nan
//   reduce_add reduce_max reduce_min (fixed tree: halves, then quarters, ...)
//   int32: + - * & | ^ ~ << >> (keeps the sign)  shift_right_logical  mul_hi_u32  min max abs
//   to_int_bits from_int_bits  to_f32 (int -> float)  to_i32 (toward zero)  round_to_i32 (to nearest even)
//   load_u8 load_i8 load_f16 load_bf16 (+ _n) -> Vec<float>;  store_f16 store_bf16 (+ _n), to nearest even
//   load_bytes (u8) -> Vec<int32_t>;  half_to_float (one f16);  set1_f16 (one f16 at any address; may read 8 bytes)
//
// The _n forms touch the first n lanes only (0 <= n <= N); the other lanes read as 0.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(GL_ISA_AVX512)
#include "avx512.h"
#elif defined(GL_ISA_AVX2)
#include "avx2.h"
#elif defined(GL_ISA_SCALAR)
#include "scalar.h"
#else
#error "define GL_ISA_SCALAR, GL_ISA_AVX2 or GL_ISA_AVX512"
#endif

// What follows from the basic operations is written once for all widths.
namespace gradloom::GL_ISA {

using F = Vec<float>;
using I = Vec<int32_t>;

inline F& operator+=(F& a, F b) { return a = a + b; }
inline F& operator-=(F& a, F b) { return a = a - b; }
inline F& operator*=(F& a, F b) { return a = a * b; }
inline F& operator/=(F& a, F b) { return a = a / b; }
inline I& operator+=(I& a, I b) { return a = a + b; }
inline I& operator-=(I& a, I b) { return a = a - b; }

inline Mask<float> is_nan(F a) { return ne(a, a); }

// The bits of a rounded to bf16, to nearest even, as store_bf16 does it: the upper half of each lane, the lower is 0.
inline I bf16_bits(F a) {
  const I u = to_int_bits(a), odd = shift_right_logical(u, 16) & I::set1(1);
  const I rounded = select(is_nan(a), u | I::set1(0x400000), u + I::set1(0x7fff) + odd);
  return rounded & I::set1(static_cast<int32_t>(0xffff0000));
}

// The first n <= N of narrow numbers through a small buffer, 0 behind them: tails take this road.
template <class T> inline void copy_lanes(const T* p, int n, T (&t)[F::N]) {
#if defined(GL_ISA_AVX512)
  if constexpr (sizeof(T) == 2) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(t), _mm256_maskz_loadu_epi16(lanes_on(n), p));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(t), _mm_maskz_loadu_epi8(lanes_on(n), p));
  }
#else
  for (T& x : t) x = 0;
  std::memcpy(t, p, static_cast<size_t>(n) * sizeof(T));
#endif
}
inline F load_u8_n(const uint8_t* p, int n) {
  uint8_t t[F::N];
  copy_lanes(p, n, t);
  return load_u8(t);
}
inline F load_i8_n(const int8_t* p, int n) {
  int8_t t[F::N];
  copy_lanes(p, n, t);
  return load_i8(t);
}
inline F load_f16_n(const uint16_t* p, int n) {
  uint16_t t[F::N];
  copy_lanes(p, n, t);
  return load_f16(t);
}
inline F load_bf16_n(const uint16_t* p, int n) {
  uint16_t t[F::N];
  copy_lanes(p, n, t);
  return load_bf16(t);
}
// The first n of a buffer's numbers.
inline void store_lanes(uint16_t* p, const uint16_t (&t)[F::N], int n) {
#if defined(GL_ISA_AVX512)
  __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t));
  asm("" : "+v"(lanes));  // or Clang 22 stores four bytes where n is 1 and the lanes are equal
  _mm256_mask_storeu_epi16(p, lanes_on(n), lanes);
#else
  std::memcpy(p, t, static_cast<size_t>(n) * 2);
#endif
}
inline void store_f16_n(uint16_t* p, F v, int n) {
  uint16_t t[F::N];
  store_f16(t, v);
  store_lanes(p, t, n);
}
inline void store_bf16_n(uint16_t* p, F v, int n) {
  uint16_t t[F::N];
  store_bf16(t, v);
  store_lanes(p, t, n);
}

}  // namespace gradloom::GL_ISA
