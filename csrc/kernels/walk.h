// walk.h: how elementwise kernels walk over strided and broadcast inputs. Nothing here knows an op: an op is one flat
// loop, called for runs of elements that lie dense in the output.
#pragma once
#include "../simd/simd.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA {

constexpr int kChunk = 256;  // elements gathered at once from an input that is not dense along its last axis

// The output's axes, adjacent ones joined where every input allows it, and each input's strides (0: broadcast).
template <int K> struct Axes {
  int rank;
  int64_t shape[kMaxRank];
  int64_t stride[K][kMaxRank];
};

// Inputs are aligned to the right with `shape`; a missing axis or one of size 1 is broadcast.
template <int K> GL_CALLED Axes<K> join_axes(const int64_t* shape, int rank, const Tensor* const* in) {
  Axes<K> a;
  a.rank = 0;
  for (int i = 0; i < rank; i++) {
    if (shape[i] == 1) continue;
    int64_t s[K];
    bool joins = a.rank > 0;
    for (int k = 0; k < K; k++) {
      const int j = i - (rank - in[k]->rank);
      s[k] = j < 0 || in[k]->shape[j] == 1 ? 0 : in[k]->strides[j];
      if (joins && a.stride[k][a.rank - 1] != s[k] * shape[i]) joins = false;
    }
    if (!joins) a.shape[a.rank++] = 1;
    a.shape[a.rank - 1] *= shape[i];
    for (int k = 0; k < K; k++) a.stride[k][a.rank - 1] = s[k];
  }
  if (a.rank == 0) {
    a.rank = 1;
    a.shape[0] = 1;
    for (int k = 0; k < K; k++) a.stride[k][0] = 0;
  }
  return a;
}

// Where element `at` of the flattened axes lies in each input, kept up to date from row to row.
template <int K> struct RowWalk {
  const Axes<K>& axes;
  int64_t index[kMaxRank];
  int64_t offset[K];  // of the row's first element
  int64_t column;

  GL_CALLED RowWalk(const Axes<K>& a, int64_t at) : axes(a) {
    const int last = a.rank - 1;
    int64_t row = at / a.shape[last];
    column = at - row * a.shape[last];
    for (int k = 0; k < K; k++) offset[k] = 0;
    for (int i = last - 1; i >= 0; i--) {
      const int64_t next = row / a.shape[i];
      index[i] = row - next * a.shape[i];
      row = next;
      for (int k = 0; k < K; k++) offset[k] += index[i] * a.stride[k][i];
    }
  }
  void next_row() {
    column = 0;
    for (int i = axes.rank - 2; i >= 0; i--) {
      for (int k = 0; k < K; k++) offset[k] += axes.stride[k][i];
      if (++index[i] < axes.shape[i]) return;
      for (int k = 0; k < K; k++) offset[k] -= axes.stride[k][i] * axes.shape[i];
      index[i] = 0;
    }
  }
};

// Steps through the positions of a box in row-major order, keeping one offset per stream of strides.
template <int Streams> struct Walk {
  int rank = 0;
  int64_t shape[kMaxRank], index[kMaxRank];
  int64_t stride[Streams][kMaxRank];
  int64_t at[Streams] = {};

  GL_CALLED void seek(int64_t position) {
    for (int s = 0; s < Streams; s++) at[s] = 0;
    for (int i = rank - 1; i >= 0; i--) {
      index[i] = position % shape[i];
      position /= shape[i];
      for (int s = 0; s < Streams; s++) at[s] += index[i] * stride[s][i];
    }
  }
  void next() {
    for (int i = rank - 1; i >= 0; i--) {
      for (int s = 0; s < Streams; s++) at[s] += stride[s][i];
      if (++index[i] < shape[i]) return;
      for (int s = 0; s < Streams; s++) at[s] -= shape[i] * stride[s][i];
      index[i] = 0;
    }
  }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
};

