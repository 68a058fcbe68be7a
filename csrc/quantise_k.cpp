// quantise_k.cpp: k-quants, blocks of 256. Their scales minimise a weighted squared error (q2_k: absolute error) over some
// candidates; sums over a group run in the order of its elements, as in ggml.
//
// A block is groups of N neighbours, each with a scale of its own. Four groups are computed side by side, one in each
// lane of a vector: x[i] holds element i of these groups.
#include "quantise_block.h"

namespace gradloom {
namespace {

constexpr int kLarge = 256;
constexpr float kEmpty = 1e-15f;  // groups of smaller numbers are stored as zeros
constexpr float kMost = 1e10f;    // larger numbers fit into no format; sums of their powers might overflow

constexpr int kLanes = 4;
typedef float F __attribute__((vector_size(4 * kLanes)));  // a register of every machine
constexpr int kVectors = kLarge / kLanes;

inline F nearest(F x) { return x + 12582912.0f - 12582912.0f; }
inline F clamp(F x, float low, float high) {
  const F least = F{} + low, most = F{} + high;
  const F above = x > least ? x : least;
  return above < most ? above : most;
}
inline F magnitude(F x) { return x < 0 ? -x : x; }
inline F load(const float* p) {
  F x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }

// Vector q * N + i: element i of the groups 4 * q ... 4 * q + 3.
template <int N> void transpose(const float* x, F* to) {
  for (int q = 0; q < kVectors / N; q++)
    for (int i = 0; i < N; i++)
      for (int l = 0; l < kLanes; l++) to[q * N + i][l] = x[(q * kLanes + l) * N + i];
}

template <int N> void to_bytes(const F* level, uint8_t* to) {
  for (int q = 0; q < kVectors / N; q++)
    for (int i = 0; i < N; i++)
      for (int l = 0; l < kLanes; l++) to[(q * kLanes + l) * N + i] = byte(level[q * N + i][l]);
}

// Levels of x = scale * level - offset by given scales; groups of scale 0 keep theirs.
template <int N>
void assign(const F* x, const float* scale, const float* offset, float low, float high, float shift, F* level) {
  for (int q = 0; q < kVectors / N; q++) {
    const F s = load(scale + q * kLanes), m = load(offset + q * kLanes), divisor = s != 0 ? s : F{} + 1;
    for (int i = q * N; i < (q + 1) * N; i++) {
      const F chosen = clamp(nearest((x[i] + m) / divisor), low, high) + shift;
      level[i] = s != 0 ? chosen : level[i];
    }
  }
}

// The fit of x = scale * level - offset with levels 0 ... Most and offset >= 0: for `steps` + 1 divisions of the range,
// levels by rounding, then scale and offset by weighted least squares; that of the least error (Absolute: of
// magnitudes) is kept, and the next division begins at its lowest number.
template <int N, int Most, bool Absolute> struct AffineFit {
  const F* x;
  const F* weight;
  F* level;
  F scale, bottom, high, sum_w, sum_x, error;

  // Four groups: N vectors of numbers, weights and levels.
  AffineFit(const F* numbers, const F* weights, F* levels, float first, int steps)
      : x(numbers), weight(weights), level(levels) {
    bottom = high = x[0];
    sum_w = weight[0];
    sum_x = sum_w * x[0];
    for (int i = 1; i < N; i++) {
      bottom = x[i] < bottom ? x[i] : bottom;
      high = x[i] > high ? x[i] : high;
      sum_w += weight[i];
      sum_x += weight[i] * x[i];
    }
    bottom = bottom > 0 ? F{} : bottom;
    const auto constant = high == bottom;
    const F inverse = static_cast<float>(Most) / (high - bottom);
    scale = 1.0f / inverse;
    for (int i = 0; i < N; i++) level[i] = clamp(nearest(inverse * (x[i] - bottom)), 0, Most);
    error = measure(level, scale, bottom);
    for (int step = 0; step <= steps; step++) improve(first + 0.1f * static_cast<float>(step) + Most);
    scale = constant ? F{} : scale;
  }

 private:
  F measure(const F* of, F slope, F lowest) const {
    F sum{};
    for (int i = 0; i < N; i++) {
      const F difference = slope * of[i] + lowest - x[i];
      sum += weight[i] * (Absolute ? magnitude(difference) : difference * difference);
    }
    return sum;
  }

  void improve(float divisions) {
    const F inverse = divisions / (high - bottom);
    F sum_l{}, sum_l2{}, sum_xl{}, trial[N];
    for (int i = 0; i < N; i++) {
      const F l = clamp(nearest(inverse * (x[i] - bottom)), 0, Most), wl = weight[i] * l;
      trial[i] = l;
      sum_l += wl;
      sum_l2 += wl * l;
      sum_xl += wl * x[i];
    }
    const F determinant = sum_w * sum_l2 - sum_l * sum_l;
    F slope = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    F lowest = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    slope = lowest > 0 ? sum_xl / sum_l2 : slope;
    lowest = lowest > 0 ? F{} : lowest;
    const F found = measure(trial, slope, lowest);
    const auto better = (determinant > 0) & (found < error);
    error = better ? found : error;
    scale = better ? slope : scale;
    bottom = better ? lowest : bottom;
    for (int i = 0; i < N; i++) level[i] = better ? trial[i] : level[i];
  }
};

float largest_of(const float* x, int count) {  // at least 0
  float best = 0;
  for (int i = 0; i < count; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// q4_k, q5_k: f16 d and dmin, 8 scales and 8 offsets of 6 bits in 12 bytes, fifth bits (q5_k), levels of 4 bits.
template <int Most> void k_of_32(const float* x, float first, int steps, uint8_t* out) {
  constexpr int N = 32, G = kLarge / N;
  constexpr bool kFifth = Most > 15;
  F values[kVectors], weight[kVectors], levels[kVectors];
  float scale[G], offset[G];
  transpose<N>(x, values);
  for (int q = 0; q < G / kLanes; q++) {
    const F* v = values + q * N;
    F mean{};
    for (int i = 0; i < N; i++) mean += v[i] * v[i];
    for (int l = 0; l < kLanes; l++) mean[l] = std::sqrt(mean[l] / N);
    for (int i = 0; i < N; i++) weight[q * N + i] = mean + magnitude(v[i]);
    const AffineFit<N, Most, false> fit(v, weight + q * N, levels + q * N, first, steps);
    store(scale + q * kLanes, fit.scale);
    store(offset + q * kLanes, -fit.bottom);
  }
  const float most = largest_of(scale, G), most_offset = largest_of(offset, G);
  const float d = half_of(out, most / 63.0f), dmin = half_of(out + 2, most_offset / 63.0f);
  const float inverse = most > 0 ? 63.0f / most : 0.0f, inverse_offset = most_offset > 0 ? 63.0f / most_offset : 0.0f;
  uint8_t* packed = out + 4;
  std::memset(packed, 0, 12);
  for (int g = 0; g < G; g++) {
    const float s = clamp(nearest(inverse * scale[g]), 0, 63);
    const float m = clamp(nearest(inverse_offset * offset[g]), 0, 63);
    scale[g] = d * s;
    offset[g] = dmin * m;
    const int a = byte(s), b = byte(m);
    if (g < 4) {
      packed[g] = static_cast<uint8_t>(a);
      packed[g + 4] = static_cast<uint8_t>(b);
    } else {
      packed[g + 4] = static_cast<uint8_t>((a & 15) | ((b & 15) << 4));
      packed[g - 4] |= static_cast<uint8_t>((a >> 4) << 6);
      packed[g] |= static_cast<uint8_t>((b >> 4) << 6);
    }
  }
  assign<N>(values, scale, offset, 0, Most, 0, levels);
  uint8_t level[kLarge];
  to_bytes<N>(levels, level);
  uint8_t* four = packed + 12;
  if constexpr (kFifth) {
    std::memset(four, 0, 32);
    for (int i = 0; i < kLarge; i++) four[i % 32] |= static_cast<uint8_t>((level[i] >> 4) << (i / 32));
    four += 32;
  }
  for (int j = 0; j < kLarge; j += 64)
    for (int i = 0; i < 32; i++) *four++ = static_cast<uint8_t>((level[j + i] & 15) | ((level[j + i + 32] & 15) << 4));
}

// Packs the low two bits of 256 levels: four rows of 32 in a row of bytes.
void pack_pairs(const uint8_t* level, uint8_t* out) {
  for (int j = 0; j < kLarge; j += 128)
    for (int i = 0; i < 32; i++) {
      const uint8_t* l = level + j + i;
      *out++ = static_cast<uint8_t>((l[0] & 3) | ((l[32] & 3) << 2) | ((l[64] & 3) << 4) | ((l[96] & 3) << 6));
    }
}

void q2_k(const float* x, uint8_t* out) {  // 16 scales and offsets of 4 bits, levels of 2 bits, f16 d and dmin
  constexpr int N = 16, G = kLarge / N;
  F values[kVectors], weight[kVectors], levels[kVectors];
  float scale[G], offset[G];
  transpose<N>(x, values);
  for (int i = 0; i < kVectors; i++) weight[i] = magnitude(values[i]);
  for (int q = 0; q < G / kLanes; q++) {
    const AffineFit<N, 3, true> fit(values + q * N, weight + q * N, levels + q * N, -0.5f, 15);
    store(scale + q * kLanes, fit.scale);
    store(offset + q * kLanes, -fit.bottom);
  }
  const float most = largest_of(scale, G), most_offset = largest_of(offset, G);
  const float d = half_of(out + 80, most / 15.0f), dmin = half_of(out + 82, most_offset / 15.0f);
  const float inverse = most > 0 ? 15.0f / most : 0.0f, inverse_offset = most_offset > 0 ? 15.0f / most_offset : 0.0f;
  for (int g = 0; g < G; g++) {
    const float s = clamp(nearest(inverse * scale[g]), 0, 15);
    const float m = clamp(nearest(inverse_offset * offset[g]), 0, 15);
    out[g] = static_cast<uint8_t>(byte(s) | (byte(m) << 4));
    scale[g] = d * s;
    offset[g] = dmin * m;
  }
  assign<N>(values, scale, offset, 0, 3, 0, levels);
  uint8_t level[kLarge];
  to_bytes<N>(levels, level);
  pack_pairs(level, out + 16);
}

// x = scale * (level - Half), groups of 16. Levels of numbers that are all below kEmpty are 0, and so is their scale.
template <int Half> struct SymmetricFit {
  static constexpr int N = 16;
  const F* x;
  F* level;
  F scale{}, top{};  // top: the number of the largest magnitude of a group, the first of equal ones

  SymmetricFit(const F* numbers, F* levels) : x(numbers), level(levels) {  // of four groups: N vectors
    for (int i = 0; i < N; i++) top = magnitude(x[i]) > magnitude(top) ? x[i] : top;
  }

  // Least squares, weighted by squares, over divisions of the range by Half - 0.9 ... Half + 0.9.
  void search() {
    F best{};
    divide(0, best);
    for (int step = -9; step <= 9; step++)
      if (step) divide(step, best);
    clear_empty();
  }

  // Least squares, weighted by squares: levels are moved one by one while that lowers the error, in at most 5 passes.
  void walk() {
    const F inverse = -static_cast<float>(Half) / top;
    F sum_lx{}, sum_l2{};
    for (int i = 0; i < N; i++) {
      const F l = clamp(nearest(inverse * x[i]), -Half, Half - 1), w = x[i] * x[i];
      level[i] = l;
      sum_lx += w * x[i] * l;
      sum_l2 += w * l * l;
    }
    bool changed = true;
    for (int pass = 0; pass < 5 && changed; pass++) {
      changed = false;
      for (int i = 0; i < N; i++) changed |= move(i, sum_lx, sum_l2);
    }
    scale = sum_l2 > 0 ? sum_lx / sum_l2 : F{};
    for (int i = 0; i < N; i++) level[i] += static_cast<float>(Half);
    clear_empty();
  }

 private:
  void divide(int step, F& best) {
    const F inverse = -(Half + 0.1f * static_cast<float>(step)) / top;
    F sum_lx{}, sum_l2{}, trial[N];
    for (int i = 0; i < N; i++) {
      const F l = clamp(nearest(inverse * x[i]), -Half, Half - 1), w = x[i] * x[i];
      trial[i] = l + static_cast<float>(Half);
      sum_lx += w * x[i] * l;
      sum_l2 += w * l * l;
    }
    const auto better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2);
    const F fitted = sum_lx / sum_l2;
    scale = better ? fitted : scale;
    best = better ? fitted * sum_lx : best;
    for (int i = 0; i < N; i++) level[i] = (step == 0) | better ? trial[i] : level[i];
  }

  bool move(int i, F& sum_lx, F& sum_l2) {
    const F w = x[i] * x[i], old = level[i];
    F lx = sum_lx - w * x[i] * old, l2 = sum_l2 - w * old * old;
    const F l = clamp(nearest(x[i] * l2 / lx), -Half, Half - 1);
    const auto other = (lx > 0) & (l != old);
    lx += w * x[i] * l;
    l2 += w * l * l;
    const auto better = other & (l2 > 0) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2);
    level[i] = better ? l : old;
    sum_lx = better ? lx : sum_lx;
    sum_l2 = better ? l2 : sum_l2;
    return better[0] | better[1] | better[2] | better[3];
  }

  void clear_empty() {
    const auto empty = magnitude(top) < kEmpty;
    scale = empty ? F{} : scale;
    for (int i = 0; i < N; i++) level[i] = empty ? F{} : level[i];
  }
};

void infinite(uint8_t* out, size_t bytes, size_t scale) {  // a block whose scale is inf
  std::memset(out, 0, bytes);
  half_of(out + scale, kMost);
}

void q3_k(const float* x, uint8_t* out) {  // third bits, levels of 2 bits, 16 scales of 6 bits in 12 bytes, f16 d
  constexpr int N = 16, G = kLarge / N;
  if (std::fabs(outermost(x, kLarge)) > kMost) return infinite(out, 110, 108);
  F values[kVectors], levels[kVectors];
  float scale[G];
  transpose<N>(x, values);
  for (int q = 0; q < G / kLanes; q++) {
    SymmetricFit<4> fit(values + q * N, levels + q * N);
    fit.walk();
    store(scale + q * kLanes, fit.scale);
  }
  const float most = outermost(scale, G), inverse = most != 0 ? -32.0f / most : 0.0f;
  uint8_t* packed = out + 96;
  std::memset(packed, 0, 12);
  const float d = half_of(out + 108, most != 0 ? 1.0f / inverse : 0.0f);
  for (int g = 0; g < G; g++) {
    const float s = most != 0 ? clamp(nearest(inverse * scale[g]), -32, 31) : -32;
    const int bits = byte(s + 32);
    packed[g % 8] |= static_cast<uint8_t>((bits & 15) << (g < 8 ? 0 : 4));
    packed[8 + g % 4] |= static_cast<uint8_t>((bits >> 4) << (2 * (g / 4)));
    scale[g] = d * s;
  }
  const float none[G] = {};
  assign<N>(values, scale, none, -4, 3, 4, levels);
  uint8_t level[kLarge];
  to_bytes<N>(levels, level);
  std::memset(out, 0, 32);
  for (int i = 0; i < kLarge; i++) out[i % 32] |= static_cast<uint8_t>((level[i] >> 2) << (i / 32));
  pack_pairs(level, out + 32);
}

void q6_k(const float* x, uint8_t* out) {  // low 4 bits, high 2 bits, 16 scales of 8 bits, f16 d
  constexpr int N = 16, G = kLarge / N;
  if (std::fabs(outermost(x, kLarge)) > kMost) return infinite(out, 210, 208);
  F values[kVectors], levels[kVectors];
  float scale[G];
  transpose<N>(x, values);
  for (int q = 0; q < G / kLanes; q++) {
    SymmetricFit<32> fit(values + q * N, levels + q * N);
    fit.search();
    store(scale + q * kLanes, fit.scale);
  }
  const float most = outermost(scale, G);
  if (std::fabs(most) < kEmpty) {
    std::memset(out, 0, 210);
    return;
  }
  const float inverse = -128.0f / most, d = half_of(out + 208, 1.0f / inverse);
  for (int g = 0; g < G; g++) {
    const float s = clamp(nearest(inverse * scale[g]), -128, 127);
    out[192 + g] = byte(s);
    scale[g] = d * s;
  }
  const float none[G] = {};
  assign<N>(values, scale, none, -32, 31, 32, levels);
  uint8_t level[kLarge];
  to_bytes<N>(levels, level);
  for (int j = 0; j < kLarge; j += 128)
    for (int i = 0; i < 32; i++) {
      const uint8_t* l = level + j + i;
      out[j / 2 + i] = static_cast<uint8_t>((l[0] & 15) | ((l[64] & 15) << 4));
      out[j / 2 + i + 32] = static_cast<uint8_t>((l[32] & 15) | ((l[96] & 15) << 4));
      out[128 + j / 4 + i] =
          static_cast<uint8_t>((l[0] >> 4) | ((l[32] >> 4) << 2) | ((l[64] >> 4) << 4) | ((l[96] >> 4) << 6));
    }
}

}  // namespace

Encoder k_encoder(DType type) {
  switch (type) {
    case DType::q2_k: return q2_k;
    case DType::q3_k: return q3_k;
    case DType::q4_k: return [](const float* x, uint8_t* out) { k_of_32<15>(x, -1.0f, 20, out); };
    case DType::q5_k: return [](const float* x, uint8_t* out) { k_of_32<31>(x, -0.5f, 15, out); };
    case DType::q6_k: return q6_k;
    default: return nullptr;
  }
}

}  // namespace gradloom
