// conv_back_weight.h: conv2d_back_weight(g, x; kernel, stride, padding, dilation) -> dw, db.
//
// dw[o][k] = sum over images and positions p of g[o][p] * planes[offset[k] + p], db[o] = sum of g[o][p] (optional).
//
//   phase 0   for each block of bands of the part's images:
//               copy the bands of x into planes, as forward does
//               for each tile of the part's output channels, for each few taps:
//                 acc[o][t] = sum over the block's positions, a vector of them at a time
//                 dw[o][t] += the lanes of acc[o][t]
//   phase 1   the sums of the ranges of images, added in a fixed tree: (0 + 1) + (2 + 3), ...
#pragma once
#include "conv_forward.h"

namespace gradloom::GL_ISA {

constexpr int64_t kWidened = 128 * 1024;  // floats of a small image

struct ConvWeight {
  ConvShape s;
  ConvBand b;
  bool flat;               // g is copied with the pitch of the planes (zeros between rows), one loop runs over it all;
                           // where it is bf16, so are large images, and small ones are widened as they are
  int64_t g_floats;        // of that copy for one output channel of one band
  int64_t groups, slices;  // of images, of output channels
  int64_t block;           // bands in scratch at once, so that a tile works long enough before its lanes are added up
  int64_t step;            // floats from the planes of one to those of the next, whole lines
  int64_t size() const { return s.o * s.taps(); }
  // Floats of the rows of a channel of x or g that are widened.
  int64_t lines() const { return s.rounded ? conv_max(b.line, conv_ceil(b.band * s.ow, 16) * 16) : 0; }
  // The images of `count` bands from `item` on; the most of them in a block, as floats of g.
  int64_t images(int64_t item, int64_t count) const { return (item + count - 1) / b.bands - item / b.bands + 1; }
  int64_t image_floats() const { return s.o * s.oh * s.ow; }
  int64_t room() const { return ((block + b.bands - 2) / b.bands + 1) * image_floats() + 2 * F::N; }
};
inline ConvWeight conv_weight(const Tensor& g, const Tensor& x, const Tensor& dw, const Call& call) {
  constexpr int64_t N = F::N;
  ConvWeight k{};
  k.s = conv_shape(x, dw, g, call, 3);
  k.s.sh = call.attr_int(4), k.s.sw = call.attr_int(5);
  k.b = conv_band_forward(k.s, k.s.oh);
  const int64_t flat_vectors = conv_ceil(k.b.band * k.b.pitch, N);
  k.flat = (k.s.taps() >= 32 && flat_vectors <= k.b.band * k.b.row_vectors) ||
           (k.s.rounded && k.image_floats() > kWidened);
  const int64_t vectors = k.flat ? flat_vectors : k.b.band * k.b.row_vectors;
  k.g_floats = k.flat ? flat_vectors * N + N : 0;
  k.block = conv_max(1, conv_min(conv_min(8, 64 / vectors), kBandFloats / (k.b.floats + kOutTile * k.g_floats)));
  k.step = conv_ceil(k.b.floats, 16) * 16;
  const int64_t parts = parts_for(k.s.flops(), kConvGrain, 32);
  const int64_t most = conv_max(1, (1 << 22) / conv_max(1, k.size()));  // 16 MiB of partial sums
  k.groups = conv_max(1, conv_min(parts, conv_min(conv_ceil(k.b.items(), k.block), most)));
  k.slices = conv_max(1, conv_min(parts / k.groups, conv_ceil(k.s.o, kOutTile)));
  return k;
}
// made: whether a block's images are made in room.
inline void conv_weight_plan(const ConvWeight& k, bool made, KernelPlan& plan) {
  plan.parts[0] = static_cast<uint32_t>(k.groups * k.slices);
  plan.scratch_bytes = conv_aligned(static_cast<size_t>(k.s.taps()) * 4);
  plan.scratch_bytes += static_cast<size_t>(k.block * (k.step + kOutTile * k.g_floats) + k.lines()) * 4;
  if (made) plan.scratch_bytes += static_cast<size_t>(k.room()) * 4;
  if (k.groups > 1) {
    plan.phases = 2;
    plan.parts[1] = parts_for(static_cast<double>(k.groups * k.size()), 1e5);
    plan.workspace_bytes = static_cast<size_t>(k.groups * (k.size() + k.s.o)) * 4;
  }
}

// One vector of positions into the tile: acc[o][t] += g[o] * x[t], n lanes of them.
template <int OT, int KT, bool whole>
inline __attribute__((always_inline)) void conv_weight_step(F (&acc)[OT][KT], const float* g, int64_t channel,
                                                            const float* const (&x)[KT], int64_t at, int n) {
  F xv[KT];
#pragma GCC unroll 8
  for (int t = 0; t < KT; t++) xv[t] = whole ? F::load(x[t] + at) : F::load_n(x[t] + at, n);
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
    const F gv = conv_hold(whole ? F::load(g + o * channel + at) : F::load_n(g + o * channel + at, n));
#pragma GCC unroll 8
    for (int t = 0; t < KT; t++) acc[o][t] = mul_add(gv, xv[t], acc[o][t]);
  }
}

