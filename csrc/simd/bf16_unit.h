// bf16_unit.h: sums of products of pairs of bf16, a pair a lane, as the processor's unit computes them, or its twin.
//
// VDPBF16PS adds two products to each lane of f32, first that of the upper halves, then that of the lower ones, each as
// one multiply-add rounded to nearest even. Denormal numbers are 0 to it, and a denormal sum becomes 0, whatever the
// thread's modes say. (Found by holding the unit against candidates on random, extreme and denormal numbers.) The twin
// does that with the multiply-adds of AVX-512, so that any machine that has these gives the unit's bits.
#pragma once
#include "simd.h"

namespace gradloom::GL_ISA {

#if defined(GL_BF16_UNIT)
inline F add_pairs(F a, F b, F sum) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
#else
inline F add_pairs(F a, F b, F sum) {
  const I upper = I::set1(static_cast<int32_t>(0xffff0000));
  const F a1 = from_int_bits(to_int_bits(a) & upper), a0 = from_int_bits(to_int_bits(a) << 16);
  const F b1 = from_int_bits(to_int_bits(b) & upper), b0 = from_int_bits(to_int_bits(b) << 16);
  const unsigned flush = 0x9fc0;  // denormals are 0, denormal results too, to nearest, no exceptions
  unsigned before;
  asm volatile(
      "stmxcsr %[before]\n\tldmxcsr %[flush]\n\t"
      "vfmadd231ps %[b1], %[a1], %[sum]\n\tvfmadd231ps %[b0], %[a0], %[sum]\n\t"
      "ldmxcsr %[before]"
      : [sum] "+&v"(sum.v), [before] "=&m"(before)
      : [flush] "m"(flush), [a1] "v"(a1.v), [b1] "v"(b1.v), [a0] "v"(a0.v), [b0] "v"(b0.v));
  return sum;
}
#endif

}  // namespace gradloom::GL_ISA
