// gemm_amx.h: the product of bf16 numbers on AMX: 2 x 2 tiles, that is 32 rows and 32 columns of C at a time.
//
// gemm_product.h says what the product is and which parts compute it; both operands are packed, whole chunks of 16 words
// (32 numbers) along k, 0 where k has ended:
//   A   [16 rows][chunk][row][word]    what a tile reads lies side by side
//   B   strips of 32 columns, [word][column], as for other units
// A strip of B stays in the first-level cache while A streams past it. C is summed in tiles over a block of k, and the
// blocks are added in order, so that the bits do not depend on parts.
#pragma once
#include "../simd/amx_unit.h"
#include "gemm_run.h"
#include "peaks.h"

namespace gradloom::GL_ISA::gemm {

using TileProduct = ProductOf<PairSource, PairSource, Pairs>;

constexpr int64_t kTileDepth = 256;        // longest block of k, in words: 32 KB of B
constexpr int64_t kRectangle = 32;         // rows and columns of C at a time
constexpr int64_t kRectangleRows = 512;    // rows of A packed at a time into scratch
static_assert(kTileColumns == kRectangle);

// Rows i0 .. i1 of A, words p0 .. p0 + depth (whole chunks).
inline void pack_rows(const PairSource& a, int64_t i0, int64_t i1, int64_t p0, int64_t depth, float* to) {
  alignas(64) float room[kTileWords];
  for (; i0 < i1; i0 += kTileSide) {
    const int rows = static_cast<int>(i1 - i0 < kTileSide ? i1 - i0 : kTileSide);
    for (int64_t p = 0; p < depth; p += kTileSide, to += kTileWords) {
      if (a.transposed) {
        for (int r = 0; r < rows; r++) a.read_pairs(i0 + r, p0 + p, kTileSide, to + r * kTileSide);
        std::memset(to + rows * kTileSide, 0, static_cast<size_t>((kTileSide - rows) * kTileSide) * 4);
        continue;
      }
      a.strips(i0, i0 + rows, p0 + p, kTileSide, kTileSide, kTileSide, room);
      for (int i = 0; i < kTileSide; i += kSquare)
        for (int k = 0; k < kTileSide; k += kSquare)
          transpose<kSquare>(room + k * kTileSide + i, kTileSide, to + i * kTileSide + k, kTileSide);
    }
  }
}

// C[rows][columns] (row stride ldc) = the product over a block of k, plus C with `add`, then finish.
__attribute__((noinline)) static void tile_rectangle([[maybe_unused]] TileRegisters& tiles, const float* a, const float* b,
                                                     int64_t depth, int64_t rows, int64_t columns, float* c,
                                                     int64_t ldc, bool add, const Finish& finish) {
  constexpr int S = kTileSide;
  const bool direct = rows == kRectangle && columns == kRectangle && !add && !finish.bias && !finish.relu && !finish.gate;
  alignas(64) float sums[kRectangle * kRectangle];
  float* const z = direct ? c : sums;
  const int64_t ldz = direct ? ldc : kRectangle;
  asm volatile("" ::: "memory");  // what has been packed is in memory
  GL_TILE_ZERO(0);
  GL_TILE_ZERO(1);
  if (rows > S) {
    GL_TILE_ZERO(2);
    GL_TILE_ZERO(3);
    const float* const below = a + S * depth;
    for (int64_t p = 0; p < depth; p += S, b += S * kRectangle) {
      GL_TILE_LOAD(4, a + p * S, S);
      GL_TILE_LOAD(6, b, kRectangle);
      GL_TILE_PRODUCT(0, 4, 6);
      GL_TILE_LOAD(5, below + p * S, S);
      GL_TILE_PRODUCT(2, 5, 6);
      GL_TILE_LOAD(7, b + S, kRectangle);
      GL_TILE_PRODUCT(1, 4, 7);
      GL_TILE_PRODUCT(3, 5, 7);
    }
    GL_TILE_STORE(2, z + S * ldz, ldz);
    GL_TILE_STORE(3, z + S * ldz + S, ldz);
  } else {
    for (int64_t p = 0; p < depth; p += S, b += S * kRectangle) {
      GL_TILE_LOAD(4, a + p * S, S);
      GL_TILE_LOAD(6, b, kRectangle);
      GL_TILE_PRODUCT(0, 4, 6);
      GL_TILE_LOAD(7, b + S, kRectangle);
      GL_TILE_PRODUCT(1, 4, 7);
    }
  }
  GL_TILE_STORE(0, z, ldz);
  GL_TILE_STORE(1, z + S, ldz);
  if (direct) return;
  const Lanes floor = Lanes::set1(finish.relu ? 0.0f : -__builtin_inff());
  for (int64_t j = 0; j < columns; j += Lanes::N) {
    const int n = static_cast<int>(columns - j < Lanes::N ? columns - j : Lanes::N);
    const Lanes bias = finish.bias ? Lanes::load_n(finish.bias + j, n) : Lanes::set1(-0.0f);
    for (int64_t i = 0; i < rows; i++) {
      Lanes sum = Lanes::load(sums + i * kRectangle + j);
      if (add) sum = Lanes::load_n(c + i * ldc + j, n) + sum;
      if (finish.bias || finish.relu) sum = max(sum + bias, floor);
      if (finish.gate) sum = keep_positive(Lanes::load_n(finish.gate + i * finish.gate_rows + j, n), sum);
      sum.store_n(c + i * ldc + j, n);
    }
  }
}

// The product as describe() has it, in chunks: what is shared is packed by a phase of its own.
inline void describe_tiles(const Call& call, const Tensor& z, TileProduct& p) {
  describe(call, z, p);
  p.k = round_up(p.k, kTileSide);
  const int64_t blocks = p.k > kTileDepth ? ceil_div(p.k, kTileDepth) : 1;
  p.depth = round_up(ceil_div(p.k, blocks), kTileSide);
  p.pack_a = p.pack_b = true;
  const bool fits = static_cast<double>(p.m * p.k) <= kShareMost && static_cast<double>(p.n * p.k) <= kShareMost;
  p.shared_a = p.batches == 1 && p.parts_n > 1 && fits;
  p.shared_b = p.batches == 1 && p.parts_m > 1 && fits;
}
inline int64_t tile_rows(const TileProduct& p) { return round_up(p.m, kTileSide); }
inline int64_t tile_columns(const TileProduct& p) { return round_up(p.n, kRectangle); }
inline size_t a_words(const TileProduct& p) {  // packed at a time into scratch
  return p.shared_a ? 0 : static_cast<size_t>((tile_rows(p) < kRectangleRows ? tile_rows(p) : kRectangleRows) * p.depth);
}

inline void run_tiles(TileRegisters& tiles, const TileProduct& p, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* scratch) {
  float* const b_room = scratch + a_words(p);
  for (int64_t r0 = m0; r0 < m1; r0 += kRectangleRows) {
    const int64_t r1 = r0 + kRectangleRows < m1 ? r0 + kRectangleRows : m1;
    int64_t k0 = 0;
    do {  // at least once: where k is 0, C is what the epilogue makes of 0
      const int64_t depth = p.k - k0 < p.depth ? p.k - k0 : p.depth;
      const bool ends = k0 + depth >= p.k;
      const float* a = p.shared_a ? p.a_shared + tile_rows(p) * k0 + r0 * depth : scratch;
      if (!p.shared_a) pack_rows(p.a, r0, r1, k0, depth, scratch);
      for (int64_t j = n0; j < n1; j += kRectangle) {
        const int64_t columns = n1 - j < kRectangle ? n1 - j : kRectangle;
        const float* b = p.shared_b ? p.b_shared + tile_columns(p) * k0 + j * depth : b_room;
        if (!p.shared_b) p.b.strips(j, j + columns, k0, depth, kRectangle, kRectangle, b_room);
        for (int64_t i = r0; i < r1; i += kRectangle) {
          const int64_t rows = r1 - i < kRectangle ? r1 - i : kRectangle;
          const Finish finish{ends && p.bias ? p.bias + j : nullptr, ends && p.gate ? p.gate + i * p.n + j : nullptr, p.n,
                              ends && p.relu, nullptr};
          tile_rectangle(tiles, a + (i - r0) * depth, b, depth, rows, columns, p.c + i * p.n + j, p.n, k0 != 0, finish);
        }
      }
      k0 += depth;
    } while (k0 < p.k);
  }
}

template <>
inline void plan_product<TileProduct>(const Call& call, const Tensor& z, KernelPlan& plan) {
  TileProduct p;
  describe_tiles(call, z, p);
  plan.scratch_bytes = (a_words(p) + (p.shared_b ? 0 : static_cast<size_t>(kRectangle * p.depth))) * sizeof(float);
  plan.parts[0] = static_cast<uint32_t>(p.parts);
  if (!p.shared_a && !p.shared_b) return;
  const int64_t words = (p.shared_a ? tile_rows(p) * p.k : 0) + (p.shared_b ? tile_columns(p) * p.k : 0);
  plan.phases = 2;
  plan.parts[1] = plan.parts[0];
  plan.parts[0] = parts_for(static_cast<double>(words), 4096);
  plan.workspace_bytes = static_cast<size_t>(words) * sizeof(float);
}

template <>
inline void run_product<TileProduct>(const Call& call, const Tensor& z, TileProduct& p, int phase, int part, int parts,
                                     void* scratch) {
  describe_tiles(call, z, p);
  if (p.m == 0 || p.n == 0 || p.batches == 0) return;
  if (p.shared_a || p.shared_b) {
    p.a_shared = call.workspace().as<float>();
    p.b_shared = p.a_shared + (p.shared_a ? tile_rows(p) * p.k : 0);
    if (phase == 0) {
      const Range i = part_range(p.m, part, parts, kRectangle), j = part_range(p.n, part, parts, kRectangle);
      for (int64_t k0 = 0; k0 < p.k; k0 += p.depth) {
        const int64_t depth = p.k - k0 < p.depth ? p.k - k0 : p.depth;
        if (p.shared_a) pack_rows(p.a, i.begin, i.end, k0, depth, p.a_shared + tile_rows(p) * k0 + i.begin * depth);
        if (p.shared_b)
          p.b.strips(j.begin, j.end, k0, depth, kRectangle, kRectangle,
                     p.b_shared + tile_columns(p) * k0 + j.begin * depth);
      }
      return;
    }
  }
  TileRegisters tiles;
  const int grid = p.parts_m * p.parts_n;
  const Range jobs = part_range(p.batches * grid, part, parts);
  const TileProduct first = p;
  for (int64_t job = jobs.begin; job < jobs.end; job++) {
    if (p.batches > 1) select_matrix(p, first, job / grid);
    const int at = static_cast<int>(job % grid);
    const Range rows = part_range(p.m, at / p.parts_n, p.parts_m, kRectangle);
    const Range columns = part_range(p.n, at % p.parts_n, p.parts_n, kRectangle);
    run_tiles(tiles, p, rows.begin, rows.end, columns.begin, columns.end, static_cast<float*>(scratch));
  }
}

}  // namespace gradloom::GL_ISA::gemm