#if defined(GL_ISA_AVX512)
// From vectors a, b, c, d: lane i of each + its lane i + 8, then i + 4, in quarter 0, 1, 2, 3.
inline __attribute__((always_inline)) __m512 conv_quarter_sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
#endif
// sums[o * KT + t] = reduce_add(acc[o][t]), the same bits: 16 vectors are added up at once, in the same pairs of lanes.
template <int OT, int KT>
inline __attribute__((always_inline)) void conv_lane_sums(const F (&acc)[OT][KT], float* sums) {
#if defined(GL_ISA_AVX512)
  const auto at = [&](int i) __attribute__((always_inline)) {
    return i < OT * KT ? acc[i / KT][i % KT].v : _mm512_setzero_ps();
  };
#pragma GCC unroll 8
  for (int i = 0; i < OT * KT; i += 16) {
    __m512 q[4];  // of vectors i + j, i + j + 4, ...: so that the sums end in order
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) q[j] = conv_quarter_sums(at(i + j), at(i + j + 4), at(i + j + 8), at(i + j + 12));
    __m512d l[2], h[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      const __m512d a = _mm512_castps_pd(q[2 * j]), b = _mm512_castps_pd(q[2 * j + 1]);
      l[j] = _mm512_unpacklo_pd(a, b), h[j] = _mm512_unpackhi_pd(a, b);
    }
    const __m512 a = _mm512_add_ps(_mm512_castpd_ps(l[0]), _mm512_castpd_ps(h[0]));
    const __m512 b = _mm512_add_ps(_mm512_castpd_ps(l[1]), _mm512_castpd_ps(h[1]));
    F{_mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd))}.store(sums + i);
  }
#else
  for (int o = 0; o < OT; o++) {
    for (int t = 0; t < KT; t++) sums[o * KT + t] = reduce_add(acc[o][t]);
  }
#endif
}

// OT output channels x KT taps over `count` bands. g: output channel 0 of the tile in image 0, or the flat copy.
template <int OT, int KT>
void conv_weight_tile(const ConvWeight& k, const float* g, const float* planes, const int32_t* offsets, int64_t item0,
                      int64_t count, float* dw, bool add) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  const float* x[KT];
  F acc[OT][KT];
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
    for (int t = 0; t < KT; t++) acc[o][t] = F::zero();
  }
  if (k.flat) {
    const int64_t length = k.g_floats - N;
    for (int64_t q = 0; q < count; q++, planes += k.step, g += kOutTile * k.g_floats) {
#pragma GCC unroll 8
      for (int t = 0; t < KT; t++) x[t] = planes + offsets[t];
      for (int64_t j = 0; j < length; j += N) conv_weight_step<OT, KT, true>(acc, g, k.g_floats, x, j, 0);
    }
  } else {
    const int64_t ow = k.s.ow, size = k.s.oh * ow, full = ow / N * N;
    const int tail = static_cast<int>(ow - full);
    for (int64_t item = item0; item < item0 + count; item++, planes += k.step) {
      const float* row = g + item / b.bands * k.s.o * size + item % b.bands * b.band * ow;
      const int64_t rows = b.rows_of(item);
#pragma GCC unroll 8
      for (int t = 0; t < KT; t++) x[t] = planes + offsets[t];
      for (int64_t r = 0; r < rows; r++, row += ow) {
        for (int64_t j = 0; j < full; j += N) conv_weight_step<OT, KT, true>(acc, row, size, x, j, 0);
        if (tail) conv_weight_step<OT, KT, false>(acc, row, size, x, full, tail);
#pragma GCC unroll 8
        for (int t = 0; t < KT; t++) x[t] += b.pitch;
      }
    }
  }
  alignas(64) float sums[(OT * KT + 15) / 16 * 16];
  conv_lane_sums(acc, sums);
  const int64_t taps = k.s.taps();
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
    for (int t = 0; t < KT; t++) {
      const float v = sums[o * KT + t];
      dw[o * taps + t] = add ? dw[o * taps + t] + v : v;
    }
  }
}

