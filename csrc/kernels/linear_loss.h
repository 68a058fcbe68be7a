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
// Where x is bf16, w is rounded to bf16 as it is packed, and all else is the same: the bits are those of the f32 rows on
// rounded numbers.
#pragma once
#include <type_traits>

#include "gemm_run.h"
#include "loss.h"

namespace gradloom::GL_ISA {

// Rows of a block: each number of w is packed once per block for each of the two products, which costs 0.1 to 0.3 of a
// multiply-add of a vector; 264 rows use it in 16 of them. A multiple of the tile's height on every instruction set.
constexpr int64_t kHeadRows = 264;
constexpr int64_t kHeadColumns = 384;  // with kHeadRows, 0.4 MB of logits; no multiple of 512, which crowds the cache
constexpr int kHeadTasks = 16;         // for 2 .. 16 threads; each keeps a share of dx, [rows, d]
constexpr float kHeadSlack = 16.0f;    // e^16 times a whole vocabulary is far from overflow
static_assert(kHeadRows % gemm::kTileRows == 0 && kHeadColumns % gemm::kTileColumns == 0);

// What is known of a row once all of the vocabulary has been seen: p = exp(logit - top) * share, 1 - p[label] = rest.
struct HeadRow {
  double loss;
  float top, share, rest, weight;  // share and rest hold the weight, too
};

// What is computed: (x, w, labels, weights) -> loss, weight, dx, dw; or (x, w, labels) -> losses.
enum class HeadKind { sum, rows };

// A source whose numbers are rounded to bf16 when they are packed.
template <class Source> struct RoundedSource : Source {
  void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    Source::strips(i0, i1, p0, depth, width, round, to);
    const int64_t whole = (i1 - i0) / width * width, left = i1 - i0 - whole;
    const int64_t count = (whole + gemm::round_up(left, round)) * depth;
    uint16_t bits[F::N];
    for (int64_t i = 0; i < count; i += F::N) {
      const int n = count - i < F::N ? static_cast<int>(count - i) : F::N;
      store_bf16_n(bits, F::load_n(to + i, n), n);
      load_bf16_n(bits, n).store_n(to + i, n);
    }
  }
};

// W: the source of w's numbers, its `along` running over the vocabulary, and its transpose.
template <class W> struct Head {
  const float* x;           // or nullptr, where
  const uint16_t* x_bits;   // they are bf16
  int64_t x_row, x_deep;
  W w, w_transposed;
  const int32_t* labels;
  const float* weights;  // nullptr: every row weighs 1
  float* losses;         // nullptr: only their sum is wanted
  float *dx, *dw;        // nullptr: not wanted
  int64_t n, d, v;
  HeadKind kind;
  int tasks;     // planned
  int64_t row;   // floats from one gathered row to the next
  int64_t deep;  // longest stretch of d in one product

  // Workspace.
  int64_t* count;
  int32_t *list, *slot;  // [n]: the rows that count; where in the list a row stands, or -1
  float* at_label;       // [n]: the logit at the label
  HeadRow* ends;         // [n]
  double* sums;          // [tasks, kHeadRows], and so on
  float *tops, *shares;  // shares: where there may be a dx
};

inline int64_t head_blocks(int64_t rows) { return gemm::ceil_div(rows, kHeadRows); }

