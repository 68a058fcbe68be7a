// triangular.h: solve_triangular: a x = b by substitution, a and b strided, x dense.
//
//   for each matrix, for each block of columns of b:
//     for i = 0 .. n - 1 (upper: n - 1 .. 0):
//       sum[c] = a[i][j] x[j][c] summed over the j that are known, in the order in which they became known
//       x[i][c] = f32((b[i][c] - sum[c]) / a[i][i])
//
// Sums are in f64, each by one loop, or by four that are joined where a block is one column: the same bits on every
// instruction set.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA {

constexpr int64_t kSolveColumns = 32;

inline int64_t solve_blocks(const Tensor& b) { return (b.shape[b.rank - 1] + kSolveColumns - 1) / kSolveColumns; }

inline void solve_plan(const Call& call, KernelPlan& plan) {
  const Tensor& b = call[1];
  plan.parts[0] = parts_for(static_cast<double>(b.size()) * static_cast<double>(b.shape[b.rank - 2]), 128 * 1024);
}

// A row of a and the rows of x that it meets; the strides lead to the next one that became known.
struct KnownRows {
  const float* a;
  const float* x;
  int64_t a_next, x_next, count;
};

inline void solve_sums(const KnownRows& rows, double* sum, int64_t columns) {
  const float *a = rows.a, *x = rows.x;
  if (columns == 1) {
    double s[4] = {};
    for (int64_t l = 0; l < rows.count; l++, a += rows.a_next, x += rows.x_next)
      s[l & 3] += static_cast<double>(*a) * static_cast<double>(*x);
    sum[0] = (s[0] + s[1]) + (s[2] + s[3]);
  } else if (columns == kSolveColumns) {
    double s[kSolveColumns] = {};
    const int64_t a1 = rows.a_next, x1 = rows.x_next;
    int64_t l = 0;
    for (; l + 4 <= rows.count; l += 4, a += 4 * a1, x += 4 * x1) {  // sums leave the registers once in four rows
      const double f0 = a[0], f1 = a[a1], f2 = a[2 * a1], f3 = a[3 * a1];
      for (int64_t c = 0; c < kSolveColumns; c++)
        s[c] = (((s[c] + f0 * static_cast<double>(x[c])) + f1 * static_cast<double>(x[x1 + c])) +
                f2 * static_cast<double>(x[2 * x1 + c])) + f3 * static_cast<double>(x[3 * x1 + c]);
    }
    for (; l < rows.count; l++, a += a1, x += x1)
      for (int64_t c = 0; c < kSolveColumns; c++) s[c] += static_cast<double>(*a) * static_cast<double>(x[c]);
    for (int64_t c = 0; c < kSolveColumns; c++) sum[c] = s[c];
  } else {
    for (int64_t c = 0; c < columns; c++) sum[c] = 0;
    for (int64_t l = 0; l < rows.count; l++, a += rows.a_next, x += rows.x_next) {
      const double f = *a;
      for (int64_t c = 0; c < columns; c++) sum[c] += f * static_cast<double>(x[c]);
    }
  }
}

inline void solve_run(const Call& call, int, int part, int parts, void*) {
  const Tensor &a = call[0], &b = call[1], &y = call[2];
  if (y.size() == 0) return;
  const bool lower = call.attr_int(0) != 0, unit = call.attr_int(1) != 0;
  const int row = b.rank - 2, col = b.rank - 1;
  const int64_t n = b.shape[row], m = b.shape[col], blocks = solve_blocks(b), next = lower ? 1 : -1;
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
    const float* pa = a.as<const float>() + walk.at[0];
    const float* pb = b.as<const float>() + walk.at[1] + first * b.strides[col];
    float* x = y.as<float>() + walk.at[2] + first;
    const int64_t count = m - first < kSolveColumns ? m - first : kSolveColumns;
    const int64_t start = lower ? 0 : n - 1;
    double sum[kSolveColumns];
    for (int64_t k = 0; k < n; k++) {
      const int64_t i = start + k * next;
      const float* ai = pa + i * a.strides[row];
      solve_sums({ai + start * a.strides[col], x + start * m, next * a.strides[col], next * m, k}, sum, count);
      const double d = unit ? 1.0 : ai[i * a.strides[col]];
      const float* bi = pb + i * b.strides[row];
      for (int64_t c = 0; c < count; c++)
        x[i * m + c] = static_cast<float>((bi[c * b.strides[col]] - sum[c]) / d);
    }
  }
}

inline constexpr KernelRow kTriangularRows[] = {
    {"solve_triangular", "f32", solve_plan, solve_run},
};

}  // namespace gradloom::GL_ISA
