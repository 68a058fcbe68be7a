// attention.h: attention and its gradient in the kernel table. attention_forward.h, attention_back.h: the loops over
// strips of queries and blocks of keys; attention_token.h: one token at a cache; attention_strip.h: what they share.
#pragma once
#include "attention_back.h"
#include "attention_forward.h"

namespace gradloom::GL_ISA::attn {

inline constexpr KernelRow kAttentionRows[] = {
    {"attention", "f32_i32_f32", plan_forward, run_forward},
    {"attention", "bf16_i32_f32", plan_forward, run_forward},
    {"attention", "bf16_f32_i32_f32", plan_forward, run_forward},  // k and v, or v, are f32
    {"attention_back", "f32_i32_f32", plan_backward, run_backward},
    {"attention_back", "bf16_f32_i32_f32", plan_backward, run_backward},
};

}  // namespace gradloom::GL_ISA::attn
