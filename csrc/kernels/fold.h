// fold.h: sums, maxima and minima of many numbers: along a row into the lanes of a vector, down columns into a row.
//
// A sum is a pair (hi, lo): lo gathers what is lost when a block's sum is added to hi, so that the error does not grow
// with the length. Max and min give NaN when any element is NaN, as NumPy does.
//
//   fold_row       for each block of kFoldBlock elements: 8 vectors side by side, joined as a tree, added to (hi, lo)
//   fold_columns   for each block of rows that stays in the first cache:
//                    for each vector of columns: its rows as a tree of 16, added to that vector's (hi, lo)
#pragma once
#include "rows.h"

namespace gradloom::GL_ISA {

struct FoldSum {
  static constexpr bool paired = true;  // columns keep a correction beside each sum
  static F unit() { return F::zero(); }
  static F merge(F a, F b) { return a + b; }
  static float across(F a) { return reduce_add(a); }
  static double start() { return 0; }
  static double join(double a, double b) { return a + b; }
};
struct FoldMax {
  static constexpr bool paired = false;
  static F unit() { return F::set1(-__builtin_inff()); }
  static F merge(F a, F b) { return max(a, b); }
  static float across(F a) { return reduce_max(a); }
  static double start() { return -__builtin_inf(); }
  static double join(double a, double b) { return a > b || a != a ? a : b; }
};
struct FoldMin {
  static constexpr bool paired = false;
  static F unit() { return F::set1(__builtin_inff()); }
  static F merge(F a, F b) { return min(a, b); }
  static float across(F a) { return reduce_min(a); }
  static double start() { return __builtin_inf(); }
  static double join(double a, double b) { return a < b || a != a ? a : b; }
};

GL_CALLED F fold_gather(const float* p, int64_t stride) { return F::gather(p, stride); }
GL_CALLED F fold_gather_n(const float* p, int64_t stride, int n) { return F::gather_n(p, stride, n); }
template <bool Unit> inline F fold_load(const float* p, int64_t stride) {
  if constexpr (Unit || F::N == 1) return F::load(p);
  return fold_gather(p, stride);
}
template <class Op, bool Unit> inline F fold_load_n(const float* p, int64_t stride, int n) {
  F v;
  if constexpr (Unit || F::N == 1) v = F::load_n(p, n);
  else v = fold_gather_n(p, stride, n);
  if constexpr (Op::paired) return v;  // zeros are the unit of a sum
  return select(Mask<float>::first_n(n), v, Op::unit());
}

// Add v to the pair (hi, lo): hi + lo carries the sum with an error far below one rounding of hi.
inline void pair_add(F v, F& hi, F& lo) {
  const F s = hi + v, t = s - hi;
  lo += (hi - (s - t)) + (v - t);
  hi = s;
}
template <class Op> inline void fold_into(F v, F& hi, F& lo) {
  if constexpr (Op::paired) pair_add(v, hi, lo);
  else hi = Op::merge(v, hi);
}
// Once a sum is not finite its correction is NaN and means nothing.
inline F pair_value(F hi, F lo) {
  const F sum = hi + lo;
  return select(is_nan(sum), hi, sum);
}
inline double pair_value(float hi, float lo) {
  const double sum = static_cast<double>(hi) + static_cast<double>(lo);
  return __builtin_isnan(sum) ? static_cast<double>(hi) : sum;
}

// Fold n elements in a line into the lanes of (hi, lo).
template <class Op, bool Unit> GL_CALLED void fold_row(const float* p, int64_t n, int64_t stride, F& hi, F& lo) {
  constexpr int64_t N = F::N;
  const int64_t s = Unit ? 1 : stride;
  if (n > 0 && n <= N) {  // the same bits as below, without its accumulators
    const F v = n == N ? fold_load<Unit>(p, s) : fold_load_n<Op, Unit>(p, s, static_cast<int>(n));
    return fold_into<Op>(Op::merge(v, Op::unit()), hi, lo);
  }
  int64_t i = 0;
  while (i < n) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) a[k] = Op::unit();
    for (; i + 8 * N <= stop; i += 8 * N)
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++) a[k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[k]);
    if (i + 4 * N <= stop) {
#pragma GCC unroll 8
      for (int k = 0; k < 4; k++) a[k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[k]);
      i += 4 * N;
    }
    if (i + 2 * N <= stop) {
#pragma GCC unroll 8
      for (int k = 0; k < 2; k++) a[4 + k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[4 + k]);
      i += 2 * N;
    }
    if (i + N <= stop) {
      a[6] = Op::merge(fold_load<Unit>(p + i * s, s), a[6]);
      i += N;
    }
    if (i < stop) a[7] = Op::merge(fold_load_n<Op, Unit>(p + i * s, s, static_cast<int>(stop - i)), a[7]);
    i = stop;
