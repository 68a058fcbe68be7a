// attention.h: attention and its gradient in the kernel table. attention_forward.h, attention_back.h: the loops over
// strips of queries and blocks of keys; attention_pairs.h: their products on a unit for pairs of bf16; attention_token.h:
// one token at a cache; attention_strip.h: what they share.
#pragma once
#include "attention_back.h"
#include "attention_forward.h"
#if defined(GL_BF16_PAIRS)
#include "attention_pairs.h"
#endif

namespace gradloom::GL_ISA::attn {

#if defined(GL_BF16_PAIRS)
using RoundedForward = ForwardPairs;
using RoundedBack = BackPairs;
#else
using RoundedForward = ForwardNumbers;
using RoundedBack = BackNumbers;
#endif

inline constexpr KernelRow kAttentionRows[] = {
#if !defined(GL_BF16_PAIRS)
    {"attention", "f32_i32_f32", plan_forward<ForwardNumbers>, run_forward<ForwardNumbers>},
    {"attention_back", "f32_i32_f32", plan_backward<BackNumbers>, run_backward<BackNumbers>},
#endif
    {"attention", "bf16_i32_f32", plan_forward<RoundedForward>, run_forward<RoundedForward>},
    // k and v, or v, are f32
    {"attention", "bf16_f32_i32_f32", plan_forward<RoundedForward>, run_forward<RoundedForward>},
    {"attention_back", "bf16_f32_i32_f32", plan_backward<RoundedBack>, run_backward<RoundedBack>},
};

}  // namespace gradloom::GL_ISA::attn
