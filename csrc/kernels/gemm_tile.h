// gemm_tile.h: the register tile of the matrix product, and the strips that feed it.
//
// A tile is MR rows of C by NV vectors of columns. It walks over k once: per step NV vectors of B, MR numbers of A
// broadcast, MR * NV multiply-adds, nothing stored before the end. Operands are read either from strips
// (`strip[k][width]`, what the packers write) or in place.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA::gemm {

#if defined(GL_ISA_SCALAR)
// Four lanes of plain C++ vector extension: what any compiler turns into the machine's smallest vectors.
struct Lanes {
  static constexpr int N = 4;
  typedef float Four __attribute__((vector_size(16)));
  Four v;
  static Lanes zero() { return {Four{0, 0, 0, 0}}; }
  static Lanes set1(float x) { return {Four{x, x, x, x}}; }
  static Lanes load(const float* p) {
    Lanes r;
    std::memcpy(&r.v, p, 16);
    return r;
  }
  static Lanes load_n(const float* p, int n) {
    Lanes r = zero();
    for (int i = 0; i < n; i++) r.v[i] = p[i];
    return r;
  }
  void store(float* p) const { std::memcpy(p, &v, 16); }
  void store_n(float* p, int n) const {
    for (int i = 0; i < n; i++) p[i] = v[i];
  }
};
inline Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
inline Lanes mul_add(Lanes a, Lanes b, Lanes c) { return {a.v * b.v + c.v}; }
inline Lanes max(Lanes x, Lanes y) {  // as F has it
  for (int i = 0; i < Lanes::N; i++) x.v[i] = x.v[i] > y.v[i] || x.v[i] != x.v[i] ? x.v[i] : y.v[i];
  return x;
}
inline Lanes keep_positive(Lanes h, Lanes x) {
  for (int i = 0; i < Lanes::N; i++) x.v[i] = h.v[i] > 0.0f ? x.v[i] : 0.0f;
  return x;
}
inline float reduce_add(Lanes x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
constexpr int kTileRows = 3, kTileVectors = 2;
#else
using Lanes = F;
inline Lanes keep_positive(Lanes h, Lanes x) { return select(gt(h, F::zero()), x, F::zero()); }
#if defined(GL_ISA_AVX512)
constexpr int kTileRows = 12, kTileVectors = 2;  // 24 sums, 2 of B, 1 of A: 27 of 32 registers
#else
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 sums, 2 of B, 1 of A: 15 of 16 registers
#endif
#endif
constexpr int kTileColumns = kTileVectors * Lanes::N;
#if defined(GL_ISA_AVX512)
constexpr bool kMasksAreFree = true;  // load_n is nearly as fast as load: one code for small tiles, whole or partial
#else
constexpr bool kMasksAreFree = false;
#endif

// Memory that will be packed next, fetched a line at a time while tiles are computed: packing then reads what is near.
// Rows of `lines` cache lines each.
struct Ahead {
  const char* line;    // the next one
  int64_t left;        // lines still to fetch in its row; 0: nothing is left
  int64_t lines, skip; // skip: bytes from the end of a row to the next
  int64_t rows;        // after this one

  void fetch() {
    __builtin_prefetch(line, 0, 2);
    line += 64;
    if (--left > 0 || rows == 0) return;
    line += skip;
    left = lines;
    rows--;
  }
};
// `rows` pieces of `bytes` each, `stride` bytes apart.
inline Ahead ahead_of(const void* from, int64_t rows, int64_t bytes, int64_t stride) {
  if (rows <= 0 || bytes <= 0) return Ahead{};
  const int64_t lines = (bytes + 63) / 64;
  return {static_cast<const char*>(from), lines, lines, stride - 64 * lines, rows - 1};
}
constexpr int64_t kPackAhead = 16;  // rows of B that a tile that packs fetches before it reads them
constexpr int64_t kAheadSteps = 4;  // steps of k per line: 96 rows of tiles fetch all that they need

// What happens to a finished sum on its way to C, in this order: + bias, relu, zero where not gate > 0.
struct Finish {
  const float* bias;  // of the tile's first column, columns side by side; or nullptr
  const float* gate;  // of the tile's first element, columns side by side; or nullptr
  int64_t gate_rows;  // stride
  bool relu;
  Ahead* ahead;       // what to fetch meanwhile, or nullptr
  float* strip = nullptr;  // where a tile that packs lays what it reads of B
};

// What the words of operands are: numbers. gemm_pairs.h has another unit.
struct Numbers {
  static constexpr int64_t kPerWord = 1;  // numbers along k
  static Lanes broadcast(const float* a) { return Lanes::set1(*a); }
  static Lanes step(Lanes a, Lanes b, Lanes sum) { return mul_add(a, b, sum); }
};

enum class Side {
  columns,  // a[k * stride + i]: strips, and operands whose rows are contiguous
  rows      // a[i * stride + k]: operands whose k is contiguous
};

// c[i][j] (row stride ldc; n columns) = sum over k of a(i, k) * b[k * ldb + j], plus c with `add`, then finish. k counts
// words.
// `partial`: the last vector holds fewer than L columns, and no more are touched.
// `packs`: B is read in place, and laid out as a strip while the sums are taken.
template <class Unit, int MR, int NV, Side side, bool partial, bool packs = false>
__attribute__((noinline)) void tile(const float* a, int64_t a_stride, const float* b, int64_t ldb, int64_t k, int n,
                                    float* c, int64_t ldc, bool add, const Finish& finish) {
  constexpr int L = Lanes::N;
  const int last = n - (NV - 1) * L;  // columns in the last vector
  Lanes sum[MR][NV];
#pragma GCC unroll 12
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) sum[i][j] = Lanes::zero();

  // C is touched at the end: by then its lines are near.
  if (k >= 64) {
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) __builtin_prefetch(c + i * ldc + j * L, 1);
  }

  [[maybe_unused]] float* strip = finish.strip;
  // Rows in place: one pointer per three rows, the others by adding one or two strides.
  const float* row[(MR + 2) / 3];
  if constexpr (side == Side::rows)
    for (int g = 0; g < (MR + 2) / 3; g++) row[g] = a + 3 * g * a_stride;

  for (int64_t p = 0; p < k; p++) {
    if (p % kAheadSteps == 0 && finish.ahead && finish.ahead->left) finish.ahead->fetch();
    if constexpr (side == Side::columns && MR == kTileRows) {  // a stride that the machine does not foresee
      __builtin_prefetch(a + 16 * a_stride);
      __builtin_prefetch(a + 16 * a_stride + MR - 1);
    }
    Lanes y[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++)
      y[j] = !partial || j < NV - 1 ? Lanes::load(b + j * L) : Lanes::load_n(b + j * L, last);
    if constexpr (packs) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        y[j].store(strip + j * L);
        __builtin_prefetch(b + kPackAhead * ldb + j * L);
      }
      strip += NV * L;
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
      const Lanes x = Unit::broadcast(side == Side::rows ? row[i / 3] + i % 3 * a_stride : a + i);
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) sum[i][j] = Unit::step(x, y[j], sum[i][j]);
    }
    b += ldb;
    if constexpr (side == Side::rows) {
#pragma GCC unroll 4
      for (int g = 0; g < (MR + 2) / 3; g++) row[g]++;
    } else {
      a += a_stride;
    }
  }

  auto load = [&](const float* from, int j) {
    return !partial || j < NV - 1 ? Lanes::load(from + j * L) : Lanes::load_n(from + j * L, last);
  };
  if (add) {
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) sum[i][j] = load(c + i * ldc, j) + sum[i][j];
  }
  if (finish.bias || finish.relu) {
    // x + -0 and max(x, -inf) are x, bit for bit: one path serves both.
    const Lanes floor = Lanes::set1(finish.relu ? 0.0f : -__builtin_inff());
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) {
      const Lanes bias = finish.bias ? load(finish.bias, j) : Lanes::set1(-0.0f);
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) sum[i][j] = max(sum[i][j] + bias, floor);
    }
  }
  if (finish.gate) {
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) sum[i][j] = keep_positive(load(finish.gate + i * finish.gate_rows, j), sum[i][j]);
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) {
      if (!partial || j < NV - 1)
        sum[i][j].store(c + i * ldc + j * L);
      else
        sum[i][j].store_n(c + i * ldc + j * L, last);
    }
}

