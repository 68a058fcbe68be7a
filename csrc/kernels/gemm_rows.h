// gemm_rows.h: a few rows times a matrix whose rows lie along k: C[M, N] = X[M, K] W[N, K]^T, M at most 4.
//
// So is one token's product with a weight: the work is to read the weight, once. Packing it for tiles would write each
// number before it is used; here chunks of 32 numbers are decoded (quant.h) into registers and multiplied there with
// the M rows. A sum belongs to one row of W and always has the same order, whoever computes it, and the same for a
// frozen weight as for its f32 copy. Where the M rows are bf16, the numbers of W are rounded to it as they are decoded;
// products and sums are f32 on all instruction sets: memory is what takes the time.
#pragma once
#include <array>
#include <type_traits>
#include <utility>

#include "quant.h"

namespace gradloom::GL_ISA::gemm {

constexpr int64_t kFewRows = 4;
constexpr int64_t kRowColumns = 64;   // sums that wait for their bias or gate
constexpr int kUnrolled = F::N > 1 ? 32 : 1;  // without vectors the sums are no registers, and loops stay loops
constexpr int64_t kRowsAhead = 8192;  // bytes of W that are fetched ahead: twice as fast as what a core foresees

struct Floats {
  static constexpr int64_t kElements = 32, kBytes = 128;
  using Head = quant::Nothing;
  template <class As> static F load(const uint8_t* p) { return As::of(F::load(reinterpret_cast<const float*>(p))); }
  template <class As> static F load_n(const uint8_t* p, int n) {
    return As::of(F::load_n(reinterpret_cast<const float*>(p), n));
  }
  template <class As, class Put> static void chunk(const uint8_t* block, const Head&, int, Put put) {
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) put(i, load<As>(block + 4 * i));
  }
};

// Rows of W that are multiplied side by side: a sum alone waits for each of its additions, several do not wait for each
// other. As many as registers hold sums for.
template <int M> constexpr int kSideBySide = F::N < 16 || M > 2 ? 1 : 4 / M;

template <class Q, size_t... r>
inline std::array<typename Q::Head, sizeof...(r)> heads_of(const uint8_t* w, int64_t w_step, std::index_sequence<r...>) {
  return {typename Q::Head(w + static_cast<int64_t>(r) * w_step)...};
}

// sums[i][j] (row stride kRowColumns) = x[i] . w[j], j in 0 .. R; x and w: rows ldx numbers and w_step bytes apart.
template <class Q, class As, int M, int R>
inline void dot_side_by_side(const float* x, int64_t ldx, const uint8_t* w, int64_t w_step, int64_t k, float* sums) {
  constexpr int V = quant::kChunk / F::N, kChunks = Q::kElements / quant::kChunk, kTurn = kChunks < 4 ? kChunks : 4;
  F sum[R][M][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int i = 0; i < M; i++)
#pragma GCC unroll kUnrolled
      for (int v = 0; v < V; v++) sum[r][i][v] = F::zero();
  const uint8_t* ahead = w + kRowsAhead;  // the rows lie one behind the other: what comes is fetched in its order
  int64_t at = 0;
  for (; at + Q::kElements <= k; at += Q::kElements, w += Q::kBytes) {
    const std::array<typename Q::Head, R> heads = heads_of<Q>(w, w_step, std::make_index_sequence<R>());
#pragma GCC unroll kUnrolled
    for (int b = 0; b < R * Q::kBytes; b += 64) __builtin_prefetch(ahead + b);
    ahead += R * Q::kBytes;
#pragma GCC unroll 1  // the chunks of each turn differ in the same ways
    for (int turn = 0; turn < kChunks; turn += kTurn)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int t = 0; t < kTurn; t++) {
          const uint8_t* const block = w + r * w_step;
          const int c = turn + t;
          F y[V];
          Q::template chunk<As>(block, heads[r], c, [&](int p, F numbers) { y[p / F::N] = numbers; });
#pragma GCC unroll kUnrolled
          for (int v = 0; v < V; v++)
#pragma GCC unroll 4
            for (int i = 0; i < M; i++)
              sum[r][i][v] = mul_add(F::load(x + i * ldx + at + c * quant::kChunk + v * F::N), y[v], sum[r][i][v]);
        }
  }
  if constexpr (requires { &Q::template load_n<As>; }) {  // plain numbers: k may end anywhere
    constexpr int64_t kSize = Q::kBytes / Q::kElements;
    for (int v = 0; at < k; v++, at += F::N, w += kSize * F::N) {
      const int n = static_cast<int>(k - at < F::N ? k - at : F::N);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const F y = Q::template load_n<As>(w + r * w_step, n);
#pragma GCC unroll 4
        for (int i = 0; i < M; i++) sum[r][i][v] = mul_add(F::load_n(x + i * ldx + at, n), y, sum[r][i][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
#pragma GCC unroll 5
      for (int half = V / 2; half > 0; half /= 2)
#pragma GCC unroll kUnrolled
        for (int v = 0; v < half; v++) sum[r][i][v] = sum[r][i][v] + sum[r][i][v + half];
      sums[i * kRowColumns + r] = reduce_add(sum[r][i][0]);
    }
}
template <class Q, class As, int M>
__attribute__((noinline)) void dot_rows(const float* x, int64_t ldx, const uint8_t* w, int64_t w_step, int64_t k,
                                        int64_t columns, float* sums) {
  constexpr int R = kSideBySide<M>;
  const bool few = columns < R;  // then one row R times; else the last R rows, some of them once more
  for (int64_t done = 0; done < columns;) {
    const int64_t j = few || columns - done >= R ? done : columns - R;
    dot_side_by_side<Q, As, M, R>(x, ldx, w + j * w_step, few ? 0 : w_step, k, sums + j);
    done = j + (few ? 1 : R);
  }
}

#if defined(GL_BF16_PAIRS)
template <class As> DotFn dots(DType t, int64_t m) {
  return avx512::shared_dots(t, m, std::is_same_v<As, quant::ToBf16>);
}
#else
template <class Q, class As> DotFn dots_of(int64_t m) {
  constexpr DotFn fn[kFewRows] = {dot_rows<Q, As, 1>, dot_rows<Q, As, 2>, dot_rows<Q, As, 3>, dot_rows<Q, As, 4>};
  return fn[m - 1];
}
template <class As> DotFn dots(DType t, int64_t m) {
  switch (t) {
    case DType::f32: return dots_of<Floats, As>(m);
    case DType::f16: return dots_of<quant::Halves<false>, As>(m);
    case DType::bf16: return dots_of<quant::Halves<true>, quant::Exact>(m);  // rounded already
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
#endif

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
