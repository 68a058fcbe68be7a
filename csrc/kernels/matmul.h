// matmul.h: matrix products. C[M, N] = A[M, K] B[K, N], batched, either operand in either orientation.
//
// A part owns a rectangle of C and computes it whole: for each block of k, for each strip of columns, for each tile.
// Operands are read in place where that is as fast, otherwise packed into strips in the part's scratch (gemm_pack.h).
// k is cut into blocks by its length alone and the blocks are added in order, so that the bits do not depend on parts.
#pragma once
#include "gemm_pack.h"

namespace gradloom::GL_ISA {

constexpr int64_t kDepth = 1024;       // longest block of k
constexpr int64_t kRowsPacked = 512;   // rows of A packed at a time
#if defined(GL_ISA_AVX512)
constexpr int64_t kRowsInPlace = 768;  // B is read in place up to this many rows of A
constexpr int64_t kColumnGrain = Lanes::N;
constexpr bool kPlaceColumns = true;   // A read in place where its rows are contiguous
#else
constexpr int64_t kRowsInPlace = 96;
constexpr int64_t kColumnGrain = kTileColumns;
constexpr bool kPlaceColumns = false;
#endif
constexpr double kPartCost = 1 << 17;  // multiply-adds: about a microsecond

// Strides at which neighbours in a column fall into the same few sets of the first-level cache.
inline bool crowds(int64_t stride) { return stride >= 512 && stride % 256 == 0; }

struct Operand {
  const float* data;
  int64_t along, deep;  // strides of the row or column, and of k
};

struct Product {
  int64_t m, n, k;
  Operand a, b;
  float* c;
  const float* bias;  // [n], or nullptr
  const float* gate;  // laid out as c, or nullptr
  bool relu;

  int batch_rank;  // axes left after folding what can be rows
  int64_t batches;
  int64_t batch[kMaxRank], a_batch[kMaxRank], b_batch[kMaxRank];

