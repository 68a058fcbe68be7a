// attention.h: softmax(scale * q k^T) v by heads, forward and backward, without a T x T matrix.
//
// Scores are held transposed: rows are keys, columns are queries. A strip is up to kStrip queries of one head (or, when
// a row has one token, of the heads that share their keys): its queries are packed as [D][width], and everything that
// softmax does to a query is done to vectors of queries. Per block of keys
//   scores[key][query] = k q^T,  weights = exp(scores - most),  y^T[d][query] += v^T weights
// are two products whose other operands are k and v where they lie, and nothing is reduced along a vector. The largest
// score so far and the sum of the weights go along from block to block (online softmax); blocks that no query of the
// strip sees are not visited.
//
// Backward, per block of keys and two strips: the weights again from the saved logarithm of their divisor (lse), then
//   dp = v g^T,  dz = weights * (dp - delta),  dq^T += k^T dz,  dk += dz q,  dv += weights g.
// A job is a share of the queries of all heads that read one key head, cut where the work is equal; it adds to a dk and
// a dv of its own in the workspace, and the second phase adds those of all jobs in their order.
#pragma once
#include "../simd/math.h"
#include "matmul.h"

namespace gradloom::GL_ISA::attn {

using gemm::ceil_div;
using gemm::Finish;
using gemm::kTileRows;
using gemm::kTiles;
using gemm::Lanes;
using gemm::round_up;
using gemm::Side;
using gemm::StridedSource;

constexpr int kStrip = gemm::kTileColumns;  // queries side by side
constexpr int64_t kKeys = 128;              // keys of a block
constexpr int kStrips = 2;                  // of a backward block
constexpr int64_t kSplit = 256;             // keys of a part, where one token looks at a cache
constexpr double kPartCost = 1 << 17;       // multiply-adds
constexpr int64_t kJobs = 32;               // of the backward pass: enough for 16 threads
constexpr float kNothing = -3e38f;          // the largest of no scores

// c[m][n] = (or +=) sum over p < k of a(i, p) b[p][n]; n <= kStrip.
template <Side side>
inline void product(const float* a, int64_t a_stride, int64_t m, const float* b, int64_t ldb, int64_t k, int n,
                    float* c, int64_t ldc, bool add) {
  const auto& tiles = kTiles.fn[static_cast<int>(side)][n % Lanes::N != 0][(n + Lanes::N - 1) / Lanes::N - 1];
  const int64_t count = ceil_div(m, kTileRows);
  const Finish keep{};
  for (int64_t t = 0; t < count; t++) {  // of nearly equal heights
    const int64_t i = m * t / count, rows = m * (t + 1) / count - i;
    tiles[rows - 1](a + i * (side == Side::rows ? a_stride : 1), a_stride, b, ldb, k, n, c + i * ldc, ldc, add, keep);
  }
}

// to[j][i] = from[i][j], i < rows, j < columns.
inline void turn(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to, int64_t to_ld) {
  constexpr int N = gemm::kTurn;
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
  Shape(const Tensor& q, const Tensor& k)
      : batch(q.shape[0]), tokens(q.shape[1]), heads(q.shape[2]), d(q.shape[3]), keys(k.shape[1]), groups(k.shape[2]),
        share(heads / groups), q_row(heads * d), k_row(groups * d) {}
  bool single() const { return tokens == 1; }
  int64_t strips() const { return ceil_div(single() ? share : tokens, kStrip); }  // of a head; of a group when single
  int64_t q_at(int64_t b, int64_t t, int64_t h) const { return (b * tokens + t) * q_row + h * d; }
  int64_t k_at(int64_t b, int64_t s, int64_t n) const { return (b * keys + s) * k_row + n * d; }
};

// The keys [first, last] of a query. A position that cannot be stops the run; the query then sees one key.
struct Seen {
  int32_t first, last;
};
inline Seen seen(const Call& call, const Shape& x, const int32_t* positions, bool cached, int64_t b, int64_t t) {
  const int64_t at = b * x.tokens + t, p = positions[at];
  if (p < 0 || p > (cached ? x.keys - 1 : t)) {
    call.status->fail(Stop::index, at, p);
    return {0, 0};
  }
  if (cached) return {0, static_cast<int32_t>(p)};
  return {static_cast<int32_t>(t - p), static_cast<int32_t>(t)};
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
  Strip(const Call& call, const Shape& x, const int32_t* positions, bool cached, int64_t b, int64_t h, int64_t at,
        bool across) {
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
      const Seen s = seen(call, x, positions, cached, b, across ? 0 : from + j);
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

// ---- forward -------------------------------------------------------------------------------------------------

// What a strip carries from block to block.
struct Sums {
  float most[kStrip], total[kStrip];
};

// Scores of `rows` keys from k0 become weights; factor: what the sums so far are to be multiplied by. Returns whether
// any factor is not 1.
inline bool weigh(const Strip& strip, int64_t k0, int64_t rows, float* scores, Sums& sums, float* factor) {
  const int64_t ld = strip.ld;
  bool changed = false;
  for (int j = 0; j < ld; j += F::N) {
    const I first = I::load(strip.first + j), last = I::load(strip.last + j);
    float* const s = scores + j;
    const F before = F::load(sums.most + j);
    F m[4] = {before, before, before, before};
    each_row(strip, k0, rows, [&](int64_t r, auto masked) __attribute__((always_inline)) {
      F x = F::load(s + r * ld);
      if constexpr (masked.value) {
        const I key = I::set1(static_cast<int32_t>(k0 + r));
        x = select(ge(key, first) & le(key, last), x, before);
      }
      F& most = m[r & 3];
      most = select(gt(x, most), x, most);
    });
    m[0] = select(gt(m[1], m[0]), m[1], m[0]);
    m[2] = select(gt(m[3], m[2]), m[3], m[2]);
    const F most = select(gt(m[2], m[0]), m[2], m[0]);
    F t[4] = {F::zero(), F::zero(), F::zero(), F::zero()};
    each_row(strip, k0, rows, [&](int64_t r, auto masked) __attribute__((always_inline)) {
      F p = exp(F::load(s + r * ld) - most);
      if constexpr (masked.value) {
        const I key = I::set1(static_cast<int32_t>(k0 + r));
        p = select(ge(key, first) & le(key, last), p, F::zero());
      }
      p.store(s + r * ld);
      t[r & 3] += p;
    });
    const F scale = exp(before - most);
    scale.store(factor + j);
    mul_add(F::load(sums.total + j), scale, (t[0] + t[1]) + (t[2] + t[3])).store(sums.total + j);
    most.store(sums.most + j);
    changed = changed || ne(scale, F::set1(1.0f)).any();
  }
  return changed;
}

inline size_t forward_floats(const Shape& x) { return static_cast<size_t>(kStrip * (2 * x.d + kKeys)); }

// The strip over the keys [begin, end) that its queries see: y^T [d][ld], not yet divided, and its sums.
inline void attend(const Shape& x, const Strip& strip, const float* packed, const float* k, const float* v,
                   int64_t begin, int64_t end, float* scores, float* y, Sums& sums) {
  float factor[kStrip];
  for (int j = 0; j < kStrip; j++) {
    sums.most[j] = kNothing;
    sums.total[j] = 0.0f;
  }
  for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
    const int64_t rows = end - k0 < kKeys ? end - k0 : kKeys;
    product<Side::rows>(k + k0 * x.k_row, x.k_row, rows, packed, strip.ld, x.d, strip.ld, scores, strip.ld, false);
    if (weigh(strip, k0, rows, scores, sums, factor) && k0 != begin) {
      for (int j = 0; j < strip.ld; j += F::N) {
        const F by = F::load(factor + j);
        for (int64_t i = 0; i < x.d; i++) (F::load(y + i * strip.ld + j) * by).store(y + i * strip.ld + j);
      }
    }
    product<Side::columns>(v + k0 * x.k_row, x.k_row, x.d, scores, strip.ld, rows, strip.ld, y, strip.ld, k0 != begin);
  }
}

// ---- one token -----------------------------------------------------------------------------------------------

constexpr int kFewHeads = 6;  // of a key head: beyond, the products of strips are faster
constexpr int kFew = 4;       // heads taken together

// Dot products of K keys from k with H queries [d]: scores[h * kKeys + key], times scale.
template <int H, int K>
inline __attribute__((always_inline)) void score_keys(const float* q, const float* k, int64_t k_row, int64_t d,
                                                      float scale, float* scores) {
  F sum[H][K];
#pragma GCC unroll 4
  for (int h = 0; h < H; h++)
#pragma GCC unroll 4
    for (int r = 0; r < K; r++) sum[h][r] = F::zero();
  const auto step = [&](int64_t i, auto load) __attribute__((always_inline)) {
    F x[K];
#pragma GCC unroll 4
    for (int r = 0; r < K; r++) x[r] = load(k + r * k_row + i);
#pragma GCC unroll 4
    for (int h = 0; h < H; h++) {
      const F y = load(q + h * d + i);
#pragma GCC unroll 4
      for (int r = 0; r < K; r++) sum[h][r] = mul_add(y, x[r], sum[h][r]);
    }
  };
  int64_t i = 0;
  for (; i + F::N <= d; i += F::N) step(i, [](const float* p) { return F::load(p); });
  if (i < d) step(i, [&](const float* p) { return F::load_n(p, static_cast<int>(d - i)); });
#pragma GCC unroll 4
  for (int h = 0; h < H; h++)
#pragma GCC unroll 4
    for (int r = 0; r < K; r++) scores[h * kKeys + r] = reduce_add(sum[h][r]) * scale;
}

template <int H>
inline void score_few(const float* q, const float* k, int64_t k_row, int64_t rows, int64_t d, float scale,
                      float* scores) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) score_keys<H, 4>(q, k + r * k_row, k_row, d, scale, scores + r);
  for (; r < rows; r++) score_keys<H, 1>(q, k + r * k_row, k_row, d, scale, scores + r);
}

