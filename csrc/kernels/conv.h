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

// Planes of x for the grid of y.
inline ConvBand conv_band_forward(const ConvShape& s) {
  ConvBand b{};
  b.images = s.n, b.channels = s.c, b.h = s.h, b.w = s.w;
  b.sy = s.sh, b.sx = s.sw, b.y0 = -s.ph, b.x0 = -s.pw;
  b.fy = conv_min(s.sh, (s.kh - 1) * s.dh + 1), b.fx = conv_min(s.sw, (s.kw - 1) * s.dw + 1);
  b.gh = s.oh, b.gw = s.ow;
  b.reach_y = (s.kh - 1) * s.dh / s.sh, b.reach_x = (s.kw - 1) * s.dw / s.sw;
  b.derive(s.flops());
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
inline void conv2d_plan(const Call& call, KernelPlan& plan) {
  const ConvShape s = conv_shape(call[0], call[1], call[3], call, 0);
  const ConvBand b = conv_band_forward(s);
  const int64_t taps = s.taps();
  plan.phases = 2;
  plan.parts[0] = parts_for(static_cast<double>(s.o * taps), 3e4);
  plan.parts[1] = static_cast<uint32_t>(conv_max(1, conv_min(b.items(), parts_for(s.flops(), kConvGrain, kConvParts))));
  plan.scratch_bytes = conv_aligned(static_cast<size_t>(b.floats) * 4);
  if (!b.by_rows) plan.scratch_bytes += static_cast<size_t>(kOutTile * b.buffer_pitch) * 4;
  plan.workspace_bytes = conv_aligned(static_cast<size_t>(taps) * 4) + static_cast<size_t>(s.o * taps) * 4;
}

// Rows of a chunk from the buffer to their places; columns [lo, hi) of the grid are real, others are left out.
template <class Store>
inline void conv_drain(const ConvBand& b, const float* buffer, int ot, int64_t rows, const Store& store) {
  for (int o = 0; o < ot; o++) {
    for (int64_t r = 0; r < rows; r++) store(o, r, buffer + o * b.buffer_pitch + r * b.pitch);
  }
}

inline void conv2d_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvShape s = conv_shape(call[0], call[1], call[3], call, 0);
  const ConvBand b = conv_band_forward(s);
  const int64_t taps = s.taps();
  int32_t* offsets = call.workspace().as<int32_t>();
  float* packed = reinterpret_cast<float*>(call.workspace().as<char>() + conv_aligned(static_cast<size_t>(taps) * 4));
  if (phase == 0) {
    if (part == 0) conv_offsets_forward(s, b, offsets);
    const float* w = call[1].as<float>();
    const Range tiles = part_range(s.o, part, parts, kOutTile);
    for (int64_t o = tiles.begin; o < tiles.end;) {
      const int ot = conv_tile_width(tiles.end - o);
      float* to = packed + o * taps;
      for (int64_t k = 0; k < taps; k++) {
        for (int j = 0; j < ot; j++) *to++ = w[(o + j) * taps + k];
      }
      o += ot;
    }
    return;
  }
  float* planes = static_cast<float*>(scratch);
  float* buffer = planes + conv_aligned(static_cast<size_t>(b.floats) * 4) / 4;
  const float* bias = call[2].as<float>();
  const bool relu = call.attr_int(9) == 1;
  const int64_t size = s.oh * s.ow;
  const Range items = part_range(b.items(), part, parts);
  for (int64_t item = items.begin; item < items.end; item++) {
    conv_fill(b, call[0].as<float>(), item, planes);
    const int64_t rows = b.rows_of(item);
    float* y = call[3].as<float>() + item / b.bands * s.o * size + item % b.bands * b.band * s.ow;
    for (int64_t o = 0; o < s.o;) {
      const int ot = conv_tile_width(s.o - o);
      const ConvOut out{y + o * size, size, s.ow, bias ? bias + o : nullptr, relu};
      const float* w = packed + o * taps;
      if (b.by_rows) {
        conv_rows(ot, b, planes, w, offsets, taps, out, rows);
      } else {
        for (int64_t r0 = 0; r0 < rows; r0 += b.chunk) {
          const int64_t count = conv_min(b.chunk, rows - r0);
          conv_flat(ot, b, planes + r0 * b.pitch, w, offsets, taps, buffer, count);
          conv_drain(b, buffer, ot, count, [&](int j, int64_t r, const float* from) {
            float* to = out.y + j * size + (r0 + r) * s.ow;
            int64_t i = 0;
            for (; i + F::N <= s.ow; i += F::N) conv_finish(F::load(from + i), out.bias, j, relu).store(to + i);
            const int n = static_cast<int>(s.ow - i);
            if (n) conv_finish(F::load_n(from + i, n), out.bias, j, relu).store_n(to + i, n);
          });
        }
      }
      o += ot;
    }
  }
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
  b.derive(s.flops());
  if (s.sh != 1 || s.sw != 1) b.by_rows = false;
  return b;
}

