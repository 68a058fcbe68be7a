// avx2.h: eight lanes, AVX2 + FMA + F16C.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradloom::GL_ISA {

template <class T> struct Vec;

// Eight lanes on, eight off: the window that starts at 8 - n has its first n lanes on.
alignas(64) inline constexpr int32_t kLaneWindow[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
inline __m256i lanes_on(int n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneWindow + 8 - n)); }

struct LaneMask {
  static constexpr int N = 8;
  __m256 m;  // all bits of a lane, or none
  static LaneMask first_n(int n) { return {_mm256_castsi256_ps(lanes_on(n))}; }
  bool any() const { return bits() != 0; }
  bool all() const { return bits() == 0xffu; }
  uint32_t bits() const { return static_cast<uint32_t>(_mm256_movemask_ps(m)); }
};
template <class T> using Mask = LaneMask;  // float and int32 lanes have the same size
inline LaneMask operator&(LaneMask a, LaneMask b) { return {_mm256_and_ps(a.m, b.m)}; }
inline LaneMask operator|(LaneMask a, LaneMask b) { return {_mm256_or_ps(a.m, b.m)}; }
inline LaneMask operator^(LaneMask a, LaneMask b) { return {_mm256_xor_ps(a.m, b.m)}; }
inline LaneMask operator~(LaneMask a) { return {_mm256_xor_ps(a.m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))}; }

template <> struct Vec<float> {
  static constexpr int N = 8;
  __m256 v;
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_n(const float* p, int n) { return {_mm256_maskload_ps(p, lanes_on(n))}; }
  static Vec set1(float x) { return {_mm256_set1_ps(x)}; }
  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec gather(const float* p, int64_t s) {
    return {_mm256_setr_ps(p[0], p[s], p[2 * s], p[3 * s], p[4 * s], p[5 * s], p[6 * s], p[7 * s])};
  }
  static Vec gather_n(const float* p, int64_t s, int n) {
    alignas(32) float t[N] = {};
    for (int i = 0; i < n; i++) t[i] = p[i * s];
    return load(t);
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_n(float* p, int n) const {  // the masked store takes some 20 cycles on several machines
    if (n == N) return store(p);
    __m128 x = _mm256_castps256_ps128(v);
    if (n & 4) {
      _mm_storeu_ps(p, x);
      p += 4;
      x = _mm256_extractf128_ps(v, 1);
    }
    if (n & 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(p), x);
      p += 2;
      x = _mm_movehl_ps(x, x);
    }
    if (n & 1) _mm_store_ss(p, x);
  }
};

