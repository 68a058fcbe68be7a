// attention_forward.h: y = softmax(scale * q k^T) v and lse = log of the softmax's divisor, without a T x T matrix.
//
// FlashAttention-2 (Dao 2023), algorithm 1, with everything transposed:
//
//   for each strip of queries of a head (job; those with the most keys first):
//     Q = scale * q^T [D][width]
//     m = -3e38, l = 0, Y = 0                               one of each per query
//     for each block K, V of up to kKeys keys that some query of the strip sees:
//       S = K Q [keys][width]                               a product; softcap: S = cap * tanh(S / cap)
//       m' = max(m, max over the keys that the query sees of S)
//       P = exp(S - m'), 0 where a query does not see a key
//       l = exp(m - m') l + sum of P;   Y = exp(m - m') Y + V^T P;   m = m'
//     y = (Y / l)^T;  lse = m + log l
//
// One token at a cache has few strips: there the keys that it sees are cut into pieces of about kSplit, each a job with
// m, l and Y of its own in the workspace, and a second phase joins the pieces in their order. Where its heads are few
// as well, attention_token.h takes the place of the products.
#pragma once
#include "attention_token.h"

namespace gradloom::GL_ISA::attn {

constexpr int64_t kSplit = 256;  // keys of a piece, where one token looks at a cache

// Scores of `rows` keys from k0 become weights; factor: what the sums so far are to be multiplied by. Returns whether
// any factor is not 1.
template <bool rounded>
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
    F most = select(gt(m[2], m[0]), m[2], m[0]);
    if constexpr (rounded) most = next_power(most);
    F t[4] = {F::zero(), F::zero(), F::zero(), F::zero()};
    each_row(strip, k0, rows, [&](int64_t r, auto masked) __attribute__((always_inline)) {
      F p = exp(F::load(s + r * ld) - most);
      if constexpr (masked.value) {
        const I key = I::set1(static_cast<int32_t>(k0 + r));
        p = select(ge(key, first) & le(key, last), p, F::zero());
      }
      (rounded ? quant::ToBf16::of(p) : p).store(s + r * ld);
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

inline void clear(Sums& sums) {
  for (int j = 0; j < kStrip; j++) {
    sums.most[j] = kNothing;
    sums.total[j] = 0.0f;
  }
}
inline void rescale(const Shape& x, const Strip& strip, const float* factor, float* y) {
  for (int j = 0; j < strip.ld; j += F::N) {
    const F by = F::load(factor + j);
    for (int64_t i = 0; i < x.d; i++) (F::load(y + i * strip.ld + j) * by).store(y + i * strip.ld + j);
  }
}

// Products in f32, of rows that are widened where they are bf16. attention_pairs.h has another unit.
struct ForwardNumbers {
  // Scratch: of a strip of queries, packed; of rows of k and v.
  static size_t packed_floats(const Shape& x) { return static_cast<size_t>(kStrip * x.d); }
  static size_t row_floats(const Shape& x, bool rounded) { return static_cast<size_t>(rounded ? kKeys * x.d : 0); }

  // The strip over the keys [begin, end) that its queries see: y^T [d][ld], not yet divided, and its sums.
  void attend(const Shape& x, const Strip& strip, const Operand& q, const Operand& k, const Operand& v, int64_t begin,
              int64_t end, float scale, float* packed, float* scores, float* y, Sums& sums, float* room) {
    int64_t q_step = strip.q_step;
    const float* const from = q.rows(strip.n, x.d, q_step, room);
    pack(from, q_step, strip, x.d, scale, packed);
    const auto weights = k.rounded ? weigh<true> : weigh<false>;
    float factor[kStrip];
    clear(sums);
    for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
      const int64_t rows = end - k0 < kKeys ? end - k0 : kKeys;
      int64_t step = x.k_row;
      const float* const keys = k.from(k0 * x.k_row).rows(rows, x.d, step, room);
      product<Side::rows>(keys, step, rows, packed, strip.ld, x.d, strip.ld, scores, strip.ld, false);
      if (x.cap != 0.0f) cap_scores(scores, rows, strip.ld, strip.ld, x.cap);
      if (weights(strip, k0, rows, scores, sums, factor) && k0 != begin) rescale(x, strip, factor, y);
      step = x.k_row;
      const float* const values = v.from(k0 * x.k_row).rows(rows, x.d, step, room);
      product<Side::columns>(values, step, x.d, scores, strip.ld, rows, strip.ld, y, strip.ld, k0 != begin);
    }
  }
};

// y^T / total to where it belongs, and lse = most + log(total).
inline void finish(const Shape& x, const Strip& strip, float* y, const Sums& sums, float* out, float* lse) {
  float logs[kStrip];
  for (int j = 0; j < strip.ld; j += F::N) {
    const F total = F::load(sums.total + j), by = F::set1(1.0f) / total;
    (F::load(sums.most + j) + log(total)).store(logs + j);
    for (int64_t i = 0; i < x.d; i++) (F::load(y + i * strip.ld + j) * by).store(y + i * strip.ld + j);
  }
  transpose(y, strip.ld, x.d, strip.n, out + strip.q, strip.q_step);
  if (lse)
    for (int j = 0; j < strip.n; j++) lse[strip.lse + j * strip.lse_step] = logs[j];
}

// How the work of a call is cut: strips, and for one token at a cache pieces of the keys as well.
struct Forward {
  Shape x;
  int64_t heads, units, splits, split;  // heads: with strips of their own; keys of a piece
  explicit Forward(const Call& call) : x(call, call[0], call[1], call.attr_int(1) != 0, 2) {
    heads = x.single() ? x.groups : x.heads;
    splits = 1;
    split = x.keys;
    const int64_t most = x.reach(1);
    if (x.single() && most > kSplit) {
      splits = ceil_div(most, kSplit);
      if (splits > 64) splits = 64;
      split = ceil_div(most, splits);
    }
    units = x.batch * heads * x.strips();
  }
  double cost() const {
    const double most = static_cast<double>(x.reach(x.single() ? 1 : kStrip));
    const double pairs = static_cast<double>(x.batch * heads * x.strips() * kStrip) * most;
    return pairs * static_cast<double>(x.d + 8);
  }
  size_t slot() const { return sizeof(Sums) / sizeof(float) + static_cast<size_t>(kStrip * x.d); }
};

// (q, k, v, positions; scale, cached, window?, softcap?) -> y, lse?
template <class Unit> inline void plan_forward(const Call& call, KernelPlan& plan) {
  const Forward f(call);
  const size_t rows = Unit::row_floats(f.x, call[0].dtype == DType::bf16);
  plan.scratch_bytes =
      (Unit::packed_floats(f.x) + static_cast<size_t>(kStrip * (f.x.d + kKeys)) + rows) * sizeof(float);
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
  for (int64_t s = 1; s < f.splits && strip.begin + s * f.split < strip.end; s++) {
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

template <class Unit> inline void run_forward(const Call& call, int phase, int part, int parts, void* scratch) {
  const Forward f(call);
  const Shape& x = f.x;
  const float scale = static_cast<float>(call.attr_float(0));
  const bool rounded = call[0].dtype == DType::bf16;
  const Operand q(call[0], rounded), k0(call[1], rounded), v0(call[2], rounded);
  const int32_t* const positions = call[3].as<const int32_t>();
  float *const out = call[4].as<float>(), *const lse = call[5].as<float>();
  float* const room = f.splits > 1 ? call.workspace().as<float>() : nullptr;
  float* const packed = static_cast<float*>(scratch);
  float *const y = packed + Unit::packed_floats(x), *const scores = y + kStrip * x.d, *const wide = scores + kStrip * kKeys;
  const int64_t strips = x.strips(), pieces = phase == 0 ? f.splits : 1;
  const bool few = x.single() && x.share <= kFewHeads;
  const Range range = part_range(f.units * pieces, part, parts);
  Unit products;
  for (int64_t job = range.begin; job < range.end; job++) {
    // The last strips of a head cost most: they come first. A piece of the keys is read by one head after the other.
    const int64_t piece = job / f.units, unit = job % f.units, at = strips - 1 - unit % strips;
    const int64_t h = unit / strips % f.heads, b = unit / strips / f.heads, n = x.single() ? h : h / x.share;
    const Strip strip(call, x, positions, b, h, at, x.single());
    float* const slots = room + static_cast<size_t>(unit * f.splits) * f.slot();
    if (phase == 1) {
      combine(f, strip, slots, out, lse);
      continue;
    }
    const int64_t begin = strip.begin + (f.splits > 1 ? piece * f.split : 0);
    const int64_t end = f.splits > 1 && begin + f.split < strip.end ? begin + f.split : strip.end;
    if (begin >= end) continue;
    const Operand k = k0.from(x.k_at(b, 0, n)), v = v0.from(x.k_at(b, 0, n)), queries = q.from(strip.q);
    float* const slot = slots + static_cast<size_t>(piece) * f.slot();
    Sums own;
    Sums& sums = f.splits > 1 ? *reinterpret_cast<Sums*>(slot) : own;
    float* const to = f.splits > 1 ? slot + sizeof(Sums) / sizeof(float) : y;
    if (few) {
      attend_one_token(x, strip, queries, k, v, begin, end, scale, scores, packed, to, sums, wide);
    } else {
      products.attend(x, strip, queries, k, v, begin, end, scale, packed, scores, to, sums, wide);
    }
    if (f.splits == 1) finish(x, strip, to, sums, out, lse);
  }
}

}  // namespace gradloom::GL_ISA::attn
