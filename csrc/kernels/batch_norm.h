// batch_norm.h: batch_norm and its gradient: axis 1 are the channels, statistics run over all other axes. Inputs dense.
//
//   forward   phase 0   each part, its images: sum of x per channel
//             phase 1   each part, its images: sums of x - mean and of its square per channel
//             phase 2   each part, its images: y, elementwise; the first part also mean and variance
//   backward  phase 0   each part, its images: sums of g and of g * h per channel
//             phase 1   each part, its images: dx, elementwise; the first part also dweight and dbias
//
// A variance that f32 does not hold makes y and dx NaN, so that the guard refuses the step: it is an output, and with an
// infinite one y would be the bias alone.
//
// Every part adds the sums of all parts itself, in the order of the parts: they are few. Lanes run along the pixels of
// a channel, or over the channels where a channel has one pixel.
#pragma once
#include "../simd/math.h"
#include "rows.h"

namespace gradloom::GL_ISA {

struct Batch {
  int64_t images, channels, pixels;
};
// sqrt(var + eps); NaN where f32 does not hold the variance
inline double batch_root(double var, double eps) {
  return static_cast<float>(var) < __builtin_inff() ? __builtin_sqrt(var + eps) : __builtin_nan("");
}
inline Batch batch_of(const Tensor& x) {
  int64_t pixels = 1;
  for (int i = 2; i < x.rank; i++) pixels *= x.shape[i];
  return {x.shape[0], x.shape[1], pixels};
}
inline uint32_t batch_parts(const Tensor& x) {
  const uint32_t parts = parts_for(static_cast<double>(x.size()), 64 * 1024);
  const uint32_t images = x.shape[0] < 1 ? 1 : x.shape[0] < 16 ? static_cast<uint32_t>(x.shape[0]) : 16;
  return parts < images ? parts : images;
}

// Sums into a[c] and b[c] what body gives for each element of images [range): body(offset, Full or Part, of, A, B).
// of(table) are the numbers of a table [C] for these lanes: all of one channel, or of one channel each.
template <class Body>
GL_INLINE void batch_sums(const Batch& d, Range range, double* a, double* b, Body&& body) {
  for (int64_t c = 0; c < d.channels; c++) a[c] = b[c] = 0;
  if (d.pixels == 1) {
    for (int64_t c = 0; c < d.channels; c += F::N) {
      const int left = d.channels - c < F::N ? static_cast<int>(d.channels - c) : F::N;
      const auto add = [&](int64_t n, auto t, F& va, F& vb) {
        body(n * d.channels + c, t, [&](const float* table) { return row_load(table + c, t); }, va, vb);
      };
      float ta[F::N], tb[F::N];
      for (int64_t n0 = range.begin; n0 < range.end; n0 += 64) {
        const int64_t n1 = range.end - n0 < 64 ? range.end : n0 + 64;
        F va = F::zero(), vb = F::zero(), wa = F::zero(), wb = F::zero();
        int64_t n = n0;
        if (left == F::N)
          for (; n + 2 <= n1; n += 2) {
            add(n, Full(), va, vb);
            add(n + 1, Full(), wa, wb);
          }
        for (; n < n1; n++) add(n, Part{left}, va, vb);
        (va + wa).store(ta);
        (vb + wb).store(tb);
        for (int k = 0; k < left; k++) {
          a[c + k] += ta[k];
          b[c + k] += tb[k];
        }
      }
    }
    return;
  }
  for (int64_t n = range.begin; n < range.end; n++)
    for (int64_t c = 0; c < d.channels; c++) {
      const int64_t at = (n * d.channels + c) * d.pixels;
      const auto of = [&](const float* table) { return F::set1(table[c]); };
      const Sums s = row_sums_of(d.pixels, [&](int64_t i, auto t, F& va, F& vb) { body(at + i, t, of, va, vb); });
      a[c] += s.a;
      b[c] += s.b;
    }
}

// Joins the parts' sums of a channel, in the order of the parts.
inline double batch_join(const double* partial, int parts, int64_t stride, int64_t c) {
  double total = partial[c];
  for (int p = 1; p < parts; p++) total += partial[p * stride + c];
  return total;
}

// Elementwise last pass: body(offset, Full or Part, vectors of the per-channel numbers k[0], k[1], ...).
template <int K, class Body>
GL_INLINE void batch_each(const Batch& d, Range range, const float* table, Body&& body) {
  for (int64_t n = range.begin; n < range.end; n++) {
    if (d.pixels == 1) {
      row_each(d.channels, [&](int64_t c, auto t) {
        F k[K];
        for (int j = 0; j < K; j++) k[j] = row_load(table + j * d.channels + c, t);
        body(n * d.channels + c, t, k);
      });
      continue;
    }
    for (int64_t c = 0; c < d.channels; c++) {
      F k[K];
      for (int j = 0; j < K; j++) k[j] = F::set1(table[j * d.channels + c]);
      const int64_t at = (n * d.channels + c) * d.pixels;
      row_each(d.pixels, [&](int64_t i, auto t) { body(at + i, t, k); });
    }
  }
}

inline void batch_norm_plan(const Call& call, KernelPlan& plan) {
  const uint32_t parts = batch_parts(call[0]);
  const size_t channels = static_cast<size_t>(call[0].shape[1]);
  plan.phases = 3;
  for (int i = 0; i < 3; i++) plan.parts[i] = parts;
  plan.workspace_bytes = (4 * parts * channels + 1) * sizeof(double);
  plan.scratch_bytes = (4 * channels + 1) * sizeof(float);
}

// y = (x - mean) / sqrt(var + eps) * weight + bias. Phases: sums, sums of squares about the mean, y.
inline void batch_norm_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const Batch d = batch_of(call[0]);
  const double count = static_cast<double>(d.images) * static_cast<double>(d.pixels), eps = call.attr_float(0);
  const float* x = call[0].as<const float>();
  const int64_t C = d.channels, stride = 2 * C;
  double* first = call.workspace().as<double>();       // [parts][2][C]: sum, unused
  double* second = first + parts * stride;             // [parts][2][C]: sum and sum of squares of x - mean
  float* table = static_cast<float*>(scratch);         // [4][C]: mean, rest of the mean, scale, bias
  const Range range = part_range(d.images, part, parts);
  if (phase == 0) {
    batch_sums(d, range, first + part * stride, first + part * stride + C,
               [&](int64_t at, auto t, auto, F& a, F&) { a += row_load(x + at, t); });
    return;
  }
  for (int64_t c = 0; c < C; c++) table[c] = static_cast<float>(batch_join(first, parts, stride, c) / count);
  if (phase == 1) {
    batch_sums(d, range, second + part * stride, second + part * stride + C,
               [&](int64_t at, auto t, auto of, F& a, F& b) {
                 const F v = row_load(x + at, t) - of(table);
                 a += v;
                 b = mul_add(v, v, b);
               });
    return;
  }
  const float* weight = call[1].as<const float>();
  const float* bias = call[2].as<const float>();
  float* y = call[3].as<float>();
  for (int64_t c = 0; c < C; c++) {
    const double off = batch_join(second, parts, stride, c) / count;
    double var = batch_join(second + C, parts, stride, c) / count - off * off;
    if (var < 0) var = 0;
    table[C + c] = static_cast<float>(off);
    table[2 * C + c] = static_cast<float>((weight ? weight[c] : 1.0) / batch_root(var, eps));
    table[3 * C + c] = bias ? bias[c] : 0.0f;
    if (part == 0) {
      if (call[4].data) call[4].as<float>()[c] = static_cast<float>(table[c] + off);
      if (call[5].data) call[5].as<float>()[c] = static_cast<float>(var);
    }
  }
  batch_each<4>(d, range, table, [&](int64_t at, auto t, const F* k) {
    row_store(y + at, mul_add((row_load(x + at, t) - k[0]) - k[1], k[2], k[3]), t);
  });
}

