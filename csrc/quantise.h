// quantise.h: f32 numbers as blocks of ggml's quantised formats, the inverse of kernels/quant.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "bytecode.h"

namespace gradloom {

// values: `count` finite numbers, whole blocks of the quantised type; out: its bytes. A scale beyond f16 becomes inf.
void quantise(DType type, const float* values, size_t count, uint8_t* out, int threads);

}  // namespace gradloom
