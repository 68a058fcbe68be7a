// gemm_run.h: the loops of a matrix product that gemm_product.h has described.
//
//   run_product      for each (matrix of the batch, rectangle of C) of the part:
//   run_rectangle      for each stretch of rows whose packed A fits the scratch:
//                        for each block of k:                            pack A, unless in place or shared
//                          for each group of columns:                    pack B, unless in place, shared, or packed
//                                                                        by the first tiles that read it
//   run_block                for each kRows rows:
//                              for each strip of kTileColumns columns:
//                                for each tile of kTileRows rows:        C tile (+)= A tile B strip   (gemm_tile.h)
//
// A group of B stays in the second-level cache, with kRows rows of A. While its tiles run, the memory of the group that
// B is packed from next is fetched: packing cold memory took 1.5 cycles a number, a tenth of the product where A has
// 256 rows, and takes a fifth of that. The epilogue (bias, relu or gate) is applied by the tiles of the last block of
// k.
#pragma once
#include "gemm_product.h"

namespace gradloom::GL_ISA::gemm {

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

// Columns n0 .. n1 of rows m0 .. m1 over one block of k. a, b: the first row and the first column.
struct Block {
  int64_t k0, depth;
  const float *a, *b;
  bool a_strips, b_strips;
  Ahead* ahead;  // or nullptr
  float* room = nullptr;  // where the first tile of each strip packs B, or nullptr: then B is as b_strips says
};
// The kRows rows of A from row i on, at most to row m1: what the tiles read after those of the rows before.
template <class P>
Ahead ahead_of_rows(const P& p, const Block& x, int64_t m0, int64_t i, int64_t m1) {
  const int64_t rows = m1 - i < kRows ? m1 - i : kRows;
  if (x.a_strips) return ahead_of(x.a + (i - m0) * x.depth, 1, rows * x.depth * 4, 0);
  if (p.a.deep != 1) return Ahead{};  // rows side by side: the tiles before have touched most of their lines
  return ahead_of(x.a + (i - m0) * p.a.row_words(), rows, x.depth * 4, p.a.row_words() * 4);
}

template <class P>
void run_block(const P& p, const Block& x, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  constexpr int L = Lanes::N;
  const bool a_rows = !x.a_strips && p.a.deep == 1, ends = x.k0 + x.depth >= p.k;
  Finish finish{nullptr, nullptr, p.n, ends && p.relu, x.ahead};
  for (int64_t i0 = m0; i0 < m1; i0 += kRows) {
    const int64_t i1 = i0 + kRows < m1 ? i0 + kRows : m1;
    Ahead rows_ahead = p.fetch_rows ? ahead_of_rows(p, x, m0, i1 < m1 ? i1 : m0, m1) : Ahead{};
    for (int64_t j = n0; j < n1; j += kTileColumns) {
      const int columns = static_cast<int>(n1 - j < kTileColumns ? n1 - j : kTileColumns);
      const int vectors = (columns + L - 1) / L;
      const float* b = x.b_strips ? x.b + (j - n0) * x.depth : x.b + (j - n0);
      const int64_t ldb = x.b_strips ? vectors * L : p.b.deep;
      if (ends && p.bias) finish.bias = p.bias + j;
      const auto& tiles = kTilesOf<typename P::Unit>.fn[a_rows][columns % L != 0][vectors - 1];
      for (int64_t i = i0; i < i1; i += kTileRows) {
        const int64_t rows = i1 - i < kTileRows ? i1 - i : kTileRows;
        const float* a = x.a_strips ? x.a + (i - m0) * x.depth : x.a + (i - m0) * p.a.row_words();
        const int64_t a_stride = x.a_strips ? rows : a_rows ? p.a.row_words() : p.a.deep;
        finish.ahead = rows_ahead.left ? &rows_ahead : x.ahead;
        if (ends && p.gate) finish.gate = p.gate + i * p.n + j;
        float* const c = p.c + i * p.n + j;
        if constexpr (P::Right::kNumbers)
          if (x.room && i == m0) {
            finish.strip = x.room + (j - n0) * x.depth;
            kPackingTiles<typename P::Unit>[a_rows][columns % L != 0][vectors - 1](
                a, a_stride, p.b.at(j, x.k0), p.b.deep, x.depth, columns, c, p.n, x.k0 != 0, finish);
            continue;
          }
        tiles[rows - 1](a, a_stride, b, ldb, x.depth, columns, c, p.n, x.k0 != 0, finish);
      }
    }
  }
}

// The piece of B that is packed after the group from column j0 on of columns n0 .. n1: the next group, or the first of
// the next block of k, or else the neighbour's first.
template <class P>
Ahead ahead_of_group(const P& p, const Block& x, int64_t j0, int64_t n0, int64_t n1) {
  const auto end = [&p](int64_t j, int64_t most) { return j + p.group < most ? j + p.group : most; };
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
  const int64_t rows_once = pack_a ? kRowsPacked : m1 - m0, columns_once = pack_b ? p.group : n1 - n0;
  for (int64_t r0 = m0; r0 < m1; r0 += rows_once) {
    const int64_t r1 = r0 + rows_once < m1 ? r0 + rows_once : m1;
    Block x{};
    Ahead ahead{};
    x.ahead = pack_b ? &ahead : nullptr;
    x.a_strips = p.pack_a;
    x.b_strips = p.pack_b;
    if (pack_b && P::Right::kNumbers && p.b.along == 1 && r1 - r0 >= kTileRows) x.room = b_room;
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
          if (x.room == nullptr) p.b.strips(j0, j1, x.k0, x.depth, kTileColumns, Lanes::N, b_room);
          x.b = b_room;
          ahead = ahead_of_group(p, x, j0, n0, n1);
        }
        run_block(p, x, r0, r1, j0, j1);
      }
      x.k0 += x.depth;
    } while (x.k0 < p.k);
  }
}

