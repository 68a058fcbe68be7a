// linear_loss.h: cross entropy of logits x w^T over a large vocabulary, never holding N x V: the sum over the rows with
// its gradients (linear_cross_entropy), or each row's loss (linear_cross_entropy_rows).
//
// Only rows that count are looked at: those whose label is not -100 and whose weight is not 0. They are listed first.
// Then the vocabulary is walked in blocks of kHeadColumns, as attention walks over keys: a block's logits are a product
// in scratch, they become exp(logit - top) in place, and a second product adds them, times the same rows of w, to the
// part's share of dx. So w comes from memory once per block of rows, and all that is kept is [rows, d] per part. `top`
// is raised (and what was summed scaled down) only when a logit stands more than kHeadSlack above it. The column of the
// label is left out of these sums and added at the end by its exact share, 1 - p: what is left of a row that is nearly
// right does not drown in rounding.
//
//   phase 0   the list of rows
//   phase 1   for each task, (block of kHeadRows rows) x (range of the vocabulary):
//               X = the block's rows of x, gathered; top = -inf, sum = 0, share = 0     one of each per row
//               for each block W of kHeadColumns rows of w in the range:
//                 Z = X W^T;  take the label's logit out
//                 where max Z > top + kHeadSlack: sum *= exp(top - max Z), share *= the same, top = max Z
//                 Z = exp(Z - top);  sum += sum of Z;  share += Z W                     share: where dx is wanted
//   phase 2   for each row: join the ranges' tops, sums and shares; its loss, dx
//   phase 3   where dw is wanted, for each block W of the vocabulary, for each block X of rows:
//               Z = weight * (softmax(X W^T) - label);  dw of the block += Z^T X
//             and the sum of the losses
//   linear_cross_entropy_rows: phases 0 to 2, without shares
//
// Where x is bf16, w is rounded to it as it is packed, and so is Z for the products that read it: exp(Z - top) with a top
// that is a multiple of log 2, which changes no rounding where it is raised, and in phase 3 the slopes. Sums are f32.
#pragma once
#include "linear_head.h"
#if defined(GL_BF16_PAIRS)
#include "linear_pairs.h"
#endif

namespace gradloom::GL_ISA {

template <class W> GL_CALLED void linear_loss_plan_of(const Call& call, HeadKind kind, KernelPlan& plan) {
  Head<W> h;
  describe_head(call, kind, h);
  plan.phases = kind == HeadKind::sum ? 4 : 3;
  plan.parts[1] = static_cast<uint32_t>(h.tasks);
  plan.parts[2] = parts_for(static_cast<double>(h.n) * static_cast<double>(h.d), 16 * 1024);
  if (plan.parts[2] > h.n) plan.parts[2] = h.n < 1 ? 1 : static_cast<uint32_t>(h.n);
  const int64_t blocks = gemm::ceil_div(h.v, kHeadColumns);
  if (kind == HeadKind::sum)
    plan.parts[3] = h.tasks < blocks ? static_cast<uint32_t>(h.tasks) : static_cast<uint32_t>(blocks);
  plan.workspace_bytes = head_room(h, nullptr);
  plan.scratch_bytes = HeadProducts<W>::scratch_floats(h) * sizeof(float);
}
template <class W, HeadKind kind> inline void linear_loss_plan(const Call& call, KernelPlan& plan) {
  linear_loss_plan_of<W>(call, kind, plan);
}

// ---- phases ---------------------------------------------------------------------------------------------

template <class W> inline void head_list(const Head<W>& h, const Call& call) {
  int64_t count = 0;
  double weight = 0;
  for (int64_t r = 0; r < h.n; r++) {
    const int64_t id = h.labels[r];
    const bool known = id >= 0 && id < h.v;
    if (!known && id != kIgnored) call.status->fail(Stop::index, r, id);
    const float w = h.weights ? h.weights[r] : 1.0f;
    if (known) weight += static_cast<double>(w);
    h.slot[r] = -1;
    if (!known || w == 0.0f) continue;
    h.slot[r] = static_cast<int32_t>(count);
    h.list[count++] = static_cast<int32_t>(r);
  }
  *h.count = count;
  if (h.kind == HeadKind::sum) *call[5].as<float>() = static_cast<float>(weight);
}

// How the listed rows and the vocabulary are shared out: from the number of rows that count, not from threads.
struct HeadGrid {
  int64_t blocks, ranges;  // tasks are numbered block by block