inline void conv2d_back_input_plan(const Call& call, KernelPlan& plan) {
  const ConvBack k = conv_back(call);
  const ConvBand b = conv_band_back(k);
  const int64_t taps = k.s.o * k.s.kh * k.s.kw;
  plan.phases = 2;
  plan.parts[0] = parts_for(static_cast<double>(k.s.c * taps), 3e4);
  plan.parts[1] =
      static_cast<uint32_t>(conv_max(1, conv_min(b.items(), parts_for(k.s.flops(), kConvGrain, kConvParts))));
  plan.scratch_bytes = conv_aligned(static_cast<size_t>(b.floats) * 4);
  if (!b.by_rows) plan.scratch_bytes += static_cast<size_t>(kOutTile * b.buffer_pitch) * 4;
  plan.workspace_bytes = conv_aligned(static_cast<size_t>(taps) * 4) + static_cast<size_t>(k.s.c * taps) * 4;
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

inline void conv2d_back_input_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvBack k = conv_back(call);
  const ConvShape& s = k.s;
  const ConvBand b = conv_band_back(k);
  const int64_t taps = s.o * s.kh * s.kw;
  int32_t* offsets = call.workspace().as<int32_t>();
  float* packed = reinterpret_cast<float*>(call.workspace().as<char>() + conv_aligned(static_cast<size_t>(taps) * 4));
  if (phase == 0) {
    const float* w = call[1].as<float>();
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
            for (int64_t c = tiles.begin; c < tiles.end;) {
              const int ot = conv_tile_width(tiles.end - c);
              float* to = packed + s.c * first + c * count + tap * ot;
              for (int j = 0; j < ot; j++) to[j] = w[((o * s.c + c + j) * s.kh + ky) * s.kw + kx];
              c += ot;
            }
            tap++;
          }
        }
      }
    });
    return;
  }
  float* planes = static_cast<float*>(scratch);
  float* buffer = planes + conv_aligned(static_cast<size_t>(b.floats) * 4) / 4;
  const int64_t size = s.h * s.w;
  const Range items = part_range(b.items(), part, parts);
  for (int64_t item = items.begin; item < items.end; item++) {
    conv_fill(b, call[0].as<float>(), item, planes);
    const int64_t rows = b.rows_of(item), row0 = item % b.bands * b.band;
    float* dx = call[2].as<float>() + item / b.bands * s.c * size;
    conv_back_phases(s, [&](int64_t ry, int64_t rx, int64_t first, int64_t count) {
      const int64_t y0 = (k.i0 + row0) * s.sh + ry - s.ph;  // input row of grid row 0 of this band
      const int64_t x0 = k.j0 * s.sw + rx - s.pw;
      const int64_t lo = conv_first(x0, s.sw), hi = conv_min(b.gw, conv_last(x0, s.sw, s.w));
      for (int64_t c = 0; c < s.c;) {
        const int ot = conv_tile_width(s.c - c);
        const float* w = packed + s.c * first + c * count;
        if (b.by_rows) {
          const ConvOut out{dx + c * size + row0 * s.w, size, s.w, nullptr, false};
          conv_rows(ot, b, planes, w, offsets + first, count, out, rows);
        } else {
          for (int64_t r0 = 0; r0 < rows; r0 += b.chunk) {
            const int64_t some = conv_min(b.chunk, rows - r0);
            conv_flat(ot, b, planes + r0 * b.pitch, w, offsets + first, count, buffer, some);
            conv_drain(b, buffer, ot, some, [&](int j, int64_t r, const float* from) {
              const int64_t y = y0 + (r0 + r) * s.sh;
              if (y < 0 || y >= s.h) return;
              float* to = dx + (c + j) * size + y * s.w + x0;
              if (s.sw == 1) {
                int64_t i = lo;
                for (; i + F::N <= hi; i += F::N) F::load(from + i).store(to + i);
                if (i < hi) F::load_n(from + i, static_cast<int>(hi - i)).store_n(to + i, static_cast<int>(hi - i));
              } else {
                for (int64_t i = lo; i < hi; i++) to[i * s.sw] = from[i];
              }
            });
          }
        }
        c += ot;
      }
    });
  }
}

