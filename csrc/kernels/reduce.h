// reduce.h: sum mean max min over axes of any strided view, argmax along one axis.
//
// Sums: f32 lanes over short blocks, blocks joined in double (along rows) or by compensated pairs (down columns), so
// that the error does not grow with the length. Max and min give NaN when any element is NaN, as NumPy does; argmax
// takes the first maximum and counts NaN as the maximum. An empty sum is 0, an empty mean NaN, an empty max -inf.
//
// The first part of this file (walks over views, folds of rows and columns) also serves norm.h and loss.h.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA {

// ---- walking over a view -------------------------------------------------------------------------------

// Steps through the positions of a box in row-major order, keeping one offset per stream of strides.
template <int Streams> struct Walk {
  int rank = 0;
  int64_t shape[kMaxRank], index[kMaxRank];
  int64_t stride[Streams][kMaxRank];
  int64_t at[Streams] = {};

  void seek(int64_t position) {
    for (int s = 0; s < Streams; s++) at[s] = 0;
    for (int i = rank - 1; i >= 0; i--) {
      index[i] = position % shape[i];
      position /= shape[i];
      for (int s = 0; s < Streams; s++) at[s] += index[i] * stride[s][i];
    }
  }
  void next() {
    for (int i = rank - 1; i >= 0; i--) {
      for (int s = 0; s < Streams; s++) at[s] += stride[s][i];
      if (++index[i] < shape[i]) return;
      for (int s = 0; s < Streams; s++) at[s] -= shape[i] * stride[s][i];
      index[i] = 0;
    }
  }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
};

// ---- loops over one row: a body is called with Full() for whole vectors and Part{n} for the tail ---------

struct Full {
  static constexpr int n = F::N;
};
struct Part {
  int n;
};
inline F row_load(const float* p, Full) { return F::load(p); }
inline F row_load(const float* p, Part t) { return F::load_n(p, t.n); }
inline void row_store(float* p, F v, Full) { v.store(p); }
inline void row_store(float* p, F v, Part t) { v.store_n(p, t.n); }

constexpr int64_t kFoldBlock = 256 * F::N;  // elements whose f32 sum is formed before it joins a double

// Sum of body(i, Full or Part) over the vectors of a row of n elements. The tail's other lanes do not count.
template <class Body> inline __attribute__((always_inline)) double row_sum_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  double total = 0;
  int64_t i = 0;
  while (true) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
    for (; i + 4 * N <= stop; i += 4 * N) {
      a += body(i, Full());
      b += body(i + N, Full());
      c += body(i + 2 * N, Full());
      d += body(i + 3 * N, Full());
    }
    for (; i + N <= stop; i += N) a += body(i, Full());
    if (i < stop) {
      const int left = static_cast<int>(stop - i);
      b += select(Mask<float>::first_n(left), body(i, Part{left}), F::zero());
      i = stop;
    }
    total += reduce_add((a + b) + (c + d));
    if (i >= n) return total;
  }
}

// Two sums over one row at once: body adds to the accumulators that it is given.
struct Sums {
  double a, b;
};
template <class Body> inline __attribute__((always_inline)) Sums row_sums_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  Sums total = {0, 0};
  int64_t i = 0;
  while (true) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
    for (; i + 2 * N <= stop; i += 2 * N) {
      body(i, Full(), a, b);
      body(i + N, Full(), c, d);
    }
    for (; i + N <= stop; i += N) body(i, Full(), a, b);
    if (i < stop) {
      const int left = static_cast<int>(stop - i);
      const Mask<float> on = Mask<float>::first_n(left);
      F ta = F::zero(), tb = F::zero();
      body(i, Part{left}, ta, tb);
      c += select(on, ta, F::zero());
      d += select(on, tb, F::zero());
      i = stop;
    }
    total.a += reduce_add(a + c);
    total.b += reduce_add(b + d);
    if (i >= n) return total;
  }
}

