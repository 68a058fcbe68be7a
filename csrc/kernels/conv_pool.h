// conv_pool.h: max_pool2d, avg_pool2d and their gradients. x (N, C, H, W), y (N, C, OH, OW), f32 and dense; index u8.
//
// The padding of a max pool never wins: the index is the position (ky * KW + kx) of the first largest element of the
// window that lies inside x; a NaN counts as largest, the first one of several. A window outside x gives -inf.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA {

struct PoolShape {
  int64_t planes, h, w, oh, ow, kh, kw, sh, sw, ph, pw;
  bool pairs() const { return kh == 2 && kw == 2 && sh == 2 && sw == 2 && ph == 0 && pw == 0; }
};
inline PoolShape pool_shape(const Tensor& x, const Tensor& y, const Call& call, int words) {
  PoolShape s{};
  s.planes = x.shape[0] * x.shape[1], s.h = x.shape[2], s.w = x.shape[3];
  s.oh = y.shape[2], s.ow = y.shape[3];
  s.kh = call.attr_int(words + 1), s.kw = call.attr_int(words + 2);
  s.sh = call.attr_int(words + 4), s.sw = call.attr_int(words + 5);
  s.ph = call.attr_int(words + 7), s.pw = call.attr_int(words + 8);
  return s;
}
inline uint32_t pool_parts(const PoolShape& s) {
  const double touched = static_cast<double>(s.planes) * static_cast<double>(s.h * s.w + s.oh * s.ow * s.kh * s.kw);
  const uint32_t most = s.planes < 64 ? static_cast<uint32_t>(s.planes < 1 ? 1 : s.planes) : 64;
  return parts_for(touched, s.pairs() ? 2e5 : 5e4, most);
}
// Window positions [lo, hi) that lie inside [0, size).
struct PoolSpan { int64_t first, lo, hi; };
inline PoolSpan pool_span(int64_t o, int64_t stride, int64_t pad, int64_t k, int64_t size) {
  const int64_t first = o * stride - pad;
  return {first, first < 0 ? -first : 0, first + k > size ? size - first : k};
}

// Columns of y whose windows lie inside x from left to right.
inline Range pool_inside(const PoolShape& s) {
  int64_t c0 = (s.pw + s.sw - 1) / s.sw, c1 = s.w + s.pw >= s.kw ? (s.w + s.pw - s.kw) / s.sw + 1 : 0;
  c0 = c0 < s.ow ? c0 : s.ow, c1 = c1 < c0 ? c0 : c1 < s.ow ? c1 : s.ow;
  return {c0, c1};
}
// The numbers of n <= N neighbouring windows at one place of each.
inline F pool_load(const PoolShape& s, const float* p, int n) {
  if (s.sw == 1) return n == F::N ? F::load(p) : F::load_n(p, n);
  return n == F::N ? F::gather(p, s.sw) : F::gather_n(p, s.sw, n);
}
inline void pool_zero(float* p, int64_t n) {
  const F zero = F::zero();
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) zero.store(p + i);
  if (i < n) zero.store_n(p + i, static_cast<int>(n - i));
}

// ---- pieces for windows of 2 x 2 side by side -----------------------------------------------------------

// 2 n floats at p, n <= N: their even and odd elements.
inline void pool_split(const float* p, int n, F& even, F& odd) {
#if defined(GL_ISA_AVX512)
  F a, b;
  if (n == F::N) a = F::load(p), b = F::load(p + 16);
  else a = F::load_n(p, 2 * n < 16 ? 2 * n : 16), b = F::load_n(p + 16, 2 * n < 16 ? 0 : 2 * n - 16);
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = {_mm512_permutex2var_ps(a.v, e, b.v)};
  odd = {_mm512_permutex2var_ps(a.v, _mm512_or_si512(e, _mm512_set1_epi32(1)), b.v)};
#elif defined(GL_ISA_AVX2)
  F a, b;
  if (n == F::N) a = F::load(p), b = F::load(p + 8);
  else a = F::load_n(p, 2 * n < 8 ? 2 * n : 8), b = F::load_n(p + 8, 2 * n < 8 ? 0 : 2 * n - 8);
  const __m256 e = _mm256_shuffle_ps(a.v, b.v, 0x88), o = _mm256_shuffle_ps(a.v, b.v, 0xdd);
  even = {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xd8))};
  odd = {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xd8))};
