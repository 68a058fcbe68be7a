// update_8bit.h: rules of optimisers whose moments are kept in 8 bits: a code for each element, and a scale for each
// block of 256. Codes are those of dynamic tree quantisation (Dettmers et al., arXiv 2110.02861): seven decades, each
// with twice as many numbers as the one below. ops/update_8bit.py has the definition. Outputs are the inputs' own
// storage. Parts are ranges of whole blocks, and no block depends on another.
#pragma once
#include "update.h"

namespace gradloom::GL_ISA::update {

constexpr int kBlock = 256;
constexpr int kDecades = 7;

// Numbers in [0, 1], ascending: 0, the decades, 1. From an edge to the next, which is the middle of two numbers, the
// position of the nearest number is that of one decade: the whole part of start + slope x, and at most top.
struct Codes {
  float value[256] = {};
  float edge[kDecades + 1] = {}, slope[kDecades + 1] = {}, start[kDecades + 1] = {}, top[kDecades + 1] = {};
};

// `count` numbers in the lowest decade: 1 where half of the codes is negative, else 2.
constexpr Codes codes_of(int count) {
  Codes codes;
  constexpr double kPowers[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  double numbers[256] = {};
  int at = 1;
  for (int i = 0; i < kDecades; i++) {
    const int n = count << i;
    codes.slope[i] = static_cast<float>(n / (0.9 * kPowers[i]));
    codes.start[i] = static_cast<float>(at - n / 9.0);
    for (int j = 0; j < n; j++) numbers[at + j] = kPowers[i] * (0.1 + 0.9 * (2 * j + 1) / (2 * n));
    codes.edge[i] = static_cast<float>((numbers[at - 1] + numbers[at]) / 2);
    at += n;
    codes.top[i] = static_cast<float>(at - 1);
  }
  numbers[at] = 1.0;
  codes.edge[kDecades] = static_cast<float>((numbers[at - 1] + 1.0) / 2);
  codes.start[kDecades] = codes.top[kDecades] = static_cast<float>(at);
  for (int i = 0; i <= at; i++) codes.value[i] = static_cast<float>(numbers[i]);
  return codes;
}

// With a sign: 0 is 0, 1..127 the numbers below 1, 128 the number 1, 129..255 those below 1, negative.
constexpr Codes signed_codes() {
  Codes codes = codes_of(1);
  for (int i = 1; i < 128; i++) codes.value[128 + i] = -codes.value[i];
  return codes;
}
inline constexpr Codes kPositive = codes_of(2), kWithSign = signed_codes();
static_assert(kPositive.top[kDecades] == 255 && kWithSign.top[kDecades] == 128);

inline void decode(const Codes& codes, const uint8_t* from, float scale, float* to, int n) {
  for (int i = 0; i < n; i++) to[i] = codes.value[from[i]] * scale;
}

// The position of the number nearest to each x >= 0; NaN gives 0.
inline __attribute__((always_inline)) F nearest(const Codes& codes, F x) {
  F slope = F::zero(), start = F::zero(), top = F::zero();
  for (int i = 0; i <= kDecades; i++) {
    const auto above = ge(x, F::set1(codes.edge[i]));
    slope = select(above, F::set1(codes.slope[i]), slope);
    start = select(above, F::set1(codes.start[i]), start);
    top = select(above, F::set1(codes.top[i]), top);
  }
  const F at = mul_add(slope, x, start);
  return trunc(select(lt(at, top), at, top));
}

// Codes of n numbers, the largest of which is the largest of `largest` in absolute value; returns their scale. One below
// the normal floats is 0, and so are its numbers.
template <bool has_sign> inline float encode(const float* from, F largest, uint8_t* to, int n) {
  const float most = reduce_max(largest);
  if (!(most >= 0x1p-126f)) {
    std::memset(to, 0, static_cast<size_t>(n));
    return 0.0f;
  }
  const F inverse = F::set1(1.0f / most);
  alignas(64) int32_t codes[kBlock];
  vectors(0, n, [&](int64_t i, int lanes) __attribute__((always_inline)) {
    const F x = get(from + i, lanes) * inverse;
    F at = nearest(has_sign ? kWithSign : kPositive, abs(x));
    const auto is_zero = eq(at, F::zero());
    if constexpr (has_sign) {
      const F negative = select(lt(at, F::set1(128)), at, F::set1(127)) + F::set1(128);
      at = select(is_zero, at, select(lt(x, F::zero()), negative, at));
    } else {  // above 0 it never becomes 0: a step divides by its root
      at = select(is_zero, select(gt(x, F::zero()), F::set1(1), at), at);
    }
    const I code = to_i32(at);
    if (lanes == F::N) code.store(codes + i);
    else code.store_n(codes + i, lanes);
  });
  for (int i = 0; i < n; i++) to[i] = static_cast<uint8_t>(codes[i]);
  return most;
}

// body(first element, elements, block) for every block of this part. w is the argument `first`, and the scales, f32
// [arrays, blocks of each], are the argument `first` + 3.
template <class Body> inline void for_blocks(const Call& c, int first, int part, int parts, const Body& body) {
  const Tensor& scales = c[first + 3];
  const Range r = part_range(scales.size(), part, parts);
  const int64_t per = scales.shape[1], each = c[first].size() / scales.shape[0];
  for (int64_t b = r.begin; b < r.end; b++) {
    const int64_t at = b % per * kBlock, rest = each - at;
    body(b / per * each + at, static_cast<int>(rest < kBlock ? rest : kBlock), b);
  }
}
#define GL_LANES [&](int64_t i, int lanes) __attribute__((always_inline))

// ---- adamw_8bit: lr beta1 beta2 eps weight_decay step weight w g m m_scale v v_scale -> w m m_scale v v_scale ---------

inline void plan_adamw_8bit(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(c[10].size() * kBlock);
}
inline void run_adamw_8bit(const Call& c, int, int part, int parts, void*) {
  const AdamwScalars s(c);
  for_blocks(c, 7, part, parts, [&](int64_t at, int n, int64_t block) {
    float *w = floats(c[7]) + at, *m_scale = floats(c[10]) + block, *v_scale = floats(c[12]) + block;
    const float* g = floats(c[8]) + at;
    uint8_t *m = c[9].as<uint8_t>() + at, *v = c[11].as<uint8_t>() + at;
    alignas(64) float means[kBlock], squares[kBlock];
    decode(kWithSign, m, *m_scale, means, n);
    decode(kPositive, v, *v_scale, squares, n);
    F m_most = F::zero(), v_most = F::zero();
    vectors(0, n, GL_LANES {
      const F slope = get(g + i, lanes) * s.inverse;
      const F m_new = mul_add(s.b1, get(means + i, lanes), s.a1 * slope);
      const F v_new = mul_add(s.b2, get(squares + i, lanes), s.a2 * slope * slope);
      m_most = max(m_most, abs(m_new));
      v_most = max(v_most, v_new);
      put(means + i, m_new, lanes);
      put(squares + i, v_new, lanes);
      put(w + i, s.stepped(get(w + i, lanes), m_new, v_new), lanes);
    });
    *m_scale = encode<true>(means, m_most, m, n);
    *v_scale = encode<false>(squares, v_most, v, n);
  });
}

// ---- lion_8bit: lr beta1 beta2 weight_decay weight w g m m_scale -> w m m_scale ---------------------------------------

inline void plan_lion_8bit(const Call& c, KernelPlan& plan) {
  plan.parts[0] = update_parts(c[8].size() * kBlock);
}
inline void run_lion_8bit(const Call& c, int, int part, int parts, void*) {
  const LionScalars s(c);
  for_blocks(c, 5, part, parts, [&](int64_t at, int n, int64_t block) {
    float *w = floats(c[5]) + at, *m_scale = floats(c[8]) + block;
    const float* g = floats(c[6]) + at;
    uint8_t* m = c[7].as<uint8_t>() + at;
    alignas(64) float means[kBlock];
    decode(kWithSign, m, *m_scale, means, n);
    F most = F::zero();
    vectors(0, n, GL_LANES {
      const F slope = get(g + i, lanes) * s.inverse, m_old = get(means + i, lanes);
      const F way = mul_add(s.b1, m_old, s.a1 * slope), m_new = mul_add(s.b2, m_old, s.a2 * slope);
      most = max(most, abs(m_new));
      put(means + i, m_new, lanes);
      put(w + i, s.stepped(get(w + i, lanes), way), lanes);
    });
    *m_scale = encode<true>(means, most, m, n);
  });
}
#undef GL_LANES

inline constexpr KernelRow kUpdate8BitRows[] = {
    {"adamw_8bit", "f32_u8_f32_u8_f32_u8_f32_u8_f32", plan_adamw_8bit, run_adamw_8bit},
    {"lion_8bit", "f32_u8_f32_u8_f32", plan_lion_8bit, run_lion_8bit},
};

}  // namespace gradloom::GL_ISA::update
