// gemm_few.h: a few rows of bf16 times a matrix whose numbers lie along k, as one token of a text meets a weight.
//
// Such a product reads the weight once, at the speed of memory, in the format in which it is kept: nothing is packed.
// The rows are widened into scratch (each part its own: they are small); gemm_rows.h does the rest.
#pragma once
#include "gemm_run.h"

namespace gradloom::GL_ISA::gemm {

struct FewBf16 {
  bool fits;  // otherwise the product is another one
  int64_t m, n, k, along, deep;  // strides of x from row to row and along k
  RowMatrix weight;
};
inline FewBf16 few_bf16(const Call& call, const Tensor& z) {
  const Tensor &x = call[0], &y = call[1];
  FewBf16 p{};
  p.m = 1;
  p.n = z.shape[z.rank - 1];
  p.k = x.shape[x.rank - 1];
  p.deep = x.strides[x.rank - 1];
  for (int i = 0; i < x.rank - 1; i++) {  // one axis at most has rows
    if (x.shape[i] == 1) continue;
    if (p.m != 1) return p;
    p.m = x.shape[i];
    p.along = x.strides[i];
  }
  for (int i = 0; i < y.rank - 2; i++)
    if (y.shape[i] != 1) return p;
  p.fits = p.m >= 1 && p.m <= kFewRows && p.n >= 1 && p.k >= quant::kChunk && y.strides[y.rank - 2] == 1 &&
           (p.n == 1 || y.strides[y.rank - 1] != 1);
  if (p.fits) p.weight = row_matrix<quant::ToBf16>(y, p.m);
  return p;
}

inline void plan_few(const FewBf16& few, KernelPlan& plan) {
  plan.scratch_bytes = static_cast<size_t>(few.m * few.k) * sizeof(float);
  const uint32_t most = few.n < 16 ? static_cast<uint32_t>(few.n) : 16;
  plan.parts[0] = parts_for(static_cast<double>(few.n * few.k), kRowCost, most);
}

// bias, gate, relu: of `p`, as in run_product.
template <class P>
void run_few_bf16(const Call& call, const FewBf16& few, const Tensor& z, const P& p, int part, int parts, float* rows) {
  const uint16_t* const x = call[0].as<const uint16_t>();
  for (int64_t i = 0; i < few.m; i++) {
    const uint16_t* const from = x + i * few.along;
    float* const to = rows + i * few.k;
    int64_t at = 0;
    if (few.deep == 1)
      for (; at + F::N <= few.k; at += F::N) load_bf16(from + at).store(to + at);
    for (; at < few.k; at++) load_bf16_n(from + at * few.deep, 1).store_n(to + at, 1);
  }
  Product product{};
  product.m = few.m;
  product.n = few.n;
  product.k = few.k;
  product.a = {rows, few.k, 1};
  product.c = z.as<float>();
  product.bias = p.bias;
  product.gate = p.gate;
  product.relu = p.relu;
  product.few = few.weight;
  const Range columns = part_range(few.n, part, parts);
  run_few(product, columns.begin, columns.end);
}

// A product of any operands: the left ones of `Product` are f32, those of others bf16.
template <class P>
void plan_any(const Call& call, const Tensor& z, KernelPlan& plan) {
  if constexpr (!P::Left::kNumbers) {
    const FewBf16 few = few_bf16(call, z);
    if (few.fits) return plan_few(few, plan);
  }
  plan_product<P>(call, z, plan);
}
template <class P>
void run_any(const Call& call, const Tensor& z, P& p, int phase, int part, int parts, void* scratch) {
  if constexpr (!P::Left::kNumbers) {
    const FewBf16 few = few_bf16(call, z);
    if (few.fits) return run_few_bf16(call, few, z, p, part, parts, static_cast<float*>(scratch));
  }
  run_product(call, z, p, phase, part, parts, scratch);
}

}  // namespace gradloom::GL_ISA::gemm
