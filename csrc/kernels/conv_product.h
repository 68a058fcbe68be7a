// conv_product.h: the product behind conv2d and both of its gradients.
//
// A band of rows of one image is copied into scratch with its padding in place, split by stride phase, so that the
// element that a tap needs for grid position (i, j) lies at a fixed distance from the position itself:
//
//   grid[o][i, j] = sum over taps k of  weight[o][k] * planes[offset[k] + i * pitch + j]
//
// With that, stride, padding and dilation exist in the copy and in the offsets only; the inner loops know neither.
#pragma once
#include "../simd/simd.h"
#include "../tape.h"

namespace gradloom::GL_ISA {

inline int64_t conv_min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t conv_max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t conv_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline size_t conv_aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
// Smallest j >= 0 with j * step + first >= 0, and the number of j with j * step + first < size.
inline int64_t conv_first(int64_t first, int64_t step) { return first >= 0 ? 0 : conv_ceil(-first, step); }
inline int64_t conv_last(int64_t first, int64_t step, int64_t size) {
  return first >= size ? 0 : conv_ceil(size - first, step);
}

// Register tile: kOutTile output channels by vectors of positions (or by taps, for the weight gradient).
#if defined(GL_ISA_AVX512)
constexpr int kOutTile = 8;
template <int OT> constexpr int kVectors = OT == 8 ? 3 : OT == 4 ? 6 : 8;
#elif defined(GL_ISA_AVX2)
constexpr int kOutTile = 4;
template <int OT> constexpr int kVectors = OT == 4 ? 3 : OT == 2 ? 5 : 8;
#else
constexpr int kOutTile = 4;
template <int OT> constexpr int kVectors = OT == 4 ? 2 : OT == 2 ? 4 : 8;
#endif

constexpr int64_t kBandFloats = 96 * 1024;  // most of a padded band: it should stay in the second-level cache
constexpr int64_t kBufferFloats = 768;      // of positions that wait in the first-level cache for their output rows
constexpr double kConvGrain = 4e6;          // flops in a part, about 40 us
constexpr uint32_t kConvParts = 64;

// The sizes of one convolution, forward view: x (N, C, H, W), w (O, C, KH, KW), y (N, O, OH, OW).
struct ConvShape {
  int64_t n, c, h, w, o, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw;
  int64_t taps() const { return c * kh * kw; }
  double flops() const {
    return 2.0 * static_cast<double>(n * o) * static_cast<double>(oh * ow) * static_cast<double>(taps());
  }
};

// Where the padded planes come from, how large they are and how they are walked. Planning and running derive the same
// values from the shapes.
struct ConvBand {
  int64_t images, channels, h, w;  // the source tensor (images, channels, h, w)
  int64_t sy, sx, y0, x0;          // plane (phase ry, rx), row i, column j = source[i * sy + ry + y0][j * sx + rx + x0]
  int64_t fy, fx;                  // stride phases kept
  int64_t gh, gw;                  // grid of positions
  int64_t reach_y, reach_x;        // taps look this far beyond a position
  int64_t band, bands;             // grid rows in a band, bands in an image
  int64_t pitch, plane, floats;    // floats in a row, in one plane, in all planes of a band
  int64_t row_vectors;
  bool by_rows;                    // vectors start at row starts (stored at once); else they run over the flat plane
  int64_t chunk, buffer_pitch;     // and their results pass through a buffer of (OT, chunk rows)

