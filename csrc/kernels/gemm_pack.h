// gemm_pack.h: how the operands of a matrix product become strips.
//
// Both operands are packed alike. Seen by the packer an operand is a matrix X(i, p): i runs along the strip (rows of A,
// columns of B), p along k. `strips` lays i0 .. i1 out as consecutive strips of `width`, each [depth][width]; what is
// left over makes a last strip whose width is rounded up to a multiple of `round` and filled with zeros.
// A source is any type with that member, `at` and `move`: another storage format is another source (gemm_frozen.h). One
// that cannot be read in place says so by `in_place`, and its product packs. kNumbers: its words are f32 numbers, where
// they lie.
#pragma once
#include "gemm_tile.h"

#if defined(__clang__) || __GNUC__ >= 12
#define GL_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GL_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Pick{__VA_ARGS__})
#endif

namespace gradloom::GL_ISA::gemm {

// Blocks of T x T: rows of x (stride x_stride) become columns of y (stride y_stride).
template <int T>
void transpose(const float* x, int64_t x_stride, float* y, int64_t y_stride);

template <>
inline void transpose<4>(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
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

// Rows and columns of the largest block.
#if defined(GL_ISA_SCALAR)
constexpr int kSquare = 4;
#else
constexpr int kSquare = 8;
template <>
inline void transpose<8>(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  // Row i beside row i + 4, once for each half of the columns: what is left to do stays within 128 bits.
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++, x += 4, y += 4 * y_stride) {
    __m256 r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
      r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + i * x_stride)),
                                  _mm_loadu_ps(x + (i + 4) * x_stride), 1);
    const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpacklo_ps(r[2], r[3]);
    const __m256 c = _mm256_unpackhi_ps(r[0], r[1]), d = _mm256_unpackhi_ps(r[2], r[3]);
    _mm256_storeu_ps(y, _mm256_shuffle_ps(a, b, 0x44));
    _mm256_storeu_ps(y + y_stride, _mm256_shuffle_ps(a, b, 0xee));
    _mm256_storeu_ps(y + 2 * y_stride, _mm256_shuffle_ps(c, d, 0x44));
    _mm256_storeu_ps(y + 3 * y_stride, _mm256_shuffle_ps(c, d, 0xee));
  }
}
#endif

struct StridedSource {
  static constexpr bool kNumbers = true;
  const float* data;
  int64_t along, deep;  // strides of i and of p

  void move(int64_t numbers) { data += numbers; }
  static bool in_place() { return true; }
  int64_t row_words() const { return along; }  // from a row to the next where rows are read in place
  const float* at(int64_t i, int64_t p) const { return data + i * along + p * deep; }
  // What `strips` would read.
  Ahead ahead(int64_t i0, int64_t i1, int64_t p0, int64_t depth) const {
    if (along == 1) return ahead_of(at(i0, p0), depth, (i1 - i0) * 4, deep * 4);
    if (deep == 1) return ahead_of(at(i0, p0), i1 - i0, depth * 4, along * 4);
    return Ahead{};
  }
  GL_CALLED void strips(int64_t i0, int64_t i1, int64_t p0, int64_t depth, int width, int round, float* to) const {
    const float* from = at(i0, p0);
    int64_t left = i1 - i0;
    if (along == 1) {
      // Neighbours along the strip lie side by side: several strips at a time, so that whole lines are read.
      for (; left >= 4 * width; left -= 4 * width, from += 4 * width, to += 4 * width * depth)
        width == kTileColumns ? copy<4, kTileColumns>(from, depth, to) : copy<4, kTileRows>(from, depth, to);
      for (; left >= width; left -= width, from += width, to += width * depth)
        width == kTileColumns ? copy<1, kTileColumns>(from, depth, to) : copy<1, kTileRows>(from, depth, to);
      if (left) copy_rest(from, depth, static_cast<int>(left), ceil_to(static_cast<int>(left), round), to);
      return;
    }
    for (; left > 0; left -= width, from += width * along, to += width * depth) {
      const int rows = static_cast<int>(left < width ? left : width);
      transpose_strip(from, depth, rows, ceil_to(rows, round), to);
    }
  }

 private:
  static int ceil_to(int n, int round) { return (n + round - 1) / round * round; }

  template <int strips, int width>
  void copy(const float* from, int64_t depth, float* to) const {
    constexpr int L = Lanes::N, vectors = width / L;
    for (int64_t p = 0; p < depth; p++, from += deep, to += width)
#pragma GCC unroll 4
      for (int s = 0; s < strips; s++) {
        const float* x = from + s * width;
        float* y = to + s * width * depth;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) Lanes::load(x + v * L).store(y + v * L);
        std::memcpy(y + vectors * L, x + vectors * L, (width - vectors * L) * sizeof(float));
      }
  }
  void copy_rest(const float* from, int64_t depth, int rows, int width, float* to) const {
    constexpr int L = Lanes::N;
    for (int64_t p = 0; p < depth; p++, from += deep, to += width)
      for (int i = 0; i < width; i += L) {
        const int n = rows - i < L ? (rows > i ? rows - i : 0) : L;
        Lanes::load_n(from + i, n).store_n(to + i, width - i < L ? width - i : L);
      }
  }
  // Square blocks, a stretch of k at a time so that the strip stays in the first-level cache; the rest one by one.
  void transpose_strip(const float* from, int64_t depth, int rows, int width, float* to) const {
    constexpr int64_t stretch = 128;
    for (int64_t p0 = 0; p0 < depth; p0 += stretch) {
      const int64_t p1 = p0 + stretch < depth ? p0 + stretch : depth;
      const int64_t blocks = deep == 1 ? p0 + (p1 - p0) / kSquare * kSquare : p0;
      int i = 0;
      for (; i + kSquare <= rows; i += kSquare)
        for (int64_t p = p0; p < blocks; p += kSquare)
          transpose<kSquare>(from + i * along + p, along, to + p * width + i, width);
      for (; i + 4 <= rows; i += 4)
        for (int64_t p = p0; p < blocks; p += 4) transpose<4>(from + i * along + p, along, to + p * width + i, width);
      for (; i < rows; i++)
        for (int64_t p = p0; p < blocks; p++) to[p * width + i] = from[i * along + p];
      for (int64_t p = blocks; p < p1; p++)
        for (i = 0; i < rows; i++) to[p * width + i] = from[i * along + p * deep];
      for (int64_t p = p0; p < p1; p++)
        for (i = rows; i < width; i++) to[p * width + i] = 0.0f;
    }
  }
};

}  // namespace gradloom::GL_ISA::gemm
