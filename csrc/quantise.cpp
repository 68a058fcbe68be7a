// quantise.cpp: bit for bit the bytes of ggml's encoders without an importance matrix, if these are compiled without
// fused multiply-adds, and of the gguf package, which has those of blocks of 32, but for the sign of a scale of 0.
#include "quantise.h"

#include <algorithm>

#include "quantise_block.h"
#include "refuse.h"
#include "threads.h"

namespace gradloom {
namespace {

constexpr int kSmall = 32;

// Packs levels of 4 or 5 bits: element i with element i + 16, fifth bits in a word before them.
template <bool Fifth> void pack_halves(const uint8_t* level, uint8_t* out) {
  if constexpr (Fifth) {
    uint32_t high = 0;
    for (int i = 0; i < kSmall; i++) high |= static_cast<uint32_t>(level[i] >> 4) << i;
    std::memcpy(out, &high, 4);
    out += 4;
  }
  for (int i = 0; i < kSmall / 2; i++) out[i] = static_cast<uint8_t>((level[i] & 15) | (level[i + 16] << 4));
}

// q4_0, q5_0: x = d * (level - Half); d from the number of the largest magnitude, which becomes level 0.
template <int Half, bool Fifth> void symmetric(const float* x, uint8_t* out) {
  const float d = outermost(x, kSmall) / -static_cast<float>(Half), inverse = d != 0 ? 1.0f / d : 0.0f;
  half_of(out, d);
  uint8_t level[kSmall];
  for (int i = 0; i < kSmall; i++) level[i] = byte(clamp(std::trunc(x[i] * inverse + (Half + 0.5f)), 0, 2 * Half - 1));
  pack_halves<Fifth>(level, out + 2);
}

// q4_1, q5_1: x = d * level + m.
template <int Most, bool Fifth> void affine(const float* x, uint8_t* out) {
  const float low = *std::min_element(x, x + kSmall), high = *std::max_element(x, x + kSmall);
  const float d = (high - low) / Most, inverse = d != 0 ? 1.0f / d : 0.0f;
  half_of(out, d);
  half_of(out + 2, low);
  uint8_t level[kSmall];
  for (int i = 0; i < kSmall; i++) level[i] = byte(clamp(std::trunc((x[i] - low) * inverse + 0.5f), 0, Most));
  pack_halves<Fifth>(level, out + 4);
}

void q8_0(const float* x, uint8_t* out) {  // x = d * level; halves away from zero
  const float d = std::fabs(outermost(x, kSmall)) / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
  half_of(out, d);
  for (int i = 0; i < kSmall; i++) {
    const float scaled = std::fabs(x[i] * inverse), whole = std::floor(scaled);
    const float rounded = whole + std::floor(2.0f * (scaled - whole));
    out[2 + i] = byte(x[i] < 0 ? -rounded : rounded);
  }
}

Encoder encoder(DType type) {
  switch (type) {
    case DType::q4_0: return symmetric<8, false>;
    case DType::q5_0: return symmetric<16, true>;
    case DType::q4_1: return affine<15, false>;
    case DType::q5_1: return affine<31, true>;
    case DType::q8_0: return q8_0;
    default: break;
  }
  if (const Encoder found = k_encoder(type)) return found;
  refuse("quantise: type %u is not quantised", static_cast<unsigned>(type));
}

struct Work {
  Encoder encode;
  const float* values;
  uint8_t* out;
  size_t blocks, elements, bytes;
  int parts;

  static void part(void* context, int begin, int count, int) {
    const Work& w = *static_cast<const Work*>(context);
    const auto first = [&](int i) { return w.blocks * static_cast<size_t>(i) / static_cast<size_t>(w.parts); };
    for (size_t b = first(begin); b < first(begin + count); b++)
      w.encode(w.values + b * w.elements, w.out + b * w.bytes);
  }
};

}  // namespace

void quantise(DType type, const float* values, size_t count, uint8_t* out, int threads) {
  Work work{encoder(type), values, out, 0, static_cast<size_t>(dtype_block(type)), dtype_bytes(type), 1};
  if (count % work.elements) refuse("quantise: %llu numbers are no whole blocks of %llu", ull{count}, ull{work.elements});
  work.blocks = count / work.elements;
  work.parts = static_cast<int>(std::min<size_t>(work.blocks / 64 + 1, 256));
  Team team(threads);
  team.run(Work::part, &work, work.parts);
}

}  // namespace gradloom
