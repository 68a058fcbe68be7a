// conv_product.h: the product behind conv2d and both of its gradients.
//
// A band of rows of one image is copied into scratch with its padding in place, split by stride phase, so that the
// element that a tap needs for grid position (i, j) lies at a fixed distance from the position itself:
//
//   grid[o][i, j] = sum over taps k of  weight[o][k] * planes[offset[k] + i * pitch + j]
//
// With that, stride, padding and dilation exist in the copy and in the offsets only; the inner loops know neither. They
// know f32 alone: where the first operand is bf16, the copies are of numbers of bf16, or rounded to it, and f32 again.
#pragma once
#include "operand.h"

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

// Hold a loaded vector in a register: without this, compilers load it again for each of its uses.
inline __attribute__((always_inline)) F conv_hold(F v) {
#if defined(GL_ISA_AVX512) && defined(__GNUC__)
  asm("" : "+v"(v.v));
#elif defined(GL_ISA_AVX2) && defined(__GNUC__)
  asm("" : "+x"(v.v));
#endif
  return v;
}

constexpr int64_t kBandFloats = 96 * 1024;  // most of a padded band: it should stay in the second-level cache
constexpr int64_t kBandRows = 8;            // fewer rows are not worth a band of their own
constexpr int64_t kBufferFloats = 768;      // of positions that wait in the first-level cache for their output rows
constexpr int64_t kTapBlock = 256;
constexpr double kConvGrain = 4e6;          // flops in a part, about 40 us
constexpr uint32_t kConvParts = 64;

// The sizes of one convolution, forward view: x (N, C, H, W), w (O, C, KH, KW), y (N, O, OH, OW).
struct ConvShape {
  int64_t n, c, h, w, o, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw;
  bool rounded;  // to bf16
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
  int64_t groups, slices;          // parts: ranges of items times ranges of output channels
  int64_t row_vectors;
  bool by_rows;                    // vectors start at row starts (stored at once); else they run over the flat plane
  int64_t chunk, buffer_pitch;     // and their results pass through a buffer of (OT, chunk rows)
  int64_t line;                    // floats of the rows of a channel that are widened before they are copied

  int64_t items() const { return images * bands; }
  // Bands and chunks hold whole multiples of `grain` rows; so does gh then.
  void derive(double flops, int64_t outs, int64_t grain = 1) {
    constexpr int64_t N = F::N;
    pitch = conv_max(1, gw + reach_x);
    const int64_t row = conv_max(1, channels * fy * fx * pitch);
    band = conv_max(grain, conv_min(gh, kBandFloats / row - reach_y));
    // Few images, much work: smaller bands, and slices of the output channels, give more parts.
    const int64_t wanted = parts_for(flops, kConvGrain, kConvParts);
    if (images < wanted) band = conv_min(band, conv_max(kBandRows, conv_ceil(gh * images, wanted)));
    bands = conv_max(1, conv_ceil(gh, band));
    band = conv_max(grain, conv_ceil(conv_ceil(gh, bands), grain) * grain);
    bands = conv_max(1, conv_ceil(gh, band));
    groups = conv_max(1, conv_min(items(), wanted));
    slices = conv_max(1, conv_min(wanted / groups, conv_ceil(outs, 2 * kOutTile)));
    plane = (band + reach_y) * pitch;
    floats = channels * fy * fx * plane + reach_x + 2 * N;
    row_vectors = conv_max(1, conv_ceil(gw, N));
    const int64_t flat_vectors = conv_ceil(band * pitch, N);
    by_rows = band * row_vectors * 17 <= flat_vectors * 20;
    chunk = conv_min(band, conv_max(1, kBufferFloats / pitch));
    chunk = conv_ceil(conv_ceil(band, conv_ceil(band, chunk)), grain) * grain;
    buffer_pitch = conv_ceil(chunk * pitch, N) * N + N;
  }
  // Rows of the source that a band reads.
  Range rows_read(int64_t item) const {
    const int64_t y = item % bands * band * sy + y0, begin = conv_max(0, conv_min(h, y));
    return {begin, conv_max(begin, conv_min(h, y + (band + reach_y - 1) * sy + fy))};
  }
  void widen(bool rounded) {
    line = rounded ? conv_ceil(conv_min(h, (band + reach_y - 1) * sy + fy) * w, 16) * 16 : 0;
  }
  size_t scratch_bytes() const {
    return static_cast<size_t>(conv_ceil(floats, 16) * 16 + (by_rows ? 0 : kOutTile * buffer_pitch) + line) * 4;
  }
  float* buffer(float* planes) const { return planes + conv_ceil(floats, 16) * 16; }
  float* line_room(float* planes) const { return buffer(planes) + (by_rows ? 0 : kOutTile * buffer_pitch); }
  int64_t rows_of(int64_t item) const { return conv_min(band, gh - item % bands * band); }
};

