// attention_pairs.h: the products of attention on a unit for pairs of bf16 (attention_forward.h and attention_back.h say
// what they are of).
//
// Rows of keys and values are words where they lie, pairs along d, and so are packed queries. What is summed over keys or
// queries is woven: two rows become one of words. Scores are multiplied by scale behind the product, because scaled
// queries are no numbers of bf16.
#pragma once
#include "attention_back.h"
#include "attention_forward.h"
#include "pair_blocks.h"

namespace gradloom::GL_ISA::attn {

using gemm::kPairGrain;
using gemm::kPairLanes;
using gemm::PairRows;
using gemm::PairSource;

constexpr int64_t kWords = kKeys / 2, kQueryWords = kQueries / 2;  // of a block, along keys and along queries

// X(i, k) = x[i * along + k * deep], rounded to bf16 where it is not yet.
inline PairSource source_of(const Operand& x, int64_t along, int64_t deep, int64_t numbers) {
  PairSource s = gemm::bf16_source(x.data, along, deep, numbers);
  if (!x.brain) s.decode = quant::decoder(DType::f32), s.bytes = 4, s.brain = false;
  return s;
}
inline int64_t words_of(int64_t numbers) { return round_up(ceil_div(numbers, 2), kPairGrain); }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
// Words of room for a block of keys or values, as rows or as columns.
inline int64_t block_words(int64_t d) {
  return larger(gemm::pair_row_words(kKeys, ceil_div(d, 2)), gemm::pair_row_words(d, kWords));
}

// Queries of a strip as [words of d][width]. PairSource rounds width up to kPairLanes.
inline void pack_words(const Operand& x, int64_t step, const Strip& strip, int64_t d, float* to) {
  source_of(x, step, 1, d).strips(0, strip.n, 0, words_of(d), kStrip, kPairLanes, to);
}

// Rows 2 p and 2 p + 1 of `from` [rows][ld], numbers of bf16 as f32, become row p of words [depth][width]; 0 beyond the
// rows and the columns, whole vectors. May be in place.
inline void weave(const float* from, int64_t ld, int64_t rows, int64_t columns, int64_t depth, float* to) {
  const int64_t width = round_up(columns, kPairLanes);
  for (int64_t p = 0; p < depth; p++)
    for (int64_t j = 0; j < width; j += F::N) {
      const bool one = 2 * p < rows && j < columns, both = one && 2 * p + 1 < rows;
      const float* const at = from + 2 * p * ld + j;
      const I lower = to_int_bits(one ? F::load(at) : F::zero());
      const I upper = to_int_bits(both ? F::load(at + ld) : F::zero());
      from_int_bits(shift_right_logical(lower, 16) | upper).store(to + p * width + j);
    }
}

struct ForwardPairs {
  gemm::PairTiles tiles;

  static size_t packed_floats(const Shape& x) { return static_cast<size_t>(kStrip * round_up(x.d, 32)); }
  static size_t row_floats(const Shape& x, bool) {
    return static_cast<size_t>(larger(block_words(x.d), x.single() ? kKeys * x.d : 0));  // attention_token.h widens
  }

  void attend(const Shape& x, const Strip& strip, const Operand& q, const Operand& k, const Operand& v, int64_t begin,
              int64_t end, float scale, float* packed, float* scores, float* y, Sums& sums, float* room) {
    const int64_t deep = words_of(x.d), ld = strip.ld;
    pack_words(q, strip.q_step, strip, x.d, packed);
    float factor[kStrip];
    clear(sums);
    for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
      const int64_t rows = end - k0 < kKeys ? end - k0 : kKeys, words = words_of(rows), at = k0 * x.k_row;
      const PairRows keys = prepare_rows(source_of(k.from(at), x.k_row, 1, x.d), rows, 0, deep, room);
      multiply_strip(tiles, keys, rows, packed, ld, deep, scores, ld, false);
      multiply(scores, rows * ld, scale);
      if (x.cap != 0.0f) cap_scores(scores, rows, ld, ld, x.cap);
      if (weigh<true>(strip, k0, rows, scores, sums, factor) && k0 != begin) rescale(x, strip, factor, y);
      weave(scores, ld, rows, ld, words, scores);
      const PairRows values = prepare_columns(source_of(v.from(at), 1, x.k_row, rows), x.d, 0, words, room);
      multiply_strip(tiles, values, x.d, scores, ld, words, y, ld, k0 != begin);
    }
  }
};

