// conv.h: conv2d, its gradients and its place in the kernel table; pools are in conv_pool.h.
//
// x (N, C, H, W), w (O, C, KH, KW), bias (O), y (N, O, OH, OW), all f32 and dense.
#pragma once
#include "conv_pool.h"
#include "conv_product.h"

namespace gradloom::GL_ISA {

// ---- conv2d(x, w, bias; stride, padding, dilation, activation) -> y ------------------------------------

inline ConvShape conv_shape(const Tensor& x, const Tensor& w, const Tensor& y, const Call& call, int words) {
  ConvShape s{};
  s.n = x.shape[0], s.c = x.shape[1], s.h = x.shape[2], s.w = x.shape[3];
  s.o = w.shape[0], s.kh = w.shape[2], s.kw = w.shape[3];
  s.oh = y.shape[2], s.ow = y.shape[3];
  s.sh = call.attr_int(words + 1), s.sw = call.attr_int(words + 2);
  s.ph = call.attr_int(words + 4), s.pw = call.attr_int(words + 5);
  s.dh = call.attr_int(words + 7), s.dw = call.attr_int(words + 8);
  return s;
}

// Planes of x for the grid of y; `gh` rows of it, in multiples of `grain`.
inline ConvBand conv_band_forward(const ConvShape& s, int64_t gh, int64_t grain = 1) {
  ConvBand b{};
  b.images = s.n, b.channels = s.c, b.h = s.h, b.w = s.w;
  b.sy = s.sh, b.sx = s.sw, b.y0 = -s.ph, b.x0 = -s.pw;
  b.fy = conv_min(s.sh, (s.kh - 1) * s.dh + 1), b.fx = conv_min(s.sw, (s.kw - 1) * s.dw + 1);
  b.gh = gh, b.gw = s.ow;
  b.reach_y = (s.kh - 1) * s.dh / s.sh, b.reach_x = (s.kw - 1) * s.dw / s.sw;
  b.derive(s.flops(), s.o, grain);
  return b;
}

// offset[k], k = (c, ky, kx), into the planes of conv_band_forward.
inline void conv_offsets_forward(const ConvShape& s, const ConvBand& b, int32_t* offsets) {
  for (int64_t c = 0; c < s.c; c++) {
    for (int64_t ky = 0; ky < s.kh; ky++) {
      for (int64_t kx = 0; kx < s.kw; kx++) {
        const int64_t ty = ky * s.dh, tx = kx * s.dw;
        const int64_t plane = (c * b.fy + ty % s.sh) * b.fx + tx % s.sw;
        *offsets++ = static_cast<int32_t>(plane * b.plane + ty / s.sh * b.pitch + tx / s.sw);
      }
    }
  }
}

// Workspace: offsets, then the weights as (tile of output channels, k, channel in the tile).
inline void conv_plan(const ConvBand& b, int64_t outs, int64_t taps, KernelPlan& plan) {
  plan.phases = 2;
  plan.parts[0] = parts_for(static_cast<double>(outs * taps), 3e4);
  plan.parts[1] = static_cast<uint32_t>(b.groups * b.slices);
  plan.scratch_bytes = b.scratch_bytes();
  plan.workspace_bytes = conv_aligned(static_cast<size_t>(taps) * 4) + static_cast<size_t>(outs * taps) * 4;
}
inline int32_t* conv_offsets(const Call& call) { return call.workspace().as<int32_t>(); }
inline float* conv_packed(const Call& call, int64_t taps) {
  return reinterpret_cast<float*>(call.workspace().as<char>() + conv_aligned(static_cast<size_t>(taps) * 4));
}

inline void conv_pack_forward(const ConvShape& s, const ConvBand& b, const Call& call, int part, int parts) {
  const int64_t taps = s.taps();
  const float* w = call[1].as<float>();
  if (part == 0) conv_offsets_forward(s, b, conv_offsets(call));
  conv_tiles(part_range(s.o, part, parts, kOutTile), [&](int64_t o, int ot) {
    float* to = conv_packed(call, taps) + o * taps;
    for (int64_t k = 0; k < taps; k++) {
      for (int j = 0; j < ot; j++) *to++ = w[(o + j) * taps + k];
    }
  });
}

inline void conv2d_plan(const Call& call, KernelPlan& plan) {
  const ConvShape s = conv_shape(call[0], call[1], call[3], call, 0);
  conv_plan(conv_band_forward(s, s.oh), s.o, s.taps(), plan);
}

inline void conv2d_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvShape s = conv_shape(call[0], call[1], call[3], call, 0);
  const ConvBand b = conv_band_forward(s, s.oh);
  if (phase == 0) return conv_pack_forward(s, b, call, part, parts);
  const int64_t taps = s.taps(), size = s.oh * s.ow;
  const int32_t* offsets = conv_offsets(call);
  const float* bias = call[2].as<float>();
  const bool relu = call.attr_int(9) == 1;
  const ConvPart mine = conv_part(b, s.o, part);
  conv_items(b, call[0].as<float>(), mine, scratch, [&](ConvItem& item) {
    float* y = call[3].as<float>() + item.image * s.o * size + item.first * s.ow;
    conv_tiles(mine.outs, [&](int64_t o, int ot) {
      const float* w = conv_packed(call, taps) + o * taps;
      const float* start = bias ? bias + o : nullptr;
      float* to = y + o * size;
      if (b.by_rows) {
        conv_grid(ot, b, item.planes, w, offsets, taps, {to, size, s.ow, start, relu}, item.ahead, item.rows);
        return;
      }
      item.chunks(ot, w, offsets, taps, start, relu, [&](int64_t r0, int64_t some) {
        const int64_t pitch = b.pitch, wide = s.ow;  // in registers, whatever is stored
        for (int j = 0; j < ot; j++) {
          const float* from = item.channel(j);
          float* row = to + j * size + r0 * wide;
          for (int64_t r = 0; r < some; r++, from += pitch, row += wide) conv_copy(from, wide, row);
        }
      });
    });
  });
}

