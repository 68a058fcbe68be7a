// loss.h: cross entropy from logits, with its gradient in the same pass, and the count of correct rows.
//
// A row's loss is logsumexp(x) - x[label]; for label rows it is the sum of label * (logsumexp(x) - x) over the
// classes whose label is not 0. Nothing is clamped: a row with NaN or +inf has a loss that is not finite, and so has a
// row whose label stands at -inf. A class at -inf that the label does not name has probability 0 and adds nothing. An
// ignored row (id -100) adds exactly 0 to loss, weight and gradient, whatever its logits hold. The gradient may lie in
// the logits' or the label rows' own storage. Inputs dense.
#pragma once
#include "../simd/math.h"
#include "argmax.h"
#include "index.h"

namespace gradloom::GL_ISA {

constexpr int64_t kLossNarrow = 16;  // up to here lanes run over rows, beyond it over classes

struct LossSums {
  double loss = 0, weight = 0;
};

struct LossCall {
  const float* logits;
  const int32_t* ids;      // one of ids and label rows
  const float* labels;
  const float* weights;    // nullptr: every row weighs 1
  float* grad;             // nullptr: not wanted
  int64_t classes;
  Status* status;
};

inline LossCall loss_call(const Call& call, int grad_arg) {
  LossCall c = {};
  c.logits = call[0].as<const float>();
  if (call[1].dtype == DType::i32) c.ids = call[1].as<const int32_t>();
  else c.labels = call[1].as<const float>();
  c.weights = call[2].as<const float>();
  c.grad = grad_arg ? call[grad_arg].as<float>() : nullptr;
  c.classes = rows_of(call[0]).width;
  c.status = call.status;
  return c;
}

// Lane i is v[at[i]].
inline F lanes_pick(F v, I at) {
#if defined(GL_ISA_AVX512)
  return {_mm512_permutexvar_ps(at.v, v.v)};
#elif defined(GL_ISA_AVX2)
  return {_mm256_permutevar8x32_ps(v.v, at.v)};
#else
  (void)at;
  return v;
#endif
}
constexpr int kLaneBits = F::N == 16 ? 4 : F::N == 8 ? 3 : 0;
static_assert(F::N == 1 << kLaneBits);

// Few columns: the rows lie in `columns` whole vectors, and every lane is picked from one of them.
template <int columns> inline void lanes_from_few(const float* p, int left, float* lanes) {
  F flat[columns];
  for (int j = 0; j < columns; j++) {
    const int more = left * columns - j * F::N;
    flat[j] = F::load_n(p + j * F::N, more < 0 ? 0 : more > F::N ? F::N : more);
  }
  for (int c = 0; c < columns; c++) {
    const I place = I::iota() * I::set1(columns) + I::set1(c), vector = place >> kLaneBits;
    const I lane = place & I::set1(F::N - 1);
    F v = lanes_pick(flat[0], lane);
    for (int j = 1; j < columns; j++) v = select(eq(vector, I::set1(j)), lanes_pick(flat[j], lane), v);
    v.store(lanes + c * F::N);
  }
}
template <int columns> inline void few_from_lanes(const float* lanes, int left, float* p) {
  for (int j = 0; j < columns; j++) {
    const I place = I::iota() + I::set1(j * F::N);
    const I row = (place * I::set1(65536 / columns + 1)) >> 16, column = place - row * I::set1(columns);
    F v = lanes_pick(F::load(lanes), row);
    for (int c = 1; c < columns; c++)
      v = select(eq(column, I::set1(c)), lanes_pick(F::load(lanes + c * F::N), row), v);
    const int more = left * columns - j * F::N;
    v.store_n(p + j * F::N, more < 0 ? 0 : more > F::N ? F::N : more);
  }
}

// `columns` of `left` rows: lane i of vector c is p[i * columns + c].
inline void lanes_from_rows(const float* p, int64_t columns, int left, float* lanes) {
  if (columns == 2) return lanes_from_few<2>(p, left, lanes);
  if (columns == 3) return lanes_from_few<3>(p, left, lanes);
  if (columns == 4) return lanes_from_few<4>(p, left, lanes);
  if (left == F::N) {
    for (int64_t c = 0; c < columns; c++) F::gather(p + c, columns).store(lanes + c * F::N);
    return;
  }
  for (int64_t c = 0; c < columns; c++) F::gather_n(p + c, columns, left).store(lanes + c * F::N);
}
inline void rows_from_lanes(const float* lanes, int64_t columns, int left, float* p) {
  if (columns == 2) return few_from_lanes<2>(lanes, left, p);
  if (columns == 3) return few_from_lanes<3>(lanes, left, p);
  if (columns == 4) return few_from_lanes<4>(lanes, left, p);
  for (int i = 0; i < left; i++)
    for (int64_t c = 0; c < columns; c++) p[i * columns + c] = lanes[c * F::N + i];
}

// Which of the rows from r on take part; an id that is neither a class nor -100 stops the run.
inline Mask<float> rows_taking_part(const LossCall& k, I id, int64_t r, int left) {
  const Mask<float> on = Mask<float>::first_n(left);
  const Mask<float> known = ge(id, I::zero()) & lt(id, I::set1(static_cast<int32_t>(k.classes))) & on;
  const Mask<float> bad = ~known & ~eq(id, I::set1(static_cast<int32_t>(kIgnored))) & on;
  if (bad.any()) {
    const int64_t first = r + __builtin_ctz(bad.bits());
    k.status->fail(Stop::index, first, k.ids[first]);
  }
  return known;
}

template <bool Ids> inline void loss_narrow(const LossCall& k, Range rows, LossSums& sums) {
  constexpr int64_t N = F::N;
  constexpr int kGroups = 4;  // of N rows each, so that what is slow in one group overlaps with the next
  const int64_t C = k.classes, room = kLossNarrow * N;
  constexpr int64_t kSize = kGroups * kLossNarrow * F::N, kSizeRows = Ids ? 1 : kSize;
  alignas(64) float x_all[kSize], l_all[kSizeRows], v_all[kSizeRows];  // exp(x - top), label, x - top
  struct Group {
    Mask<float> on;
    I id;
    F w, sum, away;  // away: top - x at the label
  } groups[kGroups];
  for (int64_t r0 = rows.begin; r0 < rows.end; r0 += kGroups * N) {
    int count = 0;
    for (int64_t r = r0; count < kGroups && r < rows.end; r += N, count++) {
      float *x = x_all + count * room, *l = l_all + (Ids ? 0 : count * room), *vs = v_all + (Ids ? 0 : count * room);
      const int left = rows.end - r < N ? static_cast<int>(rows.end - r) : F::N;
      Group& g = groups[count];
      g.on = Mask<float>::first_n(left);
      if constexpr (Ids) {
        g.id = I::load_n(k.ids + r, left);
        g.on = rows_taking_part(k, g.id, r, left);
      } else {
        lanes_from_rows(k.labels + r * C, C, left, l);
      }
      g.w = select(g.on, k.weights ? F::load_n(k.weights + r, left) : F::set1(1.0f), F::zero());
      lanes_from_rows(k.logits + r * C, C, left, x);
      F top = F::set1(-__builtin_inff());
      for (int64_t c = 0; c < C; c++) top = max_number(F::load(x + c * N), top);
      F sum = F::zero(), away = F::zero();
      for (int64_t c = 0; c < C; c++) {
        const F v = F::load(x + c * N) - top, e = exp(v);
        sum += e;
        e.store(x + c * N);
        if constexpr (Ids) away = select(eq(g.id, I::set1(static_cast<int32_t>(c))), -v, away);
        else v.store(vs + c * N);
      }
      g.sum = sum, g.away = away;
    }
    for (int j = 0; j < count; j++) {
      float *x = x_all + j * room, *l = l_all + (Ids ? 0 : j * room), *vs = v_all + (Ids ? 0 : j * room);
      const Group& g = groups[j];
      const int64_t r = r0 + j * N;
      F loss = log(g.sum), total = F::set1(1.0f);
      if constexpr (Ids) {
        loss += g.away;
      } else {
        const F log_sum = loss;
        loss = total = F::zero();
        for (int64_t c = 0; c < C; c++) {
          const F label = F::load(l + c * N);
          loss = select(eq(label, F::zero()), loss, fma(label, log_sum - F::load(vs + c * N), loss));
          total += label;
        }
      }
      sums.loss += static_cast<double>(reduce_add(select(g.on, loss * g.w, F::zero())));
      sums.weight += static_cast<double>(reduce_add(g.w));
      if (!k.grad) continue;
      const F share = Ids ? g.w / g.sum : g.w / g.sum * total;
      for (int64_t c = 0; c < C; c++) {
        F target;
        if constexpr (Ids) target = select(eq(g.id, I::set1(static_cast<int32_t>(c))), g.w, F::zero());
        else target = g.w * F::load(l + c * N);
        select(g.on, F::load(x + c * N) * share - target, F::zero()).store(x + c * N);
      }
      const int left = rows.end - r < N ? static_cast<int>(rows.end - r) : F::N;
      rows_from_lanes(x, C, left, k.grad + r * C);
    }
  }
}

template <bool Ids> inline void loss_wide(const LossCall& k, Range rows, LossSums& sums) {
  const int64_t C = k.classes;
  int64_t most = 4096 / C;
  most = most < 1 ? 1 : most > kRowBlock ? kRowBlock : most;
  for (int64_t r0 = rows.begin; r0 < rows.end; r0 += most) {
    const int count = static_cast<int>(rows.end - r0 < most ? rows.end - r0 : most);
    const float* const x0 = k.logits + r0 * C;
    const float* const l0 = Ids ? nullptr : k.labels + r0 * C;
    float* const g0 = k.grad ? k.grad + r0 * C : nullptr;
    bool on[kRowBlock];
    float top[kRowBlock], logs[kRowBlock];
    double sum[kRowBlock], away[kRowBlock];  // away: top - x at the label
    for (int j = 0; j < count; j++) {
      on[j] = true;
      sum[j] = 1;
      if constexpr (Ids) {
        const int64_t id = k.ids[r0 + j];
        on[j] = id >= 0 && id < C;
        if (!on[j] && id != kIgnored) k.status->fail(Stop::index, r0 + j, id);
        if (!on[j]) continue;
      }
      const float* x = x0 + j * C;
      top[j] = row_top_of(C, [&](int64_t i, auto t) { return row_load(x + i, t); });
    }
    for (int j = 0; j < count; j++) {
      if (!on[j]) continue;
      const float* x = x0 + j * C;
      const F high = F::set1(top[j]);
      if constexpr (Ids) away[j] = static_cast<double>(top[j]) - static_cast<double>(x[k.ids[r0 + j]]);
      if (Ids && g0) {
        float* grad = g0 + j * C;
        sum[j] = row_sum_of(C, [&](int64_t i, auto t) {
          const F e = exp(row_load(x + i, t) - high);
          row_store(grad + i, e, t);
          return e;
        });
      } else {
        sum[j] = row_sum_of(C, [&](int64_t i, auto t) { return exp(row_load(x + i, t) - high); });
      }
    }
    log_sums(sum, count, logs);
    for (int j = 0; j < count; j++) {
      float* grad = g0 ? g0 + j * C : nullptr;
      if (!on[j]) {
        if (grad) std::memset(grad, 0, static_cast<size_t>(C) * sizeof(float));
        continue;
      }
      const float w = k.weights ? k.weights[r0 + j] : 1.0f;
      Sums row;  // its loss, and the sum of its labels
      if constexpr (Ids) {
        row = {away[j] + static_cast<double>(logs[j]), 1};
      } else {
        const float *x = x0 + j * C, *l = l0 + j * C;
        const F high = F::set1(top[j]), log_sum = F::set1(logs[j]);
        row = row_sums_of(C, [&](int64_t i, auto t, F& a, F& b) {
          const F li = row_load(l + i, t);
          a = select(eq(li, F::zero()), a, mul_add(li, (high - row_load(x + i, t)) + log_sum, a));
          b += li;
        });
      }
      sums.loss += static_cast<double>(w) * row.a;
      sums.weight += static_cast<double>(w);
      if (!grad) continue;
      const F share = F::set1(static_cast<float>(static_cast<double>(w) * row.b / sum[j]));
      if constexpr (Ids) {
        row_each(C, [&](int64_t i, auto t) { row_store(grad + i, row_load(grad + i, t) * share, t); });
        grad[k.ids[r0 + j]] -= w;
      } else {
        const float* l = l0 + j * C;
        const float* x = x0 + j * C;
        const F weight = F::set1(w), high = F::set1(top[j]);
        row_each(C, [&](int64_t i, auto t) {  // exp once more: grad may be logits and labels both
          row_store(grad + i, exp(row_load(x + i, t) - high) * share - weight * row_load(l + i, t), t);
        });
      }
    }
  }
}

inline uint32_t loss_parts(const Call& call) {
  const int64_t rows = rows_of(call[0]).count;
  const uint32_t parts = parts_for(static_cast<double>(call[0].size()), 32 * 1024);
  const int64_t blocks = (rows + F::N - 1) / F::N;
  return blocks < 1 ? 1 : blocks < parts ? static_cast<uint32_t>(blocks) : parts;
}

inline void cross_entropy_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = loss_parts(call);
  if (plan.parts[0] > 1) {
    plan.phases = 2;
    plan.workspace_bytes = plan.parts[0] * sizeof(LossSums);
  }
}