template <class W> inline void describe_head(const Call& call, HeadKind kind, Head<W>& h) {
  const Tensor &x = call[0], &w = call[1];
  const bool is_bf16 = x.dtype == DType::bf16;
  h.x = is_bf16 ? nullptr : x.as<const float>();
  h.x_bits = is_bf16 ? x.as<const uint16_t>() : nullptr;
  h.n = x.shape[0], h.d = x.shape[1], h.v = w.shape[0];
  h.x_row = x.strides[0], h.x_deep = x.strides[1];
  h.labels = call[2].as<const int32_t>();
  h.kind = kind;
  const bool sum = kind == HeadKind::sum;
  h.weights = sum ? call[3].as<const float>() : nullptr;
  h.losses = sum ? nullptr : call[3].as<float>();
  h.dx = sum ? call[6].as<float>() : nullptr;
  h.dw = sum ? call[7].as<float>() : nullptr;
  const double work = static_cast<double>(h.n) * static_cast<double>(h.d) * static_cast<double>(h.v);
  const int64_t blocks = head_blocks(h.n), most = blocks * gemm::ceil_div(h.v, kHeadColumns);
  h.tasks = static_cast<int>(parts_for(work, 1 << 18, kHeadTasks));
  if (h.tasks < blocks) h.tasks = static_cast<int>(blocks);
  if (h.tasks > most) h.tasks = most < 1 ? 1 : static_cast<int>(most);
  h.row = gemm::round_up(h.d, 16);
  if (gemm::crowds(h.row, 1)) h.row += 16;
  const int64_t stretches = gemm::ceil_div(h.d, gemm::kDepth);
  h.deep = stretches <= 1 ? h.d : gemm::round_up(gemm::ceil_div(h.d, stretches), 256);
}

// Lays the workspace out from `base`; returns its bytes.
template <class W> inline size_t head_room(Head<W>& h, char* base) {
  size_t at = 0;
  auto take = [&](auto*& p, int64_t count) {
    using T = std::remove_reference_t<decltype(*p)>;
    p = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + at);
    at += (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
  };
  const int64_t rows = h.n < kHeadRows ? gemm::round_up(h.n, gemm::kTileRows) : kHeadRows;
  take(h.count, 1);
  take(h.list, h.n);
  take(h.slot, h.n);
  take(h.at_label, h.n);
  take(h.ends, h.n);
  take(h.sums, h.tasks * rows);
  take(h.tops, h.tasks * rows);
  take(h.shares, h.kind == HeadKind::sum ? h.tasks * rows * h.d : 0);
  return at;
}

inline int64_t head_strip_floats(int64_t deep) {
  const int64_t longest = deep > kHeadColumns ? deep : kHeadColumns;
  return gemm::kGroup * (longest > kHeadRows ? longest : kHeadRows);
}

template <class W, HeadKind kind> inline void linear_loss_plan(const Call& call, KernelPlan& plan) {
  Head<W> h;
  describe_head(call, kind, h);
  const int64_t rows = h.n < kHeadRows ? h.n : kHeadRows, columns = h.v < kHeadColumns ? h.v : kHeadColumns;
  plan.phases = kind == HeadKind::sum ? 4 : 3;
  plan.parts[1] = static_cast<uint32_t>(h.tasks);
  plan.parts[2] = parts_for(static_cast<double>(h.n) * static_cast<double>(h.d), 16 * 1024);
  if (plan.parts[2] > h.n) plan.parts[2] = h.n < 1 ? 1 : static_cast<uint32_t>(h.n);
  const int64_t blocks = gemm::ceil_div(h.v, kHeadColumns);
  if (kind == HeadKind::sum)
    plan.parts[3] = h.tasks < blocks ? static_cast<uint32_t>(h.tasks) : static_cast<uint32_t>(blocks);
  plan.workspace_bytes = head_room(h, nullptr);
  const int64_t floats = rows * h.row + gemm::round_up(rows * columns, 16) + head_strip_floats(h.deep);
  plan.scratch_bytes = static_cast<size_t>(floats) * sizeof(float);
}

// ---- pieces ---------------------------------------------------------------------------------------------

template <class W> struct HeadScratch {
  float *rows, *logits, *strips;
  HeadScratch(const Head<W>& h, void* scratch) {
    const int64_t most = h.n < kHeadRows ? h.n : kHeadRows, columns = h.v < kHeadColumns ? h.v : kHeadColumns;
    rows = static_cast<float*>(scratch);
    logits = rows + most * h.row;
    strips = logits + gemm::round_up(most * columns, 16);
  }
};