  Range rows(int64_t count, int64_t block) const {
    return part_range(count, static_cast<int>(block), static_cast<int>(blocks), gemm::kTileRows);
  }
  Range columns(int64_t v, int64_t part) const {
    return part_range(v, static_cast<int>(part), static_cast<int>(ranges), kHeadColumns);
  }
  // The first of the `rows` rows that a task keeps; blocks before its own have at most kHeadRows rows.
  int64_t share(int64_t block, int64_t part, int64_t rows) const { return block * ranges * kHeadRows + part * rows; }
};
template <class W> inline HeadGrid head_grid(const Head<W>& h) {
  const int64_t blocks = head_blocks(*h.count), columns = gemm::ceil_div(h.v, kHeadColumns);
  const int64_t ranges = blocks ? h.tasks / blocks : 1;
  return {blocks, ranges < 1 ? 1 : ranges < columns ? ranges : columns};
}

template <class W> GL_CALLED void head_task(const Head<W>& h, const HeadGrid& grid, int64_t task, void* scratch) {
  const int64_t block = task / grid.ranges, part = task % grid.ranges;
  const Range list = grid.rows(*h.count, block), range = grid.columns(h.v, part);
  HeadProducts<W> products(h, scratch);
  const int64_t rows = list.end - list.begin, at = grid.share(block, part, rows);
  double* const sums = h.sums + at;
  float *const tops = h.tops + at, *const share = h.shares + at * h.d;
  products.gather(list.begin, list.end);
  for (int64_t r = 0; r < rows; r++) sums[r] = 0, tops[r] = -__builtin_inff();
  for (int64_t v0 = range.begin; v0 < range.end; v0 += kHeadColumns) {
    const int64_t columns = range.end - v0 < kHeadColumns ? range.end - v0 : kHeadColumns;
    products.make_logits(rows, v0, columns, h.dx ? h.v : v0 + columns);
    for (int64_t r = 0; r < rows; r++) {
      float* const z = products.logits + r * columns;
      float top = row_top_of(columns, [&](int64_t i, auto t) { return row_load(z + i, t); });
      const int64_t place = h.labels[h.list[list.begin + r]] - v0;
      if (place >= 0 && place < columns) {
        h.at_label[list.begin + r] = z[place];
        z[place] = -__builtin_inff();
      }
      if (top > tops[r] + kHeadSlack || tops[r] == -__builtin_inff()) {
        if constexpr (HeadProducts<W>::kRounded) top = reduce_max(next_power(F::set1(top)));
        if (v0 > range.begin) {
          const float less = tops[r] == -__builtin_inff() ? 0.0f : head_exp(tops[r] - top);
          sums[r] *= static_cast<double>(less);
          float* const s = share + r * h.d;
          if (h.dx) row_each(h.d, [&](int64_t i, auto t) { row_store(s + i, row_load(s + i, t) * F::set1(less), t); });
        }
        tops[r] = top;
      }
      const F high = F::set1(tops[r] == -__builtin_inff() ? 0.0f : tops[r]);
      sums[r] += row_sum_of(columns, [&](int64_t i, auto t) {
        const F e = exp(row_load(z + i, t) - high);
        HeadProducts<W>::put(z, i, e, t);
        return e;
      });
    }
    if (h.dx) products.add_share(rows, v0, columns, v0 > range.begin, share);
  }
}

template <class W> GL_CALLED void head_rows(const Head<W>& h, const HeadGrid& grid, Range rows, void* scratch) {
  const HeadProducts<W> products(h, scratch);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    float* const dx = h.dx ? h.dx + r * h.d : nullptr;
    const int64_t place = h.slot[r];
    if (place < 0) {
      if (h.losses) h.losses[r] = 0.0f;
      if (dx) std::memset(dx, 0, static_cast<size_t>(h.d) * sizeof(float));
      continue;
    }
    // Where the block's shares lie.
    int64_t block = 0;
    Range list = grid.rows(*h.count, 0);
    while (place >= list.end) list = grid.rows(*h.count, ++block);
    const int64_t size = list.end - list.begin, at = grid.share(block, 0, size) + place - list.begin;
    const float label = h.at_label[place];
    float top = label;
    for (int64_t k = 0; k < grid.ranges; k++) top = h.tops[at + k * size] > top ? h.tops[at + k * size] : top;
    double others = 0;
    for (int64_t k = 0; k < grid.ranges; k++)
      others += h.sums[at + k * size] * static_cast<double>(head_exp(h.tops[at + k * size] - top));
    const double own = static_cast<double>(head_exp(label - top)), sum = others + own;
    const float weight = h.weights ? h.weights[r] : 1.0f;
    // -log(own / sum), from the small number where the label is the likely one
    const bool likely = others <= own;
    const F number = F::set1(static_cast<float>(likely ? others / own : sum));
    double loss = static_cast<double>(reduce_max(likely ? log1p(number) : log(number)));
    if (!likely) loss += static_cast<double>(top) - static_cast<double>(label);
    if (h.losses) h.losses[r] = static_cast<float>(loss);
    HeadRow& end = h.ends[place];
    end = {static_cast<double>(weight) * loss, top, static_cast<float>(static_cast<double>(weight) / sum),
           static_cast<float>(static_cast<double>(weight) * others / sum), weight};
    if (!dx) continue;
    for (int64_t k = 0; k < grid.ranges; k++) {
      const float* const s = h.shares + (at + k * size) * h.d;
      const F scale = F::set1(end.share * head_exp(h.tops[at + k * size] - top));
      row_each(h.d, [&](int64_t i, auto t) {
        const F part = row_load(s + i, t) * scale;
        row_store(dx + i, k ? row_load(dx + i, t) + part : part, t);
      });
    }
    // The label's own row of w, a piece at a time.
    alignas(64) float piece[256 + F::N];
    const F rest = F::set1(end.rest);
    for (int64_t i0 = 0; i0 < h.d; i0 += 256) {
      const int64_t count = h.d - i0 < 256 ? h.d - i0 : 256;
      products.read_row(h.labels[r], i0, count, piece);
      row_each(count, [&](int64_t i, auto t) {
        row_store(dx + i0 + i, row_load(dx + i0 + i, t) - rest * row_load(piece + i, t), t);
      });
    }
  }
}

