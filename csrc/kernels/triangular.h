// triangular.h: solve_triangular: a x = b by substitution, a and b strided, x dense.
//
//   for each matrix, for each block of columns of b:
//     for i = 0 .. n - 1 (upper: n - 1 .. 0):
//       sum[c] = a[i][j] x[j][c] summed over the j that are known, in the order in which they became known
//       x[i][c] = f32((b[i][c] - sum[c]) / a[i][i])
//
// Sums are in f64, each by one loop, or by four that are joined where a block is one column: the same bits on every
// instruction set. Four rows i are summed together over the j that all of them know: x is widened once for the four.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA {

constexpr int64_t kSolveColumns = 32;
constexpr int kSolveRows = 4;
constexpr int64_t kSolveAtOnce = 64;  // numbers of a row of a that are widened at a time
#if defined(GL_ISA_AVX512)
constexpr int kSolveVectors = 4;  // of 8 columns: the sums of four rows stay in registers
#else
constexpr int kSolveVectors = 1;
#endif

inline int64_t solve_blocks(const Tensor& b) { return (b.shape[b.rank - 1] + kSolveColumns - 1) / kSolveColumns; }

inline void solve_plan(const Call& call, KernelPlan& plan) {
  const Tensor& b = call[1];
  plan.parts[0] = parts_for(static_cast<double>(b.size()) * static_cast<double>(b.shape[b.rank - 2]), 128 * 1024);
}

// R rows of a, a_row apart, and the rows of x that they meet; the other strides lead to the next one that became known.
struct KnownRows {
  const float* a;
  const float* x;
  int64_t a_row, a_next, x_next, count;
};

// sum[r][c] for 8 * V columns
template <int R, int V>
inline void solve_vectors(const KnownRows& rows, double (*sum)[kSolveColumns], int64_t column) {
  typedef float Narrow __attribute__((vector_size(32)));
  typedef double Wide __attribute__((vector_size(64)));
  Wide s[R][V] = {};
  double factor[R][kSolveAtOnce];
  const float* x = rows.x + column;
  for (int64_t begin = 0; begin < rows.count; begin += kSolveAtOnce) {
    const int64_t count = rows.count - begin < kSolveAtOnce ? rows.count - begin : kSolveAtOnce;
    for (int r = 0; r < R; r++)
      for (int64_t l = 0; l < count; l++) factor[r][l] = rows.a[r * rows.a_row + (begin + l) * rows.a_next];
    for (int64_t l = 0; l < count; l++, x += rows.x_next) {
      Wide wide[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        Narrow narrow;
        std::memcpy(&narrow, x + 8 * v, sizeof narrow);
        wide[v] = __builtin_convertvector(narrow, Wide);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) s[r][v] += factor[r][l] * wide[v];
    }
  }
  for (int r = 0; r < R; r++) std::memcpy(sum[r] + column, s[r], sizeof s[r]);
}

template <int R>
inline void solve_sums(const KnownRows& rows, double (*sum)[kSolveColumns], int64_t columns) {
  int64_t c = 0;
  for (; c + 8 * kSolveVectors <= columns; c += 8 * kSolveVectors) solve_vectors<R, kSolveVectors>(rows, sum, c);
  for (; c + 8 <= columns; c += 8) solve_vectors<R, 1>(rows, sum, c);
  for (int r = 0; r < R && c < columns; r++) {
    for (int64_t i = c; i < columns; i++) sum[r][i] = 0;
    const float *a = rows.a + r * rows.a_row, *x = rows.x;
    for (int64_t l = 0; l < rows.count; l++, a += rows.a_next, x += rows.x_next)
      for (int64_t i = c; i < columns; i++) sum[r][i] += static_cast<double>(*a) * static_cast<double>(x[i]);
  }
}

inline double solve_column(const KnownRows& rows) {
  const float *a = rows.a, *x = rows.x;
  double s[4] = {};
  for (int64_t l = 0; l < rows.count; l++, a += rows.a_next, x += rows.x_next)
    s[l & 3] += static_cast<double>(*a) * static_cast<double>(*x);
  return (s[0] + s[1]) + (s[2] + s[3]);
}

// One matrix a [n, n] and a block of columns of b; x [n, columns] has rows x_row apart.
struct Solve {
  const float *a, *b;
  float* x;
  int64_t n, columns, a_row, a_col, b_row, b_col, x_row;
  bool lower, unit;

  int64_t row(int64_t k) const { return lower ? k : n - 1 - k; }  // which becomes known k-th
  // x of the k-th row, whose sum over the rows before `from` is given.
  void finish(int64_t k, int64_t from, double* sum) const {
    const int64_t i = row(k);
    const float *ai = a + i * a_row, *bi = b + i * b_row;
    for (int64_t l = from; l < k; l++) {
      const double f = ai[row(l) * a_col];
      for (int64_t c = 0; c < columns; c++) sum[c] += f * static_cast<double>(x[row(l) * x_row + c]);
    }
    const double d = unit ? 1.0 : ai[i * a_col];
    for (int64_t c = 0; c < columns; c++) x[i * x_row + c] = static_cast<float>((bi[c * b_col] - sum[c]) / d);
  }
  void run() const {
    double sum[kSolveRows][kSolveColumns];
    const int64_t next = lower ? 1 : -1, start = row(0);
    for (int64_t k = 0; k < n;) {
      const int64_t some = columns > 1 && n - k >= kSolveRows ? kSolveRows : 1;
      const KnownRows known{a + row(k) * a_row + start * a_col, x + start * x_row, next * a_row, next * a_col,
                            next * x_row, k};
      if (columns == 1) sum[0][0] = solve_column(known);
      else if (some == 1) solve_sums<1>(known, sum, columns);
      else solve_sums<kSolveRows>(known, sum, columns);
      for (int64_t r = 0; r < some; r++) finish(k + r, k, sum[r]);
      k += some;
    }
  }
};

inline void solve_run(const Call& call, int, int part, int parts, void*) {
  const Tensor &a = call[0], &b = call[1], &y = call[2];
  if (y.size() == 0) return;
  const int row = b.rank - 2, col = b.rank - 1;
  const int64_t n = b.shape[row], m = b.shape[col], blocks = solve_blocks(b);
  Walk<3> walk;
  for (int i = 0; i < row; i++) {
    walk.shape[walk.rank] = b.shape[i];
    for (int k = 0; k < 3; k++) walk.stride[k][walk.rank] = call[k].strides[i];
    walk.rank++;
  }
  const Range range = part_range(walk.size() * blocks, part, parts);
  for (int64_t t = range.begin; t < range.end; t++) {
    const int64_t matrix = t / blocks, first = (t - matrix * blocks) * kSolveColumns;
    walk.seek(matrix);
    const Solve solve{a.as<const float>() + walk.at[0],
                      b.as<const float>() + walk.at[1] + first * b.strides[col],
                      y.as<float>() + walk.at[2] + first,
                      n, m - first < kSolveColumns ? m - first : kSolveColumns,
                      a.strides[row], a.strides[col], b.strides[row], b.strides[col], m,
                      call.attr_int(0) != 0, call.attr_int(1) != 0};
    solve.run();
  }
}

inline constexpr KernelRow kTriangularRows[] = {
    {"solve_triangular", "f32", solve_plan, solve_run},
};

}  // namespace gradloom::GL_ISA
