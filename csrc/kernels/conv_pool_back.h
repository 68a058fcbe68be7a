// conv_pool_back.h: both gradients of a convolution behind whose image a pool of 2 x 2 lay.
//
//   conv2d_pool_back_weight(g, index, x, y; kernel, stride, padding, dilation, height, width) -> dw, db
//   conv2d_pool_back_input(g, index, w; height, width, stride, padding, dilation) -> dx
//
// conv2d_back_weight and conv2d_back_input of max_pool2d_back(g, index), the same bits; where y, what the pool gave, is
// there, of relu_back(g, y). The gradient of the image between, four times as large as g, is made in scratch for the
// images that are worked on: it never leaves the caches. It is f32 there, also of a g in bf16.
#pragma once
#include "conv_back_input.h"
#include "conv_back_weight.h"

namespace gradloom::GL_ISA {

constexpr float kRoundsToZero = 0x1p-134f;  // half of the smallest bf16: the largest f32 that is 0 in it

struct PooledGrad {
  Operand g, y;        // y: of no bytes where it is absent
  const uint8_t* index;
  int64_t channels;
  PoolShape s;  // planes: of all images

  // `image`: the gradient of the image between, which has no bytes of its own.
  PooledGrad(const Call& call, const Tensor& image, const Operand& y)
      : g(call[0], call[0].dtype == DType::bf16), y(y), index(call[1].as<const uint8_t>()), channels(image.shape[1]), s{} {
    s.planes = image.shape[0] * channels, s.h = image.shape[2], s.w = image.shape[3];
    s.oh = call[0].shape[2], s.ow = call[0].shape[3];
    s.kh = s.kw = s.sh = s.sw = 2;
  }

  // Channels `outs` of an image, into room for all of its channels.
  void spread(int64_t image, Range outs, float* room) const {
    if (g.brain) spread_of<true>(image, outs, room);
    else spread_of<false>(image, outs, room);
  }
  template <bool rounded> void spread_of(int64_t image, Range outs, float* room) const {
    const int64_t small = s.oh * s.ow;
    const F zero = F::zero(), least = F::set1(rounded && !y.brain ? kRoundsToZero : 0.0f);
    for (int64_t o = outs.begin; o < outs.end; o++) {
      const int64_t plane = image * channels + o, left = (s.planes - plane) * small;
      const Operand from = g.from(plane * small), sign = y.from(plane * small);
      const uint8_t* which = index + plane * small;
      conv_prefetch(g.address((plane + channels) * small), small * g.bytes());  // of the next image
      if (y.data) conv_prefetch(y.address((plane + channels) * small), small * y.bytes());
      conv_prefetch(which + channels * small, small);
      pool_spread_pairs<true>(s, room + o * s.h * s.w, [&](int64_t i, int n, F& a, F& b, F& c, F& d) {
        F v = numbers<rounded>(from, i, n);
        if (y.data) v = select(gt(rounded && y.brain ? numbers<true>(sign, i, n) : numbers<false>(sign, i, n), least), v, zero);
        pool_corners(v, pool_load_u8(which + i, n, left - i), a, b, c, d);
      });
    }
  }
  // n numbers from the i-th on, of bf16 where `brain`.
  template <bool brain> static F numbers(const Operand& of, int64_t i, int n) {
    if constexpr (!brain) return F::load_n(reinterpret_cast<const float*>(of.data) + i, n);
    const uint16_t* at = reinterpret_cast<const uint16_t*>(of.data) + i;
    return n == F::N ? load_bf16(at) : load_bf16_n(at, n);
  }
  int64_t floats() const { return channels * s.h * s.w; }

  Operand take(const ConvWeight& k, int64_t item, int64_t count, Range outs, float* room) const {
    const int64_t first = item / k.b.bands, some = k.images(item, count);
    for (int64_t i = 0; i < some; i++) spread(first + i, outs, room + i * floats());
    return Operand(room);
  }
  ConvAhead ahead(const ConvWeight&, int64_t, int64_t, int64_t) const { return {}; }

  void fill(const ConvBand& b, int64_t item, float* planes, float* line, float* room) const {
    spread(item / b.bands, {0, channels}, room);
    conv_fill(b, Operand(room), item % b.bands, planes, line);
  }
  ConvAhead ahead(const ConvBand&, int64_t, int64_t, int64_t) const { return {}; }
};

inline Tensor conv_pool_image(const Tensor& g, int64_t height, int64_t width) {
  Tensor image = g;
  image.shape[2] = height, image.shape[3] = width;
  return image;
}

// ---- conv2d_pool_back_weight -----------------------------------------------------------------------------

inline Tensor conv2d_pool_back_weight_image(const Call& call) {
  return conv_pool_image(call[0], call.attr_int(12), call.attr_int(13));
}
inline void conv2d_pool_back_weight_plan(const Call& call, KernelPlan& plan) {
  const ConvWeight k = conv_weight(conv2d_pool_back_weight_image(call), call[2], call[4], call);
  conv_weight_plan(k, true, plan);
}
inline void conv2d_pool_back_weight_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const Tensor image = conv2d_pool_back_weight_image(call);
  const ConvWeight k = conv_weight(image, call[2], call[4], call);
  const PooledGrad grad(call, image, Operand(call[3], k.s.rounded));
  conv_weight_run(k, grad, Operand(call[2], k.s.rounded), call[4].as<float>(), call[5].as<float>(), call, phase, part, parts,
                  scratch);
}

// ---- conv2d_pool_back_input ------------------------------------------------------------------------------

inline Tensor conv2d_pool_back_input_image(const Call& call) {
  const Tensor &w = call[2], &dx = call[3];
  const auto extent = [&](int axis, int word) {
    const int64_t step = call.attr_int(2 + word), pad = call.attr_int(5 + word), gap = call.attr_int(8 + word);
    return (dx.shape[axis] + 2 * pad - (w.shape[axis] - 1) * gap - 1) / step + 1;
  };
  return conv_pool_image(call[0], extent(2, 1), extent(3, 2));
}
inline void conv2d_pool_back_input_plan(const Call& call, KernelPlan& plan) {
  const ConvBack k = conv_back(conv2d_pool_back_input_image(call), call[2], call[3], call);
  conv_back_plan(k, plan);
  plan.scratch_bytes += static_cast<size_t>(k.s.o * k.s.oh * k.s.ow + 2 * F::N) * 4;
}
inline void conv2d_pool_back_input_run(const Call& call, int phase, int part, int parts, void* scratch) {
  const Tensor image = conv2d_pool_back_input_image(call);
  const ConvBack k = conv_back(image, call[2], call[3], call);
  const PooledGrad grad(call, image, Operand(nullptr));
  conv_back_run(k, grad, Operand(call[2], k.s.rounded), call[3].as<float>(), call, phase, part, parts, scratch);
}

}  // namespace gradloom::GL_ISA