// All taps of OT output channels.
template <int OT, int KT>
void conv_weight_taps(const ConvWeight& k, const float* g, const float* planes, const int32_t* offsets, int64_t item0,
                      int64_t count, float* dw, bool add, ConvAhead (&ahead)[2], int64_t first = 0) {
  const int64_t taps = k.s.taps();
  for (; first + KT <= taps; first += KT) {
    ahead[0].step();
    ahead[1].step();
    conv_weight_tile<OT, KT>(k, g, planes, offsets + first, item0, count, dw + first, add);
  }
  if constexpr (KT > 1) conv_weight_taps<OT, 1>(k, g, planes, offsets, item0, count, dw, add, ahead, first);
}

// db of output channel o over `count` bands, from g itself.
template <bool brain>
inline float conv_weight_bias(const ConvWeight& k, const Operand& g, int64_t o, int64_t item0, int64_t count) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  F sum[4] = {F::zero(), F::zero(), F::zero(), F::zero()};
  for (int64_t item = item0; item < item0 + count; item++) {
    const int64_t first = (item / b.bands * k.s.o + o) * k.s.oh * k.s.ow + item % b.bands * b.band * k.s.ow;
    const float* const from = reinterpret_cast<const float*>(g.data) + first;
    const uint16_t* const narrow = reinterpret_cast<const uint16_t*>(g.data) + first;
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
      return brain ? load_bf16(narrow + i) : F::load(from + i);
    };
    const int64_t n = b.rows_of(item) * k.s.ow;
    int64_t i = 0;
    for (; i + 4 * N <= n; i += 4 * N) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; q++) sum[q] += at(i + q * N);
    }
    for (; i + N <= n; i += N) sum[0] += at(i);
    const int rest = static_cast<int>(n - i);
    if (rest > 0) sum[1] += brain ? load_bf16_n(narrow + i, rest) : F::load_n(from + i, rest);
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// g of one band for ot output channels from `first` on, rows at the pitch of the planes, zeros between and after them.
inline void conv_weight_copy(const ConvWeight& k, const Operand& g, int64_t first, int64_t item, int ot, float* to,
                             float* line) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  const int64_t ow = k.s.ow, size = k.s.oh * ow, rows = b.rows_of(item);
  const F zero = F::zero();
  for (int o = 0; o < ot; o++, to += k.g_floats) {
    const int64_t from = (item / b.bands * k.s.o + first + o) * size + item % b.bands * b.band * ow;
    // Whole vectors: what they put beyond their row is written again by the next.
    float* row = conv_rows(g.row(from, rows * ow, line), ow, rows, 0, ow, b.pitch, to);
    for (; row < to + k.g_floats - N; row += N) zero.store(row);
  }
}

// g where it lies, or widened. Another source makes the images that a block of bands needs in `room`.
struct ConvGrad {
  Operand g;
  // From channel 0 of the image that band `item` belongs to; of it and of the next images the channels `outs` are read.
  Operand take(const ConvWeight& k, int64_t item, int64_t count, Range outs, float* room) const {
    const int64_t first = item / k.b.bands, floats = k.image_floats(), size = k.s.oh * k.s.ow;
    if (!g.rounded || k.flat) return g.from(first * floats);
    for (int64_t i = 0; i < k.images(item, count); i++) {
      const int64_t at = outs.begin * size;
      g.row((first + i) * floats + at, (outs.end - outs.begin) * size, room + i * floats + at);
    }
    return Operand(room);
  }
  // What `take` will read for `count` images from this one on.
  ConvAhead ahead(const ConvWeight& k, int64_t image, int64_t count, int64_t tiles) const {
    return conv_fetch(g, image * k.image_floats(), count * k.image_floats(), tiles);
  }
};

