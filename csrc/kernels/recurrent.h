// recurrent.h: the elementwise part of a step of an LSTM, forward and backward in one pass each.
//
// Gates are the quarters i, f, g, o of the columns of [N, 4H]. Each element of a row reads its four quarters before it
// writes them: outputs may be the buffers of inputs.
#pragma once
#include "elementwise.h"

namespace gradloom::GL_ISA::recurrent {

using elementwise::dense_run;
using elementwise::element_parts;
using elementwise::one;

constexpr int kQuarters = 4;
constexpr int64_t kColumns = 256;  // of H at a time, where inputs are not dense

// Columns j .. j + count of row `row` in each quarter of t [N, 4H].
struct Quarters {
  const float* at[kQuarters];
  Quarters(const Tensor& t, bool dense, int64_t row, int64_t width, int64_t j, int64_t count, float (*room)[kColumns]) {
    for (int q = 0; q < kQuarters; q++) {
      const int64_t begin = (row * kQuarters + q) * width + j;
      at[q] = dense_run(t, dense, begin, begin + count, room[q]);
    }
  }
  F load(int q, int64_t i, int n) const { return F::load_n(at[q] + i, n); }
};

// Calls body(row, j, count) for the stretches of the rows of a part.
template <class Body>
void for_stretches(const Tensor& cells, int part, int parts, Body body) {
  const int64_t width = cells.shape[1];
  const Range rows = part_range(cells.shape[0], part, parts);
  for (int64_t row = rows.begin; row < rows.end; row++)
    for (int64_t j = 0; j < width; j += kColumns) body(row, j, width - j < kColumns ? width - j : kColumns);
}

inline void plan_cell(const Call& c, KernelPlan& plan) { plan.parts[0] = element_parts(c[2].size(), 40); }

// (x, h, c) -> y, c_new, gates
inline void run_cell(const Call& c, int, int part, int parts, void*) {
  const bool dense[3] = {c[0].dense(), c[1].dense(), c[2].dense()};
  const int64_t width = c[2].shape[1];
  for_stretches(c[2], part, parts, [&](int64_t row, int64_t j, int64_t count) {
    alignas(64) float room[2][kQuarters][kColumns], old[kColumns];
    const Quarters x(c[0], dense[0], row, width, j, count, room[0]), h(c[1], dense[1], row, width, j, count, room[1]);
    const int64_t at = row * width + j;
    const float* cell = dense_run(c[2], dense[2], at, at + count, old);
    float *y = c[3].as<float>() + at, *next = c[4].as<float>() + at;
    float* gates = c[5].as<float>() + row * kQuarters * width + j;
    for (int64_t k = 0; k < count; k += F::N) {
      const int n = count - k < F::N ? static_cast<int>(count - k) : F::N;
      const F i = sigmoid(x.load(0, k, n) + h.load(0, k, n)), f = sigmoid(x.load(1, k, n) + h.load(1, k, n));
      const F g = tanh(x.load(2, k, n) + h.load(2, k, n)), o = sigmoid(x.load(3, k, n) + h.load(3, k, n));
      const F state = f * F::load_n(cell + k, n) + i * g;
      state.store_n(next + k, n);
      (o * tanh(state)).store_n(y + k, n);
      const F found[kQuarters] = {i, f, g, o};
      for (int q = 0; q < kQuarters; q++) found[q].store_n(gates + q * width + k, n);
    }
  });
}

inline void plan_cell_back(const Call& c, KernelPlan& plan) { plan.parts[0] = element_parts(c[0].size(), 20); }

// (g, g_c, gates, c, c_new) -> dx, dc
inline void run_cell_back(const Call& c, int, int part, int parts, void*) {
  const bool dense = c[2].dense();
  const int from[4] = {0, 1, 3, 4};
  const int64_t width = c[0].shape[1];
  for_stretches(c[0], part, parts, [&](int64_t row, int64_t j, int64_t count) {
    alignas(64) float room[kQuarters][kColumns], rooms[4][kColumns];
    const Quarters gates(c[2], dense, row, width, j, count, room);
    const int64_t at = row * width + j;
    const float* in[4];
    for (int k = 0; k < 4; k++) in[k] = dense_run(c[from[k]], c[from[k]].dense(), at, at + count, rooms[k]);
    float *dx = c[5].as<float>() + row * kQuarters * width + j, *dc = c[6].as<float>() + at;
    for (int64_t k = 0; k < count; k += F::N) {
      const int n = count - k < F::N ? static_cast<int>(count - k) : F::N;
      const F i = gates.load(0, k, n), f = gates.load(1, k, n), g = gates.load(2, k, n), o = gates.load(3, k, n);
      const F gy = F::load_n(in[0] + k, n), old = F::load_n(in[2] + k, n), t = tanh(F::load_n(in[3] + k, n));
      const F state = F::load_n(in[1] + k, n) + gy * o * ((one() - t) * (one() + t));
      const F found[kQuarters] = {state * g * (i * (one() - i)), state * old * (f * (one() - f)),
                                  state * i * ((one() - g) * (one() + g)), gy * t * (o * (one() - o))};
      for (int q = 0; q < kQuarters; q++) found[q].store_n(dx + q * width + k, n);
      (state * f).store_n(dc + k, n);
    }
  });
}

inline constexpr KernelRow kRecurrentRows[] = {
    {"lstm_cell", "f32", plan_cell, run_cell},
    {"lstm_cell_back", "f32", plan_cell_back, run_cell_back},
};

}  // namespace gradloom::GL_ISA::recurrent
