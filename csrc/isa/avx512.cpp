#define GL_ISA avx512
#define GL_ISA_AVX512 1
#include "tables.h"
#include "table.inc"

namespace gradloom {
DecodeFn avx512::shared_decoder(DType t) { return quant::decoder(t); }
DotFn avx512::shared_dots(DType t, int64_t m, bool rounded) {
  return rounded ? gemm::dots<quant::ToBf16>(t, m) : gemm::dots<quant::Exact>(t, m);
}

constinit const KernelTable kTable_avx512{"avx512", avx512::kAllRows.rows, avx512::kAllRows.count, nullptr, false};
}
