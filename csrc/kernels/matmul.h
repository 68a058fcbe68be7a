// matmul.h: matrix products. C[M, N] = A[M, K] B[K, N], batched, either operand in either orientation.
//
// A part owns a rectangle of C and computes it whole: for each block of k, each group of columns, each block of rows,
// tile after tile. Operands are read in place where that is as fast, otherwise from packed strips (gemm_pack.h):
//   A, packed once by a phase of its own into the workspace (`shared_a`), or by the part into its scratch;
//   B, packed by the part that owns the columns, or by the first phase where several parts need it (`shared_b`).
// While the tiles of a group run, the memory of the group that B is packed from next is fetched: packing cold memory
// took 1.5 cycles a number, a tenth of the product where A has 256 rows, and takes a fifth of that.
// Where C has few columns its transpose is computed instead (`narrow`): then A is what fills the vectors.
// Where C has few rows and B's numbers lie along k, nothing is packed: dot products (gemm_rows.h).
// k is cut into blocks by its length alone and the blocks are added in order, so that the bits do not depend on parts.
// B may be frozen (gemm_frozen.h): then it is always packed, and all else is the same, bit for bit.
#pragma once
#include "gemm_frozen.h"
#include "gemm_rows.h"

namespace gradloom::GL_ISA::gemm {

constexpr int64_t kDepth = 1024;                               // longest block of k
constexpr int64_t kGroup = 96;                                 // columns of B that stay in the second-level cache,
                                                               // beside those that are fetched to follow them
constexpr int64_t kRows = 48 / kTileRows * kTileRows;          // rows of A that stay there with them
constexpr int64_t kRowsPacked = 504;                           // rows of A packed at a time into scratch
constexpr double kShareMost = 1 << 23;                         // numbers of one operand in the workspace
constexpr double kPartCost = 1 << 17;                          // multiply-adds: about a microsecond
#if defined(GL_ISA_AVX512)
constexpr int64_t kRowsInPlace = 640;  // B is read in place up to this many rows of A
constexpr int64_t kColumnGrain = Lanes::N;
constexpr bool kColumnsInPlace = true;  // A is read in place where its rows lie side by side
constexpr double kTurnCost = 0.3;       // of packing a number, in multiply-adds of one vector
#else
constexpr int64_t kRowsInPlace = 96;
constexpr int64_t kColumnGrain = kTileColumns;
constexpr bool kColumnsInPlace = false;
constexpr double kTurnCost = 0.5;
#endif
constexpr double kRowCost = 1 << 16;   // numbers of B that a part of a product of few rows reads
constexpr int64_t kNarrow = 12;  // columns of the widest C that may be computed as its transpose
static_assert(kRowsPacked % kTileRows == 0 && kRows % kTileRows == 0 && kGroup % kTileColumns == 0);

// A stride (in floats) that brings its steps back to the same `sets`-th of the first-level cache (4 KiB a way).
inline bool crowds(int64_t stride, int64_t sets) { return stride > 0 && stride % (1024 / sets) == 0; }

// A product of two sources (gemm_pack.h).
template <class A, class B>
struct ProductOf {
  using Right = B;
  int64_t m, n, k;
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
  bool pack_a, pack_b, shared_a, shared_b;
  int64_t depth;         // of a block of k, at most kDepth
  int parts_m, parts_n;  // rectangles of one matrix
  int parts;
  float *a_shared, *b_shared;  // strips in the workspace: [block of k][strip][depth][width]
};
using Product = ProductOf<StridedSource, StridedSource>;
using FrozenProduct = ProductOf<StridedSource, FrozenSource>;

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
  p.k = x.shape[x.rank - 1];
  p.a = {x.as<const float>(), x.strides[x.rank - 2], x.strides[x.rank - 1]};
  set_right(p.b, y);
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
  if (p.k == 1) p.a.deep = 1;
  if (p.m == 1) p.a.along = p.a.deep == 1 ? 0 : 1;