  int64_t items() const { return images * bands; }
  void derive(double flops) {
    constexpr int64_t N = F::N;
    pitch = gw + reach_x;
    const int64_t row = channels * fy * fx * pitch;
    band = conv_max(1, conv_min(gh, kBandFloats / row - reach_y));
    // Few images, much work: smaller bands give more parts.
    const int64_t wanted = parts_for(flops, kConvGrain, kConvParts);
    if (images < wanted) band = conv_max(1, conv_min(band, conv_ceil(gh * images, wanted)));
    bands = conv_ceil(gh, band);
    band = conv_ceil(gh, bands);
    bands = conv_ceil(gh, band);
    plane = (band + reach_y) * pitch;
    floats = channels * fy * fx * plane + reach_x + 2 * N;
    row_vectors = conv_ceil(gw, N);
    const int64_t flat_vectors = conv_ceil(band * pitch, N);
    by_rows = band * row_vectors * 17 <= flat_vectors * 20;
    chunk = conv_min(band, conv_max(1, kBufferFloats / pitch));
    buffer_pitch = conv_ceil(chunk * pitch, N) * N + N;
  }
  int64_t rows_of(int64_t item) const { return conv_min(band, gh - item % bands * band); }
};

// Copy one band with its padding. Rows are written from the first to the last with whole vectors: what a store puts
// beyond its row is written again by the next row, and after the last row lies the slack counted in `floats`.
inline void conv_fill(const ConvBand& b, const float* source, int64_t item, float* planes) {
  constexpr int64_t N = F::N;
  const int64_t image = item / b.bands, i0 = item % b.bands * b.band;
  const F zero = F::zero();
  for (int64_t c = 0; c < b.channels; c++) {
    const float* from = source + (image * b.channels + c) * b.h * b.w;
    for (int64_t ry = 0; ry < b.fy; ry++) {
      for (int64_t rx = 0; rx < b.fx; rx++) {
        const int64_t first = rx + b.x0;
        const int64_t lo = conv_min(b.pitch, conv_first(first, b.sx));
        const int64_t hi = conv_max(lo, conv_min(b.pitch, conv_last(first, b.sx, b.w)));
        for (int64_t i = 0; i < b.band + b.reach_y; i++, planes += b.pitch) {
          const int64_t y = (i0 + i) * b.sy + ry + b.y0;
          if (y < 0 || y >= b.h || lo == hi) {
            for (int64_t j = 0; j < b.pitch; j += N) zero.store(planes + j);
            continue;
          }
          const float* row = from + y * b.w + lo * b.sx + first;
          int64_t j = 0;
          for (; j < lo; j += N) zero.store(planes + j);
          j = lo;
          if (b.sx == 1) {
            for (; j + N <= hi; j += N) F::load(row + (j - lo)).store(planes + j);
            if (j < hi) F::load_n(row + (j - lo), static_cast<int>(hi - j)).store(planes + j), j += N;
          } else {
            for (; j < hi; j++) planes[j] = row[(j - lo) * b.sx];
          }
          for (; j < b.pitch; j += N) zero.store(planes + j);
        }
      }
    }
  }
}

// Where a tile of the grid goes: to the output row by row, or to a buffer of (OT, flat positions).
struct ConvOut {
  float* y;         // output channel 0 of the tile, first grid row of the band
  int64_t channel;  // floats between output channels
  int64_t row;      // floats between grid rows
  const float* bias;  // of the tile, or nullptr
  bool relu;
};

inline F conv_finish(F v, const float* bias, int o, bool relu) {
  if (bias) v += F::set1(bias[o]);
  return relu ? max(v, F::zero()) : v;
}

// One register tile: OT output channels x VT vectors of positions.
template <int OT, int VT, class Emit>
inline __attribute__((always_inline)) void conv_tile(const float* w, const int32_t* offsets, int64_t taps,
                                                     const float* const (&at)[VT], const Emit& emit) {
  F acc[OT][VT];
#pragma GCC unroll 8
  for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
    for (int v = 0; v < VT; v++) acc[o][v] = F::zero();
  }
  for (int64_t k = 0; k < taps; k++, w += OT) {
    const int64_t d = offsets[k];
    F x[VT];
#pragma GCC unroll 8
    for (int v = 0; v < VT; v++) x[v] = F::load(at[v] + d);
#pragma GCC unroll 8
    for (int o = 0; o < OT; o++) {
      const F wo = F::set1(w[o]);
#pragma GCC unroll 8
      for (int v = 0; v < VT; v++) acc[o][v] = mul_add(wo, x[v], acc[o][v]);
    }
  }
  emit(acc);
}