// ---- conv2d_max_pool(x, w, bias; stride, padding, dilation, activation) -> y, index ----------------------
//
// max_pool2d(conv2d(...), kernel 2, stride 2), the same bits; the output of the convolution stays in scratch.

inline ConvShape conv2d_max_pool_shape(const Call& call) {
  ConvShape s = conv_shape(call[0], call[1], call[3], call, 0);
  s.oh = (s.h + 2 * s.ph - (s.kh - 1) * s.dh - 1) / s.sh + 1;
  s.ow = (s.w + 2 * s.pw - (s.kw - 1) * s.dw - 1) / s.sw + 1;
  return s;
}
inline ConvBand conv2d_max_pool_band(const ConvShape& s) {
  ConvBand b = conv_band_forward(s, s.oh / 2 * 2, 2);  // the last row of an odd number has no window
  b.by_rows = false;
  return b;
}
inline void conv2d_max_pool_plan(const Call& call, KernelPlan& plan) {
  const ConvShape s = conv2d_max_pool_shape(call);
  conv_plan(conv2d_max_pool_band(s), s.o, s.taps(), plan);
}

inline void conv2d_max_pool_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvShape s = conv2d_max_pool_shape(call);
  const ConvBand b = conv2d_max_pool_band(s);
  if (phase == 0) return conv_pack_forward(s, b, call, part, parts);
  const int64_t taps = s.taps(), ph = s.oh / 2, pw = s.ow / 2;
  const int32_t* offsets = conv_offsets(call);
  const float* bias = call[2].as<float>();
  const bool relu = call.attr_int(9) == 1;
  const ConvPart mine = conv_part(b, s.o, part);
  conv_items(b, call[0].as<float>(), mine, scratch, [&](ConvItem& item) {
    conv_tiles(mine.outs, [&](int64_t o, int ot) {
      const float* w = conv_packed(call, taps) + o * taps;
      item.chunks(ot, w, offsets, taps, bias ? bias + o : nullptr, false, [&](int64_t r0, int64_t some) {
        for (int j = 0; j < ot; j++) {
          const int64_t at = (item.image * s.o + o + j) * ph * pw + (item.first + r0) / 2 * pw;
          float* y = call[3].as<float>() + at;
          uint8_t* index = call[4].data ? call[4].as<uint8_t>() + at : nullptr;
          if (relu) pool_pairs<true>(item.channel(j), b.pitch, some / 2, pw, y, index);
          else pool_pairs<false>(item.channel(j), b.pitch, some / 2, pw, y, index);
        }
      });
    });
  });
}