  // What is packed: each number costs about half a vector, once per use of its strip.
  const int64_t blocks = p.k > kDepth ? ceil_div(p.k, kDepth) : 1;
  p.depth = blocks == 1 ? p.k : (ceil_div(p.k, blocks) + 7) / 8 * 8;
  p.shared_a = p.shared_b = false;
  p.parts_m = p.parts_n = p.parts = 1;
  const double work = static_cast<double>(p.m * p.n) * static_cast<double>(p.k ? p.k : 1);
  p.narrow = false;
  p.few = RowMatrix{};
  const bool few = p.m >= 1 && p.m <= kFewRows && p.n >= 1 && p.batches == 1 && p.k >= quant::kChunk;
  if (few && p.a.deep == 1 && y.strides[y.rank - 2] == 1 && (p.n == 1 || y.strides[y.rank - 1] != 1)) {
    p.few = row_matrix(y, p.m);
    p.pack_a = p.pack_b = false;
    const uint32_t most = p.n < 16 ? static_cast<uint32_t>(p.n) : 16;
    p.parts = static_cast<int>(parts_for(static_cast<double>(p.n * p.k), kRowCost, most));
    return;
  }
  constexpr bool in_place = P::Right::kInPlace;
  if (in_place && p.n <= kNarrow && p.m >= Lanes::N && p.k > 0 && (p.b.along == 1 || p.b.deep == 1)) {
    const double vectors = static_cast<double>(ceil_div(p.n, Lanes::N));
    p.narrow = static_cast<double>(p.n) / Lanes::N + (p.a.along == 1 ? 0 : kTurnCost) < 0.9 * vectors;
  }
  if (p.narrow) {
    p.pack_a = p.a.along != 1;
    p.pack_b = false;
    const int most = p.m / kTileColumns < 16 ? static_cast<int>(p.m / kTileColumns) : 16;
    if (p.batches == 1)
      p.parts = p.parts_m = static_cast<int>(parts_for(work, kPartCost, most > 1 ? most : 1));
    else
      p.parts = static_cast<int>(parts_for(work * static_cast<double>(p.batches), kPartCost,
                                           p.batches < 16 ? static_cast<uint32_t>(p.batches) : 16));
    return;
  }
  const bool often = p.n > 2 * kTileColumns;
  if (p.a.deep == 1)
    p.pack_a = often && kTileRows > 8 && p.m > 8 && p.k > 32 && crowds(p.a.along, 1);
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
  return static_cast<size_t>(round_up((p.m < kRowsPacked ? p.m : kRowsPacked) * p.depth, 16));
}
template <class P>
size_t scratch_b_floats(const P& p) {
  if (!p.pack_b || p.shared_b) return 0;
  return static_cast<size_t>(round_up(p.n < kGroup ? p.n : kGroup, Lanes::N) * p.depth);
}

// The first phase: a share of A's strips and of B's.
template <class P>
void pack_shared(const P& p, int part, int parts) {
  for (int64_t k0 = 0; k0 < p.k; k0 += p.depth) {
    const int64_t depth = p.k - k0 < p.depth ? p.k - k0 : p.depth;
    if (p.shared_a) {
      const Range r = part_range(p.m, part, parts, kTileRows);
      p.a.strips(r.begin, r.end, k0, depth, kTileRows, 1, p.a_shared + p.m * k0 + r.begin * depth);
    }
    if (p.shared_b) {
      const Range r = part_range(p.n, part, parts, kTileColumns);
      p.b.strips(r.begin, r.end, k0, depth, kTileColumns, Lanes::N,
                 p.b_shared + round_up(p.n, Lanes::N) * k0 + r.begin * depth);
    }
  }
}

// Columns n0 .. n1 of rows m0 .. m1 over one block of k. a, b: where the first row and column are found.
struct Block {
  int64_t k0, depth;
  const float *a, *b;
  bool a_strips, b_strips;
  Ahead* ahead;  // or nullptr
};
template <class P>
void run_block(const P& p, const Block& x, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  constexpr int L = Lanes::N;
  const bool a_rows = !x.a_strips && p.a.deep == 1, ends = x.k0 + x.depth >= p.k;
  Finish finish{nullptr, nullptr, p.n, ends && p.relu, x.ahead};
  for (int64_t i0 = m0; i0 < m1; i0 += kRows) {
    const int64_t i1 = i0 + kRows < m1 ? i0 + kRows : m1;
    for (int64_t j = n0; j < n1; j += kTileColumns) {
      const int columns = static_cast<int>(n1 - j < kTileColumns ? n1 - j : kTileColumns);
      const int vectors = (columns + L - 1) / L;
      const float* b = x.b_strips ? x.b + (j - n0) * x.depth : x.b + (j - n0);
      const int64_t ldb = x.b_strips ? vectors * L : p.b.deep;
      if (ends && p.bias) finish.bias = p.bias + j;
      const auto& tiles = kTiles.fn[a_rows][columns % L != 0][vectors - 1];
      for (int64_t i = i0; i < i1; i += kTileRows) {
        const int64_t rows = i1 - i < kTileRows ? i1 - i : kTileRows;
        const float* a = x.a_strips ? x.a + (i - m0) * x.depth : x.a + (i - m0) * p.a.along;
        const int64_t a_stride = x.a_strips ? rows : a_rows ? p.a.along : p.a.deep;
        if (ends && p.gate) finish.gate = p.gate + i * p.n + j;
        tiles[rows - 1](a, a_stride, b, ldb, x.depth, columns, p.c + i * p.n + j, p.n, x.k0 != 0, finish);
      }
    }
  }
}