template <class Body> inline __attribute__((always_inline)) float row_max_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  const F least = F::set1(-__builtin_inff());
  F a = least, b = least;
  int64_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    a = max(a, body(i, Full()));
    b = max(b, body(i + N, Full()));
  }
  for (; i + N <= n; i += N) a = max(a, body(i, Full()));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    b = max(b, select(Mask<float>::first_n(left), body(i, Part{left}), least));
  }
  return reduce_max(max(a, b));
}

template <class Body> inline __attribute__((always_inline)) void row_each(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) body(i, Full());
  if (i < n) body(i, Part{static_cast<int>(n - i)});
}

// ---- what is folded --------------------------------------------------------------------------------------

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

template <bool Unit> inline F fold_load(const float* p, int64_t stride) {
  if constexpr (Unit) return F::load(p);
  return F::gather(p, stride);
}
template <class Op, bool Unit> inline F fold_load_n(const float* p, int64_t stride, int n) {
  F v;
  if constexpr (Unit) v = F::load_n(p, n);
  else v = F::gather_n(p, stride, n);
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
template <class Op, bool Unit> inline void fold_row(const float* p, int64_t n, int64_t stride, F& hi, F& lo) {
  constexpr int64_t N = F::N;
  const int64_t s = Unit ? 1 : stride;
  int64_t i = 0;
  while (i < n) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a[8];
    for (int k = 0; k < 8; k++) a[k] = Op::unit();
    for (; i + 8 * N <= stop; i += 8 * N)
      for (int k = 0; k < 8; k++) a[k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[k]);
    if (i + 4 * N <= stop) {
      for (int k = 0; k < 4; k++) a[k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[k]);
      i += 4 * N;
    }
    if (i + 2 * N <= stop) {
      for (int k = 0; k < 2; k++) a[4 + k] = Op::merge(fold_load<Unit>(p + (i + k * N) * s, s), a[4 + k]);
      i += 2 * N;
    }
    if (i + N <= stop) {
      a[6] = Op::merge(fold_load<Unit>(p + i * s, s), a[6]);
      i += N;
    }
    if (i < stop) a[7] = Op::merge(fold_load_n<Op, Unit>(p + i * s, s, static_cast<int>(stop - i)), a[7]);
    i = stop;
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
inline void fold_columns(const float* p, int64_t rows, int64_t row_stride, int64_t width, int64_t stride, float* hi,
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

// ---- a reduction laid out: kept and reduced axes by falling stride, neighbours merged --------------------

struct Reduction {
  int kept = 0, folded = 0;
  int64_t kept_n[kMaxRank], kept_in[kMaxRank], kept_out[kMaxRank];  // extent, stride in x, stride in y
  int64_t fold_n[kMaxRank], fold_in[kMaxRank];
  int64_t outputs = 1, length = 1;  // length: elements folded into each output, repeats along stride 0 left out
  double repeat = 1;
  bool across = false;  // lanes run along the innermost kept axis: sums down columns
  int64_t width = 1, chunk = 1, chunks = 1;  // of that axis: its extent, columns per task, tasks per line
  int64_t lines = 1;  // positions of the other kept axes
  int split = 1, parts = 1;  // split > 1: the outermost folded axis in slices, joined in a second phase
};

constexpr int64_t kFoldChunk = 1024;      // columns whose accumulators live in scratch
constexpr double kFoldGrain = 128 * 1024;  // elements per part

inline Reduction reduction_layout(const Call& call) {
  const Tensor& x = call[0];
  const int64_t count = call.attr_int(0);
  bool reduced[kMaxRank] = {};
  for (int64_t i = 0; i < count; i++) reduced[call.attr_int(static_cast<int>(i) + 1)] = true;
  Reduction r;
  int64_t out_stride = 1, out_strides[kMaxRank];
  for (int i = x.rank - 1; i >= 0; i--) {
    out_strides[i] = out_stride;
    if (!reduced[i]) out_stride *= x.shape[i];
  }
  for (int i = 0; i < x.rank; i++) {
    const int64_t n = x.shape[i], s = x.strides[i];
    if (reduced[i]) {
      if (n == 0) r.length = 0;
      if (n == 1) continue;
      if (s == 0) {
        r.repeat *= static_cast<double>(n);
        continue;
      }
      r.length *= n;
      int k = r.folded++;
      for (; k > 0 && r.fold_in[k - 1] < s; k--) r.fold_n[k] = r.fold_n[k - 1], r.fold_in[k] = r.fold_in[k - 1];
      r.fold_n[k] = n, r.fold_in[k] = s;
    } else {
      r.outputs *= n;
      if (n == 1) continue;
      int k = r.kept++;
      for (; k > 0 && s != 0 && r.kept_in[k - 1] != 0 && r.kept_in[k - 1] < s; k--)
        r.kept_n[k] = r.kept_n[k - 1], r.kept_in[k] = r.kept_in[k - 1], r.kept_out[k] = r.kept_out[k - 1];
      if (s == 0)  // broadcast: the same fold again for every position, so outermost
        for (; k > 0; k--)
          r.kept_n[k] = r.kept_n[k - 1], r.kept_in[k] = r.kept_in[k - 1], r.kept_out[k] = r.kept_out[k - 1];
      r.kept_n[k] = n, r.kept_in[k] = s, r.kept_out[k] = out_strides[i];
    }
  }
  if (r.outputs == 0 || r.length == 0) return r;
  int m = 0;
  for (int i = 1; i < r.folded; i++) {
    if (r.fold_in[m] == r.fold_in[i] * r.fold_n[i]) r.fold_n[m] *= r.fold_n[i], r.fold_in[m] = r.fold_in[i];
    else m++, r.fold_n[m] = r.fold_n[i], r.fold_in[m] = r.fold_in[i];
  }
  if (r.folded) r.folded = m + 1;
  m = 0;
  for (int i = 1; i < r.kept; i++) {
    const int64_t n = r.kept_n[i];
    if (r.kept_in[m] == r.kept_in[i] * n && r.kept_out[m] == r.kept_out[i] * n)
      r.kept_n[m] *= n, r.kept_in[m] = r.kept_in[i], r.kept_out[m] = r.kept_out[i];
    else m++, r.kept_n[m] = n, r.kept_in[m] = r.kept_in[i], r.kept_out[m] = r.kept_out[i];
  }
  if (r.kept) r.kept = m + 1;
  const bool nothing = r.folded == 0;  // only repeats: a copy, times the repeats
  if (nothing) r.folded = 1, r.fold_n[0] = 1, r.fold_in[0] = 0;
  const int last = r.kept - 1;
  r.across = r.kept > 0 && r.kept_in[last] != 0 && (nothing || r.kept_in[last] < r.fold_in[r.folded - 1]);
  if (r.across) {
    r.width = r.kept_n[last];
    r.lines = r.outputs / r.width;
    r.chunk = r.width < kFoldChunk ? r.width : kFoldChunk;
  } else {
    r.lines = r.outputs;
  }

  // Parts: over outputs where there are enough of them, else slices of the outermost folded axis.
  const double cost = static_cast<double>(r.outputs) * static_cast<double>(r.length);
  const int most = static_cast<int>(parts_for(cost, kFoldGrain));
  r.chunks = (r.width + r.chunk - 1) / r.chunk;
  const bool line_only = r.folded == 1 && !r.across;  // the sliced axis is the one that lanes run along
  const int64_t slices = line_only ? r.fold_n[0] / kFoldBlock : r.fold_n[0];
  if (most == 1 || r.lines * r.chunks >= 4 * most) {
    r.parts = most;
  } else if (slices >= most && r.outputs <= 16384) {
    r.parts = r.split = most;
  } else if (r.across) {
    int64_t fine = (r.width * r.lines / most + 63) / 64 * 64;
    if (fine < 64) fine = 64;
    if (fine < r.chunk) r.chunk = fine;
    r.chunks = (r.width + r.chunk - 1) / r.chunk;
    r.parts = r.lines * r.chunks < most ? static_cast<int>(r.lines * r.chunks) : most;
  } else {
    r.parts = r.outputs < most ? static_cast<int>(r.outputs) : most;
  }
  return r;
}

inline void reduce_plan(const Call& call, KernelPlan& plan) {
  const Reduction r = reduction_layout(call);
  plan.parts[0] = static_cast<uint32_t>(r.parts);
  if (r.across || r.split > 1) plan.scratch_bytes = 2 * sizeof(float) * static_cast<size_t>(kFoldChunk);
  if (r.split > 1) {
    plan.phases = 2;
    plan.parts[1] = parts_for(static_cast<double>(r.outputs) * r.split, 32 * 1024);
    plan.workspace_bytes = sizeof(double) * static_cast<size_t>(r.outputs) * static_cast<size_t>(r.split);
  }
}

// Fold what belongs to the output at p, over a slice of the outermost folded axis, into the lanes of (hi, lo).
template <class Op, bool Unit>
inline void reduce_line(const Reduction& r, const float* p, Walk<1>& outer, Range slice, F& hi, F& lo) {
  const int last = r.folded - 1;
  const int64_t n = r.fold_n[last], s = r.fold_in[last];
  if (last == 0) {
    fold_row<Op, Unit>(p + slice.begin * s, slice.end - slice.begin, s, hi, lo);
    return;
  }
  if (last == 1) {
    for (int64_t i = slice.begin; i < slice.end; i++) fold_row<Op, Unit>(p + i * r.fold_in[0], n, s, hi, lo);
    return;
  }
  const int64_t inside = r.length / (n * r.fold_n[0]);  // positions of the axes between the first and the last
  outer.seek(slice.begin * inside);
  for (int64_t i = (slice.end - slice.begin) * inside; i > 0; i--, outer.next())
    fold_row<Op, Unit>(p + outer.at[0], n, s, hi, lo);
}

// One task down columns: `width` columns from p, folded over a slice of the outermost folded axis, into hi and lo.
// Narrow dense rows are taken several at a time, as one row of whole vectors; their number is the result, and what
// they left is folded by column_value.
template <class Op, bool Unit>
inline int64_t reduce_chunk(const Reduction& r, const float* p, int64_t width, Walk<1>& outer, Range slice, float* hi,
                            float* lo) {
  const int last = r.folded - 1;
  const int64_t s = r.kept_in[r.kept - 1], down = r.fold_in[last];
  int64_t rows = last == 0 ? slice.end - slice.begin : r.fold_n[last], wrap = 1;
  if (Unit && down == width && width < 2 * F::N && rows >= 128) {
    wrap = F::N;  // over the largest power of two that divides width
    for (int64_t w = width; wrap > 1 && w % 2 == 0; w /= 2) wrap /= 2;
  }
  const int64_t columns = wrap * width;
  row_each(columns, [&](int64_t c, auto t) {
    row_store(hi + c, Op::unit(), t);
    row_store(lo + c, F::zero(), t);
  });
  const auto fold = [&](const float* q) {
    const int64_t whole = rows / wrap, rest = rows - whole * wrap;
    fold_columns<Op, Unit>(q, whole, wrap * down, columns, s, hi, lo);
    if (rest) fold_columns<Op, Unit>(q + whole * columns, 1, columns, rest * width, s, hi, lo);
  };
  if (last == 0) {
    fold(p + slice.begin * down);
  } else {
    const int64_t inside = r.length / (rows * r.fold_n[0]);
    outer.seek(slice.begin * inside);
    for (int64_t i = (slice.end - slice.begin) * inside; i > 0; i--, outer.next()) fold(p + outer.at[0]);
  }
  return wrap;
}

// The folds of the columns from c on, rounded to f32.
template <class Op, class Some>
inline F column_value(const float* hi, const float* lo, int64_t width, int64_t wrap, int64_t c, Some t) {
  F h = row_load(hi + c, t), l = row_load(lo + c, t);
  for (int64_t k = 1; k < wrap; k++) {
    fold_into<Op>(row_load(hi + k * width + c, t), h, l);
    if constexpr (Op::paired) l += row_load(lo + k * width + c, t);
  }
  if constexpr (Op::paired) return pair_value(h, l);
  return h;
}

template <class Op, bool Mean> inline float reduce_result(const Reduction& r, double total) {
  if constexpr (Mean) return static_cast<float>(total / static_cast<double>(r.length));
  if constexpr (Op::paired) return static_cast<float>(total * r.repeat);
  return static_cast<float>(total);
}

template <class Op, bool Unit, bool Mean>
inline void reduce_body(const Call& call, const Reduction& r, int phase, int part, int parts, void* scratch) {
  const float* x = call[0].as<const float>();
  float* y = call[1].as<float>();
  if (phase == 1) {  // join the slices, in order
    const double* partial = call.workspace().as<const double>();
    Walk<1> out;
    out.rank = r.kept;
    for (int i = 0; i < r.kept; i++) out.shape[i] = r.kept_n[i], out.stride[0][i] = r.kept_out[i];
    const Range range = part_range(r.outputs, part, parts, 64);
    out.seek(range.begin);
    for (int64_t o = range.begin; o < range.end; o++, out.next()) {
      double total = partial[o];
      for (int s = 1; s < r.split; s++) total = Op::join(total, partial[s * r.outputs + o]);
      y[out.at[0]] = reduce_result<Op, Mean>(r, total);
    }
    return;
  }
  Walk<1> outer;  // folded axes but the last
  outer.rank = r.folded - 1;
  for (int i = 0; i < outer.rank; i++) outer.shape[i] = r.fold_n[i], outer.stride[0][i] = r.fold_in[i];
  Walk<2> line;  // kept axes but the one along the lanes
  line.rank = r.across ? r.kept - 1 : r.kept;
  for (int i = 0; i < line.rank; i++)
    line.shape[i] = r.kept_n[i], line.stride[0][i] = r.kept_in[i], line.stride[1][i] = r.kept_out[i];
  const Range all = {0, r.fold_n[0]};
  double* partial = r.split > 1 ? call.workspace().as<double>() + part * r.outputs : nullptr;

  if (!r.across) {
    const auto one = [&](const float* p, Range slice) {
      F hi = Op::unit(), lo = F::zero();
      reduce_line<Op, Unit>(r, p, outer, slice, hi, lo);
      return lanes_value<Op>(hi, lo);
    };
    if (r.split == 1) {
      const Range range = part_range(r.outputs, part, parts);
      line.seek(range.begin);
      for (int64_t o = range.begin; o < range.end; o++, line.next())
        y[line.at[1]] = reduce_result<Op, Mean>(r, one(x + line.at[0], all));
    } else if (r.folded == 1) {
      const Range slice = part_range(r.fold_n[0], part, parts, kFoldBlock);
      line.seek(0);
      for (int64_t o = 0; o < r.outputs; o++, line.next()) partial[o] = one(x + line.at[0], slice);
    } else if (r.outputs * F::N <= kFoldChunk) {  // the slice outermost, so that memory is read in its order
      const Range slice = part_range(r.fold_n[0], part, parts);
      float* hi = static_cast<float*>(scratch);
      float* lo = hi + kFoldChunk;
      for (int64_t o = 0; o < r.outputs; o++) {
        Op::unit().store(hi + o * F::N);
        F::zero().store(lo + o * F::N);
      }
      for (int64_t i = slice.begin; i < slice.end; i++) {
        line.seek(0);
        for (int64_t o = 0; o < r.outputs; o++, line.next()) {
          F h = F::load(hi + o * F::N), l = F::load(lo + o * F::N);
          reduce_line<Op, Unit>(r, x + line.at[0], outer, {i, i + 1}, h, l);
          h.store(hi + o * F::N);
          l.store(lo + o * F::N);
        }
      }
      for (int64_t o = 0; o < r.outputs; o++)
        partial[o] = lanes_value<Op>(F::load(hi + o * F::N), F::load(lo + o * F::N));
    } else {
      const Range slice = part_range(r.fold_n[0], part, parts);
      for (int64_t o = 0; o < r.outputs; o++) partial[o] = Op::start();
      for (int64_t i = slice.begin; i < slice.end; i++) {
        line.seek(0);
        for (int64_t o = 0; o < r.outputs; o++, line.next())
          partial[o] = Op::join(partial[o], one(x + line.at[0], {i, i + 1}));
      }
    }
    return;
  }

  float* hi = static_cast<float*>(scratch);
  float* lo = hi + kFoldChunk;
  const int64_t in = r.kept_in[r.kept - 1], out = r.kept_out[r.kept - 1];
  const Range tasks = r.split > 1 ? Range{0, r.lines * r.chunks} : part_range(r.lines * r.chunks, part, parts);
  const Range slice = r.split > 1 ? part_range(r.fold_n[0], part, parts) : all;
  line.seek(tasks.begin / r.chunks);
  for (int64_t t = tasks.begin, chunk = tasks.begin % r.chunks; t < tasks.end; t++) {
    const int64_t c0 = chunk * r.chunk, width = r.width - c0 < r.chunk ? r.width - c0 : r.chunk;
    const int64_t wrap = reduce_chunk<Op, Unit>(r, x + line.at[0] + c0 * in, width, outer, slice, hi, lo);
    float* to = y + line.at[1] + c0 * out;
    double* to_partial = partial ? partial + t / r.chunks * r.width + c0 : nullptr;
    const F factor = F::set1(static_cast<float>(r.repeat)), count = F::set1(static_cast<float>(r.length));
    row_each(width, [&](int64_t c, auto v) {
      F value = column_value<Op>(hi, lo, width, wrap, c, v);
      if (!to_partial) {
        if constexpr (Mean) value /= count;
        else if constexpr (Op::paired) value *= factor;
        if (out == 1) {
          row_store(to + c, value, v);
          return;
        }
      }
      float lanes[F::N];
      value.store(lanes);
      for (int k = 0; k < v.n; k++) {
        if (to_partial) to_partial[c + k] = static_cast<double>(lanes[k]);
        else to[(c + k) * out] = lanes[k];
      }
    });
    if (++chunk == r.chunks) chunk = 0, line.next();
  }
}

template <class Op, bool Mean = false>
inline void reduce_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const Reduction r = reduction_layout(call);
  if (r.outputs == 0) return;
  if (r.length == 0) {
    for (int64_t o = 0; o < r.outputs; o++) call[1].as<float>()[o] = reduce_result<Op, Mean>(r, Op::start());
    return;
  }
  const int64_t inner = r.across ? r.kept_in[r.kept - 1] : r.fold_in[r.folded - 1];
  if (inner == 1) reduce_body<Op, true, Mean>(call, r, phase, part, parts, scratch);
  else reduce_body<Op, false, Mean>(call, r, phase, part, parts, scratch);
}

// ---- argmax ----------------------------------------------------------------------------------------------

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
inline I lanes_argmax(F v, I at, F& best, I found) {
  const Mask<float> better = ~le(v, best) & ~is_nan(best);
  best = select(better, v, best);
  return select(better, at, found);
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
    I found = I::zero();
    for (int64_t k = 1; k < n; k++)
      found = lanes_argmax(lanes(q + k * along), I::set1(static_cast<int32_t>(k)), best, found);
    found.store_n(y + line * width + c, left);
  }
}

inline constexpr KernelRow kReduceRows[] = {
    {"sum", "f32", reduce_plan, reduce_run<FoldSum>},
    {"mean", "f32", reduce_plan, reduce_run<FoldSum, true>},
    {"max", "f32", reduce_plan, reduce_run<FoldMax>},
    {"min", "f32", reduce_plan, reduce_run<FoldMin>},
    {"argmax", "f32_i32", argmax_plan, argmax_run},
};

}  // namespace gradloom::GL_ISA
