// attention_strip.h: what all loops of attention share: which keys a query sees, and queries side by side as a strip.
//
// A strip is up to kStrip queries of one head (or, when a row has one token, of the heads that share their keys),
// packed as [D][width]. Scores are held transposed: rows are keys, columns are the strip's queries. So k and v are
// operands of the products where they lie, everything that softmax does to a query is done to vectors of queries, and
// nothing is reduced along a vector. Blocks of keys that no query of the strip sees are not visited; `begin` .. `end`
// says which are left.
//
// Where q (of the gradient, g) is bf16, the operands of all products are: what is not bf16 is rounded to it as it is
// read, and so are the weights of v, exp(score - m), for which m is then a multiple of log 2: a power of two between
// two values of m changes no rounding. Products and sums are f32, of the rounded numbers.
#pragma once
#include "../simd/math.h"
#include "gemm_product.h"
#include "operand.h"
#include "rows.h"

namespace gradloom::GL_ISA::attn {

using gemm::ceil_div;
using gemm::Finish;
using gemm::kTileRows;
using gemm::kTilesOf;
using gemm::Numbers;
using gemm::Lanes;
using gemm::round_up;
using gemm::Side;
using gemm::StridedSource;

constexpr int kStrip = gemm::kTileColumns;  // queries side by side
constexpr int64_t kKeys = 128;              // keys of a block
constexpr double kPartCost = 1 << 17;       // multiply-adds

inline uint32_t at_most(int64_t parts) { return static_cast<uint32_t>(parts < 4096 ? parts : 4096); }

// c[m][n] = (or +=) sum over p < k of a(i, p) b[p][n]; n <= kStrip.
template <Side side>
inline void product(const float* a, int64_t a_stride, int64_t m, const float* b, int64_t ldb, int64_t k, int n,
                    float* c, int64_t ldc, bool add) {
  const auto& tiles = kTilesOf<Numbers>.fn[static_cast<int>(side)][n % Lanes::N != 0][(n + Lanes::N - 1) / Lanes::N - 1];
  const Finish keep{};
  for (int64_t i = 0, rows; i < m; i += rows) {  // equal heights are foreseen best; a low tile is slow
    const int64_t left = m - i;
    rows = left >= kTileRows * 3 / 2 ? kTileRows : left > kTileRows ? left / 2 : left;
    tiles[rows - 1](a + i * (side == Side::rows ? a_stride : 1), a_stride, b, ldb, k, n, c + i * ldc, ldc, add, keep);
  }
}

// to[j][i] = from[i][j], i < rows, j < columns.
inline void transpose(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to, int64_t to_ld) {
  constexpr int N = gemm::kSquare;
  const int64_t whole = columns / N * N;
  int64_t i = 0;
  for (; i + N <= rows; i += N) {
    for (int64_t j = 0; j < whole; j += N) gemm::transpose<N>(from + i * ld + j, ld, to + j * to_ld + i, to_ld);
    for (int64_t j = whole; j < columns; j++)
      for (int r = 0; r < N; r++) to[j * to_ld + i + r] = from[(i + r) * ld + j];
  }
  for (; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[j * to_ld + i] = from[i * ld + j];
}

inline void multiply(float* x, int64_t n, float by) {  // n is a multiple of Lanes::N
  const F factor = F::set1(by);
  for (int64_t i = 0; i < n; i += F::N) (F::load(x + i) * factor).store(x + i);
}

// ---- what a call is about ----------------------------------------------------------------------------------

struct Shape {
  int64_t batch, tokens, heads, d, keys, groups, share;  // share: query heads per key head
  int64_t q_row, k_row;                                  // floats from token to token
  bool cached;     // query t sees keys of a cache up to its position, not those of its own sequence up to itself
  int64_t window;  // the most keys that a query sees
  float cap;       // scores become cap * tanh(score / cap); 0: they stay
  // The words of the attributes window and softcap come after those of `first` others.
  Shape(const Call& call, const Tensor& q, const Tensor& k, bool cached, int first)
      : batch(q.shape[0]), tokens(q.shape[1]), heads(q.shape[2]), d(q.shape[3]), keys(k.shape[1]), groups(k.shape[2]),
        share(heads / groups), q_row(heads * d), k_row(groups * d), cached(cached),
        window(call.attr_given(first) ? call.attr_int(first) : INT64_MAX),
        cap(call.attr_given(first + 1) ? static_cast<float>(call.attr_float(first + 1)) : 0.0f) {}
  // The most keys that `queries` neighbouring queries of a sequence see together.
  int64_t reach(int64_t queries) const {
    return window >= keys || window + queries - 1 > keys ? keys : window + queries - 1;
  }
  bool single() const { return tokens == 1; }
  int64_t strips() const { return ceil_div(single() ? share : tokens, kStrip); }  // of a head; of a group when single
  int64_t q_at(int64_t b, int64_t t, int64_t h) const { return (b * tokens + t) * q_row + h * d; }
  int64_t k_at(int64_t b, int64_t s, int64_t n) const { return (b * keys + s) * k_row + n * d; }
};

// The keys [first, last] of a query. A position that cannot be stops the run; the query then sees one key.
struct Seen {
  int32_t first, last;
};
inline Seen seen(const Call& call, const Shape& x, const int32_t* positions, int64_t b, int64_t t) {
  const int64_t at = b * x.tokens + t, p = positions[at];
  if (p < 0 || p > (x.cached ? x.keys - 1 : t)) {
    call.status->fail(Stop::index, at, p);
    return {0, 0};
  }
  const int64_t last = x.cached ? p : t, before = p < x.window ? p : x.window - 1;  // before: keys seen before the last
  return {static_cast<int32_t>(last - before), static_cast<int32_t>(last)};
}

// Up to kStrip queries. Lanes beyond them see nothing.
struct Strip {
  int n, ld;                                     // queries; rounded up to whole vectors
  int64_t q, q_step;                             // of the first query, in floats; to the next
  int64_t lse, lse_step;                         // the same in lse
  int32_t first[kStrip], last[kStrip];           // keys that each sees
  int64_t begin, end, inside_begin, inside_end;  // keys that some query sees; keys that every query sees

  Strip() = default;
  // Strip `at` of head h; or, `across`, of the heads of group h at the only token.
  Strip(const Call& call, const Shape& x, const int32_t* positions, int64_t b, int64_t h, int64_t at, bool across) {
    const int64_t from = at * kStrip, left = (across ? x.share : x.tokens) - from;
    n = static_cast<int>(left < kStrip ? left : kStrip);
    ld = static_cast<int>(round_up(n, Lanes::N));
    const int64_t head = across ? h * x.share + from : h, token = across ? 0 : from;
    q = x.q_at(b, token, head);
    q_step = across ? x.d : x.q_row;
    lse = (b * x.tokens + token) * x.heads + head;
    lse_step = across ? 1 : x.heads;
    begin = inside_end = INT64_MAX;
    end = inside_begin = 0;
    for (int j = 0; j < kStrip; j++) {
      first[j] = INT32_MAX;
      last[j] = -1;
      if (j >= n) continue;
      const Seen s = seen(call, x, positions, b, across ? 0 : from + j);
      first[j] = s.first;
      last[j] = s.last;
      if (s.first < begin) begin = s.first;
      if (s.last >= end) end = s.last + 1;
      if (s.first > inside_begin) inside_begin = s.first;
      if (s.last < inside_end) inside_end = s.last + 1;
    }
    if (inside_end > end) inside_end = end;
  }
};

// Queries as [d][ld], times scale.
inline void pack(const float* from, int64_t step, const Strip& strip, int64_t d, float scale, float* to) {
  StridedSource{from, step, 1}.strips(0, strip.n, 0, d, kStrip, Lanes::N, to);
  multiply(to, d * strip.ld, scale);
}

// Scores [rows][n], ld floats from row to row, become cap * tanh(score / cap). A pass of its own over a block that is
// in the first cache: the loops around it stay those of scores that are not capped.
inline __attribute__((noinline)) void cap_scores(float* scores, int64_t rows, int64_t ld, int64_t n, float cap) {
  const F share = F::set1(1.0f / cap), height = F::set1(cap);
  for (int64_t r = 0; r < rows; r++) {
    float* const s = scores + r * ld;
    row_each(n, [&](int64_t i, auto t) { row_store(s + i, tanh(row_load(s + i, t) * share) * height, t); });
  }
}

struct Yes {
  static constexpr bool value = true;
};
struct No {
  static constexpr bool value = false;
};

// Calls body(row, masked) for rows 0 .. rows of a block that starts at key k0; masked: not every query sees the key.
template <class Body>
inline __attribute__((always_inline)) void each_row(const Strip& strip, int64_t k0, int64_t rows, const Body& body) {
  int64_t a = strip.inside_begin - k0, b = strip.inside_end - k0;
  a = a < 0 ? 0 : a > rows ? rows : a;
  b = b < a ? a : b > rows ? rows : b;
  for (int64_t r = 0; r < a; r++) body(r, Yes{});
  for (int64_t r = a; r < b; r++) body(r, No{});
  for (int64_t r = b; r < rows; r++) body(r, Yes{});
}

// What a strip carries from block to block: the largest score so far, and the sum of exp(score - most).
struct Sums {
  float most[kStrip], total[kStrip];
};
constexpr float kNothing = -3e38f;  // the largest of no scores

}  // namespace gradloom::GL_ISA::attn