// ---- conv2d_back_input(g, w; height, width, stride, padding, dilation) -> dx ----------------------------
//
// The input row iy = i * sh + ry - ph meets the taps with ky * dh = t * sh + ry, at the row i - t of g: for each
// stride phase (ry, rx) a product over the same planes of g, with the taps of that phase.

struct ConvBack {
  ConvShape s;
  int64_t i0, j0;  // input row 0 and column 0 lie at grid row i0, column j0 of their phases
};
inline ConvBack conv_back(const Call& call) {
  ConvBack k{conv_shape(call[2], call[1], call[0], call, 2), 0, 0};
  k.i0 = k.s.ph / k.s.sh, k.j0 = k.s.pw / k.s.sw;
  return k;
}
inline ConvBand conv_band_back(const ConvBack& k) {
  const ConvShape& s = k.s;
  ConvBand b{};
  b.images = s.n, b.channels = s.o, b.h = s.oh, b.w = s.ow;
  b.reach_y = (s.kh - 1) * s.dh / s.sh, b.reach_x = (s.kw - 1) * s.dw / s.sw;
  b.sy = b.sx = b.fy = b.fx = 1;
  b.y0 = k.i0 - b.reach_y, b.x0 = k.j0 - b.reach_x;
  b.gh = (s.h - 1 + s.ph) / s.sh - k.i0 + 1, b.gw = (s.w - 1 + s.pw) / s.sw - k.j0 + 1;
  b.derive(s.flops(), s.c);
  if (s.sh != 1 || s.sw != 1) b.by_rows = false;
  return b;
}

inline void conv2d_back_input_plan(const Call& call, KernelPlan& plan) {
  const ConvBack k = conv_back(call);
  conv_plan(conv_band_back(k), k.s.c, k.s.o * k.s.kh * k.s.kw, plan);
}

// Calls each(ry, rx, first tap, taps) for each stride phase; taps are numbered phase by phase, (o, ky, kx) inside.
template <class Each> inline void conv_back_phases(const ConvShape& s, const Each& each) {
  int64_t first = 0;
  for (int64_t ry = 0; ry < s.sh; ry++) {
    int64_t ty = 0;
    for (int64_t ky = 0; ky < s.kh; ky++) ty += ky * s.dh % s.sh == ry;
    for (int64_t rx = 0; rx < s.sw; rx++) {
      int64_t tx = 0;
      for (int64_t kx = 0; kx < s.kw; kx++) tx += kx * s.dw % s.sw == rx;
      each(ry, rx, first, s.o * ty * tx);
      first += s.o * ty * tx;
    }
  }
}

inline void conv_pack_back(const ConvShape& s, const ConvBand& b, const Call& call, int part, int parts) {
  const float* w = call[1].as<float>();
  int32_t* offsets = conv_offsets(call);
  float* packed = conv_packed(call, s.o * s.kh * s.kw);
  const Range tiles = part_range(s.c, part, parts, kOutTile);
  conv_back_phases(s, [&](int64_t ry, int64_t rx, int64_t first, int64_t count) {
    int64_t tap = 0;
    for (int64_t o = 0; o < s.o; o++) {
      for (int64_t ky = 0; ky < s.kh; ky++) {
        if (ky * s.dh % s.sh != ry) continue;
        for (int64_t kx = 0; kx < s.kw; kx++) {
          if (kx * s.dw % s.sw != rx) continue;
          if (part == 0) {
            const int64_t up = b.reach_y - ky * s.dh / s.sh, left = b.reach_x - kx * s.dw / s.sw;
            offsets[first + tap] = static_cast<int32_t>(o * b.plane + up * b.pitch + left);
          }
          conv_tiles(tiles, [&](int64_t c, int ot) {
            float* to = packed + s.c * first + c * count + tap * ot;
            for (int j = 0; j < ot; j++) to[j] = w[((o * s.c + c + j) * s.kh + ky) * s.kw + kx];
          });
          tap++;
        }
      }
    }
  });
}