// Lanes [lo, hi) of a vector, 0 <= lo <= hi <= N: loads give zeros in the others and touch nothing outside.
struct ConvSpan {
#if defined(GL_ISA_AVX512)
  __mmask16 on;
  ConvSpan(int lo, int hi) : on(static_cast<__mmask16>(lanes_on(hi) & ~lanes_on(lo))) {}
  F load(const float* p) const { return {_mm512_maskz_loadu_ps(on, p)}; }
#elif defined(GL_ISA_AVX2)
  __m256i on;
  ConvSpan(int lo, int hi) : on(_mm256_andnot_si256(lanes_on(lo), lanes_on(hi))) {}
  F load(const float* p) const { return {_mm256_maskload_ps(p, on)}; }
#else
  bool on;
  ConvSpan(int lo, int hi) : on(lo < hi) {}
  F load(const float* p) const { return on ? F::load(p) : F::zero(); }
#endif
  // Of columns [lo, hi) of a row, those of the vector from column j on.
  static ConvSpan of(int64_t lo, int64_t hi, int64_t j) {
    constexpr int64_t N = F::N;
    const int64_t a = conv_min(N, conv_max(0, lo - j)), z = conv_max(a, conv_min(N, hi - j));
    return {static_cast<int>(a), static_cast<int>(z)};
  }
};
// to[j] = from[j] for lo <= j < hi, else 0, for 0 <= j < pitch; whole vectors are stored.
inline __attribute__((always_inline)) void conv_row(const float* from, int64_t lo, int64_t hi, int64_t pitch,
                                                    float* to) {
  constexpr int64_t N = F::N;
  for (int64_t j = 0; j < pitch; j += N) {
    if (lo <= j && j + N <= hi) F::load(from + j).store(to + j);
    else ConvSpan::of(lo, hi, j).load(from + j).store(to + j);
  }
}
// The same for `rows` rows of f32, `step` apart in `from`, one after the other in `to`: short ones without a loop, what
// to load found once.
inline float* conv_rows(const float* from, int64_t step, int64_t rows, int64_t lo, int64_t hi, int64_t pitch,
                        float* to) {
  constexpr int64_t N = F::N;
  const ConvSpan left = ConvSpan::of(lo, hi, 0), right = ConvSpan::of(lo, hi, N);
  if (pitch <= N) {
    for (int64_t r = 0; r < rows; r++, from += step, to += pitch) left.load(from).store(to);
  } else if (pitch <= 2 * N) {
    for (int64_t r = 0; r < rows; r++, from += step, to += pitch) {
      left.load(from).store(to);
      right.load(from + N).store(to + N);
    }
  } else {
    for (int64_t r = 0; r < rows; r++, from += step, to += pitch) conv_row(from, lo, hi, pitch, to);
  }
  return to;
}
inline float* conv_zero_rows(int64_t rows, int64_t pitch, float* to) {
  const F zero = F::zero();
  for (; rows > 0; rows--, to += pitch) {
    for (int64_t j = 0; j < pitch; j += F::N) zero.store(to + j);
  }
  return to;
}

// n floats, nothing beyond them; the last vector may repeat some of the one before.
inline void conv_copy(const float* from, int64_t n, float* to) {
  constexpr int64_t N = F::N;
  if (n < N) return F::load_n(from, static_cast<int>(n)).store_n(to, static_cast<int>(n));
  int64_t i = 0;
  for (; i + N <= n; i += N) F::load(from + i).store(to + i);
  if (i < n) F::load(from + n - N).store(to + n - N);
}