#else
  even = F::load_n(p, n), odd = F::load_n(p + 1, n);
#endif
}
// The reverse: 2 n floats at p, n <= N.
inline void pool_merge(float* p, int n, F even, F odd) {
#if defined(GL_ISA_AVX512)
  const __m512i e = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const F a{_mm512_permutex2var_ps(even.v, e, odd.v)};
  const F b{_mm512_permutex2var_ps(even.v, _mm512_add_epi32(e, _mm512_set1_epi32(8)), odd.v)};
  if (n == F::N) a.store(p), b.store(p + 16);
  else a.store_n(p, 2 * n < 16 ? 2 * n : 16), b.store_n(p + 16, 2 * n < 16 ? 0 : 2 * n - 16);
#elif defined(GL_ISA_AVX2)
  const __m256 l = _mm256_unpacklo_ps(even.v, odd.v), h = _mm256_unpackhi_ps(even.v, odd.v);
  const F a{_mm256_permute2f128_ps(l, h, 0x20)}, b{_mm256_permute2f128_ps(l, h, 0x31)};
  if (n == F::N) a.store(p), b.store(p + 8);
  else a.store_n(p, 2 * n < 8 ? 2 * n : 8), b.store_n(p + 8, 2 * n < 8 ? 0 : 2 * n - 8);
#else
  even.store_n(p, n), odd.store_n(p + 1, n);
#endif
}
// Of two rows of windows, n <= N / 2 in each, p and q: the even and odd elements of p, then those of q.
#if defined(GL_ISA_AVX512)
constexpr bool kPoolTwoRows = true;
inline void pool_split_two(const float* p, const float* q, int n, F& even, F& odd) {
  const __m512i lane = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __mmask16 second = static_cast<__mmask16>(~lanes_on(n));
  const __m512i e = _mm512_mask_add_epi32(lane, second, lane, _mm512_set1_epi32(16 - 2 * n));
  const F a = F::load_n(p, 2 * n), b = F::load_n(q, 2 * n);
  even = {_mm512_permutex2var_ps(a.v, e, b.v)};
  odd = {_mm512_permutex2var_ps(a.v, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b.v)};
}
// The reverse.
inline void pool_merge_two(float* p, float* q, int n, F even, F odd) {
  const __m512i e = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  F{_mm512_permutex2var_ps(even.v, e, odd.v)}.store_n(p, 2 * n);
  F{_mm512_permutex2var_ps(even.v, _mm512_add_epi32(e, _mm512_set1_epi32(n)), odd.v)}.store_n(q, 2 * n);
}
#else
constexpr bool kPoolTwoRows = false;
inline void pool_split_two(const float*, const float*, int, F&, F&) {}
inline void pool_merge_two(float*, float*, int, F, F) {}
#endif
// The first n lanes as bytes. `room` bytes may be written: what is beyond n is written again later.
inline void pool_store_u8(uint8_t* p, I v, int n, int64_t room) {
#if defined(GL_ISA_AVX512)
  const __m128i b = _mm512_cvtepi32_epi8(v.v);
  if (room >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
    return;
  }
  alignas(16) uint8_t t[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(t), b);
  const uint8_t* from = t;
  if (n & 8) std::memcpy(p, from, 8), p += 8, from += 8;
  if (n & 4) std::memcpy(p, from, 4), p += 4, from += 4;
  if (n & 2) std::memcpy(p, from, 2), p += 2, from += 2;
  if (n & 1) *p = *from;
#else
  alignas(64) int32_t t[I::N];
  v.store(t);
  for (int i = 0; i < n; i++) p[i] = static_cast<uint8_t>(t[i]);
  (void)room;
#endif
}
// n bytes as floats; `room` bytes may be read.
inline F pool_load_u8(const uint8_t* p, int n, int64_t room) { return room >= F::N ? load_u8(p) : load_u8_n(p, n); }

// v in place of m where it is larger, or the first NaN.
inline void pool_max(F v, I at, F& m, I& index) {
  const auto take = eq(m, m) & ~le(v, m);
  m = select(take, v, m);
  index = select(take, at, index);
}

