// attention_token.h: one token's attention to a cache, by dot products. Few queries (one token's heads that share their
// keys) fill no tile: here nothing is packed, and each key and each value is read once for up to four of them.
//
//   for each up to 4 queries q [H][D]:
//     for each block K, V of up to kKeys keys:
//       s[h] = scale q[h] K^T                         four keys at a time
//       m'[h] = max(m[h], max s[h]);  p[h] = exp(s[h] - m'[h])
//       l[h] = exp(m[h] - m'[h]) l[h] + sum p[h];     y[h] = exp(m[h] - m'[h]) y[h] + p[h] V;     m = m'
#pragma once
#include "attention_strip.h"

namespace gradloom::GL_ISA::attn {

constexpr int kFewHeads = 6;  // of a key head: beyond, the products of strips are faster
constexpr int kFew = 4;       // heads taken together
static_assert(2 * kFew <= kStrip);

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
inline float weigh_one(float* scores, int64_t rows, bool rounded, float& most, float& total) {
  F m = F::set1(most);
  for (int64_t r = 0; r < rows; r += F::N) {
    const int lanes = rows - r < F::N ? static_cast<int>(rows - r) : F::N;
    const F x = F::load_n(scores + r, lanes);
    m = select(gt(x, m) & Mask<float>::first_n(lanes), x, m);
  }
  const float before = most;
  most = reduce_max(m);
  if (rounded) {
    float power[F::N];
    next_power(F::set1(most)).store(power);
    most = power[0];
  }
  F sum = F::zero();
  for (int64_t r = 0; r < rows; r += F::N) {
    const int lanes = rows - r < F::N ? static_cast<int>(rows - r) : F::N;
    const F p = exp(F::load_n(scores + r, lanes) - F::set1(most));
    sum += select(Mask<float>::first_n(lanes), p, F::zero());
    (rounded ? quant::ToBf16::of(p) : p).store_n(scores + r, lanes);
  }
  float factor[F::N];
  exp(F::set1(before - most)).store(factor);
  total = total * factor[0] + reduce_add(sum);
  return factor[0];
}

// As attend, for one token: H queries [d] that all see the keys [begin, end). y [H][d].
template <int H>
inline void attend_few(const Shape& x, const float* q, const Operand& k, const Operand& v, int64_t begin, int64_t end,
                       float scale, float* scores, float* y, float* most, float* total, float* room) {
  for (int64_t i = 0; i < H * x.d; i++) y[i] = 0.0f;
  for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
    const int64_t rows = end - k0 < kKeys ? end - k0 : kKeys;
    int64_t step = x.k_row;
    const float* const keys = k.from(k0 * x.k_row).rows(rows, x.d, step, room);
    score_few<H>(q, keys, step, rows, x.d, scale, scores);
    if (x.cap != 0.0f) cap_scores(scores, H, kKeys, rows, x.cap);
    for (int h = 0; h < H; h++) {
      const float by = weigh_one(scores + h * kKeys, rows, k.rounded, most[h], total[h]);
      if (by != 1.0f)
        for (int64_t i = 0; i < x.d; i++) y[h * x.d + i] *= by;
    }
    step = x.k_row;
    const float* const values = v.from(k0 * x.k_row).rows(rows, x.d, step, room);
    gather_few<H>(scores, values, step, rows, x.d, y);
  }
}

// All queries of the strip, a few at a time. The result is that of attend: y^T [d][ld]. few: room for 2 kFew rows [d].
inline void attend_one_token(const Shape& x, const Strip& strip, const Operand& q, const Operand& k, const Operand& v,
                             int64_t begin, int64_t end, float scale, float* scores, float* few, float* y, Sums& sums,
                             float* room) {
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
    int64_t step = x.d;
    const float* const queries = q.from(j * x.d).rows(heads, x.d, step, few + kFew * x.d);
    run(x, queries, k, v, begin, end, scale, scores, few, sums.most + j, sums.total + j, room);
    for (int h = 0; h < heads; h++)
      for (int64_t i = 0; i < x.d; i++) y[i * strip.ld + j + h] = few[h * x.d + i];
  }
  for (int j = strip.n; j < strip.ld; j++)
    for (int64_t i = 0; i < x.d; i++) y[i * strip.ld + j] = 0.0f;
}

}  // namespace gradloom::GL_ISA::attn