// loss = sum of weight * row loss, weight = sum of the weights, grad = d loss / d logits
inline void cross_entropy_run(const Call& call, int phase, int part, int parts, void*) {
  const bool many = call.arg_count > 6;  // then the last argument holds one pair of sums per part
  LossSums sums;
  if (phase == 1) {
    const LossSums* partial = call.workspace().as<const LossSums>();
    const uint32_t count = loss_parts(call);
    for (uint32_t p = 0; p < count; p++) {
      sums.loss += partial[p].loss;
      sums.weight += partial[p].weight;
    }
  } else {
    const LossCall k = loss_call(call, 5);
    const Range rows = part_range(rows_of(call[0]).count, part, parts, F::N);
    if (k.classes <= kLossNarrow) {
      if (k.ids) loss_narrow<true>(k, rows, sums);
      else loss_narrow<false>(k, rows, sums);
    } else {
      if (k.ids) loss_wide<true>(k, rows, sums);
      else loss_wide<false>(k, rows, sums);
    }
    if (many) {
      call.workspace().as<LossSums>()[part] = sums;
      return;
    }
  }
  *call[3].as<float>() = static_cast<float>(sums.loss);
  *call[4].as<float>() = static_cast<float>(sums.weight);
}

// Rows that count whose first maximum is at the label (the id, or the first maximum of the label row). Ignored rows
// and rows of weight 0 do not count.
inline void correct_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = loss_parts(call);
  if (plan.parts[0] > 1) {
    plan.phases = 2;
    plan.workspace_bytes = plan.parts[0] * sizeof(int64_t);
  }
}