// Rows list[r0 .. r1] of x, one after the other.
template <class W> inline void head_gather(const Head<W>& h, int64_t r0, int64_t r1, float* to) {
  for (int64_t r = r0; r < r1; r++, to += h.row) {
    if (h.x_bits) {
      const uint16_t* from = h.x_bits + h.list[r] * h.x_row;
      uint16_t bits[F::N];
      for (int64_t i = 0; i < h.d; i += F::N) {
        const int n = h.d - i < F::N ? static_cast<int>(h.d - i) : F::N;
        for (int j = 0; j < n; j++) bits[j] = from[(i + j) * h.x_deep];
        load_bf16_n(bits, n).store_n(to + i, n);
      }
      continue;
    }
    const float* from = h.x + h.list[r] * h.x_row;
    if (h.x_deep == 1) std::memcpy(to, from, static_cast<size_t>(h.d) * sizeof(float));
    else for (int64_t i = 0; i < h.d; i++) to[i] = from[i * h.x_deep];
  }
}

// A product whose right side is given as strips: only its left side and C are described.
inline gemm::Product head_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t along, int64_t deep,
                                  float* c) {
  gemm::Product p{};
  p.m = m, p.n = n, p.k = k;
  p.a = {a, along, deep};
  p.c = c;
  return p;
}

// c [m, n] (+)= a [m, k] b[j0 .. j0 + n, k0 .. k0 + k]^T; `next` is fetched at the end.
template <class B>
inline void head_multiply(const gemm::Product& p, const B& b, int64_t j0, int64_t k0, bool add, float* strips,
                          const gemm::Ahead& next) {
  for (int64_t j = 0; j < p.n; j += gemm::kGroup) {
    const int64_t end = j + gemm::kGroup < p.n ? j + gemm::kGroup : p.n;
    b.strips(j0 + j, j0 + end, k0, p.k, gemm::kTileColumns, gemm::Lanes::N, strips);
    const int64_t stop = end + gemm::kGroup < p.n ? end + gemm::kGroup : p.n;
    gemm::Ahead ahead = end < p.n ? b.ahead(j0 + end, j0 + stop, k0, p.k) : next;
    gemm::run_block(p, gemm::Block{add ? 1 : 0, p.k, p.a.data, strips, false, true, &ahead, nullptr}, 0, p.m, j, end);
  }
}

// What the logits from column v0 on begin with; nothing where the vocabulary ends.
template <class W> inline gemm::Ahead head_ahead(const Head<W>& h, int64_t v0) {
  const int64_t stop = v0 + gemm::kGroup < h.v ? v0 + gemm::kGroup : h.v;
  return h.w.ahead(v0, stop, 0, h.deep < h.d ? h.deep : h.d);
}