// Loops of its own: through conv_items and chunks it took 4 % longer.
inline void conv2d_back_input_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvBack k = conv_back(call);
  const ConvShape& s = k.s;
  const ConvBand b = conv_band_back(k);
  if (phase == 0) return conv_pack_back(s, b, call, part, parts);
  const int64_t size = s.h * s.w;
  const int32_t* offsets = conv_offsets(call);
  const float* packed = conv_packed(call, s.o * s.kh * s.kw);
  const float* g = call[0].as<float>();
  float* planes = static_cast<float*>(scratch);
  float* buffer = b.buffer(planes);
  const auto [items, outs] = conv_part(b, s.c, part);
  for (int64_t item = items.begin; item < items.end; item++) {
    conv_fill(b, g, item, planes);
    ConvAhead ahead = conv_ahead(b, g, item, items.end, outs.end - outs.begin);
    const int64_t rows = b.rows_of(item), row0 = item % b.bands * b.band;
    float* dx = call[2].as<float>() + item / b.bands * s.c * size;
    conv_back_phases(s, [&, outs = outs](int64_t ry, int64_t rx, int64_t first, int64_t count) {
      const int64_t y0 = (k.i0 + row0) * s.sh + ry - s.ph;  // input row of grid row 0 of this band
      const int64_t x0 = k.j0 * s.sw + rx - s.pw;
      const int64_t lo = conv_first(x0, s.sw), hi = conv_min(b.gw, conv_last(x0, s.sw, s.w));
      for (int64_t c = outs.begin; c < outs.end;) {
        const int ot = conv_tile_width(outs.end - c);
        const float* w = packed + s.c * first + c * count;
        if (b.by_rows) {
          float* to = dx + c * size + row0 * s.w;
          conv_grid(ot, b, planes, w, offsets + first, count, {to, size, s.w, nullptr, false}, ahead, rows);
        } else {
          const ConvOut out{buffer, b.buffer_pitch, 0, nullptr, false};
          for (int64_t r0 = 0; r0 < rows; r0 += b.chunk) {
            const int64_t some = conv_min(b.chunk, rows - r0);
            conv_grid(ot, b, planes + r0 * b.pitch, w, offsets + first, count, out, ahead, some);
            for (int j = 0; j < ot; j++) {
              for (int64_t r = 0; r < some; r++) {
                const int64_t y = y0 + (r0 + r) * s.sh;
                if (y < 0 || y >= s.h || lo >= hi) continue;
                const float* from = buffer + j * b.buffer_pitch + r * b.pitch;
                float* to = dx + (c + j) * size + y * s.w + x0;
                if (s.sw == 1) conv_copy(from + lo, hi - lo, to + lo);
                else for (int64_t i = lo; i < hi; i++) to[i * s.sw] = from[i];
              }
            }
          }
        }
        c += ot;
      }
    });
  }
}

// ---- conv2d_back_weight(g, x; kernel, stride, padding, dilation) -> dw, db -------------------------------
//
// dw[o][k] = sum over images and positions p of g[o][p] * planes[offset[k] + p], db[o] = sum of g[o][p] (optional).
// A part takes a range of images and a range of output channels; the sums of the image ranges are added in a fixed
// tree in a second phase.

