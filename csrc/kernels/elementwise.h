// elementwise.h: one number in, one number out.
#pragma once
#include "../simd/simd.h"
#include "../tape.h"

namespace gradloom::GL_ISA {

inline void run_add(const Call& c, int, int, int, void*) {
  const Tensor &x = c[0], &y = c[1], &z = c[2];
  const int64_t n = z.size();
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N)
    (F::load(x.as<float>() + i) + F::load(y.as<float>() + i)).store(z.as<float>() + i);
  for (; i < n; i++) z.as<float>()[i] = x.as<float>()[i] + y.as<float>()[i];
}

inline constexpr KernelRow kElementwiseRows[] = {
    {"add", "f32", nullptr, run_add},
};

}  // namespace gradloom::GL_ISA
