// reduce.h: sum mean max min over axes of any strided view.
//
// An empty sum is 0, an empty mean NaN, an empty max -inf. The axes are ordered by falling stride and neighbours
// merged; then lanes run along whichever axis lies dense:
//
//   along a folded axis (!across)                       along a kept axis (across)
//   for each output:                                    for each line of outputs, for each chunk of its columns:
//     for each position of the outer folded axes:         for each position of the outer folded axes:
//       fold_row of the innermost one                       fold_columns of the innermost one into the chunk's sums
//
// Where there are few outputs, the outermost folded axis is cut into slices, one per part (`split`); a second phase
// joins the slices' doubles in their order.
#pragma once
#include "fold.h"
#include "walk.h"

namespace gradloom::GL_ISA {

// ---- a reduction laid out: kept and reduced axes by falling stride, neighbours merged --------------------

struct Reduction {
  int kept = 0, folded = 0;
  int64_t kept_n[kMaxRank], kept_in[kMaxRank], kept_out[kMaxRank];  // extent, stride in x, stride in y
  int64_t fold_n[kMaxRank], fold_in[kMaxRank];
  int64_t outputs = 1, length = 1;  // length: elements folded into each output, repeats along stride 0 left out
  double repeat = 1;
  bool mean = false;
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
GL_CALLED void reduce_line(const Reduction& r, const float* p, Walk<1>& outer, Range slice, F& hi, F& lo) {
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
GL_CALLED int64_t reduce_chunk(const Reduction& r, const float* p, int64_t width, Walk<1>& outer, Range slice,
                               float* hi, float* lo) {
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

template <class Op> inline float reduce_result(const Reduction& r, double total) {
  if (r.mean) return static_cast<float>(total / static_cast<double>(r.length));
  if constexpr (Op::paired) return static_cast<float>(total * r.repeat);
  return static_cast<float>(total);
}

template <class Op>
GL_CALLED void reduce_body(const Call& call, const Reduction& r, int phase, int part, int parts, void* scratch) {
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
      y[out.at[0]] = reduce_result<Op>(r, total);
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
  const bool unit = (r.across ? r.kept_in[r.kept - 1] : r.fold_in[r.folded - 1]) == 1;
  const auto fold_line = unit ? reduce_line<Op, true> : reduce_line<Op, false>;
  const auto fold_chunk = unit ? reduce_chunk<Op, true> : reduce_chunk<Op, false>;
  double* partial = r.split > 1 ? call.workspace().as<double>() + part * r.outputs : nullptr;

  if (!r.across) {
    const auto one = [&](const float* p, Range slice) {
      F hi = Op::unit(), lo = F::zero();
      fold_line(r, p, outer, slice, hi, lo);
      return lanes_value<Op>(hi, lo);
    };
    if (r.split == 1) {
      const Range range = part_range(r.outputs, part, parts);
      line.seek(range.begin);
      for (int64_t o = range.begin; o < range.end; o++, line.next())
        y[line.at[1]] = reduce_result<Op>(r, one(x + line.at[0], all));
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
          fold_line(r, x + line.at[0], outer, {i, i + 1}, h, l);
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
    const int64_t wrap = fold_chunk(r, x + line.at[0] + c0 * in, width, outer, slice, hi, lo);
    float* to = y + line.at[1] + c0 * out;
    double* to_partial = partial ? partial + t / r.chunks * r.width + c0 : nullptr;
    const F factor = F::set1(static_cast<float>(r.repeat)), count = F::set1(static_cast<float>(r.length));
    row_each(width, [&](int64_t c, auto v) {
      F value = column_value<Op>(hi, lo, width, wrap, c, v);
      if (!to_partial) {
        if (r.mean) value /= count;
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

template <class Op, bool mean = false>
inline void reduce_run(const Call& call, int phase, int part, int parts, void* scratch) {
  Reduction r = reduction_layout(call);
  r.mean = mean;
  if (r.outputs == 0) return;
  if (r.length == 0) {
    for (int64_t o = 0; o < r.outputs; o++) call[1].as<float>()[o] = reduce_result<Op>(r, Op::start());
    return;
  }
  reduce_body<Op>(call, r, phase, part, parts, scratch);
}

inline constexpr KernelRow kReduceRows[] = {
    {"sum", "f32", reduce_plan, reduce_run<FoldSum>},
    {"mean", "f32", reduce_plan, reduce_run<FoldSum, true>},
    {"max", "f32", reduce_plan, reduce_run<FoldMax>},
    {"min", "f32", reduce_plan, reduce_run<FoldMin>},
};

}  // namespace gradloom::GL_ISA
