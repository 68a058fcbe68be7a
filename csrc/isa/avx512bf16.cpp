#define GL_ISA avx512bf16
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#define GL_BF16_UNIT 1
#include "tables.h"
#include "pairs.inc"

namespace gradloom {
constinit const KernelTable kTable_avx512bf16{"avx512bf16", avx512bf16::kPairKernels.rows, avx512bf16::kPairKernels.count,
                                              &kTable_avx512, true};
}
