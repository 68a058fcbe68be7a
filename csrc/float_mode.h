// float_mode.h: what the arithmetic of a thread does with denormal numbers, and whether it has met one.
//
// x86-64: MXCSR. DAZ takes a denormal operand as 0, FTZ makes a denormal result 0; the sticky bit DE says that an operand
// was denormal (never under DAZ). arm64: FPCR.FZ does both, and nothing tells of denormal operands.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gradloom {

#if defined(__x86_64__)
constexpr bool kFlushes = true;
using FloatWord = uint32_t;
constexpr FloatWord kPlainWord = 0x1f80, kFlushWord = 0x9fc0;  // to nearest even, no exceptions, sticky bits clear
inline FloatWord read_float_word() { return _mm_getcsr(); }
inline void write_float_word(FloatWord word) { _mm_setcsr(word); }
inline bool met_denormal() { return _mm_getcsr() & 0x2; }
#elif defined(__aarch64__)
constexpr bool kFlushes = true;
using FloatWord = uint64_t;
constexpr FloatWord kPlainWord = 0, kFlushWord = uint64_t{1} << 24;
inline FloatWord read_float_word() {
  FloatWord word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
inline void write_float_word(FloatWord word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
inline bool met_denormal() { return false; }
#else
constexpr bool kFlushes = false;
using FloatWord = uint32_t;
constexpr FloatWord kPlainWord = 0, kFlushWord = 0;
inline FloatWord read_float_word() { return 0; }
inline void write_float_word(FloatWord) {}
inline bool met_denormal() { return false; }
#endif

// This thread computes in one mode for as long as this lives; then its word is what it was, sticky bits included.
class FloatMode {
 public:
  explicit FloatMode(FloatWord word) : before_(read_float_word()) { write_float_word(word); }
  ~FloatMode() { write_float_word(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
  FloatWord before() const { return before_; }

 private:
  const FloatWord before_;
};

}  // namespace gradloom
