// update.h: the end of a step. One instruction covers many tensors: they are taken as one long run of elements, in the
// order of the arguments, and parts are ranges of that run. Outputs are the inputs' own storage, so they are not
// looked at; everything is dense.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA::update {

constexpr int64_t kGrain = 1024;

inline uint32_t update_parts(int64_t n) { return parts_for(static_cast<double>(n), 32768, 64); }
inline float scalar(const Call& c, int i) { return *c[i].as<float>(); }
inline float* floats(const Tensor& t) { return t.as<float>(); }

// Groups of `size` arguments each, the first tensor of group k at arg `first + k * size`.
inline int64_t total_size(const Call& c, int first, int size, int groups) {
  int64_t n = 0;
  for (int k = 0; k < groups; k++) n += c[first + k * size].size();
  return n;
}

// body(index of the group's first argument, begin, end) for every piece of this part's range.
template <class Body>
inline void for_pieces(const Call& c, int first, int size, int groups, int part, int parts, const Body& body) {
  int64_t n = 0;
  if (parts > 1) n = total_size(c, first, size, groups);
  const Range r = parts > 1 ? part_range(n, part, parts, kGrain) : Range{0, INT64_MAX};
  int64_t base = 0;
  for (int k = 0; k < groups && base < r.end; k++) {
    const int arg = first + k * size;
    const int64_t here = c[arg].size(), begin = r.begin > base ? r.begin - base : 0;
    const int64_t end = r.end - base < here ? r.end - base : here;
    if (begin < end) body(arg, begin, end);
    base += here;
  }
}

// step(i, n) for every vector of [begin, end): n lanes from element i. n is a constant but for the last.
template <class Step> inline __attribute__((always_inline)) void vectors(int64_t begin, int64_t end, const Step& step) {
  int64_t i = begin;
  for (; i + F::N <= end; i += F::N) step(i, F::N);
  if (i < end) step(i, static_cast<int>(end - i));
}
inline __attribute__((always_inline)) F get(const float* p, int n) { return n == F::N ? F::load(p) : F::load_n(p, n); }
inline __attribute__((always_inline)) void put(float* p, F v, int n) {
  if (n == F::N) v.store(p);
  else v.store_n(p, n);
}
#define GL_LANES [&](int64_t i, int n) __attribute__((always_inline))

// ---- sgd: lr momentum weight_decay weight | w g m? -> | w m; sgd_nesterov: with m -----------------------------

inline int sgd_groups(const Call& c) { return (c.arg_count - 4) / 5; }
inline void plan_sgd(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 4, 3, sgd_groups(c)));
}
template <bool nesterov> inline void run_sgd(const Call& c, int, int part, int parts, void*) {
  const float lr = scalar(c, 0), weight = scalar(c, 3);
  const F decay = F::set1(static_cast<float>(1.0 - static_cast<double>(lr) * scalar(c, 2)));
  const F rate = F::set1(lr), momentum = F::set1(scalar(c, 1)), divisor = F::set1(weight);
  // Division, not a product with the reciprocal: 6 rows of gradient 1 and weight 6 give exactly 1. A step in which
  // no row counts (weight 0) has no gradient.
  const bool divides = weight != 1.0f, nothing = weight == 0.0f;
  for_pieces(c, 4, 3, sgd_groups(c), part, parts, [&](int arg, int64_t begin, int64_t end) {
    float *w = floats(c[arg]), *m = floats(c[arg + 2]);
    const float* g = floats(c[arg + 1]);
    vectors(begin, end, GL_LANES {
      F step = get(g + i, n);
      if (divides) step = nothing ? F::zero() : step / divisor;
      if (nesterov) {
        const F m_new = mul_add(momentum, get(m + i, n), step);
        put(m + i, m_new, n);
        step = mul_add(momentum, m_new, step);
      } else if (m) {
        step = mul_add(momentum, get(m + i, n), step);
        put(m + i, step, n);
      }
      put(w + i, get(w + i, n) * decay - rate * step, n);
    });
  });
}

// ---- adamw: lr beta1 beta2 eps weight_decay step weight | w g m v -> | w m v ------------------------------------

