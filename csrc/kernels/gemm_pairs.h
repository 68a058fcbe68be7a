// gemm_pairs.h: operands of a bf16 product as words, each a pair of neighbours along k, for a unit that sums pairs.
//
// Pair p of row or column i is X(i, 2 p) in the lower half and X(i, 2 p + 1) in the upper one; where k is odd, the last
// upper half is 0, as are words beyond. PairSource packs words as StridedSource packs numbers, from a tensor of any dtype: what is not bf16 is
// rounded to it. Blocks of quantised formats run along either axis, as in gemm_frozen.h. Words of bf16 whose k lies side
// by side may be read in place.
#pragma once
#include "../simd/bf16_unit.h"
#include "gemm_frozen.h"

namespace gradloom::GL_ISA::gemm {

struct Pairs {
  static constexpr int64_t kPerWord = 2;
  static Lanes broadcast(const float* a) {
    float word;
    std::memcpy(&word, a, 4);  // at any even address
    return Lanes::set1(word);
  }
  static Lanes step(Lanes a, Lanes b, Lanes sum) { return add_pairs(a, b, sum); }
};

struct PairSource : FrozenSource {
  int64_t numbers;  // along k
  bool brain;       // bf16 already

  bool in_place() const { return brain && deep == 1 && numbers % 2 == 0 && along % 2 == 0; }
  int64_t row_words() const { return along / 2; }
  const float* at(int64_t i, int64_t p) const {
    return reinterpret_cast<const float*>(data + 2 * (first + i * along + 2 * p * deep));
  }
  Ahead ahead(int64_t i0, int64_t i1, int64_t p0, int64_t depth) const {
    return FrozenSource::ahead(i0, i1, 2 * p0, depth_of(p0, depth));
  }
  void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    for (; i0 < i1; i0 += width, to += width * depth) {
      const int rows = static_cast<int>(i1 - i0 < width ? i1 - i0 : width), wide = (rows + round - 1) / round * round;
      if (transposed)
        strip_along_k(i0, rows, p0, depth, wide, to);
      else
        strip_across(i0, rows, p0, depth, wide, to);
    }
  }

  // `count` pairs from p on of row i, neighbours along k; at most kWords. `to` holds words.
  void read_pairs(int64_t i, int64_t p, int64_t count, void* to) const {
    const int64_t n = depth_of(p, count);
    if (n) read_bf16(first + i * along + 2 * p, n, static_cast<uint16_t*>(to));
    std::memset(static_cast<uint16_t*>(to) + n, 0, static_cast<size_t>(2 * count - n) * 2);
  }

 private:
  static constexpr int64_t kWords = 64;  // a stretch of k, in pairs

  // Numbers along k in pairs p0 .. p0 + depth.
  int64_t depth_of(int64_t p0, int64_t depth) const {
    const int64_t left = numbers - 2 * p0;
    return left <= 0 ? 0 : left < 2 * depth ? left : 2 * depth;
  }

  // Neighbours from number `from` on, as bf16; at most 2 kWords.
  void read_bf16(int64_t from, int64_t count, uint16_t* to) const {
    if (brain) {
      std::memcpy(to, data + 2 * from, static_cast<size_t>(count) * 2);
      return;
    }
    alignas(64) float room[2 * kWords];
    decode(data, from, count, room);
    for (int64_t i = 0; i < count; i += F::N) {
      const int n = static_cast<int>(count - i < F::N ? count - i : F::N);
      if (n == F::N)
        store_bf16(to + i, F::load(room + i));
      else
        store_bf16_n(to + i, F::load_n(room + i, n), n);
    }
  }

  // Neighbours lie along k: pairs are words of memory, or of a few rows that are read first; square blocks of words are
  // transposed.
  void strip_along_k(int64_t i0, int rows, int64_t p0, int64_t depth, int width, float* to) const {
    alignas(64) uint16_t room[kSquare * 2 * kWords];
    const float* const words = reinterpret_cast<const float*>(room);
    const bool direct = brain && along % 2 == 0;
    for (int64_t p = 0; p < depth; p += kWords) {
      const int64_t count = depth - p < kWords ? depth - p : kWords, n_k = depth_of(p0 + p, count);
      float* const strip = to + p * width;
      for (int i = 0; i < rows; i += kSquare) {
        const int n = rows - i < kSquare ? rows - i : kSquare;
        const float* from = words;
        int64_t stride = kWords;
        if (direct && n == kSquare && n_k == 2 * count) {
          from = at(i0 + i, p0 + p);
          stride = along / 2;
        } else {
          for (int r = 0; r < n; r++) read_pairs(i0 + i + r, p0 + p, count, room + r * 2 * kWords);
        }
        int64_t q = 0;
        if (n == kSquare)
          for (; q + kSquare <= count; q += kSquare) transpose<kSquare>(from + q, stride, strip + q * width + i, width);
        for (; q < count; q++)
          for (int r = 0; r < n; r++) std::memcpy(strip + q * width + i + r, from + r * stride + q, 4);
      }
      for (int64_t q = 0; q < count; q++)
        for (int j = rows; j < width; j++) strip[q * width + j] = 0.0f;
    }
  }

  // Neighbours lie along the strip: two rows of k are woven into one of words.
  void strip_across(int64_t i0, int rows, int64_t p0, int64_t depth, int width, float* to) const {
    alignas(64) uint16_t room[2][kTileColumns];
    for (int64_t p = 0; p < depth; p++, to += width) {
      const int64_t k = 2 * (p0 + p), from = first + i0 * along + k * deep;
      const bool one = k < numbers, both = k + 1 < numbers;
      const uint16_t *lower = room[0], *upper = room[1];
      // Where a row follows both, whole vectors may be read: what is beyond the strip lies before that row.
      const bool whole = width % Lanes::N == 0 ? both : k + 2 < numbers && deep >= Lanes::N;
      if (brain && whole && rows == width && along == 1) {
        lower = reinterpret_cast<const uint16_t*>(data) + from;
        upper = lower + deep;
      } else {
        read_across(from, one ? rows : 0, room[0]);
        read_across(from + deep, both ? rows : 0, room[1]);
      }
      for (int i = 0; i < width; i += Lanes::N) {
        const I low = shift_right_logical(to_int_bits(load_bf16(lower + i)), 16);
        const F word = from_int_bits(low | to_int_bits(load_bf16(upper + i)));
        word.store_n(to + i, width - i < Lanes::N ? width - i : Lanes::N);
      }
    }
  }
  // `count` numbers along the strip, 0 up to a whole strip.
  void read_across(int64_t from, int count, uint16_t* to) const {
    if (along == 1)
      read_bf16(from, count, to);
    else
      for (int i = 0; i < count; i++) read_bf16(from + i * along, 1, to + i);
    for (int i = count; i < kTileColumns; i++) to[i] = 0;
  }
};

// The last two axes of a tensor; i runs along `axis_i`, k along `axis_p`.
inline PairSource pair_source(const Tensor& t, int axis_i, int axis_p) {
  PairSource s{};
  static_cast<FrozenSource&>(s) = frozen_source(t, axis_i, axis_p);
  s.numbers = t.shape[axis_p];
  s.brain = t.dtype == DType::bf16;
  return s;
}
inline void set_left(PairSource& a, const Tensor& x) { a = pair_source(x, x.rank - 2, x.rank - 1); }
inline void set_right(PairSource& b, const Tensor& y) { b = pair_source(y, y.rank - 1, y.rank - 2); }

}  // namespace gradloom::GL_ISA::gemm

#if defined(GL_AMX_TILES)
#include "gemm_amx.h"
#endif