inline void batch_norm_back_plan(const Call& call, KernelPlan& plan) {
  const uint32_t parts = batch_parts(call[0]);
  const size_t channels = static_cast<size_t>(call[0].shape[1]);
  plan.phases = 2;
  plan.parts[0] = plan.parts[1] = parts;
  plan.workspace_bytes = (2 * parts * channels + 1) * sizeof(double);
  plan.scratch_bytes = (5 * channels + 1) * sizeof(float);
}

// dbias = sum(g), dweight = sum(g * h), dx = weight / sqrt(var + eps) * (g - dbias / count - h * dweight / count)
inline void batch_norm_back_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const Batch d = batch_of(call[0]);
  const double count = static_cast<double>(d.images) * static_cast<double>(d.pixels), eps = call.attr_float(0);
  const float* g = call[0].as<const float>();
  const float* x = call[1].as<const float>();
  const float* weight = call[2].as<const float>();
  const float* mean = call[3].as<const float>();
  const float* var = call[4].as<const float>();
  float* dx = call[5].as<float>();
  float* dweight = call[6].as<float>();
  float* dbias = call[7].as<float>();
  const int64_t C = d.channels, stride = 2 * C;
  double* partial = call.workspace().as<double>();  // [parts][2][C]: sum of g, sum of g * h
  float* table = static_cast<float*>(scratch);      // [5][C]: mean, 1 / sqrt(var + eps), dbias / n, dweight / n, scale
  const Range range = part_range(d.images, part, parts);
  for (int64_t c = 0; c < C; c++) {
    table[c] = mean[c];
    table[C + c] = static_cast<float>(1.0 / batch_root(var[c], eps));
  }
  if (phase == 0) {
    batch_sums(d, range, partial + part * stride, partial + part * stride + C,
               [&](int64_t at, auto t, auto of, F& a, F& b) {
                 const F gi = row_load(g + at, t);
                 a += gi;
                 b = mul_add(gi, (row_load(x + at, t) - of(table)) * of(table + C), b);
               });
    return;
  }
  for (int64_t c = 0; c < C; c++) {
    const double sum_g = batch_join(partial, parts, stride, c), sum_gh = batch_join(partial + C, parts, stride, c);
    table[2 * C + c] = static_cast<float>(sum_g / count);
    table[3 * C + c] = static_cast<float>(sum_gh / count);
    table[4 * C + c] = (weight ? weight[c] : 1.0f) * table[C + c];
    if (part == 0) {
      if (dweight) dweight[c] = static_cast<float>(sum_gh);
      if (dbias) dbias[c] = static_cast<float>(sum_g);
    }
  }
  if (!dx) return;
  batch_each<5>(d, range, table, [&](int64_t at, auto t, const F* k) {
    const F h = (row_load(x + at, t) - k[0]) * k[1];
    row_store(dx + at, ((row_load(g + at, t) - k[2]) - h * k[3]) * k[4], t);
  });
}

inline constexpr KernelRow kBatchNormRows[] = {
    {"batch_norm", "f32", batch_norm_plan, batch_norm_run},
    {"batch_norm_back", "f32", batch_norm_back_plan, batch_norm_back_run},
};

}  // namespace gradloom::GL_ISA