// Copy one band with its padding. Rows are written from the first to the last with whole vectors: what a store puts
// beyond its row is written again by the next row, and after the last row lies the slack counted in `floats`.
// line: room for the rows of a channel.
inline void conv_fill(const ConvBand& b, const Operand& source, int64_t item, float* planes, float* line) {
  constexpr int64_t N = F::N;
  const int64_t image = item / b.bands, i0 = item % b.bands * b.band, height = b.band + b.reach_y;
  const Range read = b.rows_read(item);
  for (int64_t c = 0; c < b.channels; c++) {
    const int64_t from = ((image * b.channels + c) * b.h + read.begin) * b.w;
    const float* const rows = source.row(from, (read.end - read.begin) * b.w, line);
    for (int64_t ry = 0; ry < b.fy; ry++) {
      const int64_t y = i0 * b.sy + ry + b.y0;
      const int64_t top = conv_min(height, conv_first(y, b.sy));
      const int64_t end = conv_max(top, conv_min(height, conv_last(y, b.sy, b.h)));
      for (int64_t rx = 0; rx < b.fx; rx++) {
        const int64_t first = rx + b.x0;
        const int64_t lo = conv_min(b.pitch, conv_first(first, b.sx));
        const int64_t hi = conv_max(lo, conv_min(b.pitch, conv_last(first, b.sx, b.w)));
        if (lo == hi || top == end) {
          planes = conv_zero_rows(height, b.pitch, planes);
          continue;
        }
        const float* row = rows + (y + top * b.sy - read.begin) * b.w + first;
        planes = conv_zero_rows(top, b.pitch, planes);
        if (b.sx == 1) {
          planes = conv_rows(row, b.sy * b.w, end - top, lo, hi, b.pitch, planes);
        } else {
          for (int64_t i = top; i < end; i++, row += b.sy * b.w, planes += b.pitch) {
            int64_t j = 0;
            for (; j < lo; j++) planes[j] = 0.0f;
            for (; j < hi; j++) planes[j] = row[j * b.sx];
            for (; j < b.pitch; j++) planes[j] = 0.0f;
          }
        }
        planes = conv_zero_rows(height - end, b.pitch, planes);
      }
    }
  }
  for (int64_t j = 0; j < b.reach_x + N; j += N) F::zero().store(planes + j);
}

// Where a tile of the grid goes: to the output row by row, or to a buffer of (OT, flat positions).
struct ConvOut {
  float* y;           // output channel 0 of the tile, first position
  int64_t channel;    // floats between output channels
  int64_t row;        // floats between grid rows (unused in a buffer)
  const float* bias;  // of the tile, or nullptr
  bool relu;
};

// What the next item reads is fetched while this one is computed, some lines with each tile.
struct ConvAhead {
  const char* at;
  const char* end;
  int64_t lines;  // with each tile
  void step() {
#if defined(__GNUC__)
    for (int64_t i = 0; i < lines && at < end; i++, at += 64) __builtin_prefetch(at, 0, 2);
#endif
  }
};

// Fetch these bytes, which may lie beyond the end of an array. Inlined by force: a compiler leaves out a call that fetches only.
GL_INLINE void conv_prefetch(const uint8_t* at, int64_t bytes) {
#if defined(__GNUC__)
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
#endif
}

template <int OT, int VT>
inline __attribute__((always_inline)) void conv_finish(F (&acc)[OT][VT], const float* bias, bool relu) {
  if (bias) {
#pragma GCC unroll 8
    for (int o = 0; o < OT; o++) {
      const F add = F::set1(bias[o]);
#pragma GCC unroll 8
      for (int v = 0; v < VT; v++) acc[o][v] += add;
    }
  }
  if (relu) {
#pragma GCC unroll 8
    for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
      for (int v = 0; v < VT; v++) acc[o][v] = max(acc[o][v], F::zero());
    }
  }
}

// acc[o][v] = sum of `taps` terms for OT output channels x VT vectors of positions.
template <int OT, int VT>
inline __attribute__((always_inline)) void conv_sum(const float* w, const int32_t* offsets, int64_t taps,
                                                    const float* const (&at)[VT], F (&acc)[OT][VT]) {
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
}
// One register tile. Sums of more than kTapBlock terms are added up block by block: the rounding error of one chain
// would grow with its length.
template <int OT, int VT, bool blocks>
inline __attribute__((always_inline)) void conv_tile(const float* w, const int32_t* offsets, int64_t taps,
                                                     const float* const (&at)[VT], F (&acc)[OT][VT]) {
  if constexpr (!blocks) return conv_sum<OT, VT>(w, offsets, taps, at, acc);
  constexpr int N = F::N;
  alignas(64) float before[OT * VT * N] = {};
  int64_t k = 0;
  do {
    conv_sum<OT, VT>(w + k * OT, offsets + k, conv_min(taps - k, kTapBlock), at, acc);
    k += kTapBlock;
#pragma GCC unroll 8
    for (int o = 0; o < OT; o++) {
#pragma GCC unroll 8
      for (int v = 0; v < VT; v++) {
        float* sum = before + (o * VT + v) * N;
        acc[o][v] = F::load(sum) + acc[o][v];
        acc[o][v].store(sum);
      }
    }
  } while (k < taps);
}

