// norm.h: layer_norm rms_norm batch_norm softmax log_softmax and their gradients. Inputs dense, except softmax's mask.
//
// Rows are those of the last axis. Every pass that writes is elementwise and reads no other element than its own, so an
// output may be any of its dense inputs. Variance takes two passes: sums of x - mean, and of its square. The first
// of them, 0 but for rounding, corrects mean and variance. A softmax row of -inf alone (every position masked) is NaN,
// as in NumPy; so is every row that holds NaN or +inf.
#pragma once
#include "../simd/math.h"
#include "reduce.h"

namespace gradloom::GL_ISA {

struct Rows {
  int64_t count, width;
};
inline Rows rows_of(const Tensor& x) {
  const int64_t width = x.rank ? x.shape[x.rank - 1] : 1, size = x.size();
  return {width ? size / width : 0, width};
}

inline void norm_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 64 * 1024);
}
inline void softmax_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), 32 * 1024);
}

// Rows go in blocks that stay in the first cache; each pass is over all rows of a block, so that the end of one row's
// pass (a sum across lanes, a root, a quotient) overlaps with the next row's.
constexpr int kRowBlock = 16;
template <class Body> inline void row_blocks(Rows rows, int part, int parts, Body&& body) {
  int64_t most = 4096 / (rows.width ? rows.width : 1);
  most = most < 1 ? 1 : most > kRowBlock ? kRowBlock : most;
  const Range range = part_range(rows.count, part, parts);
  for (int64_t r = range.begin; r < range.end; r += most)
    body(r, static_cast<int>(range.end - r < most ? range.end - r : most));
}

// ---- layer_norm, rms_norm ------------------------------------------------------------------------------

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
      const F m = F::set1(mean[k]);
      const Sums s = row_sums_of(n, [&](int64_t i, auto t, F& a, F& b) {
        const F d = row_load(p + i, t) - m;
        a += d;
        b = mul_add(d, d, b);
      });
      const double rest = s.a * share, variance = s.b * share - rest * rest;
      off[k] = static_cast<float>(rest);
      inverse[k] = static_cast<float>(1.0 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps));
    }
  }
};

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
      const F s = F::set1(scale[k]), b = F::set1(pull[k]);
      row_each(n, [&](int64_t i, auto t) {
        row_store(dx + i, fnma(row_load(x + i, t), b, row_load(g + i, t)) * s, t);
      });
    }
  });
}

// ---- batch_norm: axis 1 are the channels, statistics over all others ----------------------------------------

struct Batch {
  int64_t images, channels, pixels;
};
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
inline void batch_sums(const Batch& d, Range range, double* a, double* b, Body&& body) {
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
template <int K, class Body> inline void batch_each(const Batch& d, Range range, const float* table, Body&& body) {
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
    table[2 * C + c] = static_cast<float>((weight ? weight[c] : 1.0) / __builtin_sqrt(var + eps));
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
    table[C + c] = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(var[c]) + eps));
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

// ---- softmax, log_softmax --------------------------------------------------------------------------------

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

// The larger one where both are numbers; where v is NaN, top. A softmax may pass over NaN here: exp(NaN - top) is NaN
// and so becomes the sum.
inline F max_number(F v, F top) {
#if defined(GL_ISA_AVX512)
  return {_mm512_max_ps(v.v, top.v)};
#elif defined(GL_ISA_AVX2)
  return {_mm256_max_ps(v.v, top.v)};
#else
  return select(gt(v, top), v, top);
#endif
}
template <class Body> inline __attribute__((always_inline)) float row_top_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  const F least = F::set1(-__builtin_inff());
  F a = least, b = least, c = least, d = least;
  int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    a = max_number(body(i, Full()), a);
    b = max_number(body(i + N, Full()), b);
    c = max_number(body(i + 2 * N, Full()), c);
    d = max_number(body(i + 3 * N, Full()), d);
  }
  for (; i + N <= n; i += N) a = max_number(body(i, Full()), a);
  if (i < n) {
    const int left = static_cast<int>(n - i);
    b = max_number(select(Mask<float>::first_n(left), body(i, Part{left}), least), b);
  }
  return reduce_max(max_number(max_number(a, b), max_number(c, d)));
}

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

inline constexpr KernelRow kNormRows[] = {
    {"layer_norm", "f32", norm_plan, layer_norm_run},
    {"layer_norm_back", "f32", norm_plan, layer_norm_back_run},
    {"rms_norm", "f32", norm_plan, rms_norm_run},
    {"rms_norm_back", "f32", norm_plan, rms_norm_back_run},
    {"batch_norm", "f32", batch_norm_plan, batch_norm_run},
    {"batch_norm_back", "f32", batch_norm_back_plan, batch_norm_back_run},
    {"softmax", "f32", softmax_plan, softmax_run},
    {"softmax_back", "f32", softmax_plan, softmax_back_run},
    {"log_softmax", "f32", softmax_plan, log_softmax_run},
    {"log_softmax_back", "f32", softmax_plan, log_softmax_back_run},
};

}  // namespace gradloom::GL_ISA
