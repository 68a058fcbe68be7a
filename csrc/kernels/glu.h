// glu.h: gated linear units. The backward pass reads its three inputs once and writes both gradients; it is safe in
// place since every vector is read whole before anything of it is written.
#pragma once
#include <type_traits>

#include "elementwise.h"

namespace gradloom::GL_ISA::glu {

using elementwise::element_parts;
using elementwise::kElementGrain;

struct Swiglu {
  static constexpr int weight = 7;
  static F value(F gate, F up, const float*) { return elementwise::Silu::value(gate, nullptr) * up; }
};
struct Geglu {
  static constexpr int weight = 9;
  static F value(F gate, F up, const float*) { return elementwise::GeluTanh::value(gate, nullptr) * up; }
};

// An activation's value and slope.
struct Slope {
  F value, slope;
};
struct SiluBoth {
  static constexpr int weight = 10;
  static Slope at(F x) {
    const elementwise::Logistic l(x);
    return {x * l.s, l.s * mul_add(x, l.rest, elementwise::one())};
  }
};
struct GeluBoth {
  static constexpr int weight = 13;
  static Slope at(F x) {
    const elementwise::Logistic l(elementwise::gelu_tanh_2u(x));
    return {x * l.s, mul_add(elementwise::gelu_tanh_x_slope(x), l.s * l.rest, l.s)};
  }
};

template <class Both>
void plan_back(const Call& c, KernelPlan& plan) {
  plan.parts[0] = element_parts(c[3].size(), Both::weight);
}

// (g, gate, up) -> dgate, dup; gate and up are f32 or bf16
template <class Both, class In>
void run_back(const Call& c, int, int part, int parts, void*) {
  const bool dense[3] = {c[0].dense(), c[1].dense(), c[2].dense()};
  const Range r = part_range(c[3].size(), part, parts, kElementGrain);
  alignas(64) float room[3][kElementGrain];
  [[maybe_unused]] In narrow[kElementGrain];
  for (int64_t at = r.begin; at < r.end; at += kElementGrain) {
    const int64_t end = r.end - at < kElementGrain ? r.end : at + kElementGrain;
    const float* in[3];
    in[0] = elementwise::dense_run(c[0], dense[0], at, end, room[0]);
    for (int k = 1; k < 3; k++) {
      if constexpr (std::is_same_v<In, float>) {
        in[k] = elementwise::dense_run(c[k], dense[k], at, end, room[k]);
      } else {
        elementwise::convert(elementwise::dense_run(c[k], dense[k], at, end, narrow), room[k], end - at);
        in[k] = room[k];
      }
    }
    float *dgate = c[3].as<float>() + at, *dup = c[4].as<float>() + at;
    for (int64_t i = 0; i < end - at; i += F::N) {
      const int n = end - at - i < F::N ? static_cast<int>(end - at - i) : F::N;
      const F g = F::load_n(in[0] + i, n), up = F::load_n(in[2] + i, n);
      const Slope both = Both::at(F::load_n(in[1] + i, n));
      (g * up * both.slope).store_n(dgate + i, n);
      (g * both.value).store_n(dup + i, n);
    }
  }
}

inline constexpr KernelRow kGluRows[] = {
    {"swiglu", "f32", elementwise::plan2<Swiglu>, elementwise::run2<Swiglu>},
    {"geglu", "f32", elementwise::plan2<Geglu>, elementwise::run2<Geglu>},
    {"swiglu_back", "f32", plan_back<SiluBoth>, run_back<SiluBoth, float>},
    {"geglu_back", "f32", plan_back<GeluBoth>, run_back<GeluBoth, float>},
    {"swiglu_back", "f32_bf16_f32", plan_back<SiluBoth>, run_back<SiluBoth, elementwise::Bfloat>},
    {"geglu_back", "f32_bf16_f32", plan_back<GeluBoth>, run_back<GeluBoth, elementwise::Bfloat>},
};

}  // namespace gradloom::GL_ISA::glu