// The piece of B that is packed after the group from column j0 on of columns n0 .. n1: the next group, or the first of
// the next block of k, or else the neighbour's first.
template <class P>
Ahead ahead_of_group(const P& p, const Block& x, int64_t j0, int64_t n0, int64_t n1) {
  const auto end = [](int64_t j, int64_t most) { return j + kGroup < most ? j + kGroup : most; };
  const int64_t j1 = end(j0, n1), k1 = x.k0 + x.depth;
  if (j1 < n1) return p.b.ahead(j1, end(j1, n1), x.k0, x.depth);
  if (k1 < p.k) return p.b.ahead(n0, end(n0, n1), k1, p.k - k1 < p.depth ? p.k - k1 : p.depth);
  return p.b.ahead(n1, end(n1, p.n), 0, p.depth);
}

// Rows m0 .. m1 and columns n0 .. n1 of one matrix.
template <class P>
void run_rectangle(const P& p, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* scratch) {
  float* const a_room = scratch;
  float* const b_room = scratch + scratch_a_floats(p);
  const bool pack_a = p.pack_a && !p.shared_a, pack_b = p.pack_b && !p.shared_b;
  const int64_t rows_once = pack_a ? kRowsPacked : m1 - m0, columns_once = pack_b ? kGroup : n1 - n0;
  for (int64_t r0 = m0; r0 < m1; r0 += rows_once) {
    const int64_t r1 = r0 + rows_once < m1 ? r0 + rows_once : m1;
    Block x{};
    Ahead ahead{};
    x.ahead = pack_b ? &ahead : nullptr;
    x.a_strips = p.pack_a;
    x.b_strips = p.pack_b;
    do {  // at least once: where k is 0, C is what the epilogue makes of 0
      x.depth = p.k - x.k0 < p.depth ? p.k - x.k0 : p.depth;
      x.a = p.shared_a ? p.a_shared + p.m * x.k0 + r0 * x.depth : p.a.at(r0, x.k0);
      if (pack_a) {
        p.a.strips(r0, r1, x.k0, x.depth, kTileRows, 1, a_room);
        x.a = a_room;
      }
      for (int64_t j0 = n0; j0 < n1; j0 += columns_once) {
        const int64_t j1 = j0 + columns_once < n1 ? j0 + columns_once : n1;
        x.b = p.shared_b ? p.b_shared + round_up(p.n, Lanes::N) * x.k0 + j0 * x.depth : p.b.at(j0, x.k0);
        if (pack_b) {
          p.b.strips(j0, j1, x.k0, x.depth, kTileColumns, Lanes::N, b_room);
          x.b = b_room;
          ahead = ahead_of_group(p, x, j0, n0, n1);
        }
        run_block(p, x, r0, r1, j0, j1);
      }
      x.k0 += x.depth;
    } while (x.k0 < p.k);
  }
}

