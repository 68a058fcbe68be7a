// gemm_pack.h: how the operands of a matrix product become strips.
//
// Both operands are packed alike. Seen by the packer an operand is a matrix X(i, p): i runs along the strip (rows of A,
// columns of B), p along k. `strips` lays i0 .. i1 out as consecutive strips of `width`, each [depth][width]; what is
// left over makes a last strip whose width is rounded up to a multiple of `round` and filled with zeros.
// A source is any type with that member: another storage format is another source.
#pragma once
#include "gemm_tile.h"

#if defined(__clang__) || __GNUC__ >= 12
#define GL_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GL_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Pick{__VA_ARGS__})
#endif

namespace gradloom::GL_ISA {

// Four by four: rows of x (stride x_stride) become columns of y (stride y_stride).
inline void transpose_4x4(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  typedef float Four __attribute__((vector_size(16)));
  [[maybe_unused]] typedef int32_t Pick __attribute__((vector_size(16)));
  Four r0, r1, r2, r3;
  std::memcpy(&r0, x, 16);
  std::memcpy(&r1, x + x_stride, 16);
  std::memcpy(&r2, x + 2 * x_stride, 16);
  std::memcpy(&r3, x + 3 * x_stride, 16);
  const Four a = GL_SHUFFLE(r0, r1, 0, 4, 1, 5), b = GL_SHUFFLE(r2, r3, 0, 4, 1, 5);
  const Four c = GL_SHUFFLE(r0, r1, 2, 6, 3, 7), d = GL_SHUFFLE(r2, r3, 2, 6, 3, 7);
  r0 = GL_SHUFFLE(a, b, 0, 1, 4, 5);
  r1 = GL_SHUFFLE(a, b, 2, 3, 6, 7);
  r2 = GL_SHUFFLE(c, d, 0, 1, 4, 5);
  r3 = GL_SHUFFLE(c, d, 2, 3, 6, 7);
  std::memcpy(y, &r0, 16);
  std::memcpy(y + y_stride, &r1, 16);
  std::memcpy(y + 2 * y_stride, &r2, 16);
  std::memcpy(y + 3 * y_stride, &r3, 16);
}

struct StridedSource {
  const float* data;
  int64_t along, deep;  // strides of i and of p

  void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    const float* from = data + i0 * along + p0 * deep;
    const int64_t whole = (i1 - i0) / width;
    const int rest = static_cast<int>(i1 - i0 - whole * width);
    if (along == 1) {
      // Rows of k are contiguous: several strips side by side, so that whole lines are read.
      int64_t s = 0;
      for (; s + 4 <= whole; s += 4) copy<4>(from + s * width, depth, width, to + s * width * depth);
      for (; s < whole; s++) copy<1>(from + s * width, depth, width, to + s * width * depth);
    } else if (deep == 1) {
      for (int64_t s = 0; s < whole; s++) turn(from + s * width * along, depth, width, width, to + s * width * depth);
    } else {
      for (int64_t s = 0; s < whole; s++) any(from + s * width * along, depth, width, width, to + s * width * depth);
    }
    if (rest) {
      const int padded = (rest + round - 1) / round * round;
      from += whole * width * along;
      to += whole * width * depth;
      if (deep == 1) turn(from, depth, rest, padded, to);
      else any(from, depth, rest, padded, to);
    }
  }

 private:
  template <int strips>
  void copy(const float* from, int64_t depth, int width, float* to) const {
    constexpr int L = Lanes::N;
    const int64_t next = width * depth;
    for (int64_t p = 0; p < depth; p++, from += deep, to += width)
      for (int s = 0; s < strips; s++) {
        int i = 0;
        for (; i + L <= width; i += L) Lanes::load(from + s * width + i).store(to + s * next + i);
        if (i < width) Lanes::load_n(from + s * width + i, width - i).store_n(to + s * next + i, width - i);
      }
  }
  // k is contiguous: blocks of four rows by four steps, a stretch of k at a time so that the strip stays in cache.
  void turn(const float* from, int64_t depth, int rows, int width, float* to) const {
    constexpr int64_t stretch = 64;
    if (rows < width) any(from, depth, rows, width, to);
    for (int64_t p0 = 0; p0 < depth; p0 += stretch) {
      const int64_t p1 = p0 + stretch < depth ? p0 + stretch : depth;
      int i = 0;
      for (; i + 4 <= rows; i += 4) {
        int64_t p = p0;
        for (; p + 4 <= p1; p += 4) transpose_4x4(from + i * along + p, along, to + p * width + i, width);
        for (; p < p1; p++)
          for (int j = 0; j < 4; j++) to[p * width + i + j] = from[(i + j) * along + p];
      }
      for (; i < rows; i++)
        for (int64_t p = p0; p < p1; p++) to[p * width + i] = from[i * along + p];
    }
  }
  void any(const float* from, int64_t depth, int rows, int width, float* to) const {
    for (int64_t p = 0; p < depth; p++, to += width) {
      for (int i = 0; i < rows; i++) to[i] = from[i * along + p * deep];
      for (int i = rows; i < width; i++) to[i] = 0.0f;
    }
  }
};

}  // namespace gradloom::GL_ISA