// ---- conv2d_back_weight(g, x; kernel, stride, padding, dilation) -> dw ----------------------------------
//
// dw[o][k] = sum over images and positions p of g[o][p] * planes[offset[k] + p]. A part takes a range of images and a
// range of output channels; the sums of the image ranges are added in a fixed tree in a second phase.

struct ConvWeight {
  ConvShape s;
  ConvBand b;
  int64_t groups, slices;  // of images, of output channels
  int64_t block;           // bands in scratch at once, so that a tile works long enough before its lanes are added up
  int64_t size() const { return s.o * s.taps(); }
};
inline ConvWeight conv_weight(const Call& call) {
  ConvWeight k{conv_shape(call[1], call[2], call[0], call, 3), {}, 1, 1, 1};
  k.s.sh = call.attr_int(4), k.s.sw = call.attr_int(5);
  k.b = conv_band_forward(k.s);
  const int64_t parts = parts_for(k.s.flops(), kConvGrain, 32);
  k.block = conv_max(1, conv_min(conv_min(8, 64 / (k.b.band * k.b.row_vectors)), kBandFloats / k.b.floats));
  k.groups = conv_min(parts, conv_min(conv_ceil(k.b.items(), k.block), conv_max(1, (1 << 22) / k.size())));
  k.slices = conv_min(parts / k.groups, conv_ceil(k.s.o, kOutTile));
  return k;
}
inline void conv2d_back_weight_plan(const Call& call, KernelPlan& plan) {
  const ConvWeight k = conv_weight(call);
  plan.parts[0] = static_cast<uint32_t>(k.groups * k.slices);
  plan.scratch_bytes = conv_aligned(static_cast<size_t>(k.s.taps()) * 4);
  plan.scratch_bytes += static_cast<size_t>(k.block * k.b.floats) * 4;
  if (k.groups > 1) {
    plan.phases = 2;
    plan.parts[1] = parts_for(static_cast<double>(k.groups * k.size()), 1e5);
    plan.workspace_bytes = static_cast<size_t>(k.groups * k.size()) * 4;
  }
}