// Of adamw and adamw_8bit, for all lanes. m^ and v^ are never stored: their divisors go into the rate and under the root.
struct AdamwScalars {
  F b1, a1, b2, a2, inverse, rate, unbias, decay, eps;
  explicit AdamwScalars(const Call& c) {
    const double lr = scalar(c, 0), beta1 = scalar(c, 1), beta2 = scalar(c, 2), t = scalar(c, 5), weight = scalar(c, 6);
    b1 = F::set1(static_cast<float>(beta1)), a1 = F::set1(static_cast<float>(1.0 - beta1));
    b2 = F::set1(static_cast<float>(beta2)), a2 = F::set1(static_cast<float>(1.0 - beta2));
    inverse = F::set1(static_cast<float>(weight == 0.0 ? 0.0 : 1.0 / weight));
    rate = F::set1(static_cast<float>(lr / (1.0 - __builtin_pow(beta1, t))));
    unbias = F::set1(static_cast<float>(1.0 / (1.0 - __builtin_pow(beta2, t))));
    decay = F::set1(static_cast<float>(1.0 - lr * scalar(c, 4))), eps = F::set1(scalar(c, 3));
  }
  F stepped(F w, F m, F v) const { return w * decay - rate * m / (sqrt(v * unbias) + eps); }
};

inline int adamw_groups(const Call& c) { return (c.arg_count - 7) / 7; }
inline void plan_adamw(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 7, 4, adamw_groups(c)));
}
inline void run_adamw(const Call& c, int, int part, int parts, void*) {
  const AdamwScalars s(c);
  for_pieces(c, 7, 4, adamw_groups(c), part, parts, [&](int arg, int64_t begin, int64_t end) {
    float *w = floats(c[arg]), *m = floats(c[arg + 2]), *v = floats(c[arg + 3]);
    const float* g = floats(c[arg + 1]);
    vectors(begin, end, GL_LANES {
      const F slope = get(g + i, n) * s.inverse;
      const F m_new = mul_add(s.b1, get(m + i, n), s.a1 * slope);
      const F v_new = mul_add(s.b2, get(v + i, n), s.a2 * slope * slope);
      put(m + i, m_new, n);
      put(v + i, v_new, n);
      put(w + i, s.stepped(get(w + i, n), m_new, v_new), n);
    });
  });
}

// ---- lion: lr beta1 beta2 weight_decay weight | w g m -> | w m --------------------------------------------------

struct LionScalars {  // of lion and lion_8bit, for all lanes
  F b1, a1, b2, a2, inverse, decay, rate;
  explicit LionScalars(const Call& c) {
    const double lr = scalar(c, 0), beta1 = scalar(c, 1), beta2 = scalar(c, 2), weight = scalar(c, 4);
    b1 = F::set1(static_cast<float>(beta1)), a1 = F::set1(static_cast<float>(1.0 - beta1));
    b2 = F::set1(static_cast<float>(beta2)), a2 = F::set1(static_cast<float>(1.0 - beta2));
    inverse = F::set1(static_cast<float>(weight == 0.0 ? 0.0 : 1.0 / weight));
    decay = F::set1(static_cast<float>(1.0 - lr * scalar(c, 3))), rate = F::set1(static_cast<float>(lr));
  }
  F stepped(F w, F way) const { return w * decay - select(eq(way, F::zero()), F::zero(), copysign(rate, way)); }
};

inline int lion_groups(const Call& c) { return (c.arg_count - 5) / 5; }
inline void plan_lion(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 5, 3, lion_groups(c)));
}
inline void run_lion(const Call& c, int, int part, int parts, void*) {
  const LionScalars s(c);
  for_pieces(c, 5, 3, lion_groups(c), part, parts, [&](int arg, int64_t begin, int64_t end) {
    float *w = floats(c[arg]), *m = floats(c[arg + 2]);
    const float* g = floats(c[arg + 1]);
    vectors(begin, end, GL_LANES {
      const F slope = get(g + i, n) * s.inverse, m_old = get(m + i, n);
      const F way = mul_add(s.b1, m_old, s.a1 * slope);
      put(m + i, mul_add(s.b2, m_old, s.a2 * slope), n);
      put(w + i, s.stepped(get(w + i, n), way), n);
    });
  });
}

// ---- rmsprop: lr alpha momentum eps weight_decay weight | w g v a? m? -> | w v a m ------------------------------