// Vectors [first, count) of a band, from row starts, for OT output channels.
template <int OT, int VT, bool blocks>
void conv_walk_rows(const ConvBand& b, const float* planes, const float* w, const int32_t* offsets, int64_t taps,
                    const ConvOut& out, ConvAhead& ahead, int64_t first, int64_t count) {
  constexpr int64_t N = F::N;
  float* const y = out.y;
  const float* const bias = out.bias;
  const bool relu = out.relu;
  const int64_t channel = out.channel;
  int64_t row = first / b.row_vectors, column = first % b.row_vectors;
  for (; first + VT <= count; first += VT) {
    const float* at[VT];
    int64_t to[VT];
    int lanes[VT];
    bool whole = true;
    for (int v = 0; v < VT; v++) {
      at[v] = planes + row * b.pitch + column * N;
      to[v] = row * out.row + column * N;
      lanes[v] = static_cast<int>(conv_min(N, b.gw - column * N));
      whole = whole && lanes[v] == N;
      if (++column == b.row_vectors) column = 0, row++;
    }
    ahead.step();
    F acc[OT][VT];
    conv_tile<OT, VT, blocks>(w, offsets, taps, at, acc);
    conv_finish(acc, bias, relu);
    float* p = y;
    if (whole) {
#pragma GCC unroll 8
      for (int o = 0; o < OT; o++, p += channel) {
#pragma GCC unroll 8
        for (int v = 0; v < VT; v++) acc[o][v].store(p + to[v]);
      }
    } else {
#pragma GCC unroll 8
      for (int o = 0; o < OT; o++, p += channel) {
#pragma GCC unroll 8
        for (int v = 0; v < VT; v++) acc[o][v].store_n(p + to[v], lanes[v]);
      }
    }
  }
  if constexpr (VT > 1) conv_walk_rows<OT, VT / 2, blocks>(b, planes, w, offsets, taps, out, ahead, first, count);
}

// Vectors [first, count) of the flat planes, into a buffer.
template <int OT, int VT, bool blocks>
void conv_walk_flat(const float* planes, const float* w, const int32_t* offsets, int64_t taps, const ConvOut& out,
                    ConvAhead& ahead, int64_t first, int64_t count) {
  constexpr int64_t N = F::N;
  const float* const bias = out.bias;
  const bool relu = out.relu;
  const int64_t channel = out.channel;
  for (; first + VT <= count; first += VT) {
    const float* at[VT];
    for (int v = 0; v < VT; v++) at[v] = planes + (first + v) * N;
    ahead.step();
    F acc[OT][VT];
    conv_tile<OT, VT, blocks>(w, offsets, taps, at, acc);
    conv_finish(acc, bias, relu);
    float* p = out.y + first * N;
#pragma GCC unroll 8
    for (int o = 0; o < OT; o++, p += channel) {
#pragma GCC unroll 8
      for (int v = 0; v < VT; v++) acc[o][v].store(p + v * N);
    }
  }
  if constexpr (VT > 1) conv_walk_flat<OT, VT / 2, blocks>(planes, w, offsets, taps, out, ahead, first, count);
}

// Width of the tile that starts with `left` output channels left: 8, 4, 2 or 1.
inline int conv_tile_width(int64_t left) {
  int t = kOutTile;
  while (t > left) t /= 2;
  return t;
}

