// softmax.h: softmax log_softmax and their gradients, over the last axis. Inputs dense, except the mask, which
// broadcasts.
//
//   for each block of up to 16 rows that stays in the first cache:
//     for each row: its largest element
//     for each row: exp(z - largest) and their sum
//     for each row: times 1 / sum
//
// A row of -inf alone (every position masked) is NaN, as in NumPy; so is every row that holds NaN or +inf. An output
// may lie in the storage of a dense input.
#pragma once
#include "../simd/math.h"
#include "rows.h"
#include "walk.h"

namespace gradloom::GL_ISA {

inline void softmax_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 32 * 1024);
}

// The mask of one row: absent, one vector, or one number for the whole row.
struct MaskRow {
  const float* p;
  int64_t stride;
  F at(int64_t i, Full) const {
    return stride == 1 ? F::load(p + i) : stride == 0 ? F::set1(*p) : F::gather(p + i * stride, stride);
  }
  F at(int64_t i, Part t) const {
    return stride == 1   ? F::load_n(p + i, t.n)
           : stride == 0 ? F::set1(*p)
                         : F::gather_n(p + i * stride, stride, t.n);
  }
};

// y = exp(z - max z) / sum exp(z - max z) for a block of rows; z(k, i, t) gives row k
template <class Body> inline void softmax_block(float* y, int count, int64_t n, Body&& z) {
  float top[kRowBlock], share[kRowBlock];
  for (int k = 0; k < count; k++) top[k] = row_top_of(n, [&](int64_t i, auto t) { return z(k, i, t); });
  for (int k = 0; k < count; k++) {
    const F high = F::set1(top[k]);
    const double sum = row_sum_of(n, [&](int64_t i, auto t) {
      const F e = exp(z(k, i, t) - high);
      row_store(y + k * n + i, e, t);
      return e;
    });
    share[k] = static_cast<float>(1.0 / sum);
  }
  for (int k = 0; k < count; k++, y += n) {
    const F s = F::set1(share[k]);
    row_each(n, [&](int64_t i, auto t) { row_store(y + i, row_load(y + i, t) * s, t); });
  }
}

// y = softmax(x * scale + mask); the mask broadcasts to x
inline void softmax_run(const Call& call, int, int part, int parts, void*) {
  const Tensor &x = call[0], &mask = call[1];
  const Rows rows = rows_of(x);
  const int64_t n = rows.width;
  const F scale = F::set1(static_cast<float>(call.attr_float(0)));
  Walk<1> walk;
  int64_t along = 0;
  if (mask.data) {  // strides of the mask, aligned with x from the last axis; 0 where it broadcasts
    for (int i = 0; i < x.rank; i++) {
      const int j = i - (x.rank - mask.rank);
      const int64_t s = j < 0 || mask.shape[j] == 1 ? 0 : mask.strides[j];
      if (i == x.rank - 1) along = s;
      else walk.shape[walk.rank] = x.shape[i], walk.stride[0][walk.rank++] = s;
    }
    walk.seek(part_range(rows.count, part, parts).begin);
  }
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* p = x.as<const float>() + r * n;
    float* y = call[2].as<float>() + r * n;
    if (!mask.data) {
      softmax_block(y, count, n, [&](int k, int64_t i, auto t) { return row_load(p + k * n + i, t) * scale; });
      return;
    }
    const float* m[kRowBlock];
    for (int k = 0; k < count; k++, walk.next()) m[k] = mask.as<const float>() + walk.at[0];
    softmax_block(y, count, n, [&](int k, int64_t i, auto t) {
      return row_load(p + k * n + i, t) * scale + MaskRow{m[k], along}.at(i, t);
    });
  });
}

// dx = scale * y * (g - sum(g * y))
inline void softmax_back_run(const Call& call, int, int part, int parts, void*) {
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  const F scale = F::set1(static_cast<float>(call.attr_float(0)));
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* g = call[0].as<const float>() + r * n;
    const float* y = call[1].as<const float>() + r * n;
    float* dx = call[2].as<float>() + r * n;
    float dot[kRowBlock];
    for (int k = 0; k < count; k++)
      dot[k] = static_cast<float>(row_sum_of(
          n, [&](int64_t i, auto t) { return row_load(g + k * n + i, t) * row_load(y + k * n + i, t); }));
    for (int k = 0; k < count; k++, g += n, y += n, dx += n) {
      const F d = F::set1(dot[k]);
      row_each(n, [&](int64_t i, auto t) {
        row_store(dx + i, (row_load(g + i, t) - d) * row_load(y + i, t) * scale, t);
      });
    }
  });
}

// log of count <= kRowBlock sums, as floats
inline void log_sums(const double* sums, int count, float* logs) {
  float narrow[kRowBlock + F::N] = {};
  for (int k = 0; k < count; k++) narrow[k] = static_cast<float>(sums[k]);
  row_each(count, [&](int64_t i, auto t) { row_store(logs + i, log(row_load(narrow + i, t)), t); });
}

// y = x - max x - log(sum exp(x - max x))
inline void log_softmax_run(const Call& call, int, int part, int parts, void*) {
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* x = call[0].as<const float>() + r * n;
    float* y = call[1].as<float>() + r * n;
    float top[kRowBlock], logs[kRowBlock];
    double sum[kRowBlock] = {};
    for (int k = 0; k < count; k++)
      top[k] = row_top_of(n, [&](int64_t i, auto t) { return row_load(x + k * n + i, t); });
    for (int k = 0; k < count; k++) {
      const F high = F::set1(top[k]);
      sum[k] = row_sum_of(n, [&](int64_t i, auto t) { return exp(row_load(x + k * n + i, t) - high); });
    }
    log_sums(sum, count, logs);
    for (int k = 0; k < count; k++, x += n, y += n) {
      const F high = F::set1(top[k]), log_sum = F::set1(logs[k]);
      row_each(n, [&](int64_t i, auto t) { row_store(y + i, (row_load(x + i, t) - high) - log_sum, t); });
    }
  });
}

// dx = g - exp(y) * sum(g)
inline void log_softmax_back_run(const Call& call, int, int part, int parts, void*) {
  const Rows rows = rows_of(call[0]);
  const int64_t n = rows.width;
  row_blocks(rows, part, parts, [&](int64_t r, int count) {
    const float* g = call[0].as<const float>() + r * n;
    const float* y = call[1].as<const float>() + r * n;
    float* dx = call[2].as<float>() + r * n;
    float sum[kRowBlock];
    for (int k = 0; k < count; k++)
      sum[k] = static_cast<float>(row_sum_of(n, [&](int64_t i, auto t) { return row_load(g + k * n + i, t); }));
    for (int k = 0; k < count; k++, g += n, y += n, dx += n) {
      const F s = F::set1(sum[k]);
      row_each(n, [&](int64_t i, auto t) {
        row_store(dx + i, fnma(exp(row_load(y + i, t)), s, row_load(g + i, t)), t);
      });
    }
  });
}

inline constexpr KernelRow kSoftmaxRows[] = {
    {"softmax", "f32", softmax_plan, softmax_run},
    {"softmax_back", "f32", softmax_plan, softmax_back_run},
    {"log_softmax", "f32", softmax_plan, log_softmax_run},
    {"log_softmax_back", "f32", softmax_plan, log_softmax_back_run},
};

}  // namespace gradloom::GL_ISA
