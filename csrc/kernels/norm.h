// norm.h: layer_norm rms_norm and their gradients, over the last axis. Inputs dense.
//
//   for each block of up to 16 rows that stays in the first cache:
//     for each row: its sums            (mean; variance about it, or mean square; backward: sum of g, of g * h)
//     for each row: y or dx, elementwise
//
// Every pass that writes is elementwise and reads no other element than its own, so an output may be any of its inputs.
// Variance takes two passes: sums of x - mean, and of its square. The first of them, 0 but for rounding, corrects mean
// and variance.
//
// Where a row's sums overflow f32 (|x| above about 1e18), the row is computed again in f64: with the square of a finite
// number taken as infinite, y and dx would be 0.
#pragma once
#include "../simd/math.h"
#include "rows.h"

namespace gradloom::GL_ISA {

inline void norm_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 64 * 1024);
}

// mean + off is the mean of a row to more than f32; inverse = 1 / sqrt(variance + eps).
struct RowStats {
  float mean[kRowBlock], off[kRowBlock], inverse[kRowBlock];

  void find(const float* x, int count, int64_t n, double eps) {
    const double share = 1.0 / static_cast<double>(n);
    for (int k = 0; k < count; k++) {
      const float* p = x + k * n;
      mean[k] = static_cast<float>(row_sum_of(n, [&](int64_t i, auto t) { return row_load(p + i, t); }) * share);
    }
    for (int k = 0; k < count; k++) {
      const float* p = x + k * n;
      double rest, variance;
      for (bool again = false;; again = true) {
        const F m = F::set1(mean[k]);
        const Sums s = row_sums_of(n, [&](int64_t i, auto t, F& a, F& b) {
          const F d = row_load(p + i, t) - m;
          a += d;
          b = mul_add(d, d, b);
        });
        rest = s.a * share, variance = s.b * share - rest * rest;
        if (again || !(variance < 1e-6 * rest * rest)) break;
        mean[k] = static_cast<float>(mean[k] + rest);  // a row that is constant, or nearly: variance was rounding alone
      }
      off[k] = static_cast<float>(rest);
      inverse[k] = static_cast<float>(1.0 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps));
    }
  }
};

// Neither 0 nor NaN, as 1 / sqrt(variance + eps) is unless the variance overflowed, or x is not finite.
inline bool in_range(float inverse) { return inverse > 0; }
inline bool in_range(float inverse, float a, float b) {
  return inverse > 0 && __builtin_fabsf(a) < __builtin_inff() && __builtin_fabsf(b) < __builtin_inff();
}

// One row in f64. y and dx may lie in the storage of an input: each element is read before it is written.
template <bool centred> struct WideRow {
  double mean = 0, inverse;
  WideRow(const float* x, int64_t n, double eps) {
    if (centred) {
      for (int64_t i = 0; i < n; i++) mean += x[i];
      mean /= static_cast<double>(n);
    }
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    inverse = 1.0 / __builtin_sqrt(square / static_cast<double>(n) + eps);
  }
  double at(const float* x, int64_t i) const { return (x[i] - mean) * inverse; }
};
template <bool centred>
inline __attribute__((noinline)) void wide_row(const float* x, float* y, int64_t n, double eps) {
  const WideRow<centred> row(x, n, eps);
  for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(row.at(x, i));
}
template <bool centred>
inline __attribute__((noinline)) void wide_row_back(const float* g, const float* x, float* dx, int64_t n, double eps) {
  const WideRow<centred> row(x, n, eps);
  double sum_g = 0, sum_gh = 0;
  for (int64_t i = 0; i < n; i++) {
    sum_g += g[i];
    sum_gh += g[i] * row.at(x, i);
  }
  const double share = 1.0 / static_cast<double>(n), mean_g = centred ? sum_g * share : 0, mean_gh = sum_gh * share;
  for (int64_t i = 0; i < n; i++)
    dx[i] = static_cast<float>((g[i] - mean_g - row.at(x, i) * mean_gh) * row.inverse);
}

// y = (x - mean) / sqrt(var + eps)
inline void layer_norm_run(const Call& call, int, int part, int parts, void*) {
  const double eps = call.attr_float(0);
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* x = call[0].as<const float>() + r * n;
    float* y = call[1].as<float>() + r * n;
    RowStats s;
    s.find(x, count, n, eps);
    for (int k = 0; k < count; k++, x += n, y += n) {
      if (!in_range(s.inverse[k])) {
        wide_row<true>(x, y, n, eps);
        continue;
      }
      const F mean = F::set1(s.mean[k]), off = F::set1(s.off[k]), inverse = F::set1(s.inverse[k]);
      row_each(n, [&](int64_t i, auto t) { row_store(y + i, ((row_load(x + i, t) - mean) - off) * inverse, t); });
    }
  });
}

