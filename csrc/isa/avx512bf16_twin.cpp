#define GL_ISA avx512bf16_twin
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#include "tables.h"
#include "pairs.inc"

namespace gradloom {
constinit const KernelTable kTable_avx512bf16_twin{"avx512bf16-twin", avx512bf16_twin::kPairKernels.rows,
                                                   avx512bf16_twin::kPairKernels.count, &kTable_avx512, false};
}
