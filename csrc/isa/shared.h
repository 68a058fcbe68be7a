// shared.h: functions that avx512.cpp compiles for the tables of pairs of bf16 too. They use no pairs, and with the flags
// of those tables the compiler made the same instructions of them once more.
#pragma once
#include "../bytecode.h"

namespace gradloom {
using DecodeFn = void (*)(const uint8_t* data, int64_t first, int64_t count, float* to);  // kernels/quant.h
using DotFn = void (*)(const float* x, int64_t ldx, const uint8_t* w, int64_t w_step, int64_t k, int64_t columns,
                       float* sums);  // kernels/gemm_rows.h
namespace avx512 {
DecodeFn shared_decoder(DType t);
DotFn shared_dots(DType t, int64_t m, bool rounded);
}  // namespace avx512
}  // namespace gradloom
