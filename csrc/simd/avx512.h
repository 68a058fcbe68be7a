// avx512.h: sixteen lanes, AVX-512 F + BW + DQ + VL, FMA, F16C.
#pragma once
// GCC 12 warns about the undefined pass-through operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradloom::GL_ISA {

template <class T> struct Vec;

inline __mmask16 lanes_on(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

struct LaneMask {
  static constexpr int N = 16;
  __mmask16 m;
  static LaneMask first_n(int n) { return {lanes_on(n)}; }
  bool any() const { return m != 0; }
  bool all() const { return m == 0xffffu; }
  uint32_t bits() const { return m; }
};
template <class T> using Mask = LaneMask;  // float and int32 lanes have the same size
inline LaneMask operator&(LaneMask a, LaneMask b) { return {static_cast<__mmask16>(a.m & b.m)}; }
inline LaneMask operator|(LaneMask a, LaneMask b) { return {static_cast<__mmask16>(a.m | b.m)}; }
inline LaneMask operator^(LaneMask a, LaneMask b) { return {static_cast<__mmask16>(a.m ^ b.m)}; }
inline LaneMask operator~(LaneMask a) { return {static_cast<__mmask16>(~a.m)}; }

template <> struct Vec<float> {
  static constexpr int N = 16;
  __m512 v;
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_on(n), p)}; }
  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec gather(const float* p, int64_t s) {
    return {_mm512_setr_ps(p[0], p[s], p[2 * s], p[3 * s], p[4 * s], p[5 * s], p[6 * s], p[7 * s], p[8 * s], p[9 * s],
                           p[10 * s], p[11 * s], p[12 * s], p[13 * s], p[14 * s], p[15 * s])};
  }
  static Vec gather_n(const float* p, int64_t s, int n) {
    alignas(64) float t[N] = {};
    for (int i = 0; i < n; i++) t[i] = p[i * s];
    return load(t);
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_n(float* p, int n) const { _mm512_mask_storeu_ps(p, lanes_on(n), v); }
};

template <> struct Vec<int32_t> {
  static constexpr int N = 16;
  __m512i v;
  static Vec load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
  static Vec load_n(const int32_t* p, int n) { return {_mm512_maskz_loadu_epi32(lanes_on(n), p)}; }
  static Vec set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static Vec zero() { return {_mm512_setzero_si512()}; }
  static Vec iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
  static Vec gather(const int32_t* p, int64_t s) {
    return {_mm512_setr_epi32(p[0], p[s], p[2 * s], p[3 * s], p[4 * s], p[5 * s], p[6 * s], p[7 * s], p[8 * s],
                              p[9 * s], p[10 * s], p[11 * s], p[12 * s], p[13 * s], p[14 * s], p[15 * s])};
  }
  static Vec gather_n(const int32_t* p, int64_t s, int n) {
    alignas(64) int32_t t[N] = {};
    for (int i = 0; i < n; i++) t[i] = p[i * s];
    return load(t);
  }
  void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
  void store_n(int32_t* p, int n) const { _mm512_mask_storeu_epi32(p, lanes_on(n), v); }
};

// values[index & 15], lane by lane.
inline Vec<float> lookup(Vec<float> values, Vec<int32_t> index) { return {_mm512_permutexvar_ps(index.v, values.v)}; }
inline Vec<float> select(LaneMask m, Vec<float> a, Vec<float> b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }
inline Vec<int32_t> select(LaneMask m, Vec<int32_t> a, Vec<int32_t> b) {
  return {_mm512_mask_blend_epi32(m.m, b.v, a.v)};
}