// OT output channels x KT taps over `count` bands.
template <int OT, int KT>
void conv_weight_tile(const ConvWeight& k, const float* g, const float* planes, const int32_t* offsets, int64_t item0,
                      int64_t count, float* dw, bool add) {
  constexpr int64_t N = F::N;
  const ConvBand& b = k.b;
  const int64_t size = k.s.oh * k.s.ow, full = k.s.ow / N * N;
  const int tail = static_cast<int>(k.s.ow - full);
  F acc[OT][KT];
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
    for (int t = 0; t < KT; t++) acc[o][t] = F::zero();
  }
  for (int64_t item = item0; item < item0 + count; item++, planes += b.floats) {
    const float* gi = g + item / b.bands * k.s.o * size + item % b.bands * b.band * k.s.ow;
    const int64_t rows = b.rows_of(item);
    for (int64_t r = 0; r < rows; r++) {
      const float* gr = gi + r * k.s.ow;
      const float* x[KT];
#pragma GCC unroll 8
      for (int t = 0; t < KT; t++) x[t] = planes + offsets[t] + r * b.pitch;
      for (int64_t j = 0; j < full; j += N) {
        F xv[KT];
#pragma GCC unroll 8
        for (int t = 0; t < KT; t++) xv[t] = F::load(x[t] + j);
#pragma GCC unroll 8
        for (int o = 0; o < OT; o++) {
          const F gv = F::load(gr + o * size + j);
#pragma GCC unroll 8
          for (int t = 0; t < KT; t++) acc[o][t] = mul_add(gv, xv[t], acc[o][t]);
        }
      }
      if (tail) {
        F xv[KT];
#pragma GCC unroll 8
        for (int t = 0; t < KT; t++) xv[t] = F::load_n(x[t] + full, tail);
#pragma GCC unroll 8
        for (int o = 0; o < OT; o++) {
          const F gv = F::load_n(gr + o * size + full, tail);
#pragma GCC unroll 8
          for (int t = 0; t < KT; t++) acc[o][t] = mul_add(gv, xv[t], acc[o][t]);
        }
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

template <int OT, int KT>
void conv_weight_taps(const ConvWeight& k, const float* g, const float* planes, const int32_t* offsets, int64_t item0,
                      int64_t count, float* dw, bool add, int64_t first) {
  const int64_t taps = k.s.taps();
  for (; first + KT <= taps; first += KT) {
    conv_weight_tile<OT, KT>(k, g, planes, offsets + first, item0, count, dw + first, add);
  }
  if constexpr (KT > 1) conv_weight_taps<OT, 1>(k, g, planes, offsets, item0, count, dw, add, first);
}

inline void conv2d_back_weight_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvWeight k = conv_weight(call);
  const int64_t size = k.size(), taps = k.s.taps();
  float* dw = call[2].as<float>();
  if (phase == 1) {
    // groups rows of `size` floats, added pairwise: (0 + 1) + (2 + 3), ...
    const float* from = call.workspace().as<float>();
    const Range r = part_range(size, part, parts, F::N);
    for (int64_t i = r.begin; i < r.end; i += F::N) {
      const int n = static_cast<int>(conv_min(F::N, r.end - i));
      F sum[kConvParts];
      int64_t rows = k.groups;
      for (int64_t q = 0; q < rows; q++) sum[q] = F::load_n(from + q * size + i, n);
      for (; rows > 1; rows = (rows + 1) / 2) {
        for (int64_t q = 0; q < rows / 2; q++) sum[q] = sum[2 * q] + sum[2 * q + 1];
        if (rows % 2) sum[rows / 2] = sum[rows - 1];
      }
      sum[0].store_n(dw + i, n);
    }
    return;
  }
  int32_t* offsets = static_cast<int32_t*>(scratch);
  float* planes = reinterpret_cast<float*>(static_cast<char*>(scratch) + conv_aligned(static_cast<size_t>(taps) * 4));
  conv_offsets_forward(k.s, k.b, offsets);
  const int group = static_cast<int>(part / k.slices), slice = static_cast<int>(part % k.slices);
  if (k.groups > 1) dw = call.workspace().as<float>() + group * size;
  const Range items = part_range(k.b.items(), group, static_cast<int>(k.groups), k.block);
  const Range outs = part_range(k.s.o, slice, static_cast<int>(k.slices), kOutTile);
  const float* g = call[0].as<float>();
  if (items.begin == items.end) {
    for (int64_t i = outs.begin * taps; i < outs.end * taps; i++) dw[i] = 0.0f;
  }
  for (int64_t item = items.begin; item < items.end; item += k.block) {
    const int64_t count = conv_min(k.block, items.end - item);
    for (int64_t q = 0; q < count; q++) conv_fill(k.b, call[1].as<float>(), item + q, planes + q * k.b.floats);
    const bool add = item != items.begin;
    for (int64_t o = outs.begin; o < outs.end;) {
      const int ot = conv_tile_width(outs.end - o);
      const float* go = g + o * k.s.oh * k.s.ow;
      float* to = dw + o * taps;
      switch (ot) {
        case 8:
          if constexpr (kOutTile == 8) conv_weight_taps<8, 3>(k, go, planes, offsets, item, count, to, add, 0);
          break;
        case 4: conv_weight_taps<4, 3>(k, go, planes, offsets, item, count, to, add, 0); break;
        case 2: conv_weight_taps<2, 5>(k, go, planes, offsets, item, count, to, add, 0); break;
        default: conv_weight_taps<1, 8>(k, go, planes, offsets, item, count, to, add, 0);
      }
      o += ot;
    }
  }
}

inline constexpr KernelRow kConvRows[] = {
    {"conv2d", "f32", conv2d_plan, conv2d_run},
    {"conv2d_back_input", "f32", conv2d_back_input_plan, conv2d_back_input_run},
    {"conv2d_back_weight", "f32", conv2d_back_weight_plan, conv2d_back_weight_run},
    {"max_pool2d", "f32_u8", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d", "f32", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d_back", "f32_u8_f32", max_pool2d_back_plan, max_pool2d_back_run},
    {"avg_pool2d", "f32", avg_pool2d_plan, avg_pool2d_run},
    {"avg_pool2d_back", "f32", avg_pool2d_back_plan, avg_pool2d_back_run},
};

}  // namespace gradloom::GL_ISA
