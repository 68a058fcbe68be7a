// gemm_product.h: what a matrix product consists of and how it is cut: from shapes and strides alone.
//
// C[M, N] = A[M, K] B[K, N], batched, either operand in either orientation. A part owns a rectangle of C and computes
// it whole. Operands are read in place where that is as fast, otherwise from packed strips (gemm_pack.h):
//   A, packed once by a phase of its own into the workspace (`shared_a`), or by the part into its scratch;
//   B, packed by the part that owns the columns, or by the first phase where several parts need it (`shared_b`).
// Where C has few columns its transpose is computed instead (`narrow`): then A is what fills the vectors. So it is where
// C has few rows and B's numbers lie along k (`low`): then A alone is packed, which is small. Where C has up to four
// rows of that kind, nothing is packed: dot products (gemm_rows.h). k is cut into blocks by its
// length alone and the blocks are added in order, so that the bits do not depend on parts. B may be frozen
// (gemm_frozen.h): then it is always packed, and all else is the same, bit for bit.
//
// A product of bf16 numbers rounds what is not bf16 yet to it as it is packed, and sums in f32. An instruction set that
// has a unit for pairs of bf16 (gemm_pairs.h) counts k in words, each a pair of neighbours along k. The others widen both
// operands while packing: theirs is the f32 product of the rounded numbers, bit for bit.
#pragma once
#include "../tuning.h"
#include "gemm_frozen.h"
#include "gemm_rows.h"

namespace gradloom::GL_ISA::gemm {

constexpr int64_t kDepth = 1024;                               // longest block of k
constexpr int64_t kGroup = 96;                                 // columns of B that stay in the second-level cache,
                                                               // beside those that are fetched to follow them, where
                                                               // the processor's row (tuning.h) says no other number
constexpr int64_t kRows = 48 / kTileRows * kTileRows;          // rows of A that stay there with them
constexpr int64_t kRowsPacked = 504;                           // rows of A packed at a time into scratch
constexpr int64_t kJoined = 1 << 18;                           // numbers of C that stay there from one block of k to
                                                               // the next, where parts are run as one
constexpr double kShareMost = 1 << 23;                         // numbers of one operand in the workspace
constexpr double kPartCost = 1 << 17;                          // multiply-adds: about a microsecond
#if defined(GL_ISA_AVX512)
constexpr int64_t kRowsInPlace = 640;  // B is read in place up to this many rows of A
constexpr int64_t kColumnGrain = Lanes::N;
constexpr bool kColumnsInPlace = true;  // A is read in place where its rows lie side by side
constexpr double kPackCost = 0.3;       // of packing a number, in multiply-adds of one vector
#else
constexpr int64_t kRowsInPlace = 96;
constexpr int64_t kColumnGrain = kTileColumns;
constexpr bool kColumnsInPlace = false;
constexpr double kPackCost = 0.5;
#endif
constexpr double kRowCost = 1 << 16;   // numbers of B that a part of a product of few rows reads
constexpr int64_t kLowRows = 64;         // rows of the highest C that may be computed as its transpose ...
constexpr int64_t kLowDepth = 4 * kDepth;  // ... and its longest k: all of A is packed
constexpr int64_t kNarrow = 12;  // columns of the widest C that may be computed as its transpose
static_assert(kRowsPacked % kTileRows == 0 && kRows % kTileRows == 0 && kGroup % kTileColumns == 0 &&
              kGroupMost % kTileColumns == 0);

// A stride (in floats) that brings its steps back to the same `sets`-th of the first-level cache (4 KiB a way).
inline bool crowds(int64_t stride, int64_t sets) { return stride > 0 && stride % (1024 / sets) == 0; }

// A product of two sources (gemm_pack.h).
template <class A, class B, class U = Numbers>
struct ProductOf {
  using Left = A;
  using Right = B;
  using Unit = U;
  int64_t m, n, k;  // k in words
  A a;
  B b;
  float* c;
  const float* bias;  // [n], or nullptr
  const float* gate;  // laid out as c, or nullptr
  bool relu;

  int batch_rank;  // axes left after folding what can be rows
  int64_t batches;
  int64_t batch[kMaxRank], a_batch[kMaxRank], b_batch[kMaxRank];

