// conv_forward.h: conv2d(x, w, bias; stride, padding, dilation, activation) -> y, and the same followed by a max pool.
//
//   phase 0   offset[k] of each tap k = (c, ky, kx) into the planes of a band; w as [tile of channels][k][channel]
//   phase 1   for each band of rows of an image, for the part's output channels:
//               copy the band of x into planes, padded, split by stride phase
//               for each tile of output channels:
//                 y[tile][band] = bias + sum over k of w[tile][k] * planes[offset[k] + ...]
#pragma once
#include "conv_pool.h"
#include "conv_product.h"

namespace gradloom::GL_ISA {

inline ConvShape conv_shape(const Tensor& x, const Tensor& w, const Tensor& y, const Call& call, int words) {
  ConvShape s{};
  s.n = x.shape[0], s.c = x.shape[1], s.h = x.shape[2], s.w = x.shape[3];
  s.o = w.shape[0], s.kh = w.shape[2], s.kw = w.shape[3];
  s.oh = y.shape[2], s.ow = y.shape[3];
  s.sh = call.attr_int(words + 1), s.sw = call.attr_int(words + 2);
  s.ph = call.attr_int(words + 4), s.pw = call.attr_int(words + 5);
  s.dh = call.attr_int(words + 7), s.dw = call.attr_int(words + 8);
  s.rounded = call[0].dtype == DType::bf16;
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
  b.widen(s.rounded);
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

template <bool rounded>
inline void conv_pack_taps(const ConvShape& s, const ConvBand& b, const Call& call, int part, int parts) {
  const int64_t taps = s.taps();
  const Operand w(call[1], rounded);
  if (part == 0) conv_offsets_forward(s, b, conv_offsets(call));
  conv_tiles(part_range(s.o, part, parts, kOutTile), [&](int64_t o, int ot) {
    float* to = conv_packed(call, taps) + o * taps;
    for (int64_t k = 0; k < taps; k++) {
      for (int j = 0; j < ot; j++) *to++ = w.number<rounded>((o + j) * taps + k);
    }
  });
}
inline void conv_pack_forward(const ConvShape& s, const ConvBand& b, const Call& call, int part, int parts) {
  (s.rounded ? conv_pack_taps<true> : conv_pack_taps<false>)(s, b, call, part, parts);
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
  conv_items(b, Operand(call[0], s.rounded), mine, scratch, [&](ConvItem& item) {
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
  conv_items(b, Operand(call[0], s.rounded), mine, scratch, [&](ConvItem& item) {
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

}  // namespace gradloom::GL_ISA