// dw of one block of the vocabulary
template <class W> GL_CALLED void head_columns(const Head<W>& h, const HeadGrid& grid, int64_t v0, void* scratch) {
  HeadProducts<W> products(h, scratch);
  const int64_t columns = h.v - v0 < kHeadColumns ? h.v - v0 : kHeadColumns;
  float* const dw = h.dw + v0 * h.d;
  if (*h.count == 0) std::memset(dw, 0, static_cast<size_t>(columns * h.d) * sizeof(float));
  for (int64_t block = 0; block < grid.blocks; block++) {
    const Range list = grid.rows(*h.count, block);
    const int64_t rows = list.end - list.begin;
    products.gather(list.begin, list.end);
    products.make_logits(rows, v0, columns, h.v);
    for (int64_t r = 0; r < rows; r++) {
      const HeadRow& end = h.ends[list.begin + r];
      float* const z = products.logits + r * columns;
      const F high = F::set1(end.top), share = F::set1(end.share);
      row_each(columns, [&](int64_t i, auto t) {
        HeadProducts<W>::put(z, i, exp(row_load(z + i, t) - high) * share, t);
      });
      const int64_t place = h.labels[h.list[list.begin + r]] - v0;
      if (place >= 0 && place < columns) HeadProducts<W>::put(z, place, -end.rest);
    }
    products.add_slopes(rows, columns, block > 0, dw);
  }
}