template <class Grad>
void conv_weight_run(const ConvWeight& k, const Grad& grad, const Operand& x, float* dw, float* db, const Call& call,
                     int phase, int part, int parts, void* scratch) {
  const int64_t size = k.size(), taps = k.s.taps();
  if (phase == 1) {
    // Rows of partial sums (dw, db), one from each group, added pairwise: (0 + 1) + (2 + 3), ...
    const float* from = call.workspace().as<float>();
    const int64_t row = size + k.s.o;
    const auto combine = [&](int64_t first, int64_t begin, int64_t end, float* to) {
      for (int64_t i = begin; i < end; i += F::N) {
        const int n = static_cast<int>(conv_min(F::N, end - i));
        F sum[kConvParts];
        int64_t rows = k.groups;
        for (int64_t q = 0; q < rows; q++) sum[q] = F::load_n(from + q * row + first + i, n);
        for (; rows > 1; rows = (rows + 1) / 2) {
          for (int64_t q = 0; q < rows / 2; q++) sum[q] = sum[2 * q] + sum[2 * q + 1];
          if (rows % 2) sum[rows / 2] = sum[rows - 1];
        }
        sum[0].store_n(to + i, n);
      }
    };
    const Range r = part_range(size, part, parts, F::N);
    combine(0, r.begin, r.end, dw);
    if (db && part == 0) combine(size, 0, k.s.o, db);
    return;
  }
  int32_t* offsets = static_cast<int32_t*>(scratch);
  float* planes = reinterpret_cast<float*>(static_cast<char*>(scratch) + conv_aligned(static_cast<size_t>(taps) * 4));
  float* copies = planes + k.block * k.step;
  float* line = copies + k.block * kOutTile * k.g_floats;
  float* room = line + k.lines();
  conv_offsets_forward(k.s, k.b, offsets);
  const int group = static_cast<int>(part / k.slices), slice = static_cast<int>(part % k.slices);
  if (k.groups > 1) {
    dw = call.workspace().as<float>() + group * (size + k.s.o);
    if (db) db = dw + size;
  }
  const Range items = part_range(k.b.items(), group, static_cast<int>(k.groups), k.block);
  const Range outs = part_range(k.s.o, slice, static_cast<int>(k.slices), kOutTile);
  if (items.begin == items.end) {
    for (int64_t i = outs.begin * taps; i < outs.end * taps; i++) dw[i] = 0.0f;
    for (int64_t o = outs.begin; db && o < outs.end; o++) db[o] = 0.0f;
  }
  for (int64_t item = items.begin; item < items.end; item += k.block) {
    const int64_t count = conv_min(k.block, items.end - item);
    for (int64_t q = 0; q < count; q++) conv_fill(k.b, x, item + q, planes + q * k.step, line);
    // The next block is fetched meanwhile.
    ConvAhead ahead[2] = {};
    if (k.b.bands == 1 && k.slices == 1) {
      const int64_t next = conv_min(k.block, items.end - item - count), tiles = conv_max(1, size / (kOutTile * 3));
      const int64_t x_floats = k.s.c * k.s.h * k.s.w;
      ahead[0] = conv_fetch(x, (item + count) * x_floats, next * x_floats, tiles);
      ahead[1] = grad.ahead(k, item + count, next, tiles);
    }
    const Operand images = grad.take(k, item, count, outs, room);
    const int64_t at = item % k.b.bands;  // the first band, counted from the first image
    const bool add = item != items.begin;
    for (int64_t o = outs.begin; o < outs.end;) {
      const int ot = conv_tile_width(outs.end - o);
      const float* g = reinterpret_cast<const float*>(images.data) + (k.flat ? 0 : o * k.s.oh * k.s.ow);
      float* to = dw + o * taps;
      for (int j = 0; db && j < ot; j++) {
        const auto sum = images.brain ? conv_weight_bias<true> : conv_weight_bias<false>;
        const float v = sum(k, images, o + j, at, count);
        db[o + j] = add ? db[o + j] + v : v;
      }
      if (k.flat) {
        for (int64_t q = 0; q < count; q++)
          conv_weight_copy(k, images, o, at + q, ot, copies + q * kOutTile * k.g_floats, line);
        g = copies;
      }
      switch (ot) {
        case 8:
          if constexpr (kOutTile == 8) conv_weight_taps<8, 3>(k, g, planes, offsets, at, count, to, add, ahead);
          break;
        case 4: conv_weight_taps<4, 3>(k, g, planes, offsets, at, count, to, add, ahead); break;
        case 2: conv_weight_taps<2, 5>(k, g, planes, offsets, at, count, to, add, ahead); break;
        default: conv_weight_taps<1, 8>(k, g, planes, offsets, at, count, to, add, ahead);
      }
      o += ot;
    }
  }
}

inline void conv2d_back_weight_plan(const Call& call, KernelPlan& plan) {
  const ConvWeight k = conv_weight(call[0], call[1], call[2], call);
  conv_weight_plan(k, k.s.rounded && !k.flat, plan);
}
inline void conv2d_back_weight_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvWeight k = conv_weight(call[0], call[1], call[2], call);
  const ConvGrad grad{Operand(call[0], k.s.rounded)};
  conv_weight_run(k, grad, Operand(call[1], k.s.rounded), call[2].as<float>(), call[3].as<float>(), call, phase, part,
                  parts, scratch);
}

}  // namespace gradloom::GL_ISA