template <> struct Vec<int32_t> {
  static constexpr int N = 8;
  __m256i v;
  static Vec load(const int32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  static Vec load_n(const int32_t* p, int n) { return {_mm256_maskload_epi32(p, lanes_on(n))}; }
  static Vec set1(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static Vec zero() { return {_mm256_setzero_si256()}; }
  static Vec iota() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
  static Vec gather(const int32_t* p, int64_t s) {
    return {_mm256_setr_epi32(p[0], p[s], p[2 * s], p[3 * s], p[4 * s], p[5 * s], p[6 * s], p[7 * s])};
  }
  static Vec gather_n(const int32_t* p, int64_t s, int n) {
    alignas(32) int32_t t[N] = {};
    for (int i = 0; i < n; i++) t[i] = p[i * s];
    return load(t);
  }
  void store(int32_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  void store_n(int32_t* p, int n) const {
    Vec<float>{_mm256_castsi256_ps(v)}.store_n(reinterpret_cast<float*>(p), n);
  }
};

inline Vec<float> select(LaneMask m, Vec<float> a, Vec<float> b) { return {_mm256_blendv_ps(b.v, a.v, m.m)}; }
inline Vec<int32_t> select(LaneMask m, Vec<int32_t> a, Vec<int32_t> b) {
  return {_mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(b.v), _mm256_castsi256_ps(a.v), m.m))};
}

inline Vec<float> operator+(Vec<float> a, Vec<float> b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a, Vec<float> b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec<float> operator*(Vec<float> a, Vec<float> b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec<float> operator/(Vec<float> a, Vec<float> b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec<float> fnma(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return fma(a, b, c); }
inline LaneMask lt(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline LaneMask le(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
inline LaneMask gt(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline LaneMask ge(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline LaneMask eq(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline LaneMask ne(Vec<float> a, Vec<float> b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NEQ_UQ)}; }
// The instruction gives its second operand when either is NaN; a NaN in the first is put back.
inline Vec<float> min(Vec<float> a, Vec<float> b) { return select(ne(a, a), a, {_mm256_min_ps(a.v, b.v)}); }
inline Vec<float> max(Vec<float> a, Vec<float> b) { return select(ne(a, a), a, {_mm256_max_ps(a.v, b.v)}); }
inline Vec<float> abs(Vec<float> a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec<float> round(Vec<float> a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec<float> floor(Vec<float> a) { return {_mm256_floor_ps(a.v)}; }
inline Vec<float> ceil(Vec<float> a) { return {_mm256_ceil_ps(a.v)}; }
inline Vec<float> trunc(Vec<float> a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
inline Vec<float> copysign(Vec<float> a, Vec<float> b) {
  const __m256 s = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(s, a.v), _mm256_and_ps(s, b.v))};
}

inline float reduce_add(Vec<float> a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec<float> a) {
  a = max(a, {_mm256_permute2f128_ps(a.v, a.v, 1)});
  a = max(a, {_mm256_permute_ps(a.v, 0x4e)});
  return _mm256_cvtss_f32(max(a, {_mm256_permute_ps(a.v, 0xb1)}).v);
}
inline float reduce_min(Vec<float> a) {
  a = min(a, {_mm256_permute2f128_ps(a.v, a.v, 1)});
  a = min(a, {_mm256_permute_ps(a.v, 0x4e)});
  return _mm256_cvtss_f32(min(a, {_mm256_permute_ps(a.v, 0xb1)}).v);
}

inline Vec<int32_t> operator+(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator-(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator*(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
inline Vec<int32_t> operator-(Vec<int32_t> a) { return Vec<int32_t>::zero() - a; }
inline Vec<int32_t> operator&(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_and_si256(a.v, b.v)}; }
inline Vec<int32_t> operator|(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Vec<int32_t> operator^(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline Vec<int32_t> operator~(Vec<int32_t> a) { return {_mm256_xor_si256(a.v, _mm256_set1_epi32(-1))}; }
inline Vec<int32_t> operator<<(Vec<int32_t> a, int s) { return {_mm256_sll_epi32(a.v, _mm_cvtsi32_si128(s))}; }
inline Vec<int32_t> operator>>(Vec<int32_t> a, int s) { return {_mm256_sra_epi32(a.v, _mm_cvtsi32_si128(s))}; }
inline Vec<int32_t> shift_right_logical(Vec<int32_t> a, int s) {
  return {_mm256_srl_epi32(a.v, _mm_cvtsi32_si128(s))};
}
inline Vec<int32_t> mul_hi_u32(Vec<int32_t> a, Vec<int32_t> b) {
  const __m256i even = _mm256_mul_epu32(a.v, b.v);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), _mm256_srli_epi64(b.v, 32));
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
}
inline Vec<int32_t> min(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_min_epi32(a.v, b.v)}; }
inline Vec<int32_t> max(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline Vec<int32_t> abs(Vec<int32_t> a) { return {_mm256_abs_epi32(a.v)}; }
inline LaneMask gt(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.v, b.v))}; }
inline LaneMask lt(Vec<int32_t> a, Vec<int32_t> b) { return gt(b, a); }
inline LaneMask le(Vec<int32_t> a, Vec<int32_t> b) { return ~gt(a, b); }
inline LaneMask ge(Vec<int32_t> a, Vec<int32_t> b) { return ~gt(b, a); }
inline LaneMask eq(Vec<int32_t> a, Vec<int32_t> b) { return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))}; }
inline LaneMask ne(Vec<int32_t> a, Vec<int32_t> b) { return ~eq(a, b); }
inline int32_t reduce_add(Vec<int32_t> a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline int32_t reduce_max(Vec<int32_t> a) {
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline int32_t reduce_min(Vec<int32_t> a) {
  __m128i x = _mm_min_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  x = _mm_min_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_min_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

inline Vec<int32_t> to_int_bits(Vec<float> a) { return {_mm256_castps_si256(a.v)}; }
inline Vec<float> from_int_bits(Vec<int32_t> a) { return {_mm256_castsi256_ps(a.v)}; }
inline Vec<float> to_f32(Vec<int32_t> a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Vec<int32_t> to_i32(Vec<float> a) { return {_mm256_cvttps_epi32(a.v)}; }
inline Vec<int32_t> round_to_i32(Vec<float> a) { return {_mm256_cvtps_epi32(a.v)}; }

inline Vec<int32_t> load_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Vec<float> load_u8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec<float> load_i8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec<float> load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
// From memory, as in avx512.h.
inline Vec<float> set1_f16(const uint8_t* p) {
  __m128 x;
  asm("vcvtph2ps %1, %0" : "=x"(x) : "m"(*reinterpret_cast<const uint64_t __attribute__((may_alias, aligned(1)))*>(p)));
  return {_mm256_broadcastss_ps(x)};
}
inline void store_f16(uint16_t* p, Vec<float> a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec<float> load_bf16(const uint16_t* p) {
  const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16))};
}
inline void store_bf16(uint16_t* p, Vec<float> a) {
  const Vec<int32_t> u = to_int_bits(a), high = shift_right_logical(u, 16);
  const Vec<int32_t> rounded =
      shift_right_logical(u + Vec<int32_t>::set1(0x7fff) + (high & Vec<int32_t>::set1(1)), 16);
  const Vec<int32_t> r = select(ne(a, a), high | Vec<int32_t>::set1(0x40), rounded);  // a NaN stays a quiet NaN
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r.v, r.v), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

}  // namespace gradloom::GL_ISA