inline Vec<float> operator+(Vec<float> a, Vec<float> b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a, Vec<float> b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec<float> operator*(Vec<float> a, Vec<float> b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec<float> operator/(Vec<float> a, Vec<float> b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec<float> fnma(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return fma(a, b, c); }
inline LaneMask lt(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline LaneMask le(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline LaneMask gt(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline LaneMask ge(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline LaneMask eq(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline LaneMask ne(Vec<float> a, Vec<float> b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NEQ_UQ)}; }
// The instruction gives its second operand when either is NaN; a NaN in the first is put back.
inline Vec<float> min(Vec<float> a, Vec<float> b) { return select(ne(a, a), a, {_mm512_min_ps(a.v, b.v)}); }
inline Vec<float> max(Vec<float> a, Vec<float> b) { return select(ne(a, a), a, {_mm512_max_ps(a.v, b.v)}); }
inline Vec<float> abs(Vec<float> a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec<float> round(Vec<float> a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec<float> floor(Vec<float> a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
inline Vec<float> ceil(Vec<float> a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)}; }
inline Vec<float> trunc(Vec<float> a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
inline Vec<float> copysign(Vec<float> a, Vec<float> b) {
  const __m512 s = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(s, a.v), _mm512_and_ps(s, b.v))};
}

inline float reduce_add(Vec<float> a) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec<float> a) {
  a = max(a, {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)});
  a = max(a, {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)});
  a = max(a, {_mm512_permute_ps(a.v, 0x4e)});
  return _mm512_cvtss_f32(max(a, {_mm512_permute_ps(a.v, 0xb1)}).v);
}
inline float reduce_min(Vec<float> a) {
  a = min(a, {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)});
  a = min(a, {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)});
  a = min(a, {_mm512_permute_ps(a.v, 0x4e)});
  return _mm512_cvtss_f32(min(a, {_mm512_permute_ps(a.v, 0xb1)}).v);
}

inline Vec<int32_t> operator+(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator-(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator*(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator-(Vec<int32_t> a) { return Vec<int32_t>::zero() - a; }
inline Vec<int32_t> operator&(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Vec<int32_t> operator|(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_or_si512(a.v, b.v)}; }
inline Vec<int32_t> operator^(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Vec<int32_t> operator~(Vec<int32_t> a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi32(-1))}; }
inline Vec<int32_t> operator<<(Vec<int32_t> a, int s) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(s))}; }
inline Vec<int32_t> operator>>(Vec<int32_t> a, int s) { return {_mm512_sra_epi32(a.v, _mm_cvtsi32_si128(s))}; }
inline Vec<int32_t> shift_right_logical(Vec<int32_t> a, int s) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(s))};
}
inline Vec<int32_t> mul_hi_u32(Vec<int32_t> a, Vec<int32_t> b) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
}
inline Vec<int32_t> min(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_min_epi32(a.v, b.v)}; }
inline Vec<int32_t> max(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline Vec<int32_t> abs(Vec<int32_t> a) { return {_mm512_abs_epi32(a.v)}; }
inline LaneMask lt(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
inline LaneMask le(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmple_epi32_mask(a.v, b.v)}; }
inline LaneMask gt(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
inline LaneMask ge(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmpge_epi32_mask(a.v, b.v)}; }
inline LaneMask eq(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
inline LaneMask ne(Vec<int32_t> a, Vec<int32_t> b) { return {_mm512_cmpneq_epi32_mask(a.v, b.v)}; }
inline int32_t reduce_add(Vec<int32_t> a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t reduce_max(Vec<int32_t> a) { return _mm512_reduce_max_epi32(a.v); }
inline int32_t reduce_min(Vec<int32_t> a) { return _mm512_reduce_min_epi32(a.v); }

inline Vec<int32_t> to_int_bits(Vec<float> a) { return {_mm512_castps_si512(a.v)}; }
inline Vec<float> from_int_bits(Vec<int32_t> a) { return {_mm512_castsi512_ps(a.v)}; }
inline Vec<float> to_f32(Vec<int32_t> a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Vec<int32_t> to_i32(Vec<float> a) { return {_mm512_cvttps_epi32(a.v)}; }
inline Vec<int32_t> round_to_i32(Vec<float> a) { return {_mm512_cvtps_epi32(a.v)}; }

inline Vec<int32_t> load_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Vec<float> load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec<float> load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec<float> load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
// Converted straight from memory: from a register the instruction needs a shuffle, and so does the way there;
// blocks are decoded at the rate of shuffles. GCC 12 does not fold the load of the intrinsic.
inline Vec<float> set1_f16(const uint8_t* p) {
  __m128 x;
  asm("vcvtph2ps %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const uint64_t __attribute__((may_alias, aligned(1)))*>(p)));
  return {_mm512_broadcastss_ps(x)};
}
inline void store_f16(uint16_t* p, Vec<float> a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec<float> load_bf16(const uint16_t* p) {
  const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
}
inline void store_bf16(uint16_t* p, Vec<float> a) {
  const Vec<int32_t> u = to_int_bits(a), high = shift_right_logical(u, 16);
  const Vec<int32_t> rounded =
      shift_right_logical(u + Vec<int32_t>::set1(0x7fff) + (high & Vec<int32_t>::set1(1)), 16);
  const Vec<int32_t> r = select(ne(a, a), high | Vec<int32_t>::set1(0x40), rounded);  // a NaN stays a quiet NaN
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r.v));
}

}  // namespace gradloom::GL_ISA
