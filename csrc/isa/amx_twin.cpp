#define GL_ISA amx_twin
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#define GL_AMX_TILES 1
#include "amx.h"
#include "pairs.inc"

namespace gradloom {
constinit const KernelTable kTable_amx_twin{"amx-twin", amx_twin::kPairKernels.rows, amx_twin::kPairKernels.count,
                                            &kTable_avx512bf16_twin, false};
}
