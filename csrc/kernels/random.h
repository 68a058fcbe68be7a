// random.h: dropout from a counter-based generator, Philox4x32-10.
//
// The word that decides element e of row r depends on (seed, step, stream, row + r, e) alone:
//   key     = words 0 and 1 of philox(counter = (step low, step high, stream low, stream high),
//                                     key = (seed low, seed high))
//   block   = philox(counter = (row low, row high, e / 4 low, e / 4 high), key), row = the `row` input + r
//   word    = block[e % 4];  element e is kept when word < threshold = floor((1 - rate) * 2^32)
// r counts along the first axis of x, e along the others flattened. gradloom/ops/philox.py is the same in NumPy.
#pragma once
#include "reduce.h"

namespace gradloom::GL_ISA {

struct PhiloxKey {
  uint32_t k0, k1;
};

inline void philox_block(uint32_t c[4], PhiloxKey key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.k0, n1 = static_cast<uint32_t>(p1);
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.k1, n3 = static_cast<uint32_t>(p0);
    c[0] = n0, c[1] = n1, c[2] = n2, c[3] = n3;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

inline PhiloxKey philox_key(uint64_t seed, uint64_t step, uint64_t stream) {
  uint32_t c[4] = {static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)};
  philox_block(c, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {c[0], c[1]};
}

// kPhiloxWords words of one row at once: words[i] belongs to element 4 * block + i.
// Each 64-bit lane holds one counter word in its low half: a multiply gives both halves of the product in place, and
// what remains in the high half is never read.
#if defined(GL_ISA_AVX512)
constexpr int64_t kPhiloxWords = 64;
inline void philox_words(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  // Lanes in the order 0 4 1 5 2 6 3 7: the unpacks at the end then leave the elements in order.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i a[2], b[2], c[2], d[2];
  for (int h = 0; h < 2; h++) {
    const __m512i at = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(block) + 8 * h), order);
    a[h] = _mm512_set1_epi64(static_cast<int64_t>(row & 0xffffffffu));
    b[h] = _mm512_set1_epi64(static_cast<int64_t>(row >> 32));
    c[h] = at;
    d[h] = _mm512_srli_epi64(at, 32);
  }
  for (int round = 0; round < 10; round++) {
    const __m512i k0 = _mm512_set1_epi64(key.k0), k1 = _mm512_set1_epi64(key.k1);
    for (int h = 0; h < 2; h++) {
      const __m512i p0 = _mm512_mul_epu32(a[h], m0), p1 = _mm512_mul_epu32(c[h], m1);
      a[h] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), b[h], k0, 0x96);
      b[h] = p1;
      c[h] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), d[h], k1, 0x96);
      d[h] = p0;
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  for (int h = 0; h < 2; h++) {
    const __m512i ab = _mm512_mask_blend_epi32(0xaaaa, a[h], _mm512_slli_epi64(b[h], 32));
    const __m512i cd = _mm512_mask_blend_epi32(0xaaaa, c[h], _mm512_slli_epi64(d[h], 32));
    _mm512_storeu_si512(words + 32 * h, _mm512_unpacklo_epi64(ab, cd));
    _mm512_storeu_si512(words + 32 * h + 16, _mm512_unpackhi_epi64(ab, cd));
  }
}
#elif defined(GL_ISA_AVX2)
constexpr int64_t kPhiloxWords = 32;
inline void philox_words(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i order = _mm256_setr_epi64x(0, 2, 1, 3);  // as above
  __m256i a[2], b[2], c[2], d[2];
  for (int h = 0; h < 2; h++) {
    const __m256i at = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(block) + 4 * h), order);
    a[h] = _mm256_set1_epi64x(static_cast<int64_t>(row & 0xffffffffu));
    b[h] = _mm256_set1_epi64x(static_cast<int64_t>(row >> 32));
    c[h] = at;
    d[h] = _mm256_srli_epi64(at, 32);
  }
  for (int round = 0; round < 10; round++) {
    const __m256i k0 = _mm256_set1_epi64x(key.k0), k1 = _mm256_set1_epi64x(key.k1);
    for (int h = 0; h < 2; h++) {
      const __m256i p0 = _mm256_mul_epu32(a[h], m0), p1 = _mm256_mul_epu32(c[h], m1);
      a[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), b[h]), k0);
      b[h] = p1;
      c[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), d[h]), k1);
      d[h] = p0;
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  for (int h = 0; h < 2; h++) {
    const __m256i ab = _mm256_blend_epi32(a[h], _mm256_slli_epi64(b[h], 32), 0xaa);
    const __m256i cd = _mm256_blend_epi32(c[h], _mm256_slli_epi64(d[h], 32), 0xaa);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 16 * h), _mm256_unpacklo_epi64(ab, cd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 16 * h + 8), _mm256_unpackhi_epi64(ab, cd));
  }
}
#else
constexpr int64_t kPhiloxWords = 4;
inline void philox_words(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  words[0] = static_cast<uint32_t>(row), words[1] = static_cast<uint32_t>(row >> 32);
  words[2] = static_cast<uint32_t>(block), words[3] = static_cast<uint32_t>(block >> 32);
  philox_block(words, key);
}
#endif