// dx = (g - mean(g) - h * mean(g * h)) / sqrt(var + eps), h = the normalised x
inline void layer_norm_back_run(const Call& call, int, int part, int parts, void*) {
  const double eps = call.attr_float(0);
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  const double share = 1.0 / static_cast<double>(n);
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* g = call[0].as<const float>() + r * n;
    const float* x = call[1].as<const float>() + r * n;
    float* dx = call[2].as<float>() + r * n;
    RowStats s;
    s.find(x, count, n, eps);
    float mean_g[kRowBlock], mean_gh[kRowBlock];
    for (int k = 0; k < count; k++) {
      const F mean = F::set1(s.mean[k]), off = F::set1(s.off[k]);
      const Sums sums = row_sums_of(n, [&](int64_t i, auto t, F& a, F& b) {
        const F gi = row_load(g + k * n + i, t);
        a += gi;
        b = mul_add(gi, (row_load(x + k * n + i, t) - mean) - off, b);
      });
      mean_g[k] = static_cast<float>(sums.a * share);
      mean_gh[k] = static_cast<float>(sums.b * share * static_cast<double>(s.inverse[k]));
    }
    for (int k = 0; k < count; k++, g += n, x += n, dx += n) {
      if (!in_range(s.inverse[k], mean_g[k], mean_gh[k])) {
        wide_row_back<true>(g, x, dx, n, eps);
        continue;
      }
      const F mean = F::set1(s.mean[k]), off = F::set1(s.off[k]), inverse = F::set1(s.inverse[k]);
      const F a = F::set1(mean_g[k]), b = F::set1(mean_gh[k]);
      row_each(n, [&](int64_t i, auto t) {
        const F h = ((row_load(x + i, t) - mean) - off) * inverse;
        row_store(dx + i, fnma(h, b, row_load(g + i, t) - a) * inverse, t);
      });
    }
  });
}

// y = x / sqrt(mean(x * x) + eps)
inline void rms_norm_run(const Call& call, int, int part, int parts, void*) {
  const double eps = call.attr_float(0);
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  const double share = 1.0 / static_cast<double>(n);
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* x = call[0].as<const float>() + r * n;
    float* y = call[1].as<float>() + r * n;
    float inverse[kRowBlock];
    for (int k = 0; k < count; k++) {
      const float* p = x + k * n;
      const double square = row_sum_of(n, [&](int64_t i, auto t) {
        const F v = row_load(p + i, t);
        return v * v;
      });
      inverse[k] = static_cast<float>(1.0 / __builtin_sqrt(square * share + eps));
    }
    for (int k = 0; k < count; k++, x += n, y += n) {
      if (!in_range(inverse[k])) {
        wide_row<false>(x, y, n, eps);
        continue;
      }
      const F scale = F::set1(inverse[k]);
      row_each(n, [&](int64_t i, auto t) { row_store(y + i, row_load(x + i, t) * scale, t); });
    }
  });
}

// dx = (g - h * mean(g * h)) / sqrt(mean(x * x) + eps), h = the normalised x
inline void rms_norm_back_run(const Call& call, int, int part, int parts, void*) {
  const double eps = call.attr_float(0);
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  const double share = 1.0 / static_cast<double>(n);
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* g = call[0].as<const float>() + r * n;
    const float* x = call[1].as<const float>() + r * n;
    float* dx = call[2].as<float>() + r * n;
    float scale[kRowBlock], pull[kRowBlock];  // h * mean(g * h) = x * pull
    for (int k = 0; k < count; k++) {
      const Sums sums = row_sums_of(n, [&](int64_t i, auto t, F& a, F& b) {
        const F xi = row_load(x + k * n + i, t);
        a = mul_add(xi, xi, a);
        b = mul_add(row_load(g + k * n + i, t), xi, b);
      });
      const double inverse = 1.0 / __builtin_sqrt(sums.a * share + eps);
      scale[k] = static_cast<float>(inverse);
      pull[k] = static_cast<float>(sums.b * share * inverse * inverse);
    }
    for (int k = 0; k < count; k++, g += n, x += n, dx += n) {
      if (!in_range(scale[k], pull[k], 0)) {
        wide_row_back<false>(g, x, dx, n, eps);
        continue;
      }
      const F s = F::set1(scale[k]), b = F::set1(pull[k]);
      row_each(n, [&](int64_t i, auto t) {
        row_store(dx + i, fnma(row_load(x + i, t), b, row_load(g + i, t)) * s, t);
      });
    }
  });
}

inline constexpr KernelRow kNormRows[] = {
    {"layer_norm", "f32", norm_plan, layer_norm_run},
    {"layer_norm_back", "f32", norm_plan, layer_norm_back_run},
    {"rms_norm", "f32", norm_plan, rms_norm_run},
    {"rms_norm_back", "f32", norm_plan, rms_norm_back_run},
};

}  // namespace gradloom::GL_ISA