inline int rmsprop_groups(const Call& c) { return (c.arg_count - 6) / 9; }
inline void plan_rmsprop(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 6, 5, rmsprop_groups(c)));
}
inline void run_rmsprop(const Call& c, int, int part, int parts, void*) {
  const double lr = scalar(c, 0), alpha = scalar(c, 1), weight = scalar(c, 5);
  const F keep = F::set1(static_cast<float>(alpha)), take = F::set1(static_cast<float>(1.0 - alpha));
  const F momentum = F::set1(scalar(c, 2)), eps = F::set1(scalar(c, 3)), rate = F::set1(static_cast<float>(lr));
  const F inverse = F::set1(static_cast<float>(weight == 0.0 ? 0.0 : 1.0 / weight));
  const F decay = F::set1(static_cast<float>(1.0 - lr * scalar(c, 4)));
  for_pieces(c, 6, 5, rmsprop_groups(c), part, parts, [&](int arg, int64_t begin, int64_t end) {
    float *w = floats(c[arg]), *v = floats(c[arg + 2]), *a = floats(c[arg + 3]), *m = floats(c[arg + 4]);
    const float* g = floats(c[arg + 1]);
    vectors(begin, end, GL_LANES {
      const F slope = get(g + i, n) * inverse;
      F spread = mul_add(keep, get(v + i, n), take * slope * slope);
      put(v + i, spread, n);
      if (a) {  // centred: the variance, which rounding may bring below 0
        const F mean = mul_add(keep, get(a + i, n), take * slope);
        put(a + i, mean, n);
        spread = max(spread - mean * mean, F::zero());
      }
      F step = slope / (sqrt(spread) + eps);
      if (m) {
        step = mul_add(momentum, get(m + i, n), step);
        put(m + i, step, n);
      }
      put(w + i, get(w + i, n) * decay - rate * step, n);
    });
  });
}

// ---- average: decay | mean w -> | mean ----------------------------------------------------------------------------

inline void plan_average(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 1, 2, (c.arg_count - 1) / 3));
}
inline void run_average(const Call& c, int, int part, int parts, void*) {
  const F take = F::set1(static_cast<float>(1.0 - static_cast<double>(scalar(c, 0))));
  for_pieces(c, 1, 2, (c.arg_count - 1) / 3, part, parts, [&](int arg, int64_t begin, int64_t end) {
    float* mean = floats(c[arg]);
    const float* w = floats(c[arg + 1]);
    vectors(begin, end, GL_LANES {
      const F old = get(mean + i, n);
      put(mean + i, mul_add(take, get(w + i, n) - old, old), n);  // of equal numbers the number itself
    });
  });
}

// ---- accumulate: keep | acc g -> | acc --------------------------------------------------------------------------

inline int accumulate_groups(const Call& c) { return (c.arg_count - 1) / 3; }
inline void plan_accumulate(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 1, 2, accumulate_groups(c)));
}
inline void run_accumulate(const Call& c, int, int part, int parts, void*) {
  const bool keep = scalar(c, 0) != 0.0f;
  for_pieces(c, 1, 2, accumulate_groups(c), part, parts, [&](int arg, int64_t begin, int64_t end) {
    float* acc = floats(c[arg]);
    const float* g = floats(c[arg + 1]);
    if (!keep) std::memcpy(acc + begin, g + begin, static_cast<size_t>(end - begin) * sizeof(float));
    else vectors(begin, end, GL_LANES { put(acc + i, get(acc + i, n) + get(g + i, n), n); });
  });
}

// ---- zero: | acc -> | acc ---------------------------------------------------------------------------------------

