// pair_blocks.h: products inside of other kernels on a unit for pairs of bf16: C (+)= A B, one block of k.
//
//   PairTiles tiles;                                             while such products are computed
//   const PairRows a = prepare_rows(source, m, p0, depth, room);  once for all columns; in place where it can be
//   multiply_pairs(tiles, a, m, b, j0, n, p0, depth, c, ldc, add, strips, next);
//   multiply_strip(tiles, a, m, strip, n, depth, c, ldc, add);    B is one strip that is packed already;
//                                                                a from prepare_rows or prepare_columns
//
// k counts words (gemm_pairs.h): a block has at most kPairDepth of them. C is summed over a block as matmul sums it.
#pragma once
#include "gemm_pairs.h"
#include "gemm_run.h"

namespace gradloom::GL_ISA::gemm {

#if defined(GL_AMX_TILES)
using PairTiles = TileRegisters;
constexpr bool kPairsPacked = true;  // rows of A always are
constexpr int64_t kPairDepth = kTileDepth, kPairGrain = kTileSide, kPairColumns = kRectangle;
constexpr int64_t kPairRows = kRectangle;   // rows of A that a product takes at a time
constexpr int kPairLanes = kRectangle;      // what the columns of a strip are rounded up to
#else
struct PairTiles {};
constexpr bool kPairsPacked = false;
constexpr int64_t kPairDepth = kDepth, kPairGrain = 1, kPairColumns = kGroup;
constexpr int64_t kPairRows = kTileRows;
constexpr int kPairLanes = Lanes::N;
#endif

// Numbers of bf16 in memory as an operand: X(i, k) = data[i * along + k * deep].
inline PairSource bf16_source(const void* data, int64_t along, int64_t deep, int64_t numbers) {
  PairSource s{};
  s.data = static_cast<const uint8_t*>(data);
  s.along = along, s.deep = deep;
  s.transposed = deep == 1;
  s.block = 1, s.bytes = 2;
  s.numbers = numbers;
  s.brain = true;
  return s;
}

// Rows of A over a block of k: where they lie, or as multiply_pairs reads them.
struct PairRows {
  const float* words;
  int64_t row_words;  // from a row to the next where they lie
  int strip;          // rows of a strip where they are packed, or 0
};

// Blocks of k: how many words of `words` each has but the last.
inline int64_t pair_depth(int64_t words) {
  const int64_t blocks = words > kPairDepth ? ceil_div(words, kPairDepth) : 1;
  return round_up(ceil_div(words, blocks), words > kPairDepth && kPairGrain < 8 ? 8 : kPairGrain);
}
// Words of room for `rows` rows of A, and for columns of B, over a block of `depth` words.
inline int64_t pair_row_words(int64_t rows, int64_t depth) { return round_up(rows, 16) * round_up(depth, 16); }
inline int64_t pair_strip_words(int64_t depth) { return kPairColumns * round_up(depth, 16); }

// Rows 0 .. m of `a`, words p0 .. p0 + depth.
inline PairRows prepare_rows(const PairSource& a, int64_t m, int64_t p0, int64_t depth, float* room) {
#if defined(GL_AMX_TILES)
  pack_rows(a, 0, m, p0, round_up(depth, kTileSide), room);
#else
  if (a.in_place()) return {a.at(0, p0), a.row_words(), 0};
  a.strips(0, m, p0, depth, kTileRows, 1, room);
#endif
  return {room, 0, kTileRows};
}
// The same for multiply_strip alone, of rows that lie side by side: whole vectors of them are woven into strips.
inline PairRows prepare_columns(const PairSource& a, int64_t m, int64_t p0, int64_t depth, float* room) {
#if defined(GL_AMX_TILES)
  return prepare_rows(a, m, p0, depth, room);
#else
  a.strips(0, m, p0, depth, kTileColumns, Lanes::N, room);
  return {room, 0, kTileColumns};
#endif
}

// c [m][n], ldc numbers from row to row, (+)= a strip; n columns, at most those of a strip, rounded up to kPairLanes in
// memory. depth: as it was prepared and packed, a multiple of kPairGrain.
inline void multiply_strip([[maybe_unused]] PairTiles& tiles, const PairRows& a, int64_t m, const float* strip, int64_t n,
                           int64_t depth, float* c, int64_t ldc, bool add) {
  const Finish keep{};
#if defined(GL_AMX_TILES)
  for (int64_t i = 0; i < m; i += kRectangle) {
    const int64_t rows = m - i < kRectangle ? m - i : kRectangle;
    tile_rectangle(tiles, a.words + i * depth, strip, depth, rows, n, c + i * ldc, ldc, add, keep);
  }
#else
  const int64_t vectors = ceil_div(n, Lanes::N);
  const auto& fn = kTilesOf<Pairs>.fn[a.strip == 0][n % Lanes::N != 0][vectors - 1];
  const int64_t once = a.strip ? a.strip : m, round = a.strip == kTileColumns ? Lanes::N : 1;
  for (int64_t i0 = 0; i0 < m; i0 += once) {
    const int64_t rows = m - i0 < once ? m - i0 : once, count = ceil_div(rows, kTileRows);
    const int64_t stride = a.strip ? round_up(rows, round) : a.row_words;
    for (int64_t t = 0; t < count; t++) {  // of nearly equal heights
      const int64_t i = rows * t / count, height = rows * (t + 1) / count - i;
      const float* const at = a.words + (a.strip ? i0 * depth + i : i * stride);
      fn[height - 1](at, stride, strip, vectors * Lanes::N, depth, static_cast<int>(n), c + (i0 + i) * ldc, ldc, add, keep);
    }
  }
#endif
}

// c [m][n], ldc numbers from row to row, (+)= a b[j0 .. j0 + n, p0 .. p0 + depth]^T; `next` is fetched at the end.
inline void multiply_pairs([[maybe_unused]] PairTiles& tiles, const PairRows& a, int64_t m, const PairSource& b, int64_t j0,
                           int64_t n, int64_t p0, int64_t depth, float* c, int64_t ldc, bool add, float* strips,
                           [[maybe_unused]] const Ahead& next) {
#if defined(GL_AMX_TILES)
  const int64_t deep = round_up(depth, kTileSide);
  const Finish keep{};
  for (int64_t j = 0; j < n; j += kRectangle) {
    const int64_t columns = n - j < kRectangle ? n - j : kRectangle;
    b.strips(j0 + j, j0 + j + columns, p0, deep, kRectangle, kRectangle, strips);
    for (int64_t i = 0; i < m; i += kRectangle) {
      const int64_t rows = m - i < kRectangle ? m - i : kRectangle;
      tile_rectangle(tiles, a.words + i * deep, strips, deep, rows, columns, c + i * ldc + j, ldc, add, keep);
    }
  }
#else
  ProductOf<PairSource, PairSource, Pairs> p{};
  p.m = m, p.n = ldc, p.k = depth;
  p.a.along = 2 * a.row_words, p.a.deep = 1;
  p.c = c;
  for (int64_t j = 0; j < n; j += kGroup) {
    const int64_t end = j + kGroup < n ? j + kGroup : n, stop = end + kGroup < n ? end + kGroup : n;
    b.strips(j0 + j, j0 + end, p0, depth, kTileColumns, Lanes::N, strips);
    Ahead ahead = end < n ? b.ahead(j0 + end, j0 + stop, p0, depth) : next;
    run_block(p, Block{add ? 1 : 0, depth, a.words, strips, a.strip != 0, true, &ahead}, 0, m, j, end);
  }
#endif
}

}  // namespace gradloom::GL_ISA::gemm