// Sums [j1 - j0][kTileColumns] become columns j0 .. j1 of rows i .. i + rows of C, after bias, relu and gate.
template <class P>
void store_transposed(const P& p, float* sums, int64_t i, int rows, int64_t j0, int64_t j1) {
  constexpr int L = Lanes::N;
  const int64_t columns = j1 - j0;
  if (p.bias || p.relu) {
    const Lanes floor = Lanes::set1(p.relu ? 0.0f : -__builtin_inff());
    for (int64_t j = 0; j < columns; j++) {
      float* const row = sums + j * kTileColumns;
      const Lanes bias = Lanes::set1(p.bias ? p.bias[j0 + j] : -0.0f);
      for (int v = 0; v < rows; v += L) max(Lanes::load(row + v) + bias, floor).store(row + v);
    }
  }
  float* const c = p.c + i * p.n + j0;
  if (p.gate) {  // C may be its buffer: each number is read before it is written
    const float* const gate = p.gate + i * p.n + j0;
    for (int r = 0; r < rows; r++)
      for (int64_t j = 0; j < columns; j++)
        c[r * p.n + j] = gate[r * p.n + j] > 0.0f ? sums[j * kTileColumns + r] : 0.0f;
    return;
  }
  const int64_t squares = columns / kSquare * kSquare;
  int r = 0;
  for (; r + kSquare <= rows; r += kSquare) {
    for (int64_t j = 0; j < squares; j += kSquare)
      transpose<kSquare>(sums + j * kTileColumns + r, kTileColumns, c + r * p.n + j, p.n);
    for (int64_t j = squares; j < columns; j++)
      for (int s = r; s < r + kSquare; s++) c[s * p.n + j] = sums[j * kTileColumns + s];
  }
  for (; r < rows; r++)
    for (int64_t j = 0; j < columns; j++) c[r * p.n + j] = sums[j * kTileColumns + r];
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
      const auto& tiles = kTilesOf<typename P::Unit>.fn[b_rows][rows % L != 0][vectors - 1];
      for (int64_t j = 0; j < p.n; j += kTileRows) {
        const int64_t count = p.n - j < kTileRows ? p.n - j : kTileRows;
        tiles[count - 1](p.b.at(j, k0), b_rows ? p.b.along : p.b.deep, a, lda, depth, rows, sums + j * kTileColumns,
                         kTileColumns, k0 != 0, keep);
      }
    }
    store_transposed(p, sums, i, rows, 0, p.n);
  }
}