// Rows m0 .. m1 of a narrow C: 32 or so rows of A at a time become the columns of a product with B^T, whose tile lies
// in a buffer [n][kTileColumns] until it is whole.
template <class P>
void run_narrow(const P& p, int64_t m0, int64_t m1, float* scratch) {
  constexpr int L = Lanes::N;
  alignas(64) float sums[kNarrow * kTileColumns];
  const bool b_rows = p.b.deep == 1;
  const Finish keep{};
  for (int64_t i = m0; i < m1; i += kTileColumns) {
    const int rows = static_cast<int>(m1 - i < kTileColumns ? m1 - i : kTileColumns);
    const int vectors = (rows + L - 1) / L;
    for (int64_t k0 = 0; k0 < p.k; k0 += p.depth) {
      const int64_t depth = p.k - k0 < p.depth ? p.k - k0 : p.depth;
      const float* a = p.a.at(i, k0);
      int64_t lda = p.a.deep;
      if (p.pack_a) {
        p.a.strips(i, i + rows, k0, depth, kTileColumns, L, scratch);
        a = scratch;
        lda = vectors * L;
      }
      const auto& tiles = kTiles.fn[b_rows][rows % L != 0][vectors - 1];
      for (int64_t j = 0; j < p.n; j += kTileRows) {
        const int64_t count = p.n - j < kTileRows ? p.n - j : kTileRows;
        tiles[count - 1](p.b.at(j, k0), b_rows ? p.b.along : p.b.deep, a, lda, depth, rows, sums + j * kTileColumns,
                         kTileColumns, k0 != 0, keep);
      }
    }
    float* const c = p.c + i * p.n;
    const float* const gate = p.gate ? p.gate + i * p.n : nullptr;
    for (int64_t j = 0; j < p.n; j++) {
      float* const row = sums + j * kTileColumns;
      if (p.bias || p.relu) {
        const Lanes floor = Lanes::set1(p.relu ? 0.0f : -__builtin_inff());
        const Lanes bias = Lanes::set1(p.bias ? p.bias[j] : -0.0f);
        for (int v = 0; v < vectors; v++) max(Lanes::load(row + v * L) + bias, floor).store(row + v * L);
      }
      if (gate) {
        for (int r = 0; r < rows; r++) c[r * p.n + j] = gate[r * p.n + j] > 0.0f ? row[r] : 0.0f;
      } else {
        for (int r = 0; r < rows; r++) c[r * p.n + j] = row[r];
      }
    }
  }
}

// Columns n0 .. n1 of a C of few rows.
template <class P>
void run_few(const P& p, int64_t n0, int64_t n1) {
  constexpr int L = Lanes::N;
  alignas(64) float sums[kFewRows * kRowColumns];
  const Lanes floor = Lanes::set1(p.relu ? 0.0f : -__builtin_inff());
  for (int64_t j = n0; j < n1; j += kRowColumns) {
    const int64_t columns = n1 - j < kRowColumns ? n1 - j : kRowColumns;
    p.few.dot(p.a.at(0, 0), p.a.along, p.few.data + j * p.few.step, p.few.step, p.k, columns, sums);
    for (int64_t i = 0; i < p.m; i++)
      for (int64_t v = 0; v < columns; v += L) {
        const int n = static_cast<int>(columns - v < L ? columns - v : L);
        Lanes z = Lanes::load(sums + i * kRowColumns + v);
        if (p.bias || p.relu) z = max(z + (p.bias ? Lanes::load_n(p.bias + j + v, n) : Lanes::set1(-0.0f)), floor);
        if (p.gate) z = keep_positive(Lanes::load_n(p.gate + i * p.n + j + v, n), z);
        z.store_n(p.c + i * p.n + j + v, n);
      }
  }
}

// Moves p to matrix `t` of the batch.
template <class P>
void select_matrix(P& p, const P& first, int64_t t) {
  const int64_t at = t * first.m * first.n;
  p.c = first.c + at;
  if (first.gate) p.gate = first.gate + at;
  p.a = first.a;
  p.b = first.b;
  for (int i = 0; i < first.batch_rank; i++) {  // innermost axis first
    p.a.move(t % first.batch[i] * first.a_batch[i]);
    p.b.move(t % first.batch[i] * first.b_batch[i]);
    t /= first.batch[i];
  }
}