using TileFn = void (*)(const float*, int64_t, const float*, int64_t, int64_t, int, float*, int64_t, bool,
                        const Finish&);

// Every height 1 .. kTileRows, one or two vectors wide, both sides, whole or partial: [side][partial][NV - 1][MR - 1].
template <class Unit>
struct Tiles {
  TileFn fn[2][2][kTileVectors][kTileRows];
  template <Side side, bool partial, int NV, int MR>
  constexpr void fill() {
    constexpr bool masked = partial || (kMasksAreFree && MR < kTileRows && NV < kTileVectors);
    fn[static_cast<int>(side)][partial][NV - 1][MR - 1] = tile<Unit, MR, NV, side, masked>;
    if constexpr (MR > 1) fill<side, partial, NV, MR - 1>();
  }
  template <Side side>
  constexpr void fill_side() {
    fill<side, false, 1, kTileRows>();
    fill<side, false, 2, kTileRows>();
    fill<side, true, 1, kTileRows>();
    fill<side, true, 2, kTileRows>();
  }
};
template <class Unit>
constexpr Tiles<Unit> all_tiles() {
  Tiles<Unit> t{};
  t.template fill_side<Side::columns>();
  t.template fill_side<Side::rows>();
  return t;
}
template <class Unit>
inline constexpr Tiles<Unit> kTilesOf = all_tiles<Unit>();

// Those that pack, all kTileRows high: [side][partial][NV - 1].
template <class Unit>
inline constexpr TileFn kPackingTiles[2][2][kTileVectors] = {
    {{tile<Unit, kTileRows, 1, Side::columns, false, true>, tile<Unit, kTileRows, 2, Side::columns, false, true>},
     {tile<Unit, kTileRows, 1, Side::columns, true, true>, tile<Unit, kTileRows, 2, Side::columns, true, true>}},
    {{tile<Unit, kTileRows, 1, Side::rows, false, true>, tile<Unit, kTileRows, 2, Side::rows, false, true>},
     {tile<Unit, kTileRows, 1, Side::rows, true, true>, tile<Unit, kTileRows, 2, Side::rows, true, true>}}};

}  // namespace gradloom::GL_ISA::gemm