// Elements [begin, end) of x's flattened shape, in order, as a dense run of T.
template <class T> GL_CALLED void fetch(const Tensor& x, int64_t begin, int64_t end, T* to) {
  const Tensor* in[1] = {&x};
  const Axes<1> axes = join_axes<1>(x.shape, x.rank, in);
  const int last = axes.rank - 1;
  const int64_t step = axes.stride[0][last];
  const T* from = x.as<T>();
  for (RowWalk<1> walk(axes, begin); begin < end; walk.next_row()) {
    const T* row = from + walk.offset[0] + walk.column * step;
    int64_t n = axes.shape[last] - walk.column;
    if (n > end - begin) n = end - begin;
    if (step == 1) std::memcpy(to, row, static_cast<size_t>(n) * sizeof(T));
    else for (int64_t i = 0; i < n; i++) to[i] = row[i * step];
    to += n;
    begin += n;
  }
}

// One op over n dense outputs: input k advances by step[k] floats per vector: N, or 0 for a vector that repeats.
using Loop = void (*)(const float* const* in, const int64_t* step, float* out, int64_t n, const float* params);

// Apply `loop` to elements [begin, end) of `out`, in[k] read through its strides.
template <int K>
inline void walk_apply(const Axes<K>& axes, const float* const* in, float* out, int64_t begin, int64_t end, Loop loop,
                       const float* params) {
  const int last = axes.rank - 1;
  const float* at[K];
  int64_t step[K];
  alignas(64) float room[K][kChunk + 128];
  bool gathers = false;

  // A short last axis that some inputs repeat from row to row: lay their row out several times, then go on flat.
  if (axes.rank == 2 && axes.shape[1] <= 128) {
    const int64_t width = axes.shape[1];
    bool flat = true;
    for (int k = 0; k < K; k++) {
      const int64_t s0 = axes.stride[k][0], s1 = axes.stride[k][1];
      flat = flat && s1 == 1 && (s0 == width || s0 == 0);
    }
    if (flat) {
      for (int k = 0; k < K; k++) {
        if (axes.stride[k][0]) continue;
        int64_t fill = kChunk + width;
        if (fill > end - begin + width) fill = end - begin + width;
        int64_t have = width;
        std::memcpy(room[k], in[k], static_cast<size_t>(width) * sizeof(float));
        for (; have < fill; have *= 2) {
          const int64_t more = fill - have < have ? fill - have : have;
          std::memcpy(room[k] + have, room[k], static_cast<size_t>(more) * sizeof(float));
        }
      }
      while (begin < end) {
        const int64_t n = end - begin < kChunk ? end - begin : kChunk;
        for (int k = 0; k < K; k++) {
          at[k] = axes.stride[k][0] ? in[k] + begin : room[k] + begin % width;
          step[k] = F::N;
        }
        loop(at, step, out + begin, n, params);
        begin += n;
      }
      return;
    }
  }

  for (int k = 0; k < K; k++) {
    step[k] = axes.stride[k][last] == 0 ? 0 : F::N;
    if (axes.stride[k][last] > 1) gathers = true;
  }
  for (RowWalk<K> walk(axes, begin); begin < end; walk.next_row()) {
    int64_t left = axes.shape[last] - walk.column;
    if (left > end - begin) left = end - begin;
    int64_t column = walk.column;
    while (left > 0) {
      const int64_t n = gathers && left > kChunk ? kChunk : left;
      for (int k = 0; k < K; k++) {
        const int64_t s = axes.stride[k][last];
        const float* x = in[k] + walk.offset[k] + column * s;
        at[k] = x;
        if (s == 1) continue;
        at[k] = room[k];
        if (s == 0) F::set1(*x).store(room[k]);
        else for (int64_t i = 0; i < n; i++) room[k][i] = x[i * s];
      }
      loop(at, step, out + begin, n, params);
      begin += n;
      column += n;
      left -= n;
    }
  }
}

}  // namespace gradloom::GL_ISA