template <class P>
void run_product(const Call& call, const Tensor& z, P& p, int phase, int part, int parts, void* scratch) {
  describe(call, z, p);
  if (p.m == 0 || p.n == 0 || p.batches == 0) return;
  if (p.shared_a || p.shared_b) {
    p.a_shared = call.workspace().as<float>();
    p.b_shared = p.a_shared + shared_a_floats(p);
    if (phase == 0) return pack_shared(p, part, parts);
  }
  if (p.few.dot) {
    const Range columns = part_range(p.n, part, parts);
    return run_few(p, columns.begin, columns.end);
  }
  float* const room = static_cast<float*>(scratch);
  if (p.batches == 1 && parts == 1) {
    if (p.narrow) return run_narrow(p, 0, p.m, room);
    if (!p.pack_a && !p.pack_b && p.k <= p.depth)
      return run_block(p, Block{0, p.k, p.a.at(0, 0), p.b.at(0, 0), false, false, nullptr}, 0, p.m, 0, p.n);
    return run_rectangle(p, 0, p.m, 0, p.n, room);
  }
  const int grid = p.parts_m * p.parts_n;
  const Range jobs = part_range(p.batches * grid, part, parts);
  const P first = p;
  for (int64_t job = jobs.begin; job < jobs.end; job++) {
    if (p.batches > 1) select_matrix(p, first, job / grid);
    const int at = static_cast<int>(job % grid);
    if (p.narrow) {
      const Range rows = part_range(p.m, at, grid, kTileColumns);
      run_narrow(p, rows.begin, rows.end, room);
      continue;
    }
    const Range rows = part_range(p.m, at / p.parts_n, p.parts_m, kTileRows);
    // A part's columns start at a strip where strips are shared.
    const Range columns = part_range(p.n, at % p.parts_n, p.parts_n, p.shared_b ? kTileColumns : kColumnGrain);
    run_rectangle(p, rows.begin, rows.end, columns.begin, columns.end, room);
  }
}

template <class P>
void plan_product(const Call& call, const Tensor& z, KernelPlan& plan) {
  P p;
  describe(call, z, p);
  plan.scratch_bytes = (scratch_a_floats(p) + scratch_b_floats(p)) * sizeof(float);
  plan.parts[0] = static_cast<uint32_t>(p.parts);
  if (p.shared_a || p.shared_b) {
    plan.phases = 2;
    plan.parts[1] = plan.parts[0];
    plan.workspace_bytes = (shared_a_floats(p) + shared_b_floats(p)) * sizeof(float);
    const double packed = static_cast<double>(shared_a_floats(p) + shared_b_floats(p));
    plan.parts[0] = parts_for(packed, 4096);
  }
}

// (x, y) -> z
template <class P>
void plan_matmul(const Call& call, KernelPlan& plan) { plan_product<P>(call, call[2], plan); }
template <class P>
void run_matmul(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = p.gate = nullptr;
  p.relu = false;
  run_product(call, call[2], p, phase, part, parts, scratch);
}

// (x, y, bias dense; activation none/relu) -> z
template <class P>
void plan_matmul_act(const Call& call, KernelPlan& plan) { plan_product<P>(call, call[3], plan); }
template <class P>
void run_matmul_act(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = call[2].as<const float>();
  p.gate = nullptr;
  p.relu = call.attr_int(0) == 1;
  run_product(call, call[3], p, phase, part, parts, scratch);
}

// (x, y, h dense) -> z
template <class P>
void run_matmul_relu_back(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = nullptr;
  p.gate = call[2].as<const float>();
  p.relu = false;
  run_product(call, call[3], p, phase, part, parts, scratch);
}

#define GL_PRODUCTS(signature, P)                           \
  {"matmul", signature, plan_matmul<P>, run_matmul<P>},     \
  {"matmul_act", signature, plan_matmul_act<P>, run_matmul_act<P>}, \
  {"matmul_relu_back", signature, plan_matmul_act<P>, run_matmul_relu_back<P>}
#define GL_FROZEN(type) GL_PRODUCTS("f32_" type "_f32", FrozenProduct)
inline constexpr KernelRow kMatmulRows[] = {
    GL_PRODUCTS("f32", Product),
    GL_FROZEN("f16"), GL_FROZEN("bf16"), GL_FROZEN("q4_0"), GL_FROZEN("q4_1"), GL_FROZEN("q5_0"), GL_FROZEN("q5_1"),
    GL_FROZEN("q8_0"), GL_FROZEN("q2_k"), GL_FROZEN("q3_k"), GL_FROZEN("q4_k"), GL_FROZEN("q5_k"), GL_FROZEN("q6_k"),
};
#undef GL_FROZEN
#undef GL_PRODUCTS

}  // namespace gradloom::GL_ISA::gemm
