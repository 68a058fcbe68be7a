// linear_pairs.h: the products of linear_cross_entropy on a unit for pairs of bf16 (linear_head.h has them in f32).
//
// Gathered rows of x are words, pairs along d; Z is written over the logits as bf16, pairs along the vocabulary.
#pragma once
#include "linear_head.h"
#include "pair_blocks.h"

namespace gradloom::GL_ISA {

template <> struct HeadProducts<gemm::PairSource> {
  using W = gemm::PairSource;
  static constexpr bool kRounded = true;
  const Head<W>& h;
  gemm::PairTiles tiles;
  int64_t row, words, deep;  // words from one gathered row to the next; of d; of the longest stretch of d
  float* logits;             // [rows, columns]
  float *x, *x_packed, *room, *strips;  // room: of Z, as rows or as columns of it are packed

  static int64_t row_of(int64_t d) {
    const int64_t row = gemm::round_up(gemm::ceil_div(d, 2), 16);
    return gemm::crowds(row, 1) ? row + 16 : row;
  }
  static int64_t most_rows(const Head<W>& h) { return h.n < kHeadRows ? h.n : kHeadRows; }
  static int64_t most_columns(const Head<W>& h) { return h.v < kHeadColumns ? h.v : kHeadColumns; }
  static int64_t packed_words(const Head<W>& h) {
    return gemm::kPairsPacked ? gemm::round_up(most_rows(h), 16) * gemm::round_up(gemm::ceil_div(h.d, 2), 16) : 0;
  }
  static int64_t room_words(const Head<W>& h) {
    const int64_t rows = most_rows(h), columns = most_columns(h);
    const int64_t a = gemm::pair_row_words(rows, gemm::ceil_div(columns, 2));
    const int64_t b = gemm::pair_row_words(columns, gemm::ceil_div(rows, 2));
    return a > b ? a : b;
  }
  static size_t scratch_floats(const Head<W>& h) {
    int64_t deep = gemm::pair_depth(gemm::ceil_div(h.d, 2));
    if (deep < kHeadColumns / 2) deep = kHeadColumns / 2;
    const int64_t rows = most_rows(h);
    return static_cast<size_t>(rows * row_of(h.d) + packed_words(h) + gemm::round_up(rows * most_columns(h), 16) +
                               room_words(h) + gemm::pair_strip_words(deep));
  }
  HeadProducts(const Head<W>& h, void* scratch)
      : h(h), row(row_of(h.d)), words(gemm::ceil_div(h.d, 2)), deep(gemm::pair_depth(words)) {
    x = static_cast<float*>(scratch);
    x_packed = x + most_rows(h) * row;
    logits = x_packed + packed_words(h);
    room = logits + gemm::round_up(most_rows(h) * most_columns(h), 16);
    strips = room + room_words(h);
  }

  void gather(int64_t r0, int64_t r1) {
    uint16_t* to = reinterpret_cast<uint16_t*>(x);
    for (int64_t r = r0; r < r1; r++, to += 2 * row) {
      const uint16_t* const from = h.x_bits + h.list[r] * h.x_row;
      if (h.x_deep == 1) std::memcpy(to, from, static_cast<size_t>(h.d) * 2);
      else for (int64_t i = 0; i < h.d; i++) to[i] = from[i * h.x_deep];
      std::memset(to + h.d, 0, static_cast<size_t>(2 * row - h.d) * 2);
    }
    const W rows = gemm::bf16_source(x, 2 * row, 1, 2 * words);
    for (int64_t k0 = 0; k0 < words; k0 += deep)
      gemm::prepare_rows(rows, r1 - r0, k0, words - k0 < deep ? words - k0 : deep, packed(r1 - r0, k0));
  }
  void make_logits(int64_t rows, int64_t v0, int64_t columns, int64_t next) {
    for (int64_t k0 = 0; k0 < words; k0 += deep) {
      const int64_t depth = words - k0 < deep ? words - k0 : deep, k1 = k0 + depth;
      const gemm::PairRows a = gemm::kPairsPacked ? gemm::PairRows{packed(rows, k0), 0, gemm::kTileRows}
                                                  : gemm::PairRows{x + k0, row, 0};
      gemm::multiply_pairs(tiles, a, rows, h.w, v0, columns, k0, depth, logits, columns, k0 != 0, strips,
                           k1 < words ? ahead(v0, columns, k1) : ahead(next, kHeadColumns, 0));
    }
  }
  static void put(float* z, int64_t i, F value, Full) { store_bf16(reinterpret_cast<uint16_t*>(z) + i, value); }
  static void put(float* z, int64_t i, F value, Part t) { store_bf16_n(reinterpret_cast<uint16_t*>(z) + i, value, t.n); }
  static void put(float* z, int64_t i, float value) { put(z, i, F::set1(value), Part{1}); }
  void add_share(int64_t rows, int64_t v0, int64_t columns, bool add, float* share) {
    const int64_t depth = gemm::ceil_div(columns, 2);
    const gemm::PairRows a =
        gemm::prepare_rows(gemm::bf16_source(logits, 2 * columns, 1, columns), rows, 0, depth, room);
    gemm::multiply_pairs(tiles, a, rows, h.w_transposed, 0, h.d, v0 / 2, depth, share, h.d, add, strips,
                         ahead(v0 + columns, kHeadColumns, 0));
  }
  void add_slopes(int64_t rows, int64_t columns, bool add, float* dw) {
    const int64_t depth = gemm::ceil_div(rows, 2);
    const gemm::PairRows a =
        gemm::prepare_rows(gemm::bf16_source(logits, 1, 2 * columns, rows), columns, 0, depth, room);
    gemm::multiply_pairs(tiles, a, columns, gemm::bf16_source(x, 1, 2 * row, rows), 0, h.d, 0, depth, dw, h.d, add,
                         strips, gemm::Ahead{});
  }
  void read_row(int64_t v, int64_t i0, int64_t count, float* to) const {
    h.w.FrozenSource::strips(v, v + 1, i0, count, gemm::kTileColumns, 1, to);
  }

 private:
  // Rows of x from word k0 on, as they are packed.
  float* packed(int64_t rows, int64_t k0) const { return x_packed + gemm::round_up(rows, 16) * k0; }
  // What the strips of up to `columns` columns from v0 on begin with; nothing where the vocabulary ends.
  gemm::Ahead ahead(int64_t v0, int64_t columns, int64_t k0) const {
    const int64_t most = columns < gemm::kGroup ? columns : gemm::kGroup, stop = v0 + most < h.v ? v0 + most : h.v;
    return h.w.ahead(v0, stop, k0, words - k0 < deep ? words - k0 : deep);
  }
};

inline void set_head_weight(const Tensor& w, Head<gemm::PairSource>& h) {
  h.w = gemm::pair_source(w, 0, 1);
  h.w_transposed = gemm::pair_source(w, 1, 0);
  h.w.rounded = h.w_transposed.rounded = true;  // as read_row reads it
}

}  // namespace gradloom::GL_ISA