// Columns n0 .. n1 of a low C: all of A is packed as the columns of a product with B^T, whose rows are read in place.
template <class P>
void run_low(const P& p, int64_t n0, int64_t n1, float* scratch) {
  constexpr int L = Lanes::N;
  alignas(64) float sums[kRows * kTileColumns];
  const int64_t padded = round_up(p.m, L);
  const Finish keep{};
  const auto depth_at = [&p](int64_t k0) { return p.k - k0 < p.depth ? p.k - k0 : p.depth; };
  if (p.pack_a)
    for (int64_t k0 = 0; k0 < p.k; k0 += p.depth)
      p.a.strips(0, p.m, k0, depth_at(k0), kTileColumns, L, scratch + padded * k0);
  for (int64_t j0 = n0; j0 < n1; j0 += kRows) {
    const int64_t j1 = j0 + kRows < n1 ? j0 + kRows : n1;
    for (int64_t i = 0; i < p.m; i += kTileColumns) {
      const int rows = static_cast<int>(p.m - i < kTileColumns ? p.m - i : kTileColumns);
      const int vectors = (rows + L - 1) / L;
      const auto& tiles = kTilesOf<typename P::Unit>.fn[1][rows % L != 0][vectors - 1];
      for (int64_t k0 = 0; k0 < p.k; k0 += p.depth) {
        const int64_t depth = depth_at(k0), lda = p.pack_a ? vectors * L : p.a.deep;
        const float* const a = p.pack_a ? scratch + padded * k0 + i * depth : p.a.at(i, k0);
        for (int64_t j = j0; j < j1; j += kTileRows) {
          const int64_t count = j1 - j < kTileRows ? j1 - j : kTileRows;
          tiles[count - 1](p.b.at(j, k0), p.b.along, a, lda, depth, rows, sums + (j - j0) * kTileColumns,
                           kTileColumns, k0 != 0, keep);
        }
      }
      store_transposed(p, sums, i, rows, j0, j1);
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
  if constexpr (P::Left::kNumbers && P::Right::kNumbers)
    if (p.low) {
      const Range columns = part_range(p.n, part, parts, kTileRows);
      return run_low(p, columns.begin, columns.end, room);
    }
  if (p.batches == 1 && p.parts == 1) {
    if (p.narrow) return run_narrow(p, 0, p.m, room);
    if (!p.pack_a && !p.pack_b && p.k <= p.depth)
      return run_block(p, Block{0, p.k, p.a.at(0, 0), p.b.at(0, 0), false, false, nullptr}, 0, p.m, 0, p.n);
    return run_rectangle(p, 0, p.m, 0, p.n, room);
  }
  const int grid = p.parts_m * p.parts_n;
  const Range jobs = part_range(p.batches * grid, part, parts);
  const P first = p;
  for (int64_t job = jobs.begin, next; job < jobs.end; job = next) {
    if (p.batches > 1) select_matrix(p, first, job / grid);
    const int at = static_cast<int>(job % grid);
    next = job + 1;
    if (p.narrow) {
      const Range rows = part_range(p.m, at, grid, kTileColumns);
      run_narrow(p, rows.begin, rows.end, room);
      continue;
    }
    // Neighbours in the same rows are one rectangle: its groups of columns are wider, and A is read less often.
    const Range rows = part_range(p.m, at / p.parts_n, p.parts_m, kTileRows);
    const int first_n = at % p.parts_n;
    int64_t count = jobs.end - job < p.parts_n - first_n ? jobs.end - job : p.parts_n - first_n;
    const int64_t near = kJoined * p.parts_n / ((rows.end - rows.begin) * p.n + 1);
    if (p.depth < p.k && near < count) count = near > 0 ? near : 1;
    next = job + count;
    // A part's columns start at a strip where strips are shared.
    const int64_t grain = p.shared_b ? kTileColumns : kColumnGrain;
    const int64_t begin = part_range(p.n, first_n, p.parts_n, grain).begin;
    const int64_t end = part_range(p.n, first_n + static_cast<int>(count) - 1, p.parts_n, grain).end;
    run_rectangle(p, rows.begin, rows.end, begin, end, room);
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

}  // namespace gradloom::GL_ISA::gemm