struct BackPairs {
  gemm::PairTiles tiles;

  // Scratch of a block of queries.
  struct Room {
    float *qt, *gt, *q, *g;  // strips: pairs along d; pairs along queries
    float *dqt, *weights, *dz, *woven, *keys, *left, *wide;
    int64_t floats = 0;
    Room(const Shape& x, float* base) {
      const int64_t d = round_up(x.d, 32);
      const auto take = [&](int64_t count) {
        const int64_t at = floats;
        floats += round_up(count, 16);
        return base ? base + at : nullptr;
      };
      qt = take(kQueries * d / 2);
      gt = take(kQueries * d / 2);
      q = take(kQueryWords * d);
      g = take(kQueryWords * d);
      dqt = take(kQueries * x.d);
      weights = take(kKeys * kQueries);
      dz = take(kKeys * kQueries);
      woven = take(kWords * kStrip);
      keys = take(block_words(x.d));
      left = take(gemm::pair_row_words(gemm::kPairRows, kQueryWords));
      wide = take(2 * kQueries * x.d);
    }
  };
  static size_t block_floats(const Backward& w) { return static_cast<size_t>(Room(w.x, nullptr).floats); }

  void back_block(const Call& call, const Backward& w, const Grads& a, int64_t b, int64_t h, int64_t block,
                  float* scratch, KeySums& sums) {
    const Shape& x = w.x;
    const Room room(x, scratch);
    const int64_t d = x.d, n = h / x.share, t0 = block * kQueries, deep = words_of(d);
    const int64_t queries = x.tokens - t0 < kQueries ? x.tokens - t0 : kQueries, query_words = words_of(queries);
    const int count = static_cast<int>(ceil_div(queries, kStrip));
    const int64_t first_query = x.q_at(b, t0, h);
    const Operand q = a.q.from(first_query), g = a.g.from(first_query);
    float lse[kQueries] = {}, delta[kQueries] = {};
    int64_t g_row = x.q_row, y_row = x.q_row;
    const float* const wide_g = g.rows(queries, d, g_row, room.wide);
    const float* const wide_y = a.y.from(first_query).rows(queries, d, y_row, room.wide + kQueries * d);
    find_delta(x, a, b, h, t0, queries, wide_g, g_row, wide_y, y_row, lse, delta);
    Strip strips[kStrips];
    int64_t begin = INT64_MAX, end = 0;
    for (int i = 0; i < count; i++) {
      strips[i] = Strip(call, x, a.positions, b, h, block * kStrips + i, false);
      const Strip& s = strips[i];
      pack_words(q.from(i * kStrip * x.q_row), x.q_row, s, d, room.qt + i * kStrip * deep);
      pack_words(g.from(i * kStrip * x.q_row), x.q_row, s, d, room.gt + i * kStrip * deep);
      if (s.begin < begin) begin = s.begin;
      if (s.end > end) end = s.end;
    }
    source_of(q, 1, x.q_row, queries).strips(0, d, 0, query_words, kStrip, kPairLanes, room.q);
    source_of(g, 1, x.q_row, queries).strips(0, d, 0, query_words, kStrip, kPairLanes, room.g);
    bool started[kStrips] = {};
    for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
      const int64_t k1 = k0 + kKeys < end ? k0 + kKeys : end;
      int64_t from[kStrips], to[kStrips];  // the rows of the block that each strip sees
      for (int i = 0; i < count; i++) {
        const Strip& s = strips[i];
        seen_rows(s, k0, k1, from[i], to[i]);
        float *const p = room.weights + i * kStrip, *const z = room.dz + i * kStrip;
        clear_rows(s, k1 - k0, from[i], to[i], p, z);
        const int64_t rows = to[i] - from[i], at = k0 + from[i], words = words_of(rows), ld = s.ld;
        if (rows == 0) continue;
        const Operand k = a.k.from(x.k_at(b, at, n)), v = a.v.from(x.k_at(b, at, n));
        float *const p0 = p + from[i] * kQueries, *const z0 = z + from[i] * kQueries;
        const PairRows keys = prepare_rows(source_of(k, x.k_row, 1, d), rows, 0, deep, room.keys);
        multiply_strip(tiles, keys, rows, room.qt + i * kStrip * deep, ld, deep, p0, kQueries, false);
        const PairRows values = prepare_rows(source_of(v, x.k_row, 1, d), rows, 0, deep, room.keys);
        multiply_strip(tiles, values, rows, room.gt + i * kStrip * deep, ld, deep, z0, kQueries, false);
        for (int64_t r = 0; r < rows; r++) {
          multiply(p0 + r * kQueries, ld, a.scale);
          multiply(z0 + r * kQueries, ld, a.scale);
        }
        if (x.cap != 0.0f) cap_scores(p0, rows, kQueries, ld, x.cap);
        const auto weights_and_slopes = x.cap != 0.0f ? slopes<true, true> : slopes<false, true>;
        weights_and_slopes(s, at, rows, kQueries, lse + i * kStrip, delta + i * kStrip, x.cap, p0, z0);
        weave(z0, kQueries, rows, ld, words, room.woven);
        const PairRows columns = prepare_columns(source_of(k, 1, x.k_row, rows), d, 0, words, room.keys);
        multiply_strip(tiles, columns, d, room.woven, ld, words, room.dqt + i * kStrip * d, ld, started[i]);
        started[i] = true;
      }
      for (int64_t r = 0; r < k1 - k0; r += gemm::kPairRows) {
        const int64_t rows = k1 - k0 - r < gemm::kPairRows ? k1 - k0 - r : gemm::kPairRows;
        const auto [low, high] = strips_of(count, from, to, r, rows);
        if (low >= high) continue;
        const bool add = sums.adds(k0 + r, rows);
        const int64_t first = low * kStrip, last = high * kStrip < queries ? high * kStrip : queries, at = (k0 + r) * d;
        sum_keys(room.dz + r * kQueries, rows, first, last, room.q, query_words, d, room.left, sums.dk + at, add);
        sum_keys(room.weights + r * kQueries, rows, first, last, room.g, query_words, d, room.left, sums.dv + at, add);
      }
    }
    for (int i = 0; i < count; i++) {
      const Strip& s = strips[i];
      transpose(room.dqt + i * kStrip * d, s.ld, d, s.n, a.dq + s.q, s.q_step);
    }
  }

 private:
  // out [rows][d] = (or +=) numbers [rows][first .. last] times these queries, woven in strips [query_words][width]. The numbers,
  // bf16 as f32, become bf16 in place.
  void sum_keys(float* numbers, int64_t rows, int64_t first, int64_t last, const float* woven, int64_t query_words,
                int64_t d, float* room, float* out, bool add) {
    for (int64_t r = 0; r < rows; r++) {
      float* const row = numbers + r * kQueries;
      for (int64_t j = first; j < last; j += F::N) store_bf16(reinterpret_cast<uint16_t*>(row) + j, F::load(row + j));
    }
    const int64_t p0 = first / 2, depth = words_of(last) - p0;
    const PairRows a = prepare_rows(gemm::bf16_source(numbers, 2 * kQueries, 1, last), rows, p0, depth, room);
    for (int64_t c = 0; c < d; c += kStrip) {
      const int64_t columns = d - c < kStrip ? d - c : kStrip, width = round_up(columns, kPairLanes);
      multiply_strip(tiles, a, rows, woven + c * query_words + p0 * width, columns, depth, out + c, d, add);
    }
  }
};

}  // namespace gradloom::GL_ISA::attn
