// scan.h: cumsum recurrence: running sums and y[i] = a[i] y[i - 1] + b[i] along an axis of any strided view.
//
//   for each line of the other axes, for each block of columns of the last axis:
//     state[c] = 0 in f64
//     for i = 0 .. n - 1 along the axis (backwards: n - 1 .. 0):  state[c] = step(state[c]),  y[i][c] = f32(state[c])
//
// Along the last axis a block is one column. Every number is computed by one loop in f64, in the order of i: the same
// bits on every instruction set. An output may lie in the storage of an input, which is read before it is written.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA {

constexpr int64_t kScanColumns = 64;

inline void scan_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 32 * 1024);
}

// The lines of K inputs and the output, all of one shape, and the blocks of columns that make a task each.
template <int K> struct ScanLines {
  Walk<K + 1> walk;  // all axes but the scanned one and that of the columns
  int64_t n, along[K + 1];
  int64_t width = 1, column[K + 1] = {}, blocks = 1;

  ScanLines(const Call& call, int axis) {
    const Tensor& y = call[K];
    n = y.shape[axis];
    for (int k = 0; k <= K; k++) along[k] = call[k].strides[axis];
    const int last = y.rank - 1;
    for (int i = 0; i < y.rank; i++) {
      if (i == axis) continue;
      if (i == last) {
        width = y.shape[i];
        for (int k = 0; k <= K; k++) column[k] = call[k].strides[i];
        continue;
      }
      walk.shape[walk.rank] = y.shape[i];
      for (int k = 0; k <= K; k++) walk.stride[k][walk.rank] = call[k].strides[i];
      walk.rank++;
    }
    blocks = (width + kScanColumns - 1) / kScanColumns;
  }
};

// step(first, state, in) -> the next state of one column, from its element of each input; first: of the line.
template <int K, class Step>
inline void scan_lines(const Call& call, int axis, bool reverse, int part, int parts, Step&& step) {
  if (call[K].size() == 0) return;
  ScanLines<K> lines(call, axis);
  int64_t next[K + 1];  // from one element along the axis to the one that comes after it
  for (int k = 0; k <= K; k++) next[k] = reverse ? -lines.along[k] : lines.along[k];
  const Range range = part_range(lines.walk.size() * lines.blocks, part, parts);
  for (int64_t t = range.begin; t < range.end; t++) {
    const int64_t line = t / lines.blocks, first = (t - line * lines.blocks) * kScanColumns;
    lines.walk.seek(line);
    const float* in[K];
    for (int k = 0; k < K; k++) {
      in[k] = call[k].as<const float>() + lines.walk.at[k] + first * lines.column[k];
      if (reverse) in[k] += (lines.n - 1) * lines.along[k];
    }
    float* y = call[K].as<float>() + lines.walk.at[K] + first * lines.column[K];
    if (reverse) y += (lines.n - 1) * lines.along[K];
    if (lines.width == 1) {
      double state = 0;
      for (int64_t i = 0; i < lines.n; i++) {
        state = step(i == 0, state, in);
        *y = static_cast<float>(state);
        for (int k = 0; k < K; k++) in[k] += next[k];
        y += next[K];
      }
      continue;
    }
    const int64_t count = lines.width - first < kScanColumns ? lines.width - first : kScanColumns;
    double state[kScanColumns] = {};
    for (int64_t i = 0; i < lines.n; i++) {
      const float* at[K];
      for (int k = 0; k < K; k++) at[k] = in[k];
      for (int64_t c = 0; c < count; c++) {
        state[c] = step(i == 0, state[c], at);
        y[c] = static_cast<float>(state[c]);
        for (int k = 0; k < K; k++) at[k] += lines.column[k];
      }
      for (int k = 0; k < K; k++) in[k] += next[k];
      y += next[K];
    }
  }
}

// y[i] = y[i - 1] + x[i]
inline void cumsum_run(const Call& call, int, int part, int parts, void*) {
  scan_lines<1>(call, static_cast<int>(call.attr_int(0)), call.attr_int(1) != 0, part, parts,
                [](bool, double state, const float* const* at) { return state + *at[0]; });
}

// y[0] = b[0], y[i] = a[i] y[i - 1] + b[i]
inline void recurrence_run(const Call& call, int, int part, int parts, void*) {
  scan_lines<2>(call, static_cast<int>(call.attr_int(0)), call.attr_int(1) != 0, part, parts,
                [](bool first, double state, const float* const* at) {
                  return first ? static_cast<double>(*at[1]) : *at[0] * state + *at[1];
                });
}

inline constexpr KernelRow kScanRows[] = {
    {"cumsum", "f32", scan_plan, cumsum_run},
    {"recurrence", "f32", scan_plan, recurrence_run},
};

}  // namespace gradloom::GL_ISA
