// linear_head.h: what a call of linear_cross_entropy is about, and its three products in f32 (linear_loss.h has the loops).
//
// A block is up to kHeadRows rows of x by kHeadColumns rows of w, as strips of the right operand are packed. Where x is
// bf16, w is rounded to it as it is packed, and so is what the products with w and x read of the logits: `put` rounds it.
// linear_pairs.h has the same products on a unit for pairs of bf16.
#pragma once
#include <type_traits>

#include "../simd/math.h"
#include "gemm_run.h"
#include "index.h"

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

GL_CALLED float head_exp(float x) { return reduce_max(exp(F::set1(x))); }

// What is computed: (x, w, labels, weights) -> loss, weight, dx, dw; or (x, w, labels) -> losses.
enum class HeadKind { sum, rows };

// A source whose numbers are rounded to bf16 when they are packed.
template <class Source> struct RoundedSource : Source {
  void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    Source::strips(i0, i1, p0, depth, width, round, to);
    const int64_t whole = (i1 - i0) / width * width, left = i1 - i0 - whole;
    gemm::round_to_bf16(to, (whole + gemm::round_up(left, round)) * depth);
  }
};
template <class Source> constexpr bool kRounds = false;  // whether the operands of all products are rounded to bf16
template <class Source> constexpr bool kRounds<RoundedSource<Source>> = true;

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
  int tasks;  // planned

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

// ---- products -------------------------------------------------------------------------------------------

