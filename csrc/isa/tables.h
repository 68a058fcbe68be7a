// tables.h: the kernel tables that this build holds, one per instruction set.
#pragma once
#include "../tape.h"

namespace gradloom {
extern const KernelTable kTable_scalar;
#ifdef GL_HAVE_AVX2
extern const KernelTable kTable_avx2;
#endif
#ifdef GL_HAVE_AVX512
extern const KernelTable kTable_avx512;
#endif
}  // namespace gradloom