// y[h][i ..] += weights[h * kKeys + key] * v[key][i ..], C vectors wide; load and store: whole, or the last one partly.
template <int H, int C, class Load, class Store>
inline __attribute__((always_inline)) void gather_columns(const float* weights, const float* v, int64_t v_row,
                                                          int64_t rows, int64_t d, float* y, const Load& load,
                                                          const Store& store) {
  F sum[H][C];
#pragma GCC unroll 4
  for (int h = 0; h < H; h++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sum[h][c] = load(y + h * d + c * F::N);
  for (int64_t r = 0; r < rows; r++, v += v_row) {
    F x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) x[c] = load(v + c * F::N);
#pragma GCC unroll 4
    for (int h = 0; h < H; h++) {
      const F w = F::set1(weights[h * kKeys + r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) sum[h][c] = mul_add(w, x[c], sum[h][c]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; h++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(sum[h][c], y + h * d + c * F::N);
}

// y[h][d] += weights[h * kKeys + key] * v[key][d].
template <int H>
inline void gather_few(const float* weights, const float* v, int64_t v_row, int64_t rows, int64_t d, float* y) {
  const auto load = [](const float* p) { return F::load(p); };
  const auto store = [](F x, float* p) { x.store(p); };
  int64_t i = 0;
  for (; i + 4 * F::N <= d; i += 4 * F::N) gather_columns<H, 4>(weights, v + i, v_row, rows, d, y + i, load, store);
  for (; i + F::N <= d; i += F::N) gather_columns<H, 1>(weights, v + i, v_row, rows, d, y + i, load, store);
  if (i == d) return;
  const int lanes = static_cast<int>(d - i);
  gather_columns<H, 1>(
      weights, v + i, v_row, rows, d, y + i, [lanes](const float* p) { return F::load_n(p, lanes); },
      [lanes](F x, float* p) { x.store_n(p, lanes); });
}

// Scores [rows] of one query become weights; returns what its sums so far are to be multiplied by.
inline float weigh_one(float* scores, int64_t rows, float& most, float& total) {
  F m = F::set1(most);
  for (int64_t r = 0; r < rows; r += F::N) {
    const int lanes = rows - r < F::N ? static_cast<int>(rows - r) : F::N;
    const F x = F::load_n(scores + r, lanes);
    m = select(gt(x, m) & Mask<float>::first_n(lanes), x, m);
  }
  const float before = most;
  most = reduce_max(m);
  F sum = F::zero();
  for (int64_t r = 0; r < rows; r += F::N) {
    const int lanes = rows - r < F::N ? static_cast<int>(rows - r) : F::N;
    const F p = exp(F::load_n(scores + r, lanes) - F::set1(most));
    sum += select(Mask<float>::first_n(lanes), p, F::zero());
    p.store_n(scores + r, lanes);
  }
  float factor[F::N];
  exp(F::set1(before - most)).store(factor);
  total = total * factor[0] + reduce_add(sum);
  return factor[0];
}

// As attend, for one token: H queries [d] that all see the keys [begin, end). y [H][d].
template <int H>
inline void attend_few(const Shape& x, const float* q, const float* k, const float* v, int64_t begin, int64_t end,
                       float scale, float* scores, float* y, float* most, float* total) {
  for (int64_t i = 0; i < H * x.d; i++) y[i] = 0.0f;
  for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
    const int64_t rows = end - k0 < kKeys ? end - k0 : kKeys;
    score_few<H>(q, k + k0 * x.k_row, x.k_row, rows, x.d, scale, scores);
    for (int h = 0; h < H; h++) {
      const float by = weigh_one(scores + h * kKeys, rows, most[h], total[h]);
      if (by != 1.0f)
        for (int64_t i = 0; i < x.d; i++) y[h * x.d + i] *= by;
    }
    gather_few<H>(scores, v + k0 * x.k_row, x.k_row, rows, x.d, y);
  }
}

// All queries of the strip, a few at a time. The result is that of attend: y^T [d][ld].
inline void attend_one_token(const Shape& x, const Strip& strip, const float* q, const float* k, const float* v,
                             int64_t begin, int64_t end, float scale, float* scores, float* few, float* y,
                             Sums& sums) {
  for (int j = 0; j < kStrip; j++) {
    sums.most[j] = kNothing;
    sums.total[j] = j < strip.n ? 0.0f : 1.0f;
  }
  for (int j = 0; j < strip.n; j += kFew) {
    const int heads = strip.n - j < kFew ? strip.n - j : kFew;
    const auto run = heads == 4   ? attend_few<4>
                     : heads == 3 ? attend_few<3>
                     : heads == 2 ? attend_few<2>
                                  : attend_few<1>;
    run(x, q + strip.q + j * x.d, k, v, begin, end, scale, scores, few, sums.most + j, sums.total + j);
    for (int h = 0; h < heads; h++)
      for (int64_t i = 0; i < x.d; i++) y[i * strip.ld + j + h] = few[h * x.d + i];
  }
  for (int j = strip.n; j < strip.ld; j++)
    for (int64_t i = 0; i < x.d; i++) y[i * strip.ld + j] = 0.0f;
}

// y^T / total to where it belongs, and lse = most + log(total).
inline void finish(const Shape& x, const Strip& strip, float* y, const Sums& sums, float* out, float* lse) {
  float logs[kStrip];
  for (int j = 0; j < strip.ld; j += F::N) {
    const F total = F::load(sums.total + j), by = F::set1(1.0f) / total;
    (F::load(sums.most + j) + log(total)).store(logs + j);
    for (int64_t i = 0; i < x.d; i++) (F::load(y + i * strip.ld + j) * by).store(y + i * strip.ld + j);
  }
  turn(y, strip.ld, x.d, strip.n, out + strip.q, strip.q_step);
  if (lse)
    for (int j = 0; j < strip.n; j++) lse[strip.lse + j * strip.lse_step] = logs[j];
}

// How the work of a call is cut: strips, and for one token at a cache pieces of the keys as well.
struct Forward {
  Shape x;
  int64_t heads, units, splits, split;  // heads: with strips of their own; keys of a piece
  explicit Forward(const Call& call) : x(call[0], call[1]) {
    heads = x.single() ? x.groups : x.heads;
    splits = 1;
    split = x.keys;
    if (x.single() && x.keys > kSplit) {
      splits = ceil_div(x.keys, kSplit);
      if (splits > 64) splits = 64;
      split = ceil_div(x.keys, splits);
    }
    units = x.batch * heads * x.strips();
  }
  double cost() const {
    const double pairs = static_cast<double>(x.batch * heads * x.strips() * kStrip) * static_cast<double>(x.keys);
    return pairs * static_cast<double>(x.d + 8);
  }
  size_t slot() const { return sizeof(Sums) / sizeof(float) + static_cast<size_t>(kStrip * x.d); }
};

inline uint32_t at_most(int64_t parts) { return static_cast<uint32_t>(parts < 4096 ? parts : 4096); }

// (q, k, v, positions; scale, cached) -> y, lse?
inline void plan_forward(const Call& call, KernelPlan& plan) {
  const Forward f(call);
  plan.scratch_bytes = forward_floats(f.x) * sizeof(float);
  plan.parts[0] = parts_for(f.cost(), kPartCost, at_most(f.units * f.splits));
  if (f.splits > 1) {
    plan.phases = 2;
    plan.parts[1] = parts_for(static_cast<double>(f.units * f.splits * kStrip * f.x.d), 65536, at_most(f.units));
    plan.workspace_bytes = static_cast<size_t>(f.units * f.splits) * f.slot() * sizeof(float);
  }
}

// Adds what the pieces of the keys gave, in their order.
inline void combine(const Forward& f, const Strip& strip, float* slots, float* out, float* lse) {
  Sums& sums = *reinterpret_cast<Sums*>(slots);
  float* const y = slots + sizeof(Sums) / sizeof(float);
  for (int64_t s = 1; s < f.splits && s * f.split < strip.end; s++) {
    float* const more = slots + static_cast<size_t>(s) * f.slot();
    const Sums& other = *reinterpret_cast<const Sums*>(more);
    const float* const z = more + sizeof(Sums) / sizeof(float);
    for (int j = 0; j < strip.ld; j += F::N) {
      const F a = F::load(sums.most + j), b = F::load(other.most + j), most = select(gt(b, a), b, a);
      const F u = exp(a - most), w = exp(b - most);
      mul_add(F::load(sums.total + j), u, F::load(other.total + j) * w).store(sums.total + j);
      most.store(sums.most + j);
      for (int64_t i = 0; i < f.x.d; i++) {
        float* const to = y + i * strip.ld + j;
        mul_add(F::load(to), u, F::load(z + i * strip.ld + j) * w).store(to);
      }
    }
  }
  finish(f.x, strip, y, sums, out, lse);
}

inline void run_forward(const Call& call, int phase, int part, int parts, void* scratch) {
  const Forward f(call);
  const Shape& x = f.x;
  const float scale = static_cast<float>(call.attr_float(0));
  const bool cached = call.attr_int(1) != 0;
  const float* const q = call[0].as<const float>();
  const int32_t* const positions = call[3].as<const int32_t>();
  float *const out = call[4].as<float>(), *const lse = call[5].as<float>();
  float* const room = f.splits > 1 ? call.workspace().as<float>() : nullptr;
  float* const packed = static_cast<float*>(scratch);
  float *const y = packed + kStrip * x.d, *const scores = y + kStrip * x.d;
  const int64_t strips = x.strips(), pieces = phase == 0 ? f.splits : 1;
  const bool few = x.single() && x.share <= kFewHeads;
  const Range range = part_range(f.units * pieces, part, parts);
  for (int64_t job = range.begin; job < range.end; job++) {
    // The last strips of a head cost most: they come first. A piece of the keys is read by all heads in turn.
    const int64_t piece = job / f.units, unit = job % f.units, at = strips - 1 - unit % strips;
    const int64_t h = unit / strips % f.heads, b = unit / strips / f.heads, n = x.single() ? h : h / x.share;
    const Strip strip(call, x, positions, cached, b, h, at, x.single());
    float* const slots = room + static_cast<size_t>(unit * f.splits) * f.slot();
    if (phase == 1) {
      combine(f, strip, slots, out, lse);
      continue;
    }
    const int64_t begin = f.splits > 1 ? piece * f.split : strip.begin;
    const int64_t end = f.splits > 1 && begin + f.split < strip.end ? begin + f.split : strip.end;
    if (begin >= end) continue;
    const float* const k = call[1].as<const float>() + x.k_at(b, 0, n);
    const float* const v = call[2].as<const float>() + x.k_at(b, 0, n);
    float* const slot = slots + static_cast<size_t>(piece) * f.slot();
    Sums own;
    Sums& sums = f.splits > 1 ? *reinterpret_cast<Sums*>(slot) : own;
    float* const to = f.splits > 1 ? slot + sizeof(Sums) / sizeof(float) : y;
    if (few) {
      attend_one_token(x, strip, q, k, v, begin, end, scale, scores, packed, to, sums);
    } else {
      pack(q + strip.q, strip.q_step, strip, x.d, scale, packed);
      attend(x, strip, packed, k, v, begin, end, scores, to, sums);
    }
    if (f.splits == 1) finish(x, strip, to, sums, out, lse);
  }
}

// ---- backward ------------------------------------------------------------------------------------------------

constexpr int64_t kQueries = kStrips * kStrip;  // of a block

struct Backward {
  Shape x;
  int64_t blocks, units, chunks, jobs;  // blocks of queries per head; units: of a group; chunks of these; in all
  explicit Backward(const Call& call) : x(call[1], call[2]) {
    blocks = ceil_div(x.tokens, kQueries);
    units = blocks * x.share;
    const int64_t heads = x.batch * x.groups;
    const double cost = static_cast<double>(x.share * x.tokens * x.tokens) * static_cast<double>(x.d + 8) * 2.5;
    const int64_t most = heads >= kJobs ? 1 : kJobs / heads;
    chunks = heads ? parts_for(cost, kPartCost, static_cast<uint32_t>(most < units ? most : units)) : 1;
    jobs = heads * chunks;
  }
  double cost() const {
    return static_cast<double>(x.batch * x.heads * x.tokens * x.tokens) * static_cast<double>(x.d + 8) * 2.5;
  }
  // The workspace: the keys [begin, end) of each job, then its dk and dv [tokens][d] each.
  size_t head_floats() const { return static_cast<size_t>(round_up(jobs * 4, 16)); }
  size_t slot() const { return static_cast<size_t>(2 * x.tokens * x.d); }
  // Scratch: work per block of queries; q^T, g^T, dq^T; weights, dz
  size_t weight_floats() const { return static_cast<size_t>(round_up(blocks * 2, 16)); }
  size_t scratch_floats() const { return weight_floats() + static_cast<size_t>(kQueries * (3 * x.d + 2 * kKeys)); }
};

// (g, q, k, v, y, lse, positions, g_lse?; scale) -> dq, dk, dv
inline void plan_backward(const Call& call, KernelPlan& plan) {
  const Backward w(call);
  plan.phases = 2;
  plan.scratch_bytes = w.scratch_floats() * sizeof(float);
  plan.workspace_bytes = (w.head_floats() + static_cast<size_t>(w.jobs) * w.slot()) * sizeof(float);
  if (w.jobs == 0) {
    plan.phases = 1;
    plan.workspace_bytes = 0;
    return;
  }
  plan.parts[0] = parts_for(w.cost(), kPartCost, at_most(w.jobs));
  plan.parts[1] = parts_for(static_cast<double>(w.jobs) * static_cast<double>(w.slot()), 65536, 64);
}

struct Grads {
  const float *g, *q, *k, *v, *y, *lse, *g_lse;
  const int32_t* positions;
  float *dq, *dk, *dv;
  float scale;
  explicit Grads(const Call& c)
      : g(c[0].as<const float>()), q(c[1].as<const float>()), k(c[2].as<const float>()), v(c[3].as<const float>()),
        y(c[4].as<const float>()), lse(c[5].as<const float>()), g_lse(c[7].as<const float>()),
        positions(c[6].as<const int32_t>()), dq(c[8].as<float>()), dk(c[9].as<float>()), dv(c[10].as<float>()),
        scale(static_cast<float>(c.attr_float(0))) {}
};

// scores, dp of `rows` keys from k0 become weights and dz. lse, delta: per query, ready for scaled q and g.
inline void slopes(const Strip& strip, int64_t k0, int64_t rows, int64_t ld, const float* lse, const float* delta,
                   float* scores, float* dp) {
  for (int j = 0; j < strip.ld; j += F::N) {
    const I first = I::load(strip.first + j), last = I::load(strip.last + j);
    const F less = F::load(lse + j), back = F::load(delta + j);
    each_row(strip, k0, rows, [&](int64_t r, auto masked) __attribute__((always_inline)) {
      float *const s = scores + r * ld + j, *const d = dp + r * ld + j;
      F p = exp(F::load(s) - less);
      F z = p * (F::load(d) - back);
      if constexpr (masked.value) {
        const I key = I::set1(static_cast<int32_t>(k0 + r));
        const auto sees = ge(key, first) & le(key, last);
        p = select(sees, p, F::zero());
        z = select(sees, z, F::zero());
      }
      p.store(s);
      z.store(d);
    });
  }
}

// One block of queries of head h: writes its dq, adds to dk and dv [tokens][d].
inline void back_block(const Call& call, const Backward& w, const Grads& a, int64_t b, int64_t h, int64_t block,
                       float* room, float* dk, float* dv) {
  const Shape& x = w.x;
  const int64_t d = x.d, n = h / x.share, t0 = block * kQueries;
  const int64_t queries = x.tokens - t0 < kQueries ? x.tokens - t0 : kQueries;
  const int count = static_cast<int>(ceil_div(queries, kStrip));
  float *const qt = room, *const gt = qt + kQueries * d, *const dqt = gt + kQueries * d;
  float *const weights = dqt + kQueries * d, *const dz = weights + kKeys * kQueries;
  float lse[kQueries] = {}, delta[kQueries] = {};
  const float* const g = a.g + x.q_at(b, t0, h);
  const float* const q = a.q + x.q_at(b, t0, h);
  const float* const y = a.y + x.q_at(b, t0, h);
  for (int64_t i = 0; i < queries; i++) {
    F sum = F::zero();
    for (int64_t j = 0; j < d; j += F::N) {
      const int lanes = d - j < F::N ? static_cast<int>(d - j) : F::N;
      sum = mul_add(F::load_n(g + i * x.q_row + j, lanes), F::load_n(y + i * x.q_row + j, lanes), sum);
    }
    const int64_t at = (b * x.tokens + t0 + i) * x.heads + h;
    lse[i] = a.lse[at];
    delta[i] = (reduce_add(sum) - (a.g_lse ? a.g_lse[at] : 0.0f)) * a.scale;
  }
  Strip strips[kStrips];
  int64_t begin = INT64_MAX, end = 0;
  for (int i = 0; i < count; i++) {
    strips[i] = Strip(call, x, a.positions, false, b, h, block * kStrips + i, false);
    const Strip& s = strips[i];
    pack(q + i * kStrip * x.q_row, x.q_row, s, d, a.scale, qt + i * kStrip * d);
    pack(g + i * kStrip * x.q_row, x.q_row, s, d, a.scale, gt + i * kStrip * d);
    if (s.begin < begin) begin = s.begin;
    if (s.end > end) end = s.end;
  }
  bool started[kStrips] = {};
  for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
    const int64_t k1 = k0 + kKeys < end ? k0 + kKeys : end;
    int64_t from[kStrips], to[kStrips];  // the rows of the block that each strip sees
    for (int i = 0; i < count; i++) {
      const Strip& s = strips[i];
      const int64_t r0 = (s.begin > k0 ? s.begin < k1 ? s.begin : k1 : k0) - k0;
      const int64_t r1 = (s.end < k1 ? s.end > k0 ? s.end : k0 : k1) - k0;
      from[i] = r0;
      to[i] = r1 > r0 ? r1 : r0;
      float *const p = weights + i * kStrip, *const z = dz + i * kStrip;
      const size_t width = static_cast<size_t>(s.ld) * sizeof(float);
      for (int64_t r = 0; r < k1 - k0; r++) {
        if (r == r0) r = to[i];
        if (r >= k1 - k0) break;
        std::memset(p + r * kQueries, 0, width);
        std::memset(z + r * kQueries, 0, width);
      }
      if (r1 <= r0) continue;
      const int64_t at = k0 + r0, rows = r1 - r0;
      const float *const k = a.k + x.k_at(b, at, n), *const v = a.v + x.k_at(b, at, n);
      float *const p0 = p + r0 * kQueries, *const z0 = z + r0 * kQueries;
      product<Side::rows>(k, x.k_row, rows, qt + i * kStrip * d, s.ld, d, s.ld, p0, kQueries, false);
      product<Side::rows>(v, x.k_row, rows, gt + i * kStrip * d, s.ld, d, s.ld, z0, kQueries, false);
      slopes(s, at, rows, kQueries, lse + i * kStrip, delta + i * kStrip, p0, z0);
      product<Side::columns>(k, x.k_row, d, z0, kQueries, rows, s.ld, dqt + i * kStrip * d, s.ld, started[i]);
      started[i] = true;
    }
    for (int64_t r = 0; r < k1 - k0; r += kTileRows) {
      const int64_t rows = k1 - k0 - r < kTileRows ? k1 - k0 - r : kTileRows;
      int low = count, high = 0;  // the strips that see some of these keys
      for (int i = 0; i < count; i++) {
        if (from[i] >= r + rows || to[i] <= r) continue;
        if (i < low) low = i;
        high = i + 1;
      }
      if (low >= high) continue;
      const int64_t first = low * kStrip, last = high * kStrip < queries ? high * kStrip : queries;
      for (int64_t c = 0; c < d; c += kStrip) {
        const int columns = static_cast<int>(d - c < kStrip ? d - c : kStrip);
        const int64_t at = (k0 + r) * d + c;
        const int64_t from_q = first * x.q_row + c;
        product<Side::rows>(dz + r * kQueries + first, kQueries, rows, q + from_q, x.q_row, last - first, columns,
                            dk + at, d, true);
        product<Side::rows>(weights + r * kQueries + first, kQueries, rows, g + from_q, x.q_row, last - first, columns,
                            dv + at, d, true);
      }
    }
  }
  for (int i = 0; i < count; i++) {
    const Strip& s = strips[i];
    turn(dqt + i * kStrip * d, s.ld, d, s.n, a.dq + s.q, s.q_step);
  }
}

// The work of a block of queries: its keys, taken once per query.
inline int64_t work(const Call& call, const Backward& w, const int32_t* positions, int64_t b, int64_t block) {
  const int64_t t0 = block * kQueries, t1 = t0 + kQueries < w.x.tokens ? t0 + kQueries : w.x.tokens;
  int64_t begin = t0;
  for (int64_t t = t0; t < t1; t++) {
    const Seen s = seen(call, w.x, positions, false, b, t);
    if (s.first < begin) begin = s.first;
  }
  return (t1 - begin) * (t1 - t0) + 1;
}

// One job: its units are those whose middle lies in its share of the work.
inline void back_job(const Call& call, const Backward& w, const Grads& a, int64_t job, float* scratch) {
  const Shape& x = w.x;
  const int64_t b = job / w.chunks / x.groups, n = job / w.chunks % x.groups, chunk = job % w.chunks;
  int64_t* const weight = reinterpret_cast<int64_t*>(scratch);
  float* const room = scratch + w.weight_floats();
  int64_t* const range = call.workspace().as<int64_t>() + 2 * job;
  float* const dk = call.workspace().as<float>() + w.head_floats() + static_cast<size_t>(job) * w.slot();
  float* const dv = dk + x.tokens * x.d;
  int64_t total = 0;
  for (int64_t i = 0; i < w.blocks; i++) total += weight[i] = work(call, w, a.positions, b, i);
  total *= x.share;
  for (int pass = 0; pass < 2; pass++) {  // which keys; then the work
    int64_t before = 0, begin = x.tokens, end = 0;
    for (int64_t u = 0; u < w.units; u++) {
      const int64_t i = u % w.blocks, middle = 2 * before + weight[i];
      before += weight[i];
      if (middle * w.chunks / (2 * total) != chunk) continue;
      if (pass == 1) {
        back_block(call, w, a, b, n * x.share + u / w.blocks, i, room, dk, dv);
        continue;
      }
      const int64_t t0 = i * kQueries, t1 = t0 + kQueries < x.tokens ? t0 + kQueries : x.tokens;
      const int64_t first = t1 - (weight[i] - 1) / (t1 - t0);
      if (first < begin) begin = first;
      if (t1 > end) end = t1;
    }
    if (pass == 1) break;
    if (begin > end) begin = end;
    range[0] = begin;
    range[1] = end;
    std::memset(dk + begin * x.d, 0, static_cast<size_t>((end - begin) * x.d) * sizeof(float));
    std::memset(dv + begin * x.d, 0, static_cast<size_t>((end - begin) * x.d) * sizeof(float));
  }
}

// Rows [begin, end) of batch * tokens: dk and dv are the sums over the jobs, in their order.
inline void add_jobs(const Call& call, const Backward& w, const Grads& a, Range rows) {
  const Shape& x = w.x;
  const int64_t* const ranges = call.workspace().as<const int64_t>();
  const float* const slots = call.workspace().as<const float>() + w.head_floats();
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t b = row / x.tokens, s = row % x.tokens;
    for (int64_t n = 0; n < x.groups; n++) {
      float* const to[2] = {a.dk + x.k_at(b, s, n), a.dv + x.k_at(b, s, n)};
      for (int64_t i = 0; i < x.d; i += F::N) {
        const int lanes = x.d - i < F::N ? static_cast<int>(x.d - i) : F::N;
        F sum[2] = {F::zero(), F::zero()};
        for (int64_t c = 0; c < w.chunks; c++) {
          const int64_t job = (b * x.groups + n) * w.chunks + c;
          if (s < ranges[2 * job] || s >= ranges[2 * job + 1]) continue;
          const float* const from = slots + static_cast<size_t>(job) * w.slot() + s * x.d + i;
          sum[0] += F::load_n(from, lanes);
          sum[1] += F::load_n(from + x.tokens * x.d, lanes);
        }
        sum[0].store_n(to[0] + i, lanes);
        sum[1].store_n(to[1] + i, lanes);
      }
    }
  }
}

inline void run_backward(const Call& call, int phase, int part, int parts, void* scratch) {
  const Backward w(call);
  if (w.jobs == 0) return;
  const Grads a(call);
  if (phase == 1) return add_jobs(call, w, a, part_range(w.x.batch * w.x.tokens, part, parts));
  const Range range = part_range(w.jobs, part, parts);
  for (int64_t job = range.begin; job < range.end; job++)
    back_job(call, w, a, job, static_cast<float*>(scratch));
}

inline constexpr KernelRow kAttentionRows[] = {
    {"attention", "f32_i32_f32", plan_forward, run_forward},
    {"attention_back", "f32_i32_f32", plan_backward, run_backward},
};

}  // namespace gradloom::GL_ISA::attn