inline int64_t correct_narrow(const LossCall& k, Range rows) {
  constexpr int64_t N = F::N;
  const int64_t C = k.classes;
  alignas(64) float x[kLossNarrow * F::N];
  const auto first_maximum = [&](const float* from, int64_t r, int left) {
    lanes_from_rows(from + r * C, C, left, x);
    F best = F::load(x);
    I place = I::zero();
    for (int64_t c = 1; c < C; c++)
      place = lanes_argmax(F::load(x + c * N), I::set1(static_cast<int32_t>(c)), best, place);
    return place;
  };
  int64_t count = 0;
  for (int64_t r = rows.begin; r < rows.end; r += N) {
    const int left = rows.end - r < N ? static_cast<int>(rows.end - r) : F::N;
    Mask<float> on = Mask<float>::first_n(left);
    I id;
    if (k.ids) {
      id = I::load_n(k.ids + r, left);
      on = rows_taking_part(k, id, r, left);
    } else {
      id = first_maximum(k.labels, r, left);
    }
    if (k.weights) on = on & ne(F::load_n(k.weights + r, left), F::zero());
    count += __builtin_popcount((eq(first_maximum(k.logits, r, left), id) & on).bits());
  }
  return count;
}

inline int64_t correct_wide(const LossCall& k, Range rows) {
  const int64_t C = k.classes;
  int64_t count = 0;
  for (int64_t r = rows.begin; r < rows.end; r++) {
    int64_t id;
    if (k.ids) {
      id = k.ids[r];
      if (id < 0 || id >= C) {
        if (id != kIgnored) k.status->fail(Stop::index, r, id);
        continue;
      }
    } else {
      id = row_argmax(k.labels + r * C, C);
    }
    if (k.weights && k.weights[r] == 0) continue;
    count += row_argmax(k.logits + r * C, C) == id;
  }
  return count;
}

inline void correct_run(const Call& call, int phase, int part, int parts, void*) {
  const bool many = call.arg_count > 4;
  int64_t total = 0;
  if (phase == 1) {
    const int64_t* partial = call.workspace().as<const int64_t>();
    const uint32_t count = loss_parts(call);
    for (uint32_t p = 0; p < count; p++) total += partial[p];
  } else {
    const LossCall k = loss_call(call, 0);
    const Range rows = part_range(rows_of(call[0]).count, part, parts, F::N);
    total = k.classes <= kLossNarrow ? correct_narrow(k, rows) : correct_wide(k, rows);
    if (many) {
      call.workspace().as<int64_t>()[part] = total;
      return;
    }
  }
  *call[3].as<float>() = static_cast<float>(total);
}

inline constexpr KernelRow kLossRows[] = {
    {"cross_entropy_sum", "f32_i32_f32", cross_entropy_plan, cross_entropy_run},
    {"cross_entropy_sum", "f32", cross_entropy_plan, cross_entropy_run},
    {"correct", "f32_i32_f32", correct_plan, correct_run},
    {"correct", "f32", correct_plan, correct_run},
};

}  // namespace gradloom::GL_ISA
