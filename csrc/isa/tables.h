// tables.h: the kernel tables, one per instruction set that this build holds; the wide ones only where GL_HAVE_<isa>.
#pragma once
#include "../bytecode.h"

namespace gradloom {
extern const KernelTable kTable_scalar, kTable_avx2, kTable_avx512;
// Products of bf16 alone; all else is the kernel of `below`. The twins compute in software what the unit computes.
extern const KernelTable kTable_avx512bf16, kTable_avx512bf16_twin;
}  // namespace gradloom