template <int OT>
void conv_grid_tile(const ConvBand& b, const float* planes, const float* w, const int32_t* offsets, int64_t taps,
                    const ConvOut& out, ConvAhead& ahead, int64_t rows) {
  constexpr int VT = kVectors<OT>;
  const int64_t count = b.by_rows ? rows * b.row_vectors : conv_ceil(rows * b.pitch, F::N);
  const bool blocks = taps > kTapBlock;
  if (b.by_rows && blocks) conv_walk_rows<OT, VT, true>(b, planes, w, offsets, taps, out, ahead, 0, count);
  else if (b.by_rows) conv_walk_rows<OT, VT, false>(b, planes, w, offsets, taps, out, ahead, 0, count);
  else if (blocks) conv_walk_flat<OT, VT, true>(planes, w, offsets, taps, out, ahead, 0, count);
  else conv_walk_flat<OT, VT, false>(planes, w, offsets, taps, out, ahead, 0, count);
}
// `rows` grid rows for ot output channels: to out row by row, or flat (b.by_rows says which).
inline void conv_grid(int ot, const ConvBand& b, const float* planes, const float* w, const int32_t* offsets,
                      int64_t taps, const ConvOut& out, ConvAhead& ahead, int64_t rows) {
  switch (ot) {
    case 8:
      if constexpr (kOutTile == 8) conv_grid_tile<8>(b, planes, w, offsets, taps, out, ahead, rows);
      break;
    case 4: conv_grid_tile<4>(b, planes, w, offsets, taps, out, ahead, rows); break;
    case 2: conv_grid_tile<2>(b, planes, w, offsets, taps, out, ahead, rows); break;
    default: conv_grid_tile<1>(b, planes, w, offsets, taps, out, ahead, rows);
  }
}

// The part's items and output channels.
struct ConvPart { Range items, outs; };
inline ConvPart conv_part(const ConvBand& b, int64_t outs, int part) {
  const int slices = static_cast<int>(b.slices);
  return {part_range(b.items(), part / slices, static_cast<int>(b.groups)),
          part_range(outs, part % slices, slices, kOutTile)};
}
// Numbers first .. first + count.
inline ConvAhead conv_fetch(const Operand& from, int64_t first, int64_t count, int64_t tiles) {
  // More lines than that at once only get in the way of the loads.
  const char* at = reinterpret_cast<const char*>(from.address(first));
  const int64_t bytes = count * from.bytes(), lines = conv_ceil(bytes, 64 * tiles);
  return {at, lines > 32 ? at : at + bytes, lines};
}
// Fetches the source of the item after this one, `floats` for each, while `outs` channels of this one are computed.
inline ConvAhead conv_ahead(const ConvBand& b, const Operand& source, int64_t floats, int64_t item, int64_t end,
                            int64_t outs) {
  if (b.bands > 1 || item + 1 >= end) return {nullptr, nullptr, 0};
  const int64_t vectors = b.by_rows ? b.band * b.row_vectors : conv_ceil(b.band * b.pitch, F::N);
  const int64_t tiles = conv_max(1, outs * vectors / (kOutTile * kVectors<kOutTile>));
  return conv_fetch(source, (item + 1) * floats, floats, tiles);
}

// One band of one image, its planes in scratch.
struct ConvItem {
  const ConvBand& b;
  const float* planes;
  float* buffer;
  int64_t image, first, rows;  // grid rows first .. first + rows
  ConvAhead ahead;

  // The grid of a tile of channels through the buffer, some rows at a time: each(row, rows), from the band's first on.
  template <class Each> void chunks(int ot, const float* w, const int32_t* offsets, int64_t taps, const float* bias,
                                    bool relu, const Each& each) {
    const ConvOut out{buffer, b.buffer_pitch, 0, bias, relu};
    for (int64_t r = 0; r < rows; r += b.chunk) {
      const int64_t some = conv_min(b.chunk, rows - r);
      conv_grid(ot, b, planes + r * b.pitch, w, offsets, taps, out, ahead, some);
      each(r, some);
    }
  }
  // Where a chunk's rows of one channel of the tile lie in the buffer, b.pitch apart.
  const float* channel(int j) const { return buffer + j * b.buffer_pitch; }
};
// A part's items one after the other: each(item).
template <class Each>
inline void conv_items(const ConvBand& b, const Operand& x, const ConvPart& mine, void* scratch, const Each& each) {
  float* const planes = static_cast<float*>(scratch);
  for (int64_t i = mine.items.begin; i < mine.items.end; i++) {
    conv_fill(b, x, i, planes, b.line_room(planes));
    ConvItem item{b, planes, b.buffer(planes), i / b.bands, i % b.bands * b.band, b.rows_of(i),
                  conv_ahead(b, x, b.channels * b.h * b.w, i, mine.items.end, mine.outs.end - mine.outs.begin)};
    each(item);
  }
}
// Calls each(first channel, channels) for each tile.
template <class Each> inline void conv_tiles(Range outs, const Each& each) {
  for (int64_t o = outs.begin; o < outs.end;) {
    const int ot = conv_tile_width(outs.end - o);
    each(o, ot);
    o += ot;
  }
}

}  // namespace gradloom::GL_ISA
