// argmax.h: position of the first maximum along one axis; NaN counts as the maximum.
//
//   rows that lie dense and are long:  the row's maximum, then the first vector that holds it
//   otherwise:                         for each vector of neighbouring lines, for k < n: keep the better value, its k
#pragma once
#include "rows.h"
#include "walk.h"

namespace gradloom::GL_ISA {

// First maximum of a dense row; the first NaN when there is one.
inline int64_t row_argmax(const float* p, int64_t n) {
  const F top = F::set1(row_max_of(n, [&](int64_t i, auto t) { return row_load(p + i, t); }));
  for (int64_t i = 0; i < n; i += F::N) {
    const int left = n - i < F::N ? static_cast<int>(n - i) : F::N;
    const F v = F::load_n(p + i, left);
    const Mask<float> hit = (eq(v, top) | is_nan(v)) & Mask<float>::first_n(left);
    if (hit.any()) return i + __builtin_ctz(hit.bits());
  }
  return 0;
}

// Lanes over N neighbouring lines: position along the axis of the first maximum (NaN counts as the maximum).
inline I lanes_argmax(F v, I at, F& best, I place) {
  const Mask<float> better = ~le(v, best) & ~is_nan(best);
  best = select(better, v, best);
  return select(better, at, place);
}

constexpr int64_t kArgmaxShort = 16;  // up to here lanes run over neighbouring rows

inline void argmax_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 64 * 1024);
}

inline void argmax_run(const Call& call, int, int part, int parts, void*) {
  const Tensor& x = call[0];
  const int axis = static_cast<int>(call.attr_int(0));
  const float* p = x.as<const float>();
  int32_t* y = call[1].as<int32_t>();
  const int64_t n = x.shape[axis], along = x.strides[axis];
  if (n == 0) return;
  Walk<1> walk;  // the kept axes; the last of them apart, where lanes may run along it
  for (int i = 0; i < x.rank; i++)
    if (i != axis && x.shape[i] != 1) {
      if (x.shape[i] == 0) return;
      const int last = walk.rank - 1;
      if (last >= 0 && walk.stride[0][last] == x.strides[i] * x.shape[i]) {
        walk.shape[last] *= x.shape[i], walk.stride[0][last] = x.strides[i];
        continue;
      }
      walk.shape[walk.rank] = x.shape[i], walk.stride[0][walk.rank++] = x.strides[i];
    }
  if (along == 1 && n > kArgmaxShort) {
    const Range range = part_range(walk.size(), part, parts);
    walk.seek(range.begin);
    for (int64_t o = range.begin; o < range.end; o++, walk.next())
      y[o] = static_cast<int32_t>(row_argmax(p + walk.at[0], n));
    return;
  }
  const int64_t width = walk.rank ? walk.shape[walk.rank - 1] : 1;
  const int64_t s = walk.rank ? walk.stride[0][walk.rank - 1] : 0;
  if (walk.rank) walk.rank--;
  const int64_t blocks = (width + F::N - 1) / F::N;
  const Range range = part_range(walk.size() * blocks, part, parts);
  for (int64_t t = range.begin; t < range.end; t++) {
    const int64_t line = t / blocks, c = (t - line * blocks) * F::N;
    walk.seek(line);
    const float* q = p + walk.at[0] + c * s;
    const int left = width - c < F::N ? static_cast<int>(width - c) : F::N;
    const auto lanes = [&](const float* from) {
      if (left < F::N) return F::gather_n(from, s, left);
      return s == 1 ? F::load(from) : F::gather(from, s);
    };
    F best = lanes(q);
    I place = I::zero();
    for (int64_t k = 1; k < n; k++)
      place = lanes_argmax(lanes(q + k * along), I::set1(static_cast<int32_t>(k)), best, place);
    place.store_n(y + line * width + c, left);
  }
}

inline constexpr KernelRow kArgmaxRows[] = {
    {"argmax", "f32_i32", argmax_plan, argmax_run},
};

}  // namespace gradloom::GL_ISA
