// layout.h: the same elements in another place: copy, flip, concat, pad.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA::layout {

constexpr int64_t kTile = 16;

inline uint32_t move_parts(int64_t n) { return parts_for(static_cast<double>(n), 65536, 64); }

template <class T> inline void move_row(const T* x, int64_t sx, T* y, int64_t sy, int64_t n) {
  if (sx == 1 && sy == 1) {
    if (n < 32) for (int64_t i = 0; i < n; i++) y[i] = x[i];
    else std::memcpy(y, x, static_cast<size_t>(n) * sizeof(T));
  } else if (sx == 0 && sy == 1) {
    const T v = *x;
    for (int64_t i = 0; i < n; i++) y[i] = v;
  } else if (sx == -1 && sy == 1) {
    for (int64_t i = 0; i < n; i++) y[i] = x[-i];
  } else {
    for (int64_t i = 0; i < n; i++) y[i * sy] = x[i * sx];
  }
}

// Rows [row, row + rows) of a plane: y[r][c] = x[r + c * sx], as tiles that fit the cache on both sides.
template <class T>
inline void move_transposed(const T* x, int64_t sx, T* y, int64_t sy, int64_t rows, int64_t columns) {
  T tile[kTile][kTile];
  for (int64_t c = 0; c < columns; c += kTile) {
    const int64_t n = columns - c < kTile ? columns - c : kTile;
    if (rows == kTile && n == kTile) {
      for (int64_t j = 0; j < kTile; j++)
        for (int64_t r = 0; r < kTile; r++) tile[r][j] = x[r + (c + j) * sx];
      for (int64_t r = 0; r < kTile; r++) std::memcpy(y + r * sy + c, tile[r], sizeof tile[r]);
    } else {
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) y[r * sy + c + j] = x[r + (c + j) * sx];
    }
  }
}

// Part `part` of y = x, both strided and of one shape. No two elements of y share a place.
template <class T> inline void move(const Tensor& x, const Tensor& y, int part, int parts) {
  const Tensor* both[2] = {&x, &y};
  const Axes<2> axes = join_axes<2>(y.shape, y.rank, both);
  const int last = axes.rank - 1;
  const int64_t sx = axes.stride[0][last], sy = axes.stride[1][last];
  const T* from = x.as<T>();
  T* to = y.as<T>();
  if (y.size() == 0) return;

  int across = -1;  // an axis along which x lies dense, when the last one is not
  if (sx > 1 && sy == 1 && axes.shape[last] >= kTile)
    for (int i = 0; i < last; i++)
      if (axes.stride[0][i] == 1 && axes.shape[i] >= kTile) across = i;
  if (across >= 0) {  // units: bands of kTile rows of the plane (across, last), for each index of the other axes
    const int64_t width = axes.shape[across], bands = (width + kTile - 1) / kTile;
    int64_t units = bands;
    for (int i = 0; i < last; i++)
      if (i != across) units *= axes.shape[i];
    const Range r = part_range(units, part, parts);
    for (int64_t u = r.begin; u < r.end; u++) {
      int64_t rest = u / bands, row = (u - rest * bands) * kTile;
      int64_t at = row, put = row * axes.stride[1][across];
      for (int i = last - 1; i >= 0; i--) {
        if (i == across) continue;
        const int64_t next = rest / axes.shape[i], index = rest - next * axes.shape[i];
        rest = next;
        at += index * axes.stride[0][i];
        put += index * axes.stride[1][i];
      }
      move_transposed(from + at, sx, to + put, axes.stride[1][across], width - row < kTile ? width - row : kTile,
                      axes.shape[last]);
    }
    return;
  }

  Range r = part_range(y.size(), part, parts);
  if (r.begin >= r.end) return;
  for (RowWalk<2> walk(axes, r.begin); r.begin < r.end; walk.next_row()) {
    int64_t n = axes.shape[last] - walk.column;
    if (n > r.end - r.begin) n = r.end - r.begin;
    move_row(from + walk.offset[0] + walk.column * sx, sx, to + walk.offset[1] + walk.column * sy, sy, n);
    r.begin += n;
  }
}

// ---- copy ---------------------------------------------------------------------------------------------------

inline void plan_copy(const Call& c, KernelPlan& plan) { plan.parts[0] = move_parts(c[1].size()); }
template <class T> void run_copy(const Call& c, int, int part, int parts, void*) { move<T>(c[0], c[1], part, parts); }

// ---- flip: x from its last element along the axes, by strides below 0 -----------------------------------------

template <class T> void run_flip(const Call& c, int, int part, int parts, void*) {
  const Tensor& y = c[1];
  if (y.size() == 0) return;
  Tensor x = c[0];
  int64_t last = 0;
  for (int i = 0; i < c.attr_int(0); i++) {
    const int64_t axis = c.attr_int(1 + i);
    last += (x.shape[axis] - 1) * x.strides[axis];
    x.strides[axis] = -x.strides[axis];
  }
  x.data = x.as<T>() + last;
  move<T>(x, y, part, parts);
}

// ---- concat: each input into its own window of the output -----------------------------------------------------

inline void plan_concat(const Call& c, KernelPlan& plan) { plan.parts[0] = move_parts(c[c.arg_count - 1].size()); }
template <class T> void run_concat(const Call& c, int, int part, int parts, void*) {
  const Tensor& y = c[c.arg_count - 1];
  const int64_t axis = c.attr_int(0);
  T* at = y.as<T>();
  for (int i = 0; i + 1 < c.arg_count; i++) {
    Tensor window = y;
    window.data = at;
    window.shape[axis] = c[i].shape[axis];
    move<T>(c[i], window, part, parts);
    at += c[i].shape[axis] * y.strides[axis];
  }
}

// ---- pad: before, after, interior (between elements), value ----------------------------------------------------

inline void plan_pad(const Call& c, KernelPlan& plan) {
  plan.phases = 2;  // the value everywhere, then x in its place
  plan.parts[0] = move_parts(c[1].size());
  plan.parts[1] = move_parts(c[0].size());
}
template <class T> void run_pad(const Call& c, int phase, int part, int parts, void*) {
  const Tensor &x = c[0], &y = c[1];
  const int rank = y.rank;
  if (phase == 0) {
    const Range r = part_range(y.size(), part, parts, 1024);
    const T value = static_cast<T>(c.attr_float(3 * (rank + 1)));
    for (int64_t i = r.begin; i < r.end; i++) y.as<T>()[i] = value;
    return;
  }
  Tensor window = y;
  int64_t offset = 0;
  for (int i = 0; i < rank; i++) {
    offset += c.attr_int(1 + i) * y.strides[i];
    window.strides[i] = y.strides[i] * (1 + c.attr_int(2 * (rank + 1) + 1 + i));
    window.shape[i] = x.shape[i];
  }
  window.data = y.as<T>() + offset;
  if (x.size() > 0) move<int32_t>(x, window, part, parts);
}

inline constexpr KernelRow kLayoutRows[] = {
    {"copy", "f32", plan_copy, run_copy<int32_t>},
    {"copy", "i32", plan_copy, run_copy<int32_t>},
    {"copy", "u8", plan_copy, run_copy<uint8_t>},
    {"copy", "i64", plan_copy, run_copy<int64_t>},
    {"copy", "f16", plan_copy, run_copy<uint16_t>},
    {"copy", "bf16", plan_copy, run_copy<uint16_t>},
    {"flip", "f32", plan_copy, run_flip<int32_t>},
    {"concat", "f32", plan_concat, run_concat<int32_t>},
    {"pad", "f32", plan_pad, run_pad<float>},
};

}  // namespace gradloom::GL_ISA::layout
