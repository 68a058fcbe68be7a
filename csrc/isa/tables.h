// tables.h: the kernel tables, one per instruction set that this build holds.
#pragma once
#include "../bytecode.h"

namespace gradloom {
extern const KernelTable kTable_scalar, kTable_avx2, kTable_avx512;  // the wide ones only where GL_HAVE_AVX2, _AVX512
}  // namespace gradloom
