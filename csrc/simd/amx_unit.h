// amx_unit.h: products of tiles of bf16, as AMX computes them, or its twin.
//
// There are eight tiles of 16 rows of 16 words. TDPBF16PS adds to tile C (f32) the product of A (16 rows of 32 numbers
// of k) and B (16 rows, each of pairs along k for 16 columns). It keeps two sums of each element that start at 0, one of
// the even k and one of the odd ones, multiply-adds in the order of k, and adds C + (even + odd). It rounds to nearest
// even; denormal numbers are 0 to it, and what would be denormal becomes 0. (Found by holding the unit against
// candidates.) The twin computes that with the multiply-adds of AVX-512.
//
//   TileRegisters tiles;                configures this thread's tiles, and releases them at its end
//   GL_TILE_ZERO(t)  GL_TILE_LOAD(t, words, row_words)  GL_TILE_STORE(t, words, row_words)  GL_TILE_PRODUCT(c, a, b)
//
// t, c, a, b are literals; `tiles` is in scope.
#pragma once
#include "simd.h"

namespace gradloom::GL_ISA {

constexpr int kTileSide = 16;                     // rows of a tile, and words of a row
constexpr int kTileWords = kTileSide * kTileSide;

#if defined(GL_AMX_UNIT)
class TileRegisters {
 public:
  TileRegisters() {
    struct Shapes {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide};
    };
    static_assert(sizeof(Shapes) == 64);
    // A constant in memory: GCC's _tile_loadconfig declares that it reads 8 bytes, so stores of the others are removed.
    alignas(64) static constexpr Shapes shapes;
    _tile_loadconfig(&shapes);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};
#define GL_TILE_ZERO(t) _tile_zero(t)
#define GL_TILE_LOAD(t, words, row_words) _tile_loadd(t, words, 4 * (row_words))
#define GL_TILE_STORE(t, words, row_words) _tile_stored(t, words, 4 * (row_words))
#define GL_TILE_PRODUCT(c, a, b) _tile_dpbf16ps(c, a, b)
#else
class TileRegisters {
 public:
  void zero(int t) { std::memset(tile_[t], 0, sizeof tile_[t]); }
  void load(int t, const float* words, int64_t row_words) {
    for (int i = 0; i < kTileSide; i++) std::memcpy(tile_[t] + i * kTileSide, words + i * row_words, 4 * kTileSide);
  }
  void store(int t, float* words, int64_t row_words) const {
    for (int i = 0; i < kTileSide; i++) std::memcpy(words + i * row_words, tile_[t] + i * kTileSide, 4 * kTileSide);
  }
  void product(int c, int a, int b) {
    const unsigned flush = 0x9fc0;  // denormals are 0, denormal results too, to nearest, no exceptions
    unsigned before;
    asm volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(before) : "m"(flush) : "memory");
    add_product(tile_[c], tile_[a], tile_[b]);
    asm volatile("ldmxcsr %0" : : "m"(before) : "memory");
  }

 private:
  __attribute__((noinline)) static void add_product(float* c, const float* a, const float* b) {
    const I upper = I::set1(static_cast<int32_t>(0xffff0000));
    for (int i = 0; i < kTileSide; i++) {
      F even = F::zero(), odd = F::zero();
      for (int k = 0; k < kTileSide; k++) {
        int32_t pair;
        std::memcpy(&pair, a + i * kTileSide + k, 4);
        const I x = I::set1(pair), y = to_int_bits(F::load(b + k * kTileSide));
        even = fma(from_int_bits(x << 16), from_int_bits(y << 16), even);
        odd = fma(from_int_bits(x & upper), from_int_bits(y & upper), odd);
      }
      (F::load(c + i * kTileSide) + (even + odd)).store(c + i * kTileSide);
    }
  }

  alignas(64) float tile_[8][kTileWords];
};
#define GL_TILE_ZERO(t) tiles.zero(t)
#define GL_TILE_LOAD(t, words, row_words) tiles.load(t, words, row_words)
#define GL_TILE_STORE(t, words, row_words) tiles.store(t, words, row_words)
#define GL_TILE_PRODUCT(c, a, b) tiles.product(c, a, b)
#endif

}  // namespace gradloom::GL_ISA