inline void plan_zero(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 0, 1, c.arg_count / 2));
}
inline void run_zero(const Call& c, int, int part, int parts, void*) {
  for_pieces(c, 0, 1, c.arg_count / 2, part, parts, [&](int arg, int64_t begin, int64_t end) {
    std::memset(floats(c[arg]) + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

// ---- assign: | state x -> | state ---------------------------------------------------------------------------------

inline void plan_assign(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, 0, 2, c.arg_count / 3));
}
inline void run_assign(const Call& c, int, int part, int parts, void*) {
  for_pieces(c, 0, 2, c.arg_count / 3, part, parts, [&](int arg, int64_t begin, int64_t end) {
    std::memcpy(floats(c[arg]) + begin, floats(c[arg + 1]) + begin, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

// ---- set_rows: cache rows position -> cache; axis ------------------------------------------------------------------

inline void plan_set_rows(const Call& c, KernelPlan& plan) { plan.parts[0] = update_parts(c[1].size()); }
template <class Position> inline void run_set_rows(const Call& c, int, int part, int parts, void*) {
  const Tensor &cache = c[0], &rows = c[1];
  const int axis = static_cast<int>(c.attr_int(0));
  const int64_t at = *c[2].as<Position>(), n = rows.shape[axis], most = cache.shape[axis];
  if (at < 0 || at > most - n) return c.status->fail(Stop::index, 0, at);
  int64_t inner = 1;
  for (int i = axis + 1; i < cache.rank; i++) inner *= cache.shape[i];
  const Range r = part_range(rows.size(), part, parts, kGrain);
  for (int64_t i = r.begin; i < r.end;) {  // a stretch of rows that lie side by side in both
    const int64_t outer = i / (n * inner), end = (outer + 1) * n * inner < r.end ? (outer + 1) * n * inner : r.end;
    std::memcpy(floats(cache) + i + (outer * (most - n) + at) * inner, floats(rows) + i,
                static_cast<size_t>(end - i) * sizeof(float));
    i = end;
  }
}

// ---- grad_norm: weight | g -> norm; guard: loss weight | g -> norm -------------------------------------------------------------------------------

// With several parts, each leaves its sum in the workspace, and the second phase adds them in order.
inline int norm_groups(const Call& c, int first) {
  const bool shared = c[c.arg_count - 1].dtype == DType::u8;
  return c.arg_count - first - 1 - (shared ? 1 : 0);
}
template <int first> inline void plan_norm(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(total_size(c, first, 1, norm_groups(c, first)));
  if (plan.parts[0] > 1) {
    plan.phases = 2;
    plan.parts[1] = 1;
    plan.workspace_bytes = plan.parts[0] * sizeof(double);
  }
}

// The sum of squares of n numbers: blocks of 4096 in float, their sums in double.
inline double squares(const float* g, int64_t n) {
  double total = 0;
  for (int64_t at = 0; at < n; at += 4096) {
    const int64_t end = n - at < 4096 ? n : at + 4096;
    F s[4] = {F::zero(), F::zero(), F::zero(), F::zero()};
    int64_t i = at;
    for (; i + 4 * F::N <= end; i += 4 * F::N)
      for (int k = 0; k < 4; k++) {
        const F x = F::load(g + i + k * F::N);
        s[k] = mul_add(x, x, s[k]);
      }
    vectors(i, end, [&](int64_t j, int lanes) __attribute__((always_inline)) {
      const F x = get(g + j, lanes);
      s[0] = mul_add(x, x, s[0]);
    });
    total += static_cast<double>(reduce_add((s[0] + s[1]) + (s[2] + s[3])));
  }
  return total;
}

template <int first> inline void finish_norm(const Call& c, double total, int groups) {
  const float weight = scalar(c, first - 1);
  const double norm = weight == 0.0f ? 0.0 : __builtin_sqrt(total) / static_cast<double>(weight);
  *c[first + groups].as<float>() = static_cast<float>(norm);
  if constexpr (first == 2) {
    // what overflows float is no use to any update: the squares of the sums, and of the mean where that is larger
    const double mean = norm * norm;
    const float loss = scalar(c, 0), sum = static_cast<float>(mean > total ? mean : total);
    if (!(__builtin_fabsf(loss) < __builtin_inff())) {
      c.status->fail(Stop::guard, 0, __builtin_bit_cast(int32_t, loss));  // 0: the loss
    } else if (!(sum < __builtin_inff())) {
      c.status->fail(Stop::guard, 1, __builtin_bit_cast(int32_t, sum));  // 1: the gradient
    }
  }
}

// first: the scalars before the gradients; with two of them, the first is the loss and the run is guarded.
template <int first> inline void run_norm(const Call& c, int phase, int part, int parts, void*) {
  const int groups = norm_groups(c, first);
  double total = 0;
  if (phase == 0) {
    for_pieces(c, first, 1, groups, part, parts, [&](int arg, int64_t begin, int64_t end) {
      total += squares(floats(c[arg]) + begin, end - begin);
    });
    if (parts == 1) return finish_norm<first>(c, total, groups);
    c.workspace().as<double>()[part] = total;
    return;
  }
  const int64_t sums = c.workspace().size() / static_cast<int64_t>(sizeof(double));
  for (int64_t i = 0; i < sums; i++) total += c.workspace().as<double>()[i];
  finish_norm<first>(c, total, groups);
}
#undef GL_LANES

inline constexpr KernelRow kUpdateRows[] = {
    {"sgd", "f32", plan_sgd, run_sgd<false>},
    {"sgd_nesterov", "f32", plan_sgd, run_sgd<true>},
    {"adamw", "f32", plan_adamw, run_adamw},
    {"lion", "f32", plan_lion, run_lion},
    {"rmsprop", "f32", plan_rmsprop, run_rmsprop},
    {"average", "f32", plan_average, run_average},
    {"accumulate", "f32", plan_accumulate, run_accumulate},
    {"zero", "f32", plan_zero, run_zero},
    {"assign", "f32", plan_assign, run_assign},
    {"set_rows", "f32_i32_f32", plan_set_rows, run_set_rows<int32_t>},
    {"set_rows", "f32_i64_f32", plan_set_rows, run_set_rows<int64_t>},
    {"grad_norm", "f32", plan_norm<1>, run_norm<1>},
    {"guard", "f32", plan_norm<2>, run_norm<2>},
};

}  // namespace gradloom::GL_ISA::update
