// rows.h: loops over the rows of a view: sums, maxima and writes along the last axis, vector by vector.
//
//   for i = 0, N, 2 N, ... < n:    body(i, Full)          whole vectors; body loads by row_load(p + i, t)
//   if n % N:                      body(i, Part{n % N})   the tail; its other lanes do not count
//
// A body is called with the place of its vector and with Full or Part, and passes that on to row_load and row_store.
// Sums are f32 lanes over blocks of kFoldBlock elements; blocks are added in double, so that the error does not grow
// with the length.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA {

struct Full {
  static constexpr int n = F::N;
};
struct Part {
  int n;
};
inline F row_load(const float* p, Full) { return F::load(p); }
inline F row_load(const float* p, Part t) { return F::load_n(p, t.n); }
inline void row_store(float* p, F v, Full) { v.store(p); }
inline void row_store(float* p, F v, Part t) { v.store_n(p, t.n); }

constexpr int64_t kFoldBlock = 256 * F::N;  // elements whose f32 sum is formed before it joins a double

// Sum of body(i, Full or Part) over the vectors of a row of n elements. The tail's other lanes do not count.
template <class Body> inline __attribute__((always_inline)) double row_sum_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  double total = 0;
  int64_t i = 0;
  while (true) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
    for (; i + 4 * N <= stop; i += 4 * N) {
      a += body(i, Full());
      b += body(i + N, Full());
      c += body(i + 2 * N, Full());
      d += body(i + 3 * N, Full());
    }
    for (; i + N <= stop; i += N) a += body(i, Full());
    if (i < stop) {
      const int left = static_cast<int>(stop - i);
      b += select(Mask<float>::first_n(left), body(i, Part{left}), F::zero());
      i = stop;
    }
    total += reduce_add((a + b) + (c + d));
    if (i >= n) return total;
  }
}

// Two sums over one row at once: body adds to the accumulators that it is given.
struct Sums {
  double a, b;
};
template <class Body> inline __attribute__((always_inline)) Sums row_sums_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  Sums total = {0, 0};
  int64_t i = 0;
  while (true) {
    const int64_t stop = n - i > kFoldBlock ? i + kFoldBlock : n;
    F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
    for (; i + 2 * N <= stop; i += 2 * N) {
      body(i, Full(), a, b);
      body(i + N, Full(), c, d);
    }
    for (; i + N <= stop; i += N) body(i, Full(), a, b);
    if (i < stop) {
      const int left = static_cast<int>(stop - i);
      const Mask<float> on = Mask<float>::first_n(left);
      F ta = F::zero(), tb = F::zero();
      body(i, Part{left}, ta, tb);
      c += select(on, ta, F::zero());
      d += select(on, tb, F::zero());
      i = stop;
    }
    total.a += reduce_add(a + c);
    total.b += reduce_add(b + d);
    if (i >= n) return total;
  }
}

template <class Body> inline __attribute__((always_inline)) float row_max_of(int64_t n, Body&& body) {
  constexpr int64_t N = F::N;
  const F least = F::set1(-__builtin_inff());
  F a = least, b = least;
  int64_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    a = max(a, body(i, Full()));
    b = max(b, body(i + N, Full()));
  }
  for (; i + N <= n; i += N) a = max(a, body(i, Full()));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    b = max(b, select(Mask<float>::first_n(left), body(i, Part{left}), least));
  }
  return reduce_max(max(a, b));
}

template <class Body> inline __attribute__((always_inline)) void row_each(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) body(i, Full());
  if (i < n) body(i, Part{static_cast<int>(n - i)});
}

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

// ---- rows in blocks -------------------------------------------------------------------------------------

struct Rows {
  int64_t count, width;
};
inline Rows rows_of(const Tensor& x) {
  const int64_t width = x.rank ? x.shape[x.rank - 1] : 1, size = x.size();
  return {width ? size / width : 0, width};
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

}  // namespace gradloom::GL_ISA
