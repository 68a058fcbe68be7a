// conv_pool_back.h: conv2d_pool_back_weight(g, index, x, y; kernel, stride, padding, dilation, height, width) -> dw, db.
//
// conv2d_back_weight of max_pool2d_back(g, index) over windows of 2 x 2, the same bits; where y, what the pool gave, is
// there, of relu_back(g, y). The gradient of the image between, four times as large as g, is made in scratch for the
// images of a block: it never leaves the caches.
#pragma once
#include "conv_back_weight.h"

namespace gradloom::GL_ISA {

struct PooledGrad {
  const float* g;
  const float* y;  // or nullptr
  const uint8_t* index;
  PoolShape s;  // planes: of all images

  // The images of `count` bands from `item` on.
  static int64_t images(const ConvWeight& k, int64_t item, int64_t count) {
    return (item + count - 1) / k.b.bands - item / k.b.bands + 1;
  }
  static int64_t images_most(const ConvWeight& k) { return (k.block + k.b.bands - 2) / k.b.bands + 1; }

  Operand take(const ConvWeight& k, int64_t item, int64_t count, Range outs, float* room) const {
    const int64_t first = item / k.b.bands, last = first + images(k, item, count), small = s.oh * s.ow;
    const F zero = F::zero();
    for (int64_t image = first; image < last; image++) {
      for (int64_t o = outs.begin; o < outs.end; o++) {
        const int64_t plane = image * k.s.o + o, left = (s.planes - plane) * small;
        const float *from = g + plane * small, *sign = y ? y + plane * small : nullptr;
        const uint8_t* which = index + plane * small;
        pool_spread_pairs(s, room + ((image - first) * k.s.o + o) * s.h * s.w,
                          [&](int64_t i, int n, F& a, F& b, F& c, F& d) {
          F v = F::load_n(from + i, n);
          if (sign) v = select(gt(F::load_n(sign + i, n), zero), v, zero);
          pool_corners(v, pool_load_u8(which + i, n, left - i), a, b, c, d);
        });
      }
    }
    return Operand(room);
  }
  ConvAhead ahead(const ConvWeight& k, int64_t image, int64_t count, int64_t tiles) const {
    const int64_t floats = k.s.o * s.oh * s.ow;
    return conv_fetch(Operand(g), image * floats, count * floats, tiles);
  }
};

// The gradient of the image between, which has no bytes of its own.
inline Tensor conv_pool_image(const Call& call) {
  Tensor image = call[0];
  image.shape[2] = call.attr_int(12), image.shape[3] = call.attr_int(13);
  return image;
}

inline void conv2d_pool_back_weight_plan(const Call& call, KernelPlan& plan) {
  const ConvWeight k = conv_weight(conv_pool_image(call), call[2], call[4], call);
  conv_weight_plan(k, plan);
  plan.scratch_bytes += static_cast<size_t>(PooledGrad::images_most(k) * k.s.o * k.s.oh * k.s.ow) * 4;
}

inline void conv2d_pool_back_weight_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const ConvWeight k = conv_weight(conv_pool_image(call), call[2], call[4], call);
  PoolShape s{};
  s.planes = k.s.n * k.s.o, s.h = k.s.oh, s.w = k.s.ow, s.oh = call[0].shape[2], s.ow = call[0].shape[3];
  s.kh = s.kw = s.sh = s.sw = 2;
  const PooledGrad grad{call[0].as<const float>(), call[3].as<const float>(), call[1].as<const uint8_t>(), s};
  conv_weight_run(k, grad, Operand(call[2], false), call[4].as<float>(), call[5].as<float>(), call, phase, part, parts,
                  scratch);
}

}  // namespace gradloom::GL_ISA