// logits [rows, columns] of gathered rows, from column v0 on; those from column `next` on come after them
template <class W>
inline void head_logits(const Head<W>& h, const HeadScratch<W>& room, int64_t rows, int64_t v0, int64_t columns,
                        int64_t next) {
  for (int64_t k0 = 0; k0 < h.d; k0 += h.deep) {
    const int64_t depth = h.d - k0 < h.deep ? h.d - k0 : h.deep;
    const gemm::Product p = head_product(rows, columns, depth, room.rows + k0, h.row, 1, room.logits);
    const int64_t k1 = k0 + depth, stop = v0 + (columns < gemm::kGroup ? columns : gemm::kGroup);
    head_multiply(p, h.w, v0, k0, k0 != 0, room.strips,
                  k1 < h.d ? h.w.ahead(v0, stop, k1, h.d - k1 < h.deep ? h.d - k1 : h.deep) : head_ahead(h, next));
  }
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

template <class W> inline void head_task(const Head<W>& h, const HeadGrid& grid, int64_t task, void* scratch) {
  const int64_t block = task / grid.ranges, part = task % grid.ranges;
  const Range list = grid.rows(*h.count, block), range = grid.columns(h.v, part);
  const HeadScratch<W> room(h, scratch);
  const int64_t rows = list.end - list.begin, at = grid.share(block, part, rows);
  double* const sums = h.sums + at;
  float *const tops = h.tops + at, *const share = h.shares + at * h.d;
  head_gather(h, list.begin, list.end, room.rows);
  for (int64_t r = 0; r < rows; r++) sums[r] = 0, tops[r] = -__builtin_inff();
  for (int64_t v0 = range.begin; v0 < range.end; v0 += kHeadColumns) {
    const int64_t columns = range.end - v0 < kHeadColumns ? range.end - v0 : kHeadColumns;
    head_logits(h, room, rows, v0, columns, h.dx ? h.v : v0 + columns);
    for (int64_t r = 0; r < rows; r++) {
      float* const z = room.logits + r * columns;
      const float top = row_top_of(columns, [&](int64_t i, auto t) { return row_load(z + i, t); });
      const int64_t place = h.labels[h.list[list.begin + r]] - v0;
      if (place >= 0 && place < columns) {
        h.at_label[list.begin + r] = z[place];
        z[place] = -__builtin_inff();
      }
      if (top > tops[r] + kHeadSlack || tops[r] == -__builtin_inff()) {
        if (v0 > range.begin) {
          const float less = tops[r] == -__builtin_inff() ? 0.0f : reduce_max(exp(F::set1(tops[r] - top)));
          sums[r] *= static_cast<double>(less);
          float* const s = share + r * h.d;
          if (h.dx) row_each(h.d, [&](int64_t i, auto t) { row_store(s + i, row_load(s + i, t) * F::set1(less), t); });
        }
        tops[r] = top;
      }
      const F high = F::set1(tops[r] == -__builtin_inff() ? 0.0f : tops[r]);
      sums[r] += row_sum_of(columns, [&](int64_t i, auto t) {
        const F e = exp(row_load(z + i, t) - high);
        row_store(z + i, e, t);
        return e;
      });
    }
    if (!h.dx) continue;
    const gemm::Product p = head_product(rows, h.d, columns, room.logits, columns, 1, share);
    head_multiply(p, h.w_transposed, 0, v0, v0 > range.begin, room.strips, head_ahead(h, v0 + columns));
  }
}

template <class W> inline void head_rows(const Head<W>& h, const HeadGrid& grid, Range rows) {
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
      others += h.sums[at + k * size] * static_cast<double>(reduce_max(exp(F::set1(h.tops[at + k * size] - top))));
    const double own = static_cast<double>(reduce_max(exp(F::set1(label - top)))), sum = others + own;
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
      const F scale = F::set1(end.share * reduce_max(exp(F::set1(h.tops[at + k * size] - top))));
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
      h.w.strips(h.labels[r], h.labels[r] + 1, i0, count, gemm::kTileColumns, 1, piece);
      row_each(count, [&](int64_t i, auto t) {
        row_store(dx + i0 + i, row_load(dx + i0 + i, t) - rest * row_load(piece + i, t), t);
      });
    }
  }
}