#pragma GCC unroll 8
    for (int k = 0; k < 4; k++) a[k] = Op::merge(a[k], a[k + 4]);
    fold_into<Op>(Op::merge(Op::merge(a[0], a[2]), Op::merge(a[1], a[3])), hi, lo);
  }
}
template <class Op> inline double lanes_value(F hi, F lo) {
  if constexpr (Op::paired) return pair_value(reduce_add(hi), reduce_add(lo));
  return static_cast<double>(Op::across(hi));
}

// Fold `rows` rows of `width` columns into hi (and lo for sums), one accumulator per column. Rows go in blocks that
// stay in the first cache: within one, a vector of columns is summed in registers.
template <class Op, bool Unit>
GL_CALLED void fold_columns(const float* p, int64_t rows, int64_t row_stride, int64_t width, int64_t stride, float* hi,
                            float* lo) {
  constexpr int64_t N = F::N;
  const int64_t s = Unit ? 1 : stride, down = row_stride;
  int64_t block = 4096 / (width ? width : 1) / 16 * 16;
  block = block < 16 ? 16 : block > 256 ? 256 : block;
  const auto four = [&](const float* q, auto load) {
    return Op::merge(Op::merge(load(q), load(q + down)), Op::merge(load(q + 2 * down), load(q + 3 * down)));
  };
  const auto sixteen = [&](const float* q, auto load) {
    const F a = four(q, load), b = four(q + 4 * down, load), c = four(q + 8 * down, load);
    return Op::merge(Op::merge(a, b), Op::merge(c, four(q + 12 * down, load)));
  };
  const auto column = [&](const float* q, int64_t count, auto load) {  // count rows of one vector of columns
    if (count == 16) return sixteen(q, load);
    F a = Op::unit(), b = Op::unit();
    int64_t r = 0;
    for (; r + 16 <= count; r += 16, q += 16 * down) a = Op::merge(sixteen(q, load), a);
    for (; r + 4 <= count; r += 4, q += 4 * down) b = Op::merge(four(q, load), b);
    for (; r < count; r++, q += down) a = Op::merge(load(q), a);
    return Op::merge(a, b);
  };
  for (int64_t r = 0; r < rows; r += block, p += block * down) {
    const int64_t count = rows - r < block ? rows - r : block;
    int64_t c = 0;
    for (; c + N <= width; c += N) {
      const F sum = column(p + c * s, count, [&](const float* q) { return fold_load<Unit>(q, s); });
      F h = F::load(hi + c), l = F::load(lo + c);
      fold_into<Op>(sum, h, l);
      h.store(hi + c);
      if constexpr (Op::paired) l.store(lo + c);
    }
    if (c < width) {
      const int left = static_cast<int>(width - c);
      const F sum = column(p + c * s, count, [&](const float* q) { return fold_load_n<Op, Unit>(q, s, left); });
      F h = F::load_n(hi + c, left), l = F::load_n(lo + c, left);
      fold_into<Op>(sum, h, l);
      h.store_n(hi + c, left);
      if constexpr (Op::paired) l.store_n(lo + c, left);
    }
  }
}

}  // namespace gradloom::GL_ISA
