// rope.h: rotary positions. The angles of a token are computed once and shared by its heads.
#pragma once
#include "../simd/math.h"
#include "../bytecode.h"

namespace gradloom::GL_ISA::rope {

inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }
inline int64_t tokens(const Tensor& x) {
  int64_t n = 1;
  for (int i = 0; i + 2 < x.rank; i++) n *= x.shape[i];
  return n;
}

inline void plan(const Call& call, KernelPlan& plan) {
  const Tensor& x = call[0];
  const int64_t pairs = call[2].shape[0];
  plan.parts[0] = parts_for(static_cast<double>(x.size() * 2 + tokens(x) * pairs * 16), 65536, 64);
  plan.scratch_bytes = static_cast<size_t>(2 * padded(pairs)) * sizeof(float);
}

// Cosine and sine of position * frequency, times scale. The product and what is left of it after whole revolutions are
// taken in double: at position 4096 an f32 angle is wrong by 1e-4.
inline void angles(int32_t position, const float* frequencies, int64_t n, float scale, bool inverse, float* c,
                   float* s) {
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding and taking it away rounds to a whole number
  const double at = position;
  for (int64_t i = 0; i < n; i++) {
    const double angle = at * static_cast<double>(frequencies[i]);
    const double revolutions = (angle * 0.15915494309189533577 + shift) - shift;
    c[i] = static_cast<float>(angle - revolutions * 6.28318530717958647693);
  }
  const F factor = F::set1(scale), back = F::set1(inverse ? -scale : scale);
  for (int64_t i = 0; i < n; i += F::N) {
    const int lanes = n - i < F::N ? static_cast<int>(n - i) : F::N;
    const F angle = F::load_n(c + i, lanes);
    (cos(angle) * factor).store_n(c + i, lanes);
    (sin(angle) * back).store_n(s + i, lanes);
  }
}

// Pairs (2i, 2i + 1). What is read is copied first: y may be x.
inline void rotate_neighbours(const float* x, const float* c, const float* s, int64_t n, float* y) {
  constexpr int kPairs = 16;
  float in[2 * kPairs], out[2 * kPairs];
  int64_t i = 0;
  for (; i + kPairs <= n; i += kPairs) {
    std::memcpy(in, x + 2 * i, sizeof in);
    for (int j = 0; j < kPairs; j++) {
      const float a = in[2 * j], b = in[2 * j + 1];
      out[2 * j] = a * c[i + j] - b * s[i + j];
      out[2 * j + 1] = a * s[i + j] + b * c[i + j];
    }
    std::memcpy(y + 2 * i, out, sizeof out);
  }
  for (; i < n; i++) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * c[i] - b * s[i];
    y[2 * i + 1] = a * s[i] + b * c[i];
  }
}

// Pairs (i, i + n).
inline void rotate_halves(const float* x, const float* c, const float* s, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += F::N) {
    const int lanes = n - i < F::N ? static_cast<int>(n - i) : F::N;
    const F a = F::load_n(x + i, lanes), b = F::load_n(x + n + i, lanes);
    const F u = F::load_n(c + i, lanes), v = F::load_n(s + i, lanes);
    (a * u - b * v).store_n(y + i, lanes);
    (a * v + b * u).store_n(y + n + i, lanes);
  }
}

// (x [..., H, D], positions [...], frequencies [n]; pairing, scale, inverse) -> y
inline void run(const Call& call, int, int part, int parts, void* scratch) {
  const Tensor& x = call[0];
  const int64_t heads = x.shape[x.rank - 2], d = x.shape[x.rank - 1], n = call[2].shape[0];
  const bool halves = call.attr_int(0) == 1;
  const float scale = static_cast<float>(call.attr_float(1));
  float* const c = static_cast<float*>(scratch);
  float* const s = c + padded(n);
  const Range range = part_range(tokens(x), part, parts);
  for (int64_t t = range.begin; t < range.end; t++) {
    angles(call[1].as<const int32_t>()[t], call[2].as<const float>(), n, scale, call.attr_int(2) != 0, c, s);
    const float* from = x.as<const float>() + t * heads * d;
    float* to = call[3].as<float>() + t * heads * d;
    for (int64_t h = 0; h < heads; h++, from += d, to += d) {
      if (halves) rotate_halves(from, c, s, n, to);
      else rotate_neighbours(from, c, s, n, to);
      const size_t rest = static_cast<size_t>(d - 2 * n) * sizeof(float);
      if (from != to && rest) std::memcpy(to + 2 * n, from + 2 * n, rest);
    }
  }
}

inline constexpr KernelRow kRopeRows[] = {{"rope", "f32_i32_f32", plan, run}};

}  // namespace gradloom::GL_ISA::rope