// dw of one block of the vocabulary
template <class W> inline void head_columns(const Head<W>& h, const HeadGrid& grid, int64_t v0, void* scratch) {
  const HeadScratch<W> room(h, scratch);
  const int64_t columns = h.v - v0 < kHeadColumns ? h.v - v0 : kHeadColumns;
  float* const dw = h.dw + v0 * h.d;
  if (*h.count == 0) std::memset(dw, 0, static_cast<size_t>(columns * h.d) * sizeof(float));
  for (int64_t block = 0; block < grid.blocks; block++) {
    const Range list = grid.rows(*h.count, block);
    const int64_t rows = list.end - list.begin;
    head_gather(h, list.begin, list.end, room.rows);
    head_logits(h, room, rows, v0, columns, h.v);
    for (int64_t r = 0; r < rows; r++) {
      const HeadRow& end = h.ends[list.begin + r];
      float* const z = room.logits + r * columns;
      const F high = F::set1(end.top), share = F::set1(end.share);
      row_each(columns, [&](int64_t i, auto t) { row_store(z + i, exp(row_load(z + i, t) - high) * share, t); });
      const int64_t place = h.labels[h.list[list.begin + r]] - v0;
      if (place >= 0 && place < columns) z[place] = -end.rest;
    }
    const gemm::Product p = head_product(columns, h.d, rows, room.logits, 1, columns, dw);
    const gemm::StridedSource x{room.rows, 1, h.row};
    head_multiply(p, x, 0, 0, block > 0, room.strips, gemm::Ahead{});
  }
}

// (x [n, d], w [v, d], labels [n], weights [n]) -> loss, weight, dx [n, d], dw [v, d]; or (x, w, labels) -> losses [n]
template <HeadKind kind, class W>
inline void linear_loss_phase(const Call& call, Head<W>& h, int phase, int part, int parts, void* scratch) {
  describe_head(call, kind, h);
  head_room(h, call.workspace().as<char>());
  if (phase == 0) return head_list(h, call);
  const HeadGrid grid = head_grid(h);
  if (phase == 1) {
    const int64_t tasks = grid.blocks * grid.ranges;
    const Range mine = part_range(tasks, part, parts);
    for (int64_t task = mine.begin; task < mine.end; task++) head_task(h, grid, task, scratch);
  } else if (phase == 2) {
    head_rows(h, grid, part_range(h.n, part, parts));
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
  const Tensor& w = call[1];
  if constexpr (std::is_base_of_v<gemm::StridedSource, W>) {
    static_cast<gemm::StridedSource&>(h.w) = {w.as<const float>(), w.strides[0], w.strides[1]};
    static_cast<gemm::StridedSource&>(h.w_transposed) = {w.as<const float>(), w.strides[1], w.strides[0]};
  } else {
    static_cast<gemm::FrozenSource&>(h.w) = gemm::frozen_source(w, 0, 1);
    static_cast<gemm::FrozenSource&>(h.w_transposed) = gemm::frozen_source(w, 1, 0);
  }
  linear_loss_phase<kind>(call, h, phase, part, parts, scratch);
}

#define GL_LOSSES(signature, W)                                                                              \
  {"linear_cross_entropy", signature, linear_loss_plan<W, HeadKind::sum>, linear_loss_run<HeadKind::sum, W>}, \
  {"linear_cross_entropy_rows", signature, linear_loss_plan<W, HeadKind::rows>, linear_loss_run<HeadKind::rows, W>}
#define GL_FROZEN(type) \
  GL_LOSSES("f32_" type "_i32_f32", gemm::FrozenSource), \
  GL_LOSSES("bf16_" type "_i32_f32", RoundedSource<gemm::FrozenSource>)
inline constexpr KernelRow kLinearLossRows[] = {
    GL_LOSSES("f32_i32_f32", gemm::StridedSource),
    GL_LOSSES("bf16_f32_i32_f32", RoundedSource<gemm::StridedSource>),
    GL_LOSSES("f32_bf16_i32_f32", gemm::FrozenSource),
    GL_LOSSES("bf16_i32_f32", gemm::FrozenSource),
    GL_FROZEN("f16"), GL_FROZEN("q4_0"), GL_FROZEN("q4_1"), GL_FROZEN("q5_0"), GL_FROZEN("q5_1"), GL_FROZEN("q8_0"),
    GL_FROZEN("q2_k"), GL_FROZEN("q3_k"), GL_FROZEN("q4_k"), GL_FROZEN("q5_k"), GL_FROZEN("q6_k"),
};
#undef GL_FROZEN
#undef GL_LOSSES

}  // namespace gradloom::GL_ISA