namespace gradloom::GL_ISA::peaks {

// Products of tiles in registers.
template <>
inline void run_limit<gemm::Pairs>(const Call& call, int, int, int, void*) {
  [[maybe_unused]] TileRegisters tiles;
  alignas(64) float words[kTileWords] = {};
  GL_TILE_LOAD(4, words, kTileSide);
  GL_TILE_LOAD(5, words, kTileSide);
  GL_TILE_LOAD(6, words, kTileSide);
  GL_TILE_LOAD(7, words, kTileSide);
  GL_TILE_ZERO(0);
  GL_TILE_ZERO(1);
  GL_TILE_ZERO(2);
  GL_TILE_ZERO(3);
  const int64_t rounds = call.attr_int(0) / 64;
  for (int64_t r = rounds; r > 0; r--) {
    GL_TILE_PRODUCT(0, 4, 6);
    GL_TILE_PRODUCT(1, 4, 7);
    GL_TILE_PRODUCT(2, 5, 6);
    GL_TILE_PRODUCT(3, 5, 7);
  }
  GL_TILE_STORE(0, words, kTileSide);
  std::memcpy(call[0].as<float>(), words, 4 * Lanes::N);
  call.status->value = rounds * 4 * 2 * 32 * kTileWords;
}

}  // namespace gradloom::GL_ISA::peaks
