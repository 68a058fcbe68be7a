#define GL_ISA avx2
#define GL_ISA_AVX2 1
#include "tables.h"
#include "table.inc"

namespace gradloom {
constinit const KernelTable kTable_avx2{"avx2", avx2::kAllRows.rows, avx2::kAllRows.count, nullptr, false};
}
