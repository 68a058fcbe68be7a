// quantise_block.h: functions shared by the encoders of all formats. Its files have no flags of an instruction set.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "bytecode.h"

#define GL_ISA scalar
#include "simd/scalar.h"

namespace gradloom {

using Encoder = void (*)(const float* x, uint8_t* out);  // writes one block

Encoder k_encoder(DType type);  // of a format with blocks of 256; nullptr for others

namespace {

inline float half_of(uint8_t* to, float x) {  // stores an f16; returns its value
  uint16_t bits;
  scalar::store_f16(&bits, scalar::Vec<float>::set1(x));
  std::memcpy(to, &bits, 2);
  return scalar::half_to_float(bits);
}

// To the nearest whole number, halves to even, for |x| < 2^22; as a float.
inline float nearest(float x) { return x + 12582912.0f - 12582912.0f; }
inline float clamp(float x, float low, float high) {  // NaN becomes `low`
  const float above = x > low ? x : low;
  return above < high ? above : high;
}
inline uint8_t byte(float x) { return static_cast<uint8_t>(static_cast<int>(x)); }

// The number of the largest magnitude, the first of equal ones; 0 where all are 0.
inline float outermost(const float* x, int count) {
  float best = 0;
  for (int i = 0; i < count; i++)
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  return best;
}

}  // namespace
}  // namespace gradloom
