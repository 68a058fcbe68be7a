// matmul.h: the ops that are matrix products: matmul, matmul_act, matmul_relu_back. C[M, N] = A[M, K] B[K, N], batched.
//
// gemm_product.h says how a product is cut, gemm_run.h runs it; gemm_tile.h, gemm_pack.h, gemm_frozen.h, gemm_pairs.h,
// gemm_rows.h and gemm_few.h are the pieces. An instruction set with a unit for bf16 defines GL_BF16_PAIRS.
#pragma once
#include "gemm_few.h"
#if defined(GL_BF16_PAIRS)
#include "gemm_pairs.h"
#include "peaks.h"
#endif

namespace gradloom::GL_ISA::gemm {

// (x, y) -> z
template <class P>
void plan_matmul(const Call& call, KernelPlan& plan) { plan_any<P>(call, call[2], plan); }
template <class P>
void run_matmul(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = p.gate = nullptr;
  p.relu = false;
  run_any(call, call[2], p, phase, part, parts, scratch);
}

// (x, y, bias dense; activation none/relu) -> z
template <class P>
void plan_matmul_act(const Call& call, KernelPlan& plan) { plan_any<P>(call, call[3], plan); }
template <class P>
void run_matmul_act(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = call[2].as<const float>();
  p.gate = nullptr;
  p.relu = call.attr_int(0) == 1;
  run_any(call, call[3], p, phase, part, parts, scratch);
}

// (x, y, h dense) -> z
template <class P>
void run_matmul_relu_back(const Call& call, int phase, int part, int parts, void* scratch) {
  P p;
  p.bias = nullptr;
  p.gate = call[2].as<const float>();
  p.relu = false;
  run_any(call, call[3], p, phase, part, parts, scratch);
}

#define GL_PRODUCTS(signature, P)                           \
  {"matmul", signature, plan_matmul<P>, run_matmul<P>, true},     \
  {"matmul_act", signature, plan_matmul_act<P>, run_matmul_act<P>, true}, \
  {"matmul_relu_back", signature, plan_matmul_act<P>, run_matmul_relu_back<P>, true}
#define GL_FROZEN(type) GL_PRODUCTS("f32_" type "_f32", FrozenProduct)
inline constexpr KernelRow kMatmulRows[] = {
    GL_PRODUCTS("f32", Product),
    GL_FROZEN("f16"), GL_FROZEN("bf16"), GL_FROZEN("q4_0"), GL_FROZEN("q4_1"), GL_FROZEN("q5_0"), GL_FROZEN("q5_1"),
    GL_FROZEN("q8_0"), GL_FROZEN("q2_k"), GL_FROZEN("q3_k"), GL_FROZEN("q4_k"), GL_FROZEN("q5_k"), GL_FROZEN("q6_k"),
};
#undef GL_FROZEN

// x is bf16; y, of any dtype, is rounded to it: "bf16_f32" is y of bf16 or of f32.
#if defined(GL_BF16_PAIRS)
using RoundedProduct = ProductOf<PairSource, PairSource, Pairs>;
#else
using RoundedProduct = ProductOf<FrozenSource, FrozenSource>;
#endif
#define GL_ROUNDED(type) GL_PRODUCTS("bf16_" type "_f32", RoundedProduct)
inline constexpr KernelRow kRoundedRows[] = {
    GL_PRODUCTS("bf16_f32", RoundedProduct),
    GL_ROUNDED("f16"), GL_ROUNDED("q4_0"), GL_ROUNDED("q4_1"), GL_ROUNDED("q5_0"), GL_ROUNDED("q5_1"), GL_ROUNDED("q8_0"),
    GL_ROUNDED("q2_k"), GL_ROUNDED("q3_k"), GL_ROUNDED("q4_k"), GL_ROUNDED("q5_k"), GL_ROUNDED("q6_k"),
#if defined(GL_BF16_PAIRS)
    {"limit_bf16", "f32", nullptr, peaks::run_limit<Pairs>},
#endif
};
#undef GL_ROUNDED
#undef GL_PRODUCTS

}  // namespace gradloom::GL_ISA::gemm

