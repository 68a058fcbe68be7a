// gemm_frozen.h: an operand of a matrix product that is not trained, in any format that quant.h decodes.
//
// FrozenSource is a source like those of gemm_pack.h: its strips hold the decoded numbers, bit for bit those of a cast
// to f32, so that a product with it is, bit for bit, the product with the f32 matrix. Each number is decoded once per
// packing of its tile. For kernels of their own:
//
//   FrozenSource w = frozen_source(tensor, axis_i, axis_p);  // X(i, p): i along the strip, p along k
//   w.strips(i0, i1, p0, depth, width, round, to);           // any ranges; whole chunks of 32 are fastest
//
// Blocks run along one of the two axes, in the forward product along k, in the gradient of the activations along the
// strip: frozen_source sees which from the strides, so that the same tensor gives W and, with the axes exchanged, its
// transpose. Nothing can be read in place: `at` is nullptr. `rounded` sources hold the numbers rounded to bf16, as f32.
#pragma once
#include "gemm_pack.h"
#include "quant.h"

namespace gradloom::GL_ISA::gemm {

inline void round_to_bf16(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += F::N) {
    const int n = static_cast<int>(count - i < F::N ? count - i : F::N);
    from_int_bits(bf16_bits(F::load_n(x + i, n))).store_n(x + i, n);
  }
}

struct FrozenSource {
  static constexpr bool kNumbers = false;
  const uint8_t* data;   // of the tensor
  int64_t first;         // numbers before X(0, 0)
  int64_t along, deep;   // strides of i and of p in numbers
  DecodeFn decode;
  bool transposed;       // neighbours lie along p, not along i
  bool rounded;          // to bf16
  int64_t block, bytes;  // numbers and bytes of a block

  const float* at(int64_t, int64_t) const { return nullptr; }
  void move(int64_t numbers) { first += numbers; }
  static bool in_place() { return false; }
  int64_t row_words() const { return along; }
  // `count` numbers from number `from` on, `step` apart: 1, or any step of numbers without blocks.
  void read(int64_t from, int64_t count, int64_t step, float* to) const {
    if (step == 1)
      decode(data, from, count, to);
    else
      for (int64_t i = 0; i < count; i++) decode(data, from + i * step, 1, to + i);
    if (rounded) round_to_bf16(to, count);
  }
  // What `strips` would read.
  Ahead ahead(int64_t i0, int64_t i1, int64_t p0, int64_t depth) const {
    const uint8_t* const from = data + (first + i0 * along + p0 * deep) / block * bytes;
    const auto size = [&](int64_t numbers) { return (numbers + block - 1) / block * bytes; };
    if (transposed) return ahead_of(from, i1 - i0, size(depth), size(along));
    return ahead_of(from, depth, size(i1 - i0), size(deep));
  }
  void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    if (transposed) {
      for (; i0 < i1; i0 += width, to += width * depth) {
        const int rows = static_cast<int>(i1 - i0 < width ? i1 - i0 : width);
        transposed_strip(i0, rows, p0, depth, (rows + round - 1) / round * round, to);
      }
      return;
    }
    // Neighbours along the strip: a stretch of each row of k at a time, cut into the strips that it belongs to.
    alignas(64) float room[kStretch];
    const int64_t once = kStretch / width * width;
    for (; i0 < i1; i0 += once, to += once * depth) {
      const int64_t count = i1 - i0 < once ? i1 - i0 : once;
      for (int64_t p = 0; p < depth; p++) {
        read(first + i0 * along + (p0 + p) * deep, count, along, room);
        int64_t i = 0;
        if (width == kTileColumns)
          for (; i + kTileColumns <= count; i += kTileColumns) {
            float* const row = to + i * depth + p * kTileColumns;
#pragma GCC unroll 4
            for (int v = 0; v < kTileColumns; v += Lanes::N) Lanes::load(room + i + v).store(row + v);
          }
        for (; i < count; i += width) {
          const int rows = static_cast<int>(count - i < width ? count - i : width);
          const int wide = (rows + round - 1) / round * round;
          float* const row = to + i * depth + p * wide;
          std::memcpy(row, room + i, static_cast<size_t>(rows) * sizeof(float));
          for (int j = rows; j < wide; j++) row[j] = 0.0f;
        }
      }
    }
  }

 private:
  static constexpr int64_t kStretch = 128;

  // Neighbours along k: a few rows are decoded into a buffer, whose square blocks are then transposed.
  void transposed_strip(int64_t i0, int rows, int64_t p0, int64_t depth, int width, float* to) const {
    alignas(64) float room[kSquare * kStretch];
    for (int64_t p = 0; p < depth; p += kStretch) {
      const int64_t count = depth - p < kStretch ? depth - p : kStretch;
      float* const strip = to + p * width;
      for (int i = 0; i < rows; i += kSquare) {
        const int n = rows - i < kSquare ? rows - i : kSquare;
        for (int r = 0; r < n; r++) read(first + (i0 + i + r) * along + p0 + p, count, 1, room + r * kStretch);
        int64_t q = 0;
        if (n == kSquare)
          for (; q + kSquare <= count; q += kSquare)
            transpose<kSquare>(room + q, kStretch, strip + q * width + i, width);
        for (; q < count; q++)
          for (int r = 0; r < n; r++) strip[q * width + i + r] = room[r * kStretch + q];
      }
      for (int64_t q = 0; q < count; q++)
        for (int j = rows; j < width; j++) strip[q * width + j] = 0.0f;
    }
  }
};

// The last two axes of a tensor as a source; i runs along `axis_i`, p along `axis_p`.
inline FrozenSource frozen_source(const Tensor& t, int axis_i, int axis_p) {
  FrozenSource s{t.as<const uint8_t>(), 0, t.strides[axis_i], t.strides[axis_p], quant::decoder(t.dtype), false,
                 false, dtype_block(t.dtype), static_cast<int64_t>(dtype_bytes(t.dtype))};
  const bool many_i = t.shape[axis_i] > 1, many_p = t.shape[axis_p] > 1;
  // The stride of an axis of size 1 says nothing.
  if (!many_i) s.along = 0;
  if (!many_p) s.deep = 0;
  s.transposed = many_p ? s.deep == 1 && s.along != 1 : s.along != 1;
  return s;
}

}  // namespace gradloom::GL_ISA::gemm
