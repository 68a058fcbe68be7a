// gemm_rows.h: a few rows times a matrix whose rows lie along k: C[M, N] = X[M, K] W[N, K]^T, M at most 4.
//
// So is one token's product with a weight: the work is to read the weight, once. Packing it for tiles would write each
// number before it is used; here chunks of 32 numbers are decoded (quant.h) into registers and multiplied there with
// the M rows. A sum belongs to one row of W and always has the same order, whoever computes it, and the same for a
// frozen weight as for its f32 copy. Where the M rows are bf16, the numbers of W are rounded to it as they are decoded;
// products and sums are f32 on all instruction sets: memory is what takes the time.
#pragma once
#include "quant.h"

namespace gradloom::GL_ISA::gemm {

constexpr int64_t kFewRows = 4;
constexpr int64_t kRowColumns = 64;   // sums that wait for their bias or gate
constexpr int64_t kRowsAhead = 4096;  // bytes of W that are fetched ahead: twice as fast as what a core foresees

struct Floats {
  static constexpr int64_t kElements = 32, kBytes = 128;
  template <class As> static F load(const uint8_t* p) { return As::of(F::load(reinterpret_cast<const float*>(p))); }
  template <class As> static F load_n(const uint8_t* p, int n) {
    return As::of(F::load_n(reinterpret_cast<const float*>(p), n));
  }
  template <class As, class Put> static void chunk(const uint8_t* block, int, Put put) {
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) put(i, load<As>(block + 4 * i));
  }
};

// sums[i][j] (row stride kRowColumns) = x[i] . w[j]; x and w: rows ldx numbers and w_step bytes apart.
template <class Q, class As, int M>
__attribute__((noinline)) void dot_rows(const float* x, int64_t ldx, const uint8_t* w, int64_t w_step, int64_t k,
                                        int64_t columns, float* sums) {
  constexpr int V = quant::kChunk / F::N, kChunks = Q::kElements / quant::kChunk, kChunkBytes = Q::kBytes / kChunks;
  for (int64_t j = 0; j < columns; j++, w += w_step) {
    F sum[M][V];
#pragma GCC unroll 4
    for (int i = 0; i < M; i++)
#pragma GCC unroll 32
      for (int v = 0; v < V; v++) sum[i][v] = F::zero();
    const uint8_t* block = w;
    int64_t at = 0;
    for (; at + Q::kElements <= k; at += Q::kElements, block += Q::kBytes)
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; c++) {
        for (int b = 0; b < kChunkBytes; b += 64) __builtin_prefetch(block + kRowsAhead + c * kChunkBytes + b);
        Q::template chunk<As>(block, c, [&](int p, F y) {
#pragma GCC unroll 4
          for (int i = 0; i < M; i++)
            sum[i][p / F::N] = mul_add(F::load(x + i * ldx + at + c * quant::kChunk + p), y, sum[i][p / F::N]);
        });
      }
    if constexpr (requires { &Q::template load_n<As>; }) {  // plain numbers: k may end anywhere
      constexpr int64_t kSize = Q::kBytes / Q::kElements;
      for (int v = 0; at < k; v++, at += F::N, block += kSize * F::N) {
        const int n = static_cast<int>(k - at < F::N ? k - at : F::N);
        const F y = Q::template load_n<As>(block, n);
#pragma GCC unroll 4
        for (int i = 0; i < M; i++) sum[i][v] = mul_add(F::load_n(x + i * ldx + at, n), y, sum[i][v]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
#pragma GCC unroll 5
      for (int half = V / 2; half > 0; half /= 2)
#pragma GCC unroll 16
        for (int v = 0; v < half; v++) sum[i][v] = sum[i][v] + sum[i][v + half];
      sums[i * kRowColumns + j] = reduce_add(sum[i][0]);
    }
  }
}

using DotFn = void (*)(const float*, int64_t, const uint8_t*, int64_t, int64_t, int64_t, float*);
template <class Q, class As> DotFn dots_of(int64_t m) {
  constexpr DotFn fn[kFewRows] = {dot_rows<Q, As, 1>, dot_rows<Q, As, 2>, dot_rows<Q, As, 3>, dot_rows<Q, As, 4>};
  return fn[m - 1];
}
template <class As> DotFn dots(DType t, int64_t m) {
  switch (t) {
    case DType::f32: return dots_of<Floats, As>(m);
    case DType::f16: return dots_of<quant::Halves<false>, As>(m);
    case DType::bf16: return dots_of<quant::Halves<true>, As>(m);
    case DType::q4_0: return dots_of<quant::Q4<false>, As>(m);
    case DType::q4_1: return dots_of<quant::Q4<true>, As>(m);
    case DType::q5_0: return dots_of<quant::Q5<false>, As>(m);
    case DType::q5_1: return dots_of<quant::Q5<true>, As>(m);
    case DType::q8_0: return dots_of<quant::Q8, As>(m);
    case DType::q2_k: return dots_of<quant::Q2K, As>(m);
    case DType::q3_k: return dots_of<quant::Q3K, As>(m);
    case DType::q4_k: return dots_of<quant::Q4K, As>(m);
    case DType::q5_k: return dots_of<quant::Q5K, As>(m);
    case DType::q6_k: return dots_of<quant::Q6K, As>(m);
    default: return nullptr;
  }
}

// The matrix W of such a product; `dot` is nullptr where the product is another one.
struct RowMatrix {
  DotFn dot;
  const uint8_t* data;  // nullptr while planning
  int64_t step;         // bytes from a row to the next
};
template <class As = quant::Exact> RowMatrix row_matrix(const Tensor& y, int64_t m) {  // y: W^T
  const int64_t block = dtype_block(y.dtype), bytes = static_cast<int64_t>(dtype_bytes(y.dtype));
  return {dots<As>(y.dtype, m), y.as<const uint8_t>(), y.strides[y.rank - 1] / block * bytes};
}

}  // namespace gradloom::GL_ISA::gemm
