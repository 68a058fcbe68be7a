// peaks.h: kernels that measure the machine's highest rates with its own vectors, for benchmarks; no op uses them.
#pragma once
#include "gemm_tile.h"

namespace gradloom::GL_ISA::peaks {

using gemm::Lanes;

constexpr int kLimitSums = 12;  // independent: enough to hide the latency of two units

// (; rounds) -> y [Lanes::N]: rounds * kLimitSums multiply-adds of whole vectors, in registers. The status' value says
// how many operations they were.
template <class Unit>
void run_limit(const Call& call, int, int, int, void*) {
  Lanes sum[kLimitSums];
  const Lanes a = Lanes::set1(0.999f), b = Lanes::set1(1e-6f);  // as pairs of bf16: numbers, too
#pragma GCC unroll 12
  for (int i = 0; i < kLimitSums; i++) sum[i] = Lanes::set1(static_cast<float>(i));
  for (int64_t r = call.attr_int(0); r > 0; r--) {
#pragma GCC unroll 12
    for (int i = 0; i < kLimitSums; i++) sum[i] = Unit::step(a, b, sum[i]);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kLimitSums; i++) sum[0] = sum[0] + sum[i];
  sum[0].store(call[0].as<float>());
  call.status->value = call.attr_int(0) * kLimitSums * Lanes::N * 2 * Unit::kPerWord;
}

// x -> y, both dense.
inline void run_limit_copy(const Call& call, int, int, int, void*) {
  const float* x = call[0].as<const float>();
  float* y = call[1].as<float>();
  const int64_t n = call[0].size();
  int64_t i = 0;
  for (; i + 4 * Lanes::N <= n; i += 4 * Lanes::N)
    for (int j = 0; j < 4; j++) Lanes::load(x + i + j * Lanes::N).store(y + i + j * Lanes::N);
  for (; i < n; i++) y[i] = x[i];
}

inline constexpr KernelRow kLimitRows[] = {
    {"limit_fma", "f32", nullptr, run_limit<gemm::Numbers>},
    {"limit_bf16", "f32", nullptr, run_limit<gemm::Numbers>},  // what products of bf16 run on
    {"limit_copy", "f32", nullptr, run_limit_copy},
};

}  // namespace gradloom::GL_ISA::peaks