// (x [n, d], w [v, d], labels [n], weights [n]) -> loss, weight, dx [n, d], dw [v, d]; or (x, w, labels) -> losses [n]
template <class W>
GL_CALLED void linear_loss_phase(const Call& call, HeadKind kind, Head<W>& h, int phase, int part, int parts,
                                 void* scratch) {
  describe_head(call, kind, h);
  head_room(h, call.workspace().as<char>());
  if (phase == 0) return head_list(h, call);
  const HeadGrid grid = head_grid(h);
  if (phase == 1) {
    const int64_t tasks = grid.blocks * grid.ranges;
    const Range mine = part_range(tasks, part, parts);
    for (int64_t task = mine.begin; task < mine.end; task++) head_task(h, grid, task, scratch);
  } else if (phase == 2) {
    head_rows(h, grid, part_range(h.n, part, parts), scratch);
  } else {
    if (part == 0) {
      double loss = 0;
      for (int64_t i = 0; i < *h.count; i++) loss += h.ends[i].loss;
      *call[4].as<float>() = static_cast<float>(loss);
    }
    if (!h.dw) return;
    const Range mine = part_range(h.v, part, parts, kHeadColumns);
    for (int64_t v0 = mine.begin; v0 < mine.end; v0 += kHeadColumns) head_columns(h, grid, v0, scratch);
  }
}

template <HeadKind kind, class W>
inline void linear_loss_run(const Call& call, int phase, int part, int parts, void* scratch) {
  Head<W> h;
  set_head_weight(call[1], h);
  linear_loss_phase(call, kind, h, phase, part, parts, scratch);
}

#define GL_LOSSES(signature, W)                                                                              \
  {"linear_cross_entropy", signature, linear_loss_plan<W, HeadKind::sum>, linear_loss_run<HeadKind::sum, W>}, \
  {"linear_cross_entropy_rows", signature, linear_loss_plan<W, HeadKind::rows>, linear_loss_run<HeadKind::rows, W>}
#define GL_FROZEN(type) \
  GL_LOSSES("f32_" type "_i32_f32", gemm::FrozenSource), \
  GL_LOSSES("bf16_" type "_i32_f32", RoundedSource<gemm::FrozenSource>)
#if !defined(GL_BF16_PAIRS)
inline constexpr KernelRow kLinearLossRows[] = {
    GL_LOSSES("f32_i32_f32", gemm::StridedSource),
    GL_LOSSES("bf16_f32_i32_f32", RoundedSource<gemm::StridedSource>),
    GL_LOSSES("f32_bf16_i32_f32", gemm::FrozenSource),
    GL_LOSSES("bf16_i32_f32", RoundedSource<gemm::FrozenSource>),
    GL_FROZEN("f16"), GL_FROZEN("q4_0"), GL_FROZEN("q4_1"), GL_FROZEN("q5_0"), GL_FROZEN("q5_1"), GL_FROZEN("q8_0"),
    GL_FROZEN("q2_k"), GL_FROZEN("q3_k"), GL_FROZEN("q4_k"), GL_FROZEN("q5_k"), GL_FROZEN("q6_k"),
};
#else
#define GL_PAIRS(type) GL_LOSSES("bf16_" type "_i32_f32", gemm::PairSource)
inline constexpr KernelRow kLinearLossRows[] = {
    GL_LOSSES("bf16_i32_f32", gemm::PairSource),
    GL_PAIRS("f32"), GL_PAIRS("f16"), GL_PAIRS("q4_0"), GL_PAIRS("q4_1"), GL_PAIRS("q5_0"), GL_PAIRS("q5_1"),
    GL_PAIRS("q8_0"), GL_PAIRS("q2_k"), GL_PAIRS("q3_k"), GL_PAIRS("q4_k"), GL_PAIRS("q5_k"), GL_PAIRS("q6_k"),
};
#undef GL_PAIRS
#endif
#undef GL_FROZEN
#undef GL_LOSSES

}  // namespace gradloom::GL_ISA
