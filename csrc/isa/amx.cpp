#define GL_ISA amx
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#define GL_AMX_TILES 1
#define GL_BF16_UNIT 1
#define GL_AMX_UNIT 1
#include <iterator>

#include "amx.h"
#include "../kernels/matmul.h"

namespace gradloom {
constinit const KernelTable kTable_amx{"amx", amx::gemm::kRoundedRows, std::size(amx::gemm::kRoundedRows),
                                         &kTable_avx512bf16, true};
}
