// operand.h: an operand of a product that computes in f32: numbers of f32, or numbers rounded to bf16.
//
// Where the first operand of a product is bf16, all of them are `rounded`: they are bf16 in memory, or f32 that is
// rounded as it is read; either way they are f32 again, in room of the caller's, before they are used. Others are read
// where they lie.
#pragma once
#include "gemm_frozen.h"

namespace gradloom::GL_ISA {

struct Operand {
  const uint8_t* data;
  bool rounded, brain;  // brain: bf16 in memory
  Operand(const Tensor& t, bool rounded)
      : data(t.as<const uint8_t>()), rounded(rounded), brain(t.dtype == DType::bf16) {}
  explicit Operand(const float* numbers)
      : data(reinterpret_cast<const uint8_t*>(numbers)), rounded(false), brain(false) {}

  int64_t bytes() const { return brain ? 2 : 4; }
  const uint8_t* address(int64_t at) const { return data + at * bytes(); }
  Operand from(int64_t at) const {
    Operand moved = *this;
    moved.data = address(at);
    return moved;
  }

  // `count` neighbours from number `at` on: where they lie, or in `room`.
  const float* row(int64_t at, int64_t count, float* room) const {
    if (!rounded) return reinterpret_cast<const float*>(data) + at;
    if (brain) {
      quant::decode_halves<true>(data, at, count, room);
    } else {
      quant::copy_floats(data, at, count, room);
      gemm::round_to_bf16(room, count);
    }
    return room;
  }
  // Rows of `width` numbers, `step` numbers apart: where they lie, or in `room` [rows][width], which then is the step.
  const float* rows(int64_t rows, int64_t width, int64_t& step, float* room) const {
    if (!rounded) return row(0, 0, room);
    if (step == width) return row(0, rows * width, room);
    for (int64_t r = 0; r < rows; r++) row(r * step, width, room + r * width);
    step = width;
    return room;
  }
  template <bool rounded> float number(int64_t at) const {
    if constexpr (!rounded) return reinterpret_cast<const float*>(data)[at];
    float x = 0.0f;
    row(at, 1, &x);
    return x;
  }
};

}  // namespace gradloom::GL_ISA
