// peaks.h: the highest rates of this machine, for comparison with measurements of the same run.
#pragma once
#include "bytecode.h"

namespace gradloom {

// Medians over `repeats` stretches of some 10 ms, all threads at once.
double fma_peak(const KernelTable& table, int threads, int repeats);   // GFLOP/s of multiply-adds in registers
double bf16_peak(const KernelTable& table, int threads, int repeats);  // the same of what products of bf16 run on
double copy_rate(const KernelTable& table, int threads, int repeats);  // GB/s read and written, out of every cache

}  // namespace gradloom
