#define GL_ISA avx512
#define GL_ISA_AVX512 1
#include "tables.h"
#include "table.inc"

namespace gradloom {
constinit const KernelTable kTable_avx512{"avx512", avx512::kAllRows.rows, avx512::kAllRows.count, nullptr, false};
}
