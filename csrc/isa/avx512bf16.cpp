#define GL_ISA avx512bf16
#define GL_ISA_AVX512 1
#define GL_BF16_PAIRS 1
#define GL_BF16_UNIT 1
#include <iterator>

#include "tables.h"
#include "../kernels/matmul.h"

namespace gradloom {
constinit const KernelTable kTable_avx512bf16{"avx512bf16", avx512bf16::gemm::kRoundedRows,
                                                std::size(avx512bf16::gemm::kRoundedRows), &kTable_avx512, true};
}
