// conv.h: conv2d, its gradients and the pools in the kernel table.
//
// x (N, C, H, W), w (O, C, KH, KW), bias (O), y (N, O, OH, OW), all f32 and dense; or the operands of
// the products (x and w, g and w, g and x) bf16, the second also f32 rounded to it. All three products are one loop
// (conv_product.h) over a padded copy of a band of rows, in which stride, padding and dilation are gone.
#pragma once
#include "conv_back_input.h"
#include "conv_back_weight.h"
#include "conv_forward.h"
#include "conv_pool.h"
#include "conv_pool_back.h"

namespace gradloom::GL_ISA {

inline constexpr KernelRow kConvRows[] = {
    {"conv2d", "f32", conv2d_plan, conv2d_run},
    {"conv2d", "bf16_f32", conv2d_plan, conv2d_run},
    {"conv2d_max_pool", "f32_u8", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_max_pool", "f32", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_max_pool", "bf16_f32_u8", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_max_pool", "bf16_f32", conv2d_max_pool_plan, conv2d_max_pool_run},
    {"conv2d_back_input", "f32", conv2d_back_input_plan, conv2d_back_input_run},
    {"conv2d_back_input", "bf16_f32", conv2d_back_input_plan, conv2d_back_input_run},
    {"conv2d_back_weight", "f32", conv2d_back_weight_plan, conv2d_back_weight_run},
    {"conv2d_back_weight", "bf16_f32", conv2d_back_weight_plan, conv2d_back_weight_run},
    {"conv2d_pool_back_input", "f32_u8_f32", conv2d_pool_back_input_plan, conv2d_pool_back_input_run},
    {"conv2d_pool_back_input", "bf16_u8_f32", conv2d_pool_back_input_plan, conv2d_pool_back_input_run},
    {"conv2d_pool_back_input", "bf16_u8_bf16_f32", conv2d_pool_back_input_plan, conv2d_pool_back_input_run},
    {"conv2d_pool_back_weight", "f32_u8_f32", conv2d_pool_back_weight_plan, conv2d_pool_back_weight_run},
    {"conv2d_pool_back_weight", "bf16_u8_f32", conv2d_pool_back_weight_plan, conv2d_pool_back_weight_run},
    {"conv2d_pool_back_weight", "bf16_u8_bf16_f32", conv2d_pool_back_weight_plan, conv2d_pool_back_weight_run},
    {"conv2d_pool_back_weight", "bf16_u8_f32_bf16_f32", conv2d_pool_back_weight_plan, conv2d_pool_back_weight_run},
    {"max_pool2d", "f32_u8", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d", "f32", max_pool2d_plan, max_pool2d_run},
    {"max_pool2d_back", "f32_u8_f32", max_pool2d_back_plan, max_pool2d_back_run},
    {"avg_pool2d", "f32", avg_pool2d_plan, avg_pool2d_run},
    {"avg_pool2d_back", "f32", avg_pool2d_back_plan, avg_pool2d_back_run},
};

}  // namespace gradloom::GL_ISA