struct ConvWeight {
  ConvShape s;
  ConvBand b;
  bool flat;               // g is copied with the pitch of the planes (zeros between rows), one loop runs over it all
  int64_t g_floats;        // of that copy for one output channel of one band
  int64_t groups, slices;  // of images, of output channels
  int64_t block;           // bands in scratch at once, so that a tile works long enough before its lanes are added up
  int64_t size() const { return s.o * s.taps(); }
};
inline ConvWeight conv_weight(const Call& call) {
  constexpr int64_t N = F::N;
  ConvWeight k{};
  k.s = conv_shape(call[1], call[2], call[0], call, 3);
  k.s.sh = call.attr_int(4), k.s.sw = call.attr_int(5);
  k.b = conv_band_forward(k.s, k.s.oh);
  const int64_t flat_vectors = conv_ceil(k.b.band * k.b.pitch, N);
  k.flat = k.s.taps() >= 32 && flat_vectors <= k.b.band * k.b.row_vectors;
  const int64_t vectors = k.flat ? flat_vectors : k.b.band * k.b.row_vectors;
  k.g_floats = k.flat ? flat_vectors * N + N : 0;
  k.block = conv_max(1, conv_min(conv_min(8, 64 / vectors), kBandFloats / (k.b.floats + kOutTile * k.g_floats)));
  const int64_t parts = parts_for(k.s.flops(), kConvGrain, 32);
  const int64_t most = conv_max(1, (1 << 22) / conv_max(1, k.size()));  // 16 MiB of partial sums
  k.groups = conv_max(1, conv_min(parts, conv_min(conv_ceil(k.b.items(), k.block), most)));
  k.slices = conv_max(1, conv_min(parts / k.groups, conv_ceil(k.s.o, kOutTile)));
  return k;
}
inline void conv2d_back_weight_plan(const Call& call, KernelPlan& plan) {
  const ConvWeight k = conv_weight(call);
  plan.parts[0] = static_cast<uint32_t>(k.groups * k.slices);
  plan.scratch_bytes = conv_aligned(static_cast<size_t>(k.s.taps()) * 4);
  plan.scratch_bytes += static_cast<size_t>(k.block * (k.b.floats + kOutTile * k.g_floats)) * 4;
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
    for (int64_t q = 0; q < count; q++, planes += b.floats, g += kOutTile * k.g_floats) {
#pragma GCC unroll 8
      for (int t = 0; t < KT; t++) x[t] = planes + offsets[t];
      for (int64_t j = 0; j < length; j += N) conv_weight_step<OT, KT, true>(acc, g, k.g_floats, x, j, 0);
    }
  } else {
    const int64_t ow = k.s.ow, size = k.s.oh * ow, full = ow / N * N;
    const int tail = static_cast<int>(ow - full);
    for (int64_t item = item0; item < item0 + count; item++, planes += b.floats) {
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
  const int64_t taps = k.s.taps();
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
    for (int t = 0; t < KT; t++) {
      const float v = reduce_add(acc[o][t]);
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

// db of one output channel over `count` bands, from g itself.
inline float conv_weight_bias(const ConvWeight& k, const float* g, int64_t item0, int64_t count) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  F sum[4] = {F::zero(), F::zero(), F::zero(), F::zero()};
  for (int64_t item = item0; item < item0 + count; item++) {
    const float* from = g + item / b.bands * k.s.o * k.s.oh * k.s.ow + item % b.bands * b.band * k.s.ow;
    const int64_t n = b.rows_of(item) * k.s.ow;
    int64_t i = 0;
    for (; i + 4 * N <= n; i += 4 * N) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; q++) sum[q] += F::load(from + i + q * N);
    }
    for (; i + N <= n; i += N) sum[0] += F::load(from + i);
    if (i < n) sum[1] += F::load_n(from + i, static_cast<int>(n - i));
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// g of one band for ot output channels, rows at the pitch of the planes, zeros between and after them.
inline void conv_weight_copy(const ConvWeight& k, const float* g, int64_t item, int ot, float* to) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  const int64_t ow = k.s.ow, size = k.s.oh * ow, rows = b.rows_of(item);
  const F zero = F::zero();
  for (int o = 0; o < ot; o++, to += k.g_floats) {
    const float* from = g + (item / b.bands * k.s.o + o) * size + item % b.bands * b.band * ow;
    float* row = to;  // whole vectors: what they put beyond their row is written again by the next
    for (int64_t r = 0; r < rows; r++, row += b.pitch, from += ow) conv_row(from, 0, ow, b.pitch, row);
    for (; row < to + k.g_floats - N; row += N) zero.store(row);
  }
}

inline void conv2d_back_weight_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvWeight k = conv_weight(call);
  const int64_t size = k.size(), taps = k.s.taps();
  float* dw = call[2].as<float>();
  float* db = call[3].as<float>();
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
  float* copies = planes + k.block * k.b.floats;
  conv_offsets_forward(k.s, k.b, offsets);
  const int group = static_cast<int>(part / k.slices), slice = static_cast<int>(part % k.slices);
  if (k.groups > 1) {
    dw = call.workspace().as<float>() + group * (size + k.s.o);
    if (db) db = dw + size;
  }
  const Range items = part_range(k.b.items(), group, static_cast<int>(k.groups), k.block);
  const Range outs = part_range(k.s.o, slice, static_cast<int>(k.slices), kOutTile);
  const float* x = call[1].as<float>();
  if (items.begin == items.end) {
    for (int64_t i = outs.begin * taps; i < outs.end * taps; i++) dw[i] = 0.0f;
    for (int64_t o = outs.begin; db && o < outs.end; o++) db[o] = 0.0f;
  }
  for (int64_t item = items.begin; item < items.end; item += k.block) {
    const int64_t count = conv_min(k.block, items.end - item);
    for (int64_t q = 0; q < count; q++) conv_fill(k.b, x, item + q, planes + q * k.b.floats);
    // The next block is fetched meanwhile.
    ConvAhead ahead[2] = {};
    if (k.b.bands == 1 && k.slices == 1) {
      const int64_t next = conv_min(k.block, items.end - item - count), tiles = conv_max(1, size / (kOutTile * 3));
      const int64_t x_floats = k.s.c * k.s.h * k.s.w, g_floats = k.s.o * k.s.oh * k.s.ow;
      ahead[0] = conv_fetch(x + (item + count) * x_floats, next * x_floats, tiles);
      ahead[1] = conv_fetch(call[0].as<float>() + (item + count) * g_floats, next * g_floats, tiles);
    }
    const bool add = item != items.begin;
    for (int64_t o = outs.begin; o < outs.end;) {
      const int ot = conv_tile_width(outs.end - o);
      const float* g = call[0].as<float>() + o * k.s.oh * k.s.ow;
      float* to = dw + o * taps;
      for (int j = 0; db && j < ot; j++) {
        const float v = conv_weight_bias(k, g + j * k.s.oh * k.s.ow, item, count);
        db[o + j] = add ? db[o + j] + v : v;
      }
      if (k.flat) {
        for (int64_t q = 0; q < count; q++) conv_weight_copy(k, g, item + q, ot, copies + q * kOutTile * k.g_floats);
        g = copies;
      }
      switch (ot) {
        case 8:
          if constexpr (kOutTile == 8) conv_weight_taps<8, 3>(k, g, planes, offsets, item, count, to, add, ahead);
          break;
        case 4: conv_weight_taps<4, 3>(k, g, planes, offsets, item, count, to, add, ahead); break;
        case 2: conv_weight_taps<2, 5>(k, g, planes, offsets, item, count, to, add, ahead); break;
        default: conv_weight_taps<1, 8>(k, g, planes, offsets, item, count, to, add, ahead);
      }
      o += ot;
    }
  }
}

inline constexpr KernelRow kConvRows[] = {
    {"conv2d", "f32", conv2d_plan, conv2d_run},
    {"conv2d_max_pool", "f32_u8", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_max_pool", "f32", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_back_input", "f32", conv2d_back_input_plan, conv2d_back_input_run},
    {"conv2d_back_weight", "f32", conv2d_back_weight_plan, conv2d_back_weight_run},
    {"max_pool2d", "f32_u8", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d", "f32", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d_back", "f32_u8_f32", max_pool2d_back_plan, max_pool2d_back_run},
    {"avg_pool2d", "f32", avg_pool2d_plan, avg_pool2d_run},
    {"avg_pool2d_back", "f32", avg_pool2d_back_plan, avg_pool2d_back_run},
};

}  // namespace gradloom::GL_ISA