// Rows list[r0 .. r1] of x, `row` floats from one to the next.
template <class W> inline void head_gather(const Head<W>& h, int64_t r0, int64_t r1, int64_t row, float* to) {
  for (int64_t r = r0; r < r1; r++, to += row) {
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
GL_CALLED void head_multiply(const gemm::Product& p, const B& b, int64_t j0, int64_t k0, bool add, float* strips,
                             const gemm::Ahead& next) {
  for (int64_t j = 0; j < p.n; j += gemm::kGroup) {
    const int64_t end = j + gemm::kGroup < p.n ? j + gemm::kGroup : p.n;
    b.strips(j0 + j, j0 + end, k0, p.k, gemm::kTileColumns, gemm::Lanes::N, strips);
    const int64_t stop = end + gemm::kGroup < p.n ? end + gemm::kGroup : p.n;
    gemm::Ahead ahead = end < p.n ? b.ahead(j0 + end, j0 + stop, k0, p.k) : next;
    gemm::run_block(p, gemm::Block{add ? 1 : 0, p.k, p.a.data, strips, false, true, &ahead}, 0, p.m, j, end);
  }
}

// The products of a block, and their scratch. Another class for W computes them on another unit.
template <class W> struct HeadProducts {
  static constexpr bool kRounded = kRounds<W>;
  const Head<W>& h;
  int64_t row;     // floats from one gathered row to the next
  int64_t deep;    // longest stretch of d in one product
  float* logits;   // [rows, columns]
  float *x, *strips;

  static int64_t row_of(int64_t d) {
    const int64_t row = gemm::round_up(d, 16);
    return gemm::crowds(row, 1) ? row + 16 : row;
  }
  static int64_t deep_of(int64_t d) {
    const int64_t stretches = gemm::ceil_div(d, gemm::kDepth);
    return stretches <= 1 ? d : gemm::round_up(gemm::ceil_div(d, stretches), 256);
  }
  static int64_t most_rows(const Head<W>& h) { return h.n < kHeadRows ? h.n : kHeadRows; }
  static int64_t most_columns(const Head<W>& h) { return h.v < kHeadColumns ? h.v : kHeadColumns; }
  static size_t scratch_floats(const Head<W>& h) {
    const int64_t deep = deep_of(h.d), longest = deep > kHeadColumns ? deep : kHeadColumns;
    const int64_t rows = most_rows(h), columns = most_columns(h);
    return static_cast<size_t>(rows * row_of(h.d) + gemm::round_up(rows * columns, 16) +
                               gemm::kGroup * (longest > kHeadRows ? longest : kHeadRows));
  }
  HeadProducts(const Head<W>& h, void* scratch) : h(h), row(row_of(h.d)), deep(deep_of(h.d)) {
    x = static_cast<float*>(scratch);
    logits = x + most_rows(h) * row;
    strips = logits + gemm::round_up(most_rows(h) * most_columns(h), 16);
  }

  void gather(int64_t r0, int64_t r1) { head_gather(h, r0, r1, row, x); }
  // The logits of gathered rows, from column v0 on; those from column `next` on come after them.
  void make_logits(int64_t rows, int64_t v0, int64_t columns, int64_t next) {
    for (int64_t k0 = 0; k0 < h.d; k0 += deep) {
      const int64_t depth = h.d - k0 < deep ? h.d - k0 : deep;
      const gemm::Product p = head_product(rows, columns, depth, x + k0, row, 1, logits);
      const int64_t k1 = k0 + depth, stop = v0 + (columns < gemm::kGroup ? columns : gemm::kGroup);
      head_multiply(p, h.w, v0, k0, k0 != 0, strips,
                    k1 < h.d ? h.w.ahead(v0, stop, k1, h.d - k1 < deep ? h.d - k1 : deep) : ahead(next));
    }
  }
  // Row r of what replaces the logits, Z: its number i.
  static void put(float* z, int64_t i, F value, Full t) { row_store(z + i, rounded(value), t); }
  static void put(float* z, int64_t i, F value, Part t) { row_store(z + i, rounded(value), t); }
  static void put(float* z, int64_t i, float value) { rounded(F::set1(value)).store_n(z + i, 1); }
  // share [rows, d] (+)= Z w[v0 .. v0 + columns]
  void add_share(int64_t rows, int64_t v0, int64_t columns, bool add, float* share) {
    const gemm::Product p = head_product(rows, h.d, columns, logits, columns, 1, share);
    head_multiply(p, h.w_transposed, 0, v0, add, strips, ahead(v0 + columns));
  }
  // dw [columns, d] (+)= Z^T x
  void add_slopes(int64_t rows, int64_t columns, bool add, float* dw) {
    const gemm::Product p = head_product(columns, h.d, rows, logits, 1, columns, dw);
    head_multiply(p, gemm::StridedSource{x, 1, row}, 0, 0, add, strips, gemm::Ahead{});
  }
  // `count` numbers of row v of w, as the products read them.
  void read_row(int64_t v, int64_t i0, int64_t count, float* to) const {
    h.w.strips(v, v + 1, i0, count, gemm::kTileColumns, 1, to);
  }

 private:
  static F rounded(F x) {
    if constexpr (kRounded) return quant::ToBf16::of(x);
    else return x;
  }
  // What the logits from column v0 on begin with; nothing where the vocabulary ends.
  gemm::Ahead ahead(int64_t v0) const {
    const int64_t stop = v0 + gemm::kGroup < h.v ? v0 + gemm::kGroup : h.v;
    return h.w.ahead(v0, stop, 0, deep < h.d ? deep : h.d);
  }
};

template <class W> inline void set_head_weight(const Tensor& w, Head<W>& h) {
  if constexpr (std::is_base_of_v<gemm::StridedSource, W>) {
    static_cast<gemm::StridedSource&>(h.w) = {w.as<const float>(), w.strides[0], w.strides[1]};
    static_cast<gemm::StridedSource&>(h.w_transposed) = {w.as<const float>(), w.strides[1], w.strides[0]};
  } else {
    static_cast<gemm::FrozenSource&>(h.w) = gemm::frozen_source(w, 0, 1);
    static_cast<gemm::FrozenSource&>(h.w_transposed) = gemm::frozen_source(w, 1, 0);
  }
}

}  // namespace gradloom::GL_ISA