inline void dropout_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 32 * 1024);
}

// y = keep ? x / (1 - rate) : 0
inline void dropout_run(const Call& call, int, int part, int parts, void*) {
  const Tensor& x = call[0];
  float* y = call[4].as<float>();
  const uint64_t seed = *call[1].as<const uint64_t>(), step = *call[2].as<const uint64_t>();
  const uint64_t row0 = *call[3].as<const uint64_t>();
  const double keep = 1.0 - call.attr_float(0);
  const double bound = keep * 4294967296.0;  // exact
  const bool all = bound >= 4294967296.0;
  const uint32_t threshold = all ? 0xffffffffu : bound > 0 ? static_cast<uint32_t>(bound) : 0;
  const F scale = F::set1(keep > 0 ? static_cast<float>(1.0 / keep) : 0.0f);
  const I flip = I::set1(static_cast<int32_t>(0x80000000u));  // unsigned order as signed order
  const I limit = I::set1(static_cast<int32_t>(threshold ^ 0x80000000u));
  const PhiloxKey key = philox_key(seed, step, static_cast<uint64_t>(call.attr_int(1)));
  const int64_t rows = x.rank ? x.shape[0] : 1, size = x.size(), width = rows ? size / rows : 0;
  const bool dense = x.dense();
  const int64_t pieces = (width + 4095) / 4096 < 1 ? 1 : (width + 4095) / 4096;  // a task: up to 4096 elements of a row
  const Range tasks = part_range(rows * pieces, part, parts);
  Walk<1> walk;  // only for strided x
  walk.rank = x.rank;
  for (int i = 0; i < x.rank; i++) walk.shape[i] = x.shape[i], walk.stride[0][i] = x.strides[i];
  for (int64_t t = tasks.begin; t < tasks.end; t++) {
    const int64_t r = t / pieces, e0 = (t - r * pieces) * 4096, e1 = width - e0 < 4096 ? width : e0 + 4096;
    if (!dense && e0 < e1) walk.seek(r * width + e0);
    for (int64_t e = e0; e < e1; e += kPhiloxWords) {
      alignas(64) uint32_t words[kPhiloxWords];
      alignas(64) float values[kPhiloxWords];
      philox_words(row0 + static_cast<uint64_t>(r), static_cast<uint64_t>(e) / 4, key, words);
      const int64_t n = e1 - e < kPhiloxWords ? e1 - e : kPhiloxWords;
      const float* from = x.as<const float>() + r * width + e;
      if (!dense) {
        for (int64_t i = 0; i < n; i++, walk.next()) values[i] = x.as<const float>()[walk.at[0]];
        from = values;
      }
      float* to = y + r * width + e;
      row_each(n, [&](int64_t i, auto v) {
        const I word = I::load(reinterpret_cast<const int32_t*>(words + i));
        const F kept = row_load(from + i, v) * scale;
        row_store(to + i, all ? kept : select(lt(word ^ flip, limit), kept, F::zero()), v);
      });
    }
  }
}

inline constexpr KernelRow kRandomRows[] = {
    {"dropout", "f32_i64_f32", dropout_plan, dropout_run},
};

}  // namespace gradloom::GL_ISA