  bool pack_a, pack_b;
  int64_t depth;   // of a block of k, at most kDepth
  int parts_m, parts_n;  // rectangles of one matrix
  int parts;
};

// The stride of z's axis `axis` in an operand of equal or smaller rank; 0 where it broadcasts.
inline int64_t batch_stride(const Tensor& t, int z_rank, int axis) {
  const int i = axis - (z_rank - t.rank);
  return i < 0 || t.shape[i] == 1 ? 0 : t.strides[i];
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The parts of one matrix: powers of two, so that halves and quarters of the list are equal work.
inline void choose_grid(Product& p, int most) {
  const int64_t tiles_m = ceil_div(p.m, kTileRows), tiles_n = ceil_div(p.n, kColumnGrain);
  const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k ? p.k : 1);
  int parts = 1;
  while (parts < most && work >= 2 * parts * kPartCost && 2 * parts <= tiles_m * tiles_n) parts *= 2;
  p.parts_m = p.parts_n = 1;
  for (; parts > 1; parts /= 2) {
    double best = 0;
    for (int pm = 1; pm <= parts; pm *= 2) {
      const int pn = parts / pm;
      if (pm > tiles_m || pn > tiles_n) continue;
      // Cost per k of a quarter of the list, in steps of one vector: multiply-adds, then what packing repeats.
      const int quarters = parts < 4 ? parts : 4, qm = pm < quarters ? pm : quarters, qn = quarters / qm;
      double cost = static_cast<double>(ceil_div(tiles_m, qm) * kTileRows * ceil_div(tiles_n, qn) * kColumnGrain) /
                    Lanes::N;
      if (p.pack_a) cost += 0.5 * static_cast<double>(p.m * pn) / quarters;
      if (p.pack_b) cost += 0.5 * static_cast<double>(p.n * pm) / quarters;
      if (best == 0 || cost < best) best = cost, p.parts_m = pm, p.parts_n = pn;
    }
    if (best != 0) return;
  }
}

// Everything about a call that follows from its shapes.
inline void describe(const Call& call, const Tensor& z, Product& p) {
  const Tensor &x = call[0], &y = call[1];
  const int rank = z.rank;
  p.m = z.shape[rank - 2];
  p.n = z.shape[rank - 1];
  p.k = x.shape[x.rank - 1];
  p.a = {x.as<const float>(), x.strides[x.rank - 2], x.strides[x.rank - 1]};
  p.b = {y.as<const float>(), y.strides[y.rank - 1], y.strides[y.rank - 2]};
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
  if (p.n == 1) p.b.along = 1;

  if (p.a.deep == 1) p.pack_a = crowds(p.a.along) && p.k > 32 && p.n > kTileColumns && p.m > 8;
  else p.pack_a = p.a.along != 1 || (p.n > 4 * kTileColumns && (!kPlaceColumns || crowds(p.a.deep)));
  p.pack_b = p.b.along != 1 || p.m > kRowsInPlace || (p.m > 3 * kTileRows && crowds(p.b.deep) && p.k > 32);
  const int64_t blocks = p.k > kDepth ? ceil_div(p.k, kDepth) : 1;
  p.depth = blocks == 1 ? p.k : (ceil_div(p.k, blocks) + 7) / 8 * 8;

  p.parts_m = p.parts_n = p.parts = 1;
  const double work = static_cast<double>(p.m * p.n) * static_cast<double>(p.k ? p.k : 1);
  if (work * static_cast<double>(p.batches) < 2 * kPartCost || p.m * p.n == 0) return;
  if (p.batches == 1) {
    choose_grid(p, 16);
    p.parts = p.parts_m * p.parts_n;
  } else if (p.batches >= 16) {
    p.parts = static_cast<int>(parts_for(work * static_cast<double>(p.batches), kPartCost,
                                         p.batches < 64 ? static_cast<uint32_t>(p.batches) : 64));
  } else {
    choose_grid(p, 8);
    p.parts = static_cast<int>(p.batches) * p.parts_m * p.parts_n;
  }
}

inline size_t packed_a_floats(const Product& p) {
  return p.pack_a ? static_cast<size_t>((p.m < kRowsPacked ? p.m : kRowsPacked) * p.depth + 15) / 16 * 16 : 0;
}
inline size_t packed_b_floats(const Product& p) {
  return p.pack_b ? static_cast<size_t>(kTileColumns * p.depth) : 0;
}

// Rows m0 .. m1 and columns n0 .. n1 of one matrix.
inline void run_rectangle(const Product& p, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* scratch) {
  constexpr int L = Lanes::N;
  float* const a_strips = scratch;
  float* const b_strip = scratch + packed_a_floats(p);
  const StridedSource a_source{p.a.data, p.a.along, p.a.deep}, b_source{p.b.data, p.b.along, p.b.deep};
  const int64_t rows_once = p.pack_a ? kRowsPacked / kTileRows * kTileRows : m1 - m0;
  const bool a_rows = !p.pack_a && p.a.deep == 1;
  for (int64_t r0 = m0; r0 < m1; r0 += rows_once) {
    const int64_t r1 = r0 + rows_once < m1 ? r0 + rows_once : m1;
    int64_t k0 = 0;
    do {
      const int64_t depth = p.k - k0 < p.depth ? p.k - k0 : p.depth;
      const bool ends = k0 + depth >= p.k;
      if (p.pack_a) a_source.strips(r0, r1, k0, depth, kTileRows, 1, a_strips);
      for (int64_t j = n0; j < n1; j += kTileColumns) {
        const int columns = static_cast<int>(n1 - j < kTileColumns ? n1 - j : kTileColumns);
        const int vectors = (columns + L - 1) / L;
        const float* b = p.b.data + j + k0 * p.b.deep;
        int64_t ldb = p.b.deep;
        if (p.pack_b) {
          b_source.strips(j, j + columns, k0, depth, kTileColumns, L, b_strip);
          b = b_strip;
          ldb = vectors * L;
        }
        Finish finish{};
        if (ends) {
          finish.relu = p.relu;
          finish.bias = p.bias ? p.bias + j : nullptr;
          finish.gate_rows = p.n;
        }
        const auto& tiles = kTiles.fn[a_rows][columns % L != 0][vectors - 1];
        for (int64_t i = r0; i < r1; i += kTileRows) {
          const int64_t rows = r1 - i < kTileRows ? r1 - i : kTileRows;
          const float* a = p.a.data + i * p.a.along + k0 * p.a.deep;
          int64_t a_stride = a_rows ? p.a.along : p.a.deep;
          if (p.pack_a) {
            a = a_strips + (i - r0) * depth;
            a_stride = rows;
          }
          if (p.gate && ends) finish.gate = p.gate + i * p.n + j;
          tiles[rows - 1](a, a_stride, b, ldb, depth, columns, p.c + i * p.n + j, p.n, k0 != 0, finish);
        }
      }
      k0 += p.depth;
    } while (k0 < p.k);
  }
}

// Moves p to matrix `t` of the batch.
inline void select_matrix(Product& p, const Product& first, int64_t t) {
  const int64_t at = t * first.m * first.n;
  p.c = first.c + at;
  if (first.gate) p.gate = first.gate + at;
  p.a.data = first.a.data;
  p.b.data = first.b.data;
  for (int i = 0; i < first.batch_rank; i++) {  // innermost axis first
    p.a.data += t % first.batch[i] * first.a_batch[i];
    p.b.data += t % first.batch[i] * first.b_batch[i];
    t /= first.batch[i];
  }
}

inline void run_product(const Call& call, const Tensor& z, Product& p, int part, int parts, void* scratch) {
  describe(call, z, p);
  if (p.m == 0 || p.n == 0 || p.batches == 0) return;
  float* const room = static_cast<float*>(scratch);
  if (p.batches == 1 && parts == 1) return run_rectangle(p, 0, p.m, 0, p.n, room);
  const int grid = p.parts_m * p.parts_n;
  const Range jobs = part_range(p.batches * grid, part, parts);
  const Product first = p;
  for (int64_t job = jobs.begin; job < jobs.end; job++) {
    if (p.batches > 1) select_matrix(p, first, job / grid);
    const int at = static_cast<int>(job % grid);
    const Range rows = part_range(p.m, at / p.parts_n, p.parts_m, kTileRows);
    const Range columns = part_range(p.n, at % p.parts_n, p.parts_n, kColumnGrain);
    run_rectangle(p, rows.begin, rows.end, columns.begin, columns.end, room);
  }
}

inline void plan_product(const Call& call, const Tensor& z, KernelPlan& plan) {
  Product p;
  describe(call, z, p);
  plan.parts[0] = static_cast<uint32_t>(p.parts);
  plan.scratch_bytes = (packed_a_floats(p) + packed_b_floats(p)) * sizeof(float);
}

// (x, y) -> z
inline void plan_matmul(const Call& call, KernelPlan& plan) { plan_product(call, call[2], plan); }
inline void run_matmul(const Call& call, int, int part, int parts, void* scratch) {
  Product p;
  p.bias = p.gate = nullptr;
  p.relu = false;
  run_product(call, call[2], p, part, parts, scratch);
}

// (x, y, bias dense; activation none/relu) -> z
inline void plan_matmul_act(const Call& call, KernelPlan& plan) { plan_product(call, call[3], plan); }
inline void run_matmul_act(const Call& call, int, int part, int parts, void* scratch) {
  Product p;
  p.bias = call[2].as<const float>();
  p.gate = nullptr;
  p.relu = call.attr_int(0) == 1;
  run_product(call, call[3], p, part, parts, scratch);
}

// (x, y, h dense) -> z
inline void run_matmul_relu_back(const Call& call, int, int part, int parts, void* scratch) {
  Product p;
  p.bias = nullptr;
  p.gate = call[2].as<const float>();
  p.relu = false;
  run_product(call, call[3], p, part, parts, scratch);
}

inline constexpr KernelRow kMatmulRows[] = {
    {"matmul", "f32", plan_matmul, run_matmul},
    {"matmul_act", "f32", plan_matmul_act, run_matmul_act},
    {"matmul_relu_back", "f32", plan_matmul_act, run_matmul_relu_back},
};

}  // namespace gradloom::GL_ISA
