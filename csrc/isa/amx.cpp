#define GL_ISA amx
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#define GL_AMX_TILES 1
#define GL_BF16_UNIT 1
#define GL_AMX_UNIT 1
#include "amx.h"
#include "pairs.inc"

namespace gradloom {
constinit const KernelTable kTable_amx{"amx", amx::kPairKernels.rows, amx::kPairKernels.count, &kTable_avx512bf16, true};
}