// All positions of a band for OT output channels, vectors [first, count).
template <int OT, int VT>
void conv_walk_rows(const ConvBand& b, const float* planes, const float* w, const int32_t* offsets, int64_t taps,
                    const ConvOut& out, int64_t first, int64_t count) {
  constexpr int64_t N = F::N;
  int64_t row = first / b.row_vectors, column = first % b.row_vectors;
  for (; first + VT <= count; first += VT) {
    const float* at[VT];
    int64_t to[VT];
    int lanes[VT];
    for (int v = 0; v < VT; v++) {
      at[v] = planes + row * b.pitch + column * N;
      to[v] = row * out.row + column * N;
      lanes[v] = static_cast<int>(conv_min(N, b.gw - column * N));
      if (++column == b.row_vectors) column = 0, row++;
    }
    conv_tile<OT, VT>(w, offsets, taps, at, [&](F (&acc)[OT][VT]) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
        for (int v = 0; v < VT; v++) {
          const F r = conv_finish(acc[o][v], out.bias, o, out.relu);
          float* p = out.y + o * out.channel + to[v];
          if (lanes[v] == N) r.store(p);
          else r.store_n(p, lanes[v]);
        }
      }
    });
  }
  if constexpr (VT > 1) conv_walk_rows<OT, VT / 2>(b, planes, w, offsets, taps, out, first, count);
}

template <int OT, int VT>
void conv_walk_flat(const float* planes, const float* w, const int32_t* offsets, int64_t taps, float* buffer,
                    int64_t buffer_pitch, int64_t first, int64_t count) {
  constexpr int64_t N = F::N;
  for (; first + VT <= count; first += VT) {
    const float* at[VT];
    for (int v = 0; v < VT; v++) at[v] = planes + (first + v) * N;
    conv_tile<OT, VT>(w, offsets, taps, at, [&](F (&acc)[OT][VT]) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
        for (int v = 0; v < VT; v++) acc[o][v].store(buffer + o * buffer_pitch + (first + v) * N);
      }
    });
  }
  if constexpr (VT > 1) conv_walk_flat<OT, VT / 2>(planes, w, offsets, taps, buffer, buffer_pitch, first, count);
}

// Width of the tile that starts at output channel o0: 8, 4, 2 or 1.
inline int conv_tile_width(int64_t left) {
  int t = kOutTile;
  while (t > left) t /= 2;
  return t;
}

template <int OT>
void conv_grid_rows(const ConvBand& b, const float* planes, const float* w, const int32_t* offsets, int64_t taps,
                    const ConvOut& out, int64_t rows) {
  conv_walk_rows<OT, kVectors<OT>>(b, planes, w, offsets, taps, out, 0, rows * b.row_vectors);
}
template <int OT>
void conv_grid_flat(const ConvBand& b, const float* planes, const float* w, const int32_t* offsets, int64_t taps,
                    float* buffer, int64_t rows) {
  conv_walk_flat<OT, kVectors<OT>>(planes, w, offsets, taps, buffer, b.buffer_pitch, 0,
                                   conv_ceil(rows * b.pitch, F::N));
}

// The two above for a tile width known at run time.
inline void conv_rows(int ot, const ConvBand& b, const float* planes, const float* w, const int32_t* offsets,
                      int64_t taps, const ConvOut& out, int64_t rows) {
  switch (ot) {
    case 8:
      if constexpr (kOutTile == 8) conv_grid_rows<8>(b, planes, w, offsets, taps, out, rows);
      break;
    case 4: conv_grid_rows<4>(b, planes, w, offsets, taps, out, rows); break;
    case 2: conv_grid_rows<2>(b, planes, w, offsets, taps, out, rows); break;
    default: conv_grid_rows<1>(b, planes, w, offsets, taps, out, rows);
  }
}
inline void conv_flat(int ot, const ConvBand& b, const float* planes, const float* w, const int32_t* offsets,
                      int64_t taps, float* buffer, int64_t rows) {
  switch (ot) {
    case 8:
      if constexpr (kOutTile == 8) conv_grid_flat<8>(b, planes, w, offsets, taps, buffer, rows);
      break;
    case 4: conv_grid_flat<4>(b, planes, w, offsets, taps, buffer, rows); break;
    case 2: conv_grid_flat<2>(b, planes, w, offsets, taps, buffer, rows); break;
    default: conv_grid_flat<1>(b, planes, w, offsets, taps, buffer, rows);
  }
}

}  // namespace gradloom::GL_ISA
