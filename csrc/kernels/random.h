// random.h: dropout from a counter-based generator, Philox4x32-10.
//
// The word that decides element e of row r depends on (seed, step, stream, row + r, e) alone:
//   key     = words 0 and 1 of philox(counter = (step low, step high, stream low, stream high),
//                                     key = (seed low, seed high))
//   block   = philox(counter = (row low, row high, e / 4 low, e / 4 high), key), row = the `row` input + r
//   word    = block[e % 4];  element e is kept when word < threshold = floor((1 - rate) * 2^32)
// r counts along the first axis of x, e along the others flattened. src/gradloom/base/philox.py is the same in NumPy.
#pragma once
#include "rows.h"
#include "walk.h"

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

// Several blocks at once: words[4 * i ...] are those of (rows[i], blocks[i]); in philox_line of (row, block + i).
// Each 64-bit lane holds one counter word in its low half: a multiply gives both halves of the product in place, and
// what remains in the high half is never read. Lanes stand in an order (0 4 1 5 2 6 3 7) that the unpacks at the end
// turn into the order of the elements.
#if defined(GL_ISA_AVX512)
constexpr int kPhiloxBlocks = 16;
inline void philox_rounds(__m512i a0, __m512i a1, __m512i c0, __m512i c1, PhiloxKey key, uint32_t* words) {
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  __m512i a[2] = {a0, a1}, c[2] = {c0, c1}, b[2], d[2];
  for (int h = 0; h < 2; h++) {
    b[h] = _mm512_srli_epi64(a[h], 32);
    d[h] = _mm512_srli_epi64(c[h], 32);
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
inline void philox_words(const uint64_t* rows, const uint64_t* blocks, PhiloxKey key, uint32_t* words) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const auto load = [&](const uint64_t* p) { return _mm512_permutexvar_epi64(order, _mm512_loadu_si512(p)); };
  philox_rounds(load(rows), load(rows + 8), load(blocks), load(blocks + 8), key, words);
}
inline void philox_line(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  const __m512i r = _mm512_set1_epi64(static_cast<int64_t>(row));
  const __m512i b = _mm512_set1_epi64(static_cast<int64_t>(block));
  philox_rounds(r, r, _mm512_add_epi64(b, _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)),
                _mm512_add_epi64(b, _mm512_setr_epi64(8, 12, 9, 13, 10, 14, 11, 15)), key, words);
}
#elif defined(GL_ISA_AVX2)
constexpr int kPhiloxBlocks = 8;
inline void philox_rounds(__m256i a0, __m256i a1, __m256i c0, __m256i c1, PhiloxKey key, uint32_t* words) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i a[2] = {a0, a1}, c[2] = {c0, c1}, b[2], d[2];
  for (int h = 0; h < 2; h++) {
    b[h] = _mm256_srli_epi64(a[h], 32);
    d[h] = _mm256_srli_epi64(c[h], 32);
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
inline void philox_words(const uint64_t* rows, const uint64_t* blocks, PhiloxKey key, uint32_t* words) {
  const auto load = [](const uint64_t* p) {  // 0 2 1 3
    return _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 0xd8);
  };
  philox_rounds(load(rows), load(rows + 4), load(blocks), load(blocks + 4), key, words);
}
inline void philox_line(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  const __m256i r = _mm256_set1_epi64x(static_cast<int64_t>(row));
  const __m256i b = _mm256_set1_epi64x(static_cast<int64_t>(block));
  philox_rounds(r, r, _mm256_add_epi64(b, _mm256_setr_epi64x(0, 2, 1, 3)),
                _mm256_add_epi64(b, _mm256_setr_epi64x(4, 6, 5, 7)), key, words);
}
#else
constexpr int kPhiloxBlocks = 1;
inline void philox_line(uint64_t row, uint64_t block, PhiloxKey key, uint32_t* words) {
  words[0] = static_cast<uint32_t>(row), words[1] = static_cast<uint32_t>(row >> 32);
  words[2] = static_cast<uint32_t>(block), words[3] = static_cast<uint32_t>(block >> 32);
  philox_block(words, key);
}
inline void philox_words(const uint64_t* rows, const uint64_t* blocks, PhiloxKey key, uint32_t* words) {
  philox_line(rows[0], blocks[0], key, words);
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
  if (!size) return;
  const bool dense = x.dense();
  Walk<1> walk;  // only for strided x
  walk.rank = x.rank;
  for (int i = 0; i < x.rank; i++) walk.shape[i] = x.shape[i], walk.stride[0][i] = x.strides[i];

  // Blocks of four elements, row by row; the last of a row may be shorter.
  const int64_t row_blocks = (width + 3) / 4;
  const Range range = part_range(rows * row_blocks, part, parts, kPhiloxBlocks);
  int64_t r = range.begin / row_blocks, b = range.begin - r * row_blocks;
  int64_t at = r * width + 4 * b;  // the next element
  if (!dense) walk.seek(at);
  alignas(64) uint64_t row_of[kPhiloxBlocks], block_of[kPhiloxBlocks];
  alignas(64) uint32_t words[4 * kPhiloxBlocks];
  alignas(64) float values[4 * kPhiloxBlocks];
  int count = 0;
  for (int64_t q = range.begin; q < range.end; q += count) {
    int64_t most = row_blocks >= kPhiloxBlocks ? row_blocks - b : kPhiloxBlocks;  // wide rows: no further than the row
    if (most > range.end - q) most = range.end - q;
    count = most < kPhiloxBlocks ? static_cast<int>(most) : kPhiloxBlocks;
    int64_t n = 4 * count;
    if (b + count <= row_blocks) {  // all in one row; only the last block of the row may be short
      philox_line(row0 + static_cast<uint64_t>(r), static_cast<uint64_t>(b), key, words);
      b += count;
      if (b == row_blocks) {
        n -= 4 * row_blocks - width;
        b = 0, r++;
      }
    } else {
      for (int i = 0; i < kPhiloxBlocks; i++) {
        row_of[i] = row0 + static_cast<uint64_t>(r);
        block_of[i] = static_cast<uint64_t>(b);
        if (i < count && ++b == row_blocks) b = 0, r++;
      }
      philox_words(row_of, block_of, key, words);
      if (width % 4) {  // close the gaps after short blocks
        n = 0;
        for (int i = 0; i < count; i++) {
          const int64_t left = width - 4 * static_cast<int64_t>(block_of[i]);
          for (int64_t k = 0; k < 4; k++) words[n + k] = words[4 * i + k];
          n += left < 4 ? left : 4;
        }
      }
    }
    const float* from = x.as<const float>() + at;
    if (!dense) {
      for (int64_t i = 0; i < n; i++, walk.next()) values[i] = x.as<const float>()[walk.at[0]];
      from = values;
    }
    float* to = y + at;
    row_each(n, [&](int64_t i, auto v) {
      const I word = I::load(reinterpret_cast<const int32_t*>(words + i));
      const F kept = row_load(from + i, v) * scale;
      row_store(to + i, all ? kept : select(lt(word ^ flip, limit), kept, F::zero()), v);
    });
    at += n;
  }
}

inline constexpr KernelRow kRandomRows[] = {
    {"dropout", "f32_i64_f32", dropout_plan, dropout_run},
};

}  // namespace gradloom::GL_ISA
