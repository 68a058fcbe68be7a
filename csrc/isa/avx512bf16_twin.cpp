#define GL_ISA avx512bf16_twin
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#include <iterator>

#include "tables.h"
#include "../kernels/matmul.h"

namespace gradloom {
constinit const KernelTable kTable_avx512bf16_twin{"avx512bf16-twin", avx512bf16_twin::gemm::kRoundedRows,
                                                     std::size(avx512bf16_twin::gemm::kRoundedRows), &kTable_avx512, false};
}