  RowMatrix few;  // B^T of a product of few rows
  bool narrow;  // C^T = B^T A^T: for few columns, rows fill the vectors better
  bool low;     // likewise for few rows: B is read in place
  bool pack_a, pack_b, shared_a, shared_b;
  int64_t group = kGroup;   // columns of B that are packed at a time
  bool fetch_rows = false;  // rows of A are fetched ahead of their tiles
  int64_t depth;         // of a block of k, at most kDepth
  int parts_m, parts_n;  // rectangles of one matrix
  int parts;
  float *a_shared, *b_shared;  // strips in the workspace: [block of k][strip][depth][width]
};
using Product = ProductOf<StridedSource, StridedSource>;
using FrozenProduct = ProductOf<StridedSource, FrozenSource>;

// A's last two axes as a source whose strips run along its rows.
inline void set_left(StridedSource& a, const Tensor& x) {
  a = {x.as<const float>(), x.strides[x.rank - 2], x.strides[x.rank - 1]};
}
inline void set_left(FrozenSource& a, const Tensor& x) {
  a = frozen_source(x, x.rank - 2, x.rank - 1);
}

// B's last two axes as a source whose strips run along its columns.
inline void set_right(StridedSource& b, const Tensor& y) {
  b = {y.as<const float>(), y.strides[y.rank - 1], y.strides[y.rank - 2]};
  if (y.shape[y.rank - 1] == 1) b.along = 1;  // the stride of an axis of size 1 says nothing
}
inline void set_right(FrozenSource& b, const Tensor& y) { b = frozen_source(y, y.rank - 1, y.rank - 2); }

// The stride of z's axis `axis` in an operand of equal or smaller rank; 0 where it broadcasts.
inline int64_t batch_stride(const Tensor& t, int z_rank, int axis) {
  const int i = axis - (z_rank - t.rank);
  return i < 0 || t.shape[i] == 1 ? 0 : t.strides[i];
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The parts of one matrix: powers of two, so that halves and quarters of the list are equal work.
template <class P>
void choose_grid(P& p, int most) {
  const int64_t tiles_m = ceil_div(p.m, kTileRows), tiles_n = ceil_div(p.n, kColumnGrain);
  const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k ? p.k : 1);
  int parts = 1;
  while (parts < most && work >= 2 * parts * kPartCost && 2 * parts <= tiles_m * tiles_n) parts *= 2;
  for (; parts > 1; parts /= 2) {
    double best = 0;
    for (int pm = 1; pm <= parts; pm *= 2) {
      const int pn = parts / pm;
      if (pm > tiles_m || pn > tiles_n) continue;
      // Cost per k of a quarter of the list, in multiply-adds of one vector; packing costs about half of one each.
      const int quarters = parts < 4 ? parts : 4, qm = pm < quarters ? pm : quarters, qn = quarters / qm;
      double cost =
          static_cast<double>(ceil_div(tiles_m, qm) * kTileRows * ceil_div(tiles_n, qn) * kColumnGrain) / Lanes::N;
      if (p.pack_a && !p.shared_a) cost += 0.5 * static_cast<double>(p.m * pn) / quarters;
      if (p.pack_b && pm > 1) cost *= 1.05;  // one more phase
      if (best == 0 || cost < best) best = cost, p.parts_m = pm, p.parts_n = pn;
    }
    if (best != 0) return;
  }
}

// Everything about a call that follows from its shapes.
template <class P>
void describe(const Call& call, const Tensor& z, P& p) {
  const Tensor &x = call[0], &y = call[1];
  const int rank = z.rank;
  p.m = z.shape[rank - 2];
  p.n = z.shape[rank - 1];
  const int64_t depth = x.shape[x.rank - 1];
  p.k = ceil_div(depth, P::Unit::kPerWord);
  p.group = tuning().group;
  p.fetch_rows = tuning().fetch_rows;
  set_left(p.a, x);
  set_right(p.b, y);
  if constexpr (!P::Right::kNumbers) p.b.rounded = x.dtype == DType::bf16 && y.dtype != DType::bf16;
  p.c = z.as<float>();
  p.batch_rank = 0;
  p.batches = 1;
  // Batch axes along which B stays the same and A goes on at its row stride are rows.
  bool folding = true;
  for (int i = rank - 3; i >= 0; i--) {
    const int64_t size = z.shape[i];
    if (size == 1) continue;
    const int64_t sa = batch_stride(x, rank, i), sb = batch_stride(y, rank, i);
    if (folding && sb == 0 && (p.m == 1 || sa == p.a.along * p.m)) {
      if (p.m == 1) p.a.along = sa;
      p.m *= size;
      continue;
    }
    folding = false;
    p.batch[p.batch_rank] = size;
    p.a_batch[p.batch_rank] = sa;
    p.b_batch[p.batch_rank] = sb;
    p.batch_rank++;
    p.batches *= size;
  }
  // The stride of an axis of size 1 says nothing.
  if (depth == 1) p.a.deep = 1;
  if (p.m == 1) p.a.along = p.a.deep == 1 ? 0 : 1;
  constexpr bool numbers = P::Left::kNumbers;  // A's words are f32 numbers where they lie
  if constexpr (!numbers) p.a.transposed = depth > 1 ? p.a.deep == 1 && p.a.along != 1 : p.a.along != 1;

  // What is packed: each number costs about half a vector, once per use of its strip.
  const int64_t blocks = p.k > kDepth ? ceil_div(p.k, kDepth) : 1;
  p.depth = blocks == 1 ? p.k : (ceil_div(p.k, blocks) + 7) / 8 * 8;
  p.shared_a = p.shared_b = false;
  p.parts_m = p.parts_n = p.parts = 1;
  const double work = static_cast<double>(p.m * p.n) * static_cast<double>(p.k ? p.k : 1);
  p.narrow = p.low = false;
  p.few = RowMatrix{};
  const bool few = numbers && p.m >= 1 && p.m <= kFewRows && p.n >= 1 && p.batches == 1 && p.k >= quant::kChunk;
  if (few && p.a.deep == 1 && y.strides[y.rank - 2] == 1 && (p.n == 1 || y.strides[y.rank - 1] != 1)) {
    p.few = row_matrix(y, p.m);
    p.pack_a = p.pack_b = false;
    const uint32_t most = p.n < 16 ? static_cast<uint32_t>(p.n) : 16;
    p.parts = static_cast<int>(parts_for(static_cast<double>(p.n * p.k), kRowCost, most));
    return;
  }
  constexpr bool in_place = P::Right::kNumbers;
  if (in_place && p.n <= kNarrow && p.m >= Lanes::N && p.k > 0 && (p.b.along == 1 || p.b.deep == 1)) {
    const double vectors = static_cast<double>(ceil_div(p.n, Lanes::N));
    p.narrow = static_cast<double>(p.n) / Lanes::N + (p.a.along == 1 ? 0 : kPackCost) < 0.9 * vectors;
  }
  if (p.narrow) {
    p.pack_a = p.a.along != 1;
    p.pack_b = false;
    const int64_t strips = ceil_div(p.m, kTileColumns);
    if (p.batches == 1)
      p.parts = p.parts_m = static_cast<int>(parts_for(work, kPartCost, strips < 16 ? static_cast<uint32_t>(strips) : 16));
    else
      p.parts = static_cast<int>(parts_for(work * static_cast<double>(p.batches), kPartCost,
                                           p.batches < 16 ? static_cast<uint32_t>(p.batches) : 16));
    return;
  }
  if (in_place && numbers && p.batches == 1 && p.m > kFewRows && p.m <= kLowRows && p.k > 0 && p.k <= kLowDepth)
    p.low = p.n >= kTileRows && p.b.deep == 1 && p.b.along != 1 && !crowds(p.b.along, 1);
  if (p.low) {
    p.pack_a = p.a.along != 1;
    p.pack_b = false;
    const int64_t tiles = ceil_div(p.n, kTileRows);
    p.parts = p.parts_n = static_cast<int>(parts_for(work, kPartCost, tiles < 16 ? static_cast<uint32_t>(tiles) : 16));
    return;
  }
  const bool often = p.n > 2 * kTileColumns;
  if (!p.a.in_place())
    p.pack_a = true;
  else if (p.a.deep == 1)
    p.pack_a = often && kTileRows > 8 && p.m > 8 && p.k > 32 && crowds(p.a.row_words(), 1);
  else
    p.pack_a = p.a.along != 1 || (often && (!kColumnsInPlace || (p.k > 32 && crowds(p.a.deep, 2))));
  p.pack_b = !in_place || p.b.along != 1 || p.m > kRowsInPlace;
  // In place each row of a strip is an odd piece of memory: dear once B leaves the second-level cache. Packed, it is
  // fetched ahead.
  if (!p.pack_b && p.m > 128 && p.n * p.k > 1 << 18) p.pack_b = true;
  if (work * static_cast<double>(p.batches) < 2 * kPartCost || p.m * p.n == 0) return;
  if (p.batches == 1) {
    p.shared_a = p.pack_a && static_cast<double>(p.m * p.k) <= kShareMost;
    choose_grid(p, 16);
    p.shared_a = p.shared_a && p.parts_n > 1;
    p.shared_b = p.pack_b && p.parts_m > 1 && static_cast<double>(p.n * p.k) <= kShareMost;
    p.parts = p.parts_m * p.parts_n;
  } else if (p.batches >= 16) {
    p.parts = static_cast<int>(parts_for(work * static_cast<double>(p.batches), kPartCost,
                                         p.batches < 64 ? static_cast<uint32_t>(p.batches) : 64));
  } else {
    choose_grid(p, 8);
    p.parts = static_cast<int>(p.batches) * p.parts_m * p.parts_n;
  }
}

inline int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }
template <class P>
size_t shared_a_floats(const P& p) {
  return p.shared_a ? static_cast<size_t>(round_up(p.m * p.k, 16)) : 0;
}
template <class P>
size_t shared_b_floats(const P& p) {
  return p.shared_b ? static_cast<size_t>(round_up(p.n, Lanes::N) * p.k) : 0;
}
template <class P>
size_t scratch_a_floats(const P& p) {
  if (!p.pack_a || p.shared_a) return 0;
  if (p.narrow) return static_cast<size_t>(kTileColumns * p.depth);
  if (p.low) return static_cast<size_t>(round_up(p.m, Lanes::N) * p.k);
  return static_cast<size_t>(round_up((p.m < kRowsPacked ? p.m : kRowsPacked) * p.depth, 16));
}
template <class P>
size_t scratch_b_floats(const P& p) {
  if (!p.pack_b || p.shared_b) return 0;
  return static_cast<size_t>(round_up(p.n < kGroupMost ? p.n : kGroupMost, Lanes::N) * p.depth);
}

}  // namespace gradloom::GL_ISA::gemm