// rows x columns windows of 2 x 2 at x, whose rows are `pitch` apart, into y and index (or nullptr), both dense.
// relu: as if of relu(x). Where the largest is not above 0, all of the window becomes 0 and its first element wins.
template <bool relu = false>
void pool_pairs(const float* x, int64_t pitch, int64_t rows, int64_t columns, float* y, uint8_t* index) {
  constexpr int64_t N = F::N;
  const I one = I::set1(1), two = I::set1(2), three = I::set1(3);
  // Windows a b / c d, n of them: output r * columns + i and the next.
  const auto put = [&](F a, F b, F c, F d, int64_t r, int64_t i, int n) __attribute__((always_inline)) {
    I at = I::zero(), below = two;
    pool_max(b, one, a, at);
    pool_max(d, three, c, below);
    pool_max(c, below, a, at);
    if constexpr (relu) {
      const auto off = le(a, F::zero());
      a = select(off, F::zero(), a);
      at = select(off, I::zero(), at);
    }
    a.store_n(y + r * columns + i, n);
    if (index) pool_store_u8(index + r * columns + i, at, n, columns <= N ? (rows - r) * columns : n);
  };
  F a, b, c, d;
  int64_t done = 0;
  if (kPoolTwoRows && 2 * columns <= N) {
    const int n = static_cast<int>(columns);
    for (; done + 2 <= rows; done += 2) {
      const float *from = x + 2 * done * pitch, *next = from + 2 * pitch;
      pool_split_two(from, next, n, a, b);
      pool_split_two(from + pitch, next + pitch, n, c, d);
      put(a, b, c, d, done, 0, 2 * n);
    }
  }
  for (int64_t i = 0; i < columns; i += N) {
    const int n = static_cast<int>(columns - i < N ? columns - i : N);
    for (int64_t r = done; r < rows; r++) {
      const float* from = x + 2 * i + 2 * r * pitch;
      pool_split(from, n, a, b);
      pool_split(from + pitch, n, c, d);
      put(a, b, c, d, r, i, n);
    }
  }
}

// The corners of windows of 2 x 2: v where `at` says, 0 elsewhere.
inline void pool_corners(F v, F at, F& a, F& b, F& c, F& d) {
  const F zero = F::zero();
  a = select(eq(at, zero), v, zero), b = select(eq(at, F::set1(1)), v, zero);
  c = select(eq(at, F::set1(2)), v, zero), d = select(eq(at, F::set1(3)), v, zero);
}

// Writes dx of such windows: each(output, n, a, b, c, d) gives the four corners of n windows, of one row or of two;
// the rest is 0. slack: 2 N floats behind dx may be written, too; then short rows are stored as whole vectors, and what
// lies beyond one is written again by the next.
template <bool slack, class Each> inline void pool_spread_pairs(const PoolShape& s, float* dx, Each&& each) {
  int64_t done = 0;
  F a, b, c, d;
  if (kPoolTwoRows && 2 * s.ow <= F::N) {
    const int n = static_cast<int>(s.ow);
    for (; done + 2 <= s.oh; done += 2) {
      float *row = dx + 2 * done * s.w, *next = row + 2 * s.w;
      each(done * s.ow, 2 * n, a, b, c, d);
      pool_merge_two(row, next, n, a, b);
      pool_merge_two(row + s.w, next + s.w, n, c, d);
    }
  }
  for (int64_t i = 0; i < s.ow; i += F::N) {
    const int n = static_cast<int>(s.ow - i < F::N ? s.ow - i : F::N), stored = slack && s.ow <= F::N ? F::N : n;
    float* row = dx + 2 * done * s.w + 2 * i;
    for (int64_t oy = done; oy < s.oh; oy++, row += 2 * s.w) {
      each(oy * s.ow + i, n, a, b, c, d);
      pool_merge(row, stored, a, b);
      pool_merge(row + s.w, stored, c, d);
    }
  }
  for (int64_t y = 0; y < 2 * s.oh; y++) {
    if (2 * s.ow < s.w) dx[y * s.w + 2 * s.ow] = 0.0f;
  }
  pool_zero(dx + 2 * s.oh * s.w, (s.h - 2 * s.oh) * s.w);
}

// ---- max_pool2d(x; kernel, stride, padding) -> y, index --------------------------------------------------

inline void max_pool2d_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = pool_parts(pool_shape(call[0], call[1], call, 0));
}

