// conv_back_input.h: conv2d_back_input(g, w; height, width, stride, padding, dilation) -> dx.
//
// The input row iy = i * sh + ry - ph meets the taps with ky * dh = t * sh + ry, at the row i - t of g: for each
// stride phase (ry, rx) a product over the same planes of g, with the taps of that phase.
//
//   phase 0   offset[k] of each tap k = (o, ky, kx), phase by phase; w as [phase][tile of channels][k][channel]
//   phase 1   for each band of rows of an image, for the part's input channels:
//               copy the band of g into planes, padded
//               for each stride phase, for each tile of input channels:
//                 dx[tile][rows and columns of the phase] = sum over its k of w[tile][k] * planes[offset[k] + ...]
#pragma once
#include "conv_forward.h"

namespace gradloom::GL_ISA {

struct ConvBack {
  ConvShape s;
  int64_t i0, j0;  // input row 0 and column 0 lie at grid row i0, column j0 of their phases
};
inline ConvBack conv_back(const Tensor& g, const Tensor& w, const Tensor& dx, const Call& call) {
  ConvBack k{conv_shape(dx, w, g, call, 2), 0, 0};
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
  b.widen(s.rounded);
  if (s.sh != 1 || s.sw != 1) b.by_rows = false;
  return b;
}

inline void conv_back_plan(const ConvBack& k, KernelPlan& plan) {
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

template <bool rounded>
inline void conv_pack_back_taps(const ConvShape& s, const ConvBand& b, const Operand& w, const Call& call, int part,
                                int parts) {
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
            for (int j = 0; j < ot; j++) to[j] = w.number<rounded>(((o * s.c + c + j) * s.kh + ky) * s.kw + kx);
          });
          tap++;
        }
      }
    }
  });
}

inline void conv_pack_back(const ConvShape& s, const ConvBand& b, const Operand& w, const Call& call, int part,
                           int parts) {
  (s.rounded ? conv_pack_back_taps<true> : conv_pack_back_taps<false>)(s, b, w, call, part, parts);
}

// g where it lies. Another source makes the planes of a band in its own way, with `room` behind the band's scratch.
struct ConvBackGrad {
  Operand g;
  void fill(const ConvBand& b, int64_t item, float* planes, float* line, float*) const {
    conv_fill(b, g, item, planes, line);
  }
  // What `fill` will read for the item after this one.
  ConvAhead ahead(const ConvBand& b, int64_t item, int64_t end, int64_t outs) const {
    return conv_ahead(b, g, b.channels * b.h * b.w, item, end, outs);
  }
};

// Loops of its own: through conv_items and chunks it took 4 % longer.
template <class Grad>
void conv_back_run(const ConvBack& k, const Grad& grad, const Operand& taps, float* out, const Call& call, int phase,
                   int part, int parts, void* scratch) {
  const ConvShape& s = k.s;
  const ConvBand b = conv_band_back(k);
  if (phase == 0) return conv_pack_back(s, b, taps, call, part, parts);
  const int64_t size = s.h * s.w;
  const int32_t* offsets = conv_offsets(call);
  const float* packed = conv_packed(call, s.o * s.kh * s.kw);
  float* planes = static_cast<float*>(scratch);
  float* buffer = b.buffer(planes);
  float* room = planes + b.scratch_bytes() / 4;
  const auto [items, outs] = conv_part(b, s.c, part);
  for (int64_t item = items.begin; item < items.end; item++) {
    grad.fill(b, item, planes, b.line_room(planes), room);
    ConvAhead ahead = grad.ahead(b, item, items.end, outs.end - outs.begin);
    const int64_t rows = b.rows_of(item), row0 = item % b.bands * b.band;
    float* dx = out + item / b.bands * s.c * size;
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

inline void conv2d_back_input_plan(const Call& call, KernelPlan& plan) {
  conv_back_plan(conv_back(call[0], call[1], call[2], call), plan);
}
inline void conv2d_back_input_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvBack k = conv_back(call[0], call[1], call[2], call);
  const ConvBackGrad grad{Operand(call[0], k.s.rounded)};
  conv_back_run(k, grad, Operand(call[1], k.s.rounded), call[2].as<float>(), call, phase, part, parts, scratch);
}

}  // namespace gradloom::GL_ISA