// Plain form of one output element.
inline void max_pool2d_one(const PoolShape& s, const float* x, const PoolSpan& y, int64_t ox, float* out,
                           uint8_t* index) {
  const PoolSpan c = pool_span(ox, s.sw, s.pw, s.kw, s.w);
  float m = -__builtin_inff();
  int64_t at = -1;
  for (int64_t ky = y.lo; ky < y.hi; ky++) {
    for (int64_t kx = c.lo; kx < c.hi; kx++) {
      const float v = x[(y.first + ky) * s.w + c.first + kx];
      if (at < 0 || v > m || (v != v && m == m)) m = v, at = ky * s.kw + kx;
    }
  }
  *out = m;
  if (index) *index = static_cast<uint8_t>(at < 0 ? 0 : at);
}

inline void max_pool2d_run(const Call& call, int, int part, int parts, void*) {
  constexpr int64_t N = F::N;
  const PoolShape s = pool_shape(call[0], call[1], call, 0);
  const Range planes = part_range(s.planes, part, parts);
  const float* x = call[0].as<float>() + planes.begin * s.h * s.w;
  float* y = call[1].as<float>() + planes.begin * s.oh * s.ow;
  uint8_t* index = call[2].as<uint8_t>();
  if (index) index += planes.begin * s.oh * s.ow;
  const auto [c0, c1] = pool_inside(s);
  for (int64_t p = planes.begin; p < planes.end; p++, x += s.h * s.w) {
    if (s.pairs()) {
      pool_pairs(x, s.w, s.oh, s.ow, y, index);
      y += s.oh * s.ow;
      if (index) index += s.oh * s.ow;
      continue;
    }
    for (int64_t oy = 0; oy < s.oh; oy++, y += s.ow) {
      const PoolSpan r = pool_span(oy, s.sh, s.ph, s.kh, s.h);
      const bool inside = r.hi > r.lo;
      int64_t i = 0;
      for (; i < (inside ? c0 : s.ow); i++) max_pool2d_one(s, x, r, i, y + i, index ? index + i : nullptr);
      for (; inside && i < c1; i += N) {
        const int n = static_cast<int>(c1 - i < N ? c1 - i : N);
        F m = F::zero();
        I at = I::set1(static_cast<int32_t>(r.lo * s.kw));
        for (int64_t ky = r.lo; ky < r.hi; ky++) {
          const float* row = x + (r.first + ky) * s.w + i * s.sw - s.pw;
          for (int64_t kx = 0; kx < s.kw; kx++) {
            const F v = pool_load(s, row + kx, n);
            if (ky == r.lo && kx == 0) m = v;
            else pool_max(v, I::set1(static_cast<int32_t>(ky * s.kw + kx)), m, at);
          }
        }
        m.store_n(y + i, n);
        if (index) pool_store_u8(index + i, at, n, n);
      }
      for (i = i < c1 ? i : inside ? c1 : s.ow; i < s.ow; i++) {
        max_pool2d_one(s, x, r, i, y + i, index ? index + i : nullptr);
      }
      if (index) index += s.ow;
    }
  }
}

// ---- max_pool2d_back(g, index; height, width, kernel, stride, padding) -> dx -----------------------------

inline void max_pool2d_back_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = pool_parts(pool_shape(call[2], call[0], call, 2));
}

inline void max_pool2d_back_run(const Call& call, int, int part, int parts, void*) {
  const PoolShape s = pool_shape(call[2], call[0], call, 2);
  const Range planes = part_range(s.planes, part, parts);
  const float* g = call[0].as<float>() + planes.begin * s.oh * s.ow;
  const uint8_t* index = call[1].as<uint8_t>() + planes.begin * s.oh * s.ow;
  float* dx = call[2].as<float>() + planes.begin * s.h * s.w;
  int64_t room = (planes.end - planes.begin) * s.oh * s.ow;
  for (int64_t p = planes.begin; p < planes.end; p++, dx += s.h * s.w) {
    if (s.pairs()) {
      pool_spread_pairs<false>(s, dx, [&](int64_t i, int n, F& a, F& b, F& c, F& d) {
        pool_corners(F::load_n(g + i, n), pool_load_u8(index + i, n, room - i), a, b, c, d);
      });
      g += s.oh * s.ow, index += s.oh * s.ow, room -= s.oh * s.ow;
      continue;
    }
    pool_zero(dx, s.h * s.w);
    for (int64_t oy = 0; oy < s.oh; oy++) {
      for (int64_t ox = 0; ox < s.ow; ox++) {
        const int64_t at = *index++;
        const int64_t iy = oy * s.sh - s.ph + at / s.kw, ix = ox * s.sw - s.pw + at % s.kw;
        const float v = *g++;
        if (iy >= 0 && iy < s.h && ix >= 0 && ix < s.w) dx[iy * s.w + ix] += v;
      }
    }
  }
}

// ---- avg_pool2d(x; kernel, stride, padding) -> y ----------------------------------------------------------
// Padding counts: the divisor is KH * KW.

inline void avg_pool2d_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = pool_parts(pool_shape(call[0], call[1], call, 0));
}

inline void avg_pool2d_run(const Call& call, int, int part, int parts, void*) {
  constexpr int64_t N = F::N;
  const PoolShape s = pool_shape(call[0], call[1], call, 0);
  const Range planes = part_range(s.planes, part, parts);
  const float* x = call[0].as<float>() + planes.begin * s.h * s.w;
  float* y = call[1].as<float>() + planes.begin * s.oh * s.ow;
  const float area = static_cast<float>(s.kh * s.kw);
  const auto [c0, c1] = pool_inside(s);
  for (int64_t p = planes.begin; p < planes.end; p++, x += s.h * s.w) {
    for (int64_t oy = 0; oy < s.oh; oy++, y += s.ow) {
      if (s.pairs()) {
        const float* row = x + 2 * oy * s.w;
        for (int64_t i = 0; i < s.ow; i += N) {
          const int n = static_cast<int>(s.ow - i < N ? s.ow - i : N);
          F a, b, c, d;
          pool_split(row + 2 * i, n, a, b);
          pool_split(row + s.w + 2 * i, n, c, d);
          ((a + b + c + d) / F::set1(area)).store_n(y + i, n);
        }
        continue;
      }
      const PoolSpan r = pool_span(oy, s.sh, s.ph, s.kh, s.h);
      for (int64_t i = 0; i < s.ow;) {
        if (i >= c0 && i < c1) {
          const int n = static_cast<int>(c1 - i < N ? c1 - i : N);
          F sum = F::zero();
          for (int64_t ky = r.lo; ky < r.hi; ky++) {
            const float* row = x + (r.first + ky) * s.w + i * s.sw - s.pw;
            for (int64_t kx = 0; kx < s.kw; kx++) sum += pool_load(s, row + kx, n);
          }
          (sum / F::set1(area)).store_n(y + i, n);
          i += n;
          continue;
        }
        const PoolSpan c = pool_span(i, s.sw, s.pw, s.kw, s.w);
        float sum = 0.0f;
        for (int64_t ky = r.lo; ky < r.hi; ky++) {
          for (int64_t kx = c.lo; kx < c.hi; kx++) sum += x[(r.first + ky) * s.w + c.first + kx];
        }
        y[i++] = sum / area;
      }
    }
  }
}

// ---- avg_pool2d_back(g; height, width, kernel, stride, padding) -> dx -------------------------------------

inline void avg_pool2d_back_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = pool_parts(pool_shape(call[1], call[0], call, 2));
}

inline void avg_pool2d_back_run(const Call& call, int, int part, int parts, void*) {
  const PoolShape s = pool_shape(call[1], call[0], call, 2);
  const Range planes = part_range(s.planes, part, parts);
  const float* g = call[0].as<float>() + planes.begin * s.oh * s.ow;
  float* dx = call[1].as<float>() + planes.begin * s.h * s.w;
  const float area = static_cast<float>(s.kh * s.kw);
  for (int64_t p = planes.begin; p < planes.end; p++, dx += s.h * s.w) {
    if (s.pairs()) {
      pool_spread_pairs<false>(s, dx, [&](int64_t i, int n, F& a, F& b, F& c, F& d) {
        a = b = c = d = F::load_n(g + i, n) / F::set1(area);
      });
      g += s.oh * s.ow;
      continue;
    }
    pool_zero(dx, s.h * s.w);
    for (int64_t oy = 0; oy < s.oh; oy++) {
      const PoolSpan r = pool_span(oy, s.sh, s.ph, s.kh, s.h);
      for (int64_t ox = 0; ox < s.ow; ox++) {
        const PoolSpan c = pool_span(ox, s.sw, s.pw, s.kw, s.w);
        const float v = *g++ / area;
        for (int64_t ky = r.lo; ky < r.hi; ky++) {
          float* row = dx + (r.first + ky) * s.w + c.first;
          for (int64_t kx = c.lo; kx < c.hi; kx++) row[kx] += v;
        }
      }
    }
  }
}

}  // namespace gradloom::GL_ISA
