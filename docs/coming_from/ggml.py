"""Makes docs/coming_from/ggml.md of base/ggml_names.py and base/habit_names.py (a test keeps the page equal to it).

python docs/coming_from/ggml.py > docs/coming_from/ggml.md
"""

from __future__ import annotations

import re

import gradloom as gl
from gradloom.base.ggml_names import sections
from gradloom.base.habit_names import NAMES

# functions of ggml.h and ggml-opt.h (August 2026), without `ggml_`; those with `_inplace` are left out
FUNCTIONS = """
    abort abs acc add add1 add_cast add_id add_rel_pos arange are_same_shape are_same_stride argmax argsort
    argsort_top_k bf16_to_fp32 bf16_to_fp32_row blck_size build_backward_expand build_forward_expand
    build_forward_order build_forward_select can_repeat cast ceil clamp col2im_1d commit concat cont cont_1d cont_2d
    cont_3d cont_4d conv_1d conv_1d_dw conv_1d_dw_ph conv_1d_ph conv_2d conv_2d_direct conv_2d_dw conv_2d_dw_direct
    conv_2d_s1_ph conv_2d_sk_p0 conv_3d conv_3d_direct conv_transpose_1d conv_transpose_2d_p0 cos count_equal cpy
    cross_entropy_loss cross_entropy_loss_back cumsum custom_4d custom_inplace cycles cycles_per_ms diag
    diag_mask_inf diag_mask_zero div dsv4_hc_comb dsv4_hc_post dsv4_hc_pre dup dup_tensor element_size elu exp expm1
    fill flash_attn_back flash_attn_ext flash_attn_ext_add_sinks flash_attn_ext_get_prec flash_attn_ext_set_prec
    floor fopen format_name fp16_to_fp32 fp16_to_fp32_row fp32_to_bf16 fp32_to_bf16_row fp32_to_bf16_row_ref
    fp32_to_fp16 fp32_to_fp16_row free ftype_to_ggml_type gated_delta_net gated_linear_attn geglu geglu_erf
    geglu_erf_split geglu_erf_swapped geglu_quick geglu_quick_split geglu_quick_swapped geglu_split geglu_swapped
    gelu gelu_erf gelu_quick get_data get_data_f32 get_first_tensor get_glu_op get_max_tensor_size get_mem_buffer
    get_mem_size get_name get_next_tensor get_no_alloc get_rel_pos get_rows get_rows_back get_tensor get_type_traits
    get_unary_op glu glu_op_name glu_split graph_add_node graph_clear graph_cpy graph_dump_dot graph_dup
    graph_get_grad graph_get_grad_acc graph_get_tensor graph_n_nodes graph_node graph_nodes graph_overhead
    graph_overhead_custom graph_print graph_reset graph_size group_norm guid_matches hardsigmoid hardswish im2col
    im2col_3d im2col_back init interpolate is_3d is_contiguous is_contiguous_0 is_contiguous_1 is_contiguous_2
    is_contiguous_channels is_contiguous_rows is_contiguous_to_1 is_contiguous_to_2 is_contiguous_to_3
    is_contiguously_allocated is_empty is_matrix is_permuted is_quantized is_scalar is_transposed is_vector is_view
    l2_norm leaky_relu lightning_indexer log log_get log_set map_custom1 map_custom2 map_custom3 mean mul mul_mat
    mul_mat_id mul_mat_set_hint mul_mat_set_prec n_dims nbytes nbytes_pad neg nelements new_buffer new_graph
    new_graph_custom new_tensor new_tensor_1d new_tensor_2d new_tensor_3d new_tensor_4d norm nrows op_desc op_name
    op_symbol opt_step_adamw opt_step_sgd out_prod pad pad_circular pad_ext pad_ext_circular pad_reflect_1d permute
    pool_1d pool_2d pool_2d_back print_object print_objects quantize_chunk quantize_free quantize_init
    quantize_requires_imatrix reglu reglu_split reglu_swapped relu repeat repeat_4d repeat_back reset reshape
    reshape_1d reshape_2d reshape_3d reshape_4d rms_norm rms_norm_back roll rope rope_custom rope_ext rope_ext_back
    rope_multi rope_multi_back rope_set_offset rope_yarn_corr_dims round row_size rwkv_wkv6 rwkv_wkv7 scale
    scale_bias set set_1d set_2d set_abort_callback set_input set_loss set_name set_no_alloc set_output set_param
    set_rows set_zero sgn sigmoid silu silu_back sin soft_max soft_max_add_sinks soft_max_ext soft_max_ext_back
    softplus solve_tri sqr sqrt ssm_conv ssm_scan status_to_string step sub sum sum_rows swiglu swiglu_oai
    swiglu_split swiglu_swapped tanh tensor_overhead threadpool_params_default threadpool_params_init
    threadpool_params_match time_init time_ms time_us timestep_embedding top_k transpose tri trunc type_name
    type_size type_sizef unary unary_op_name unravel_index unused_vars_impl upscale upscale_ext used_mem
    validate_row_data version view_1d view_2d view_3d view_4d view_tensor win_part win_unpart xielu
    opt_alloc opt_context_optimizer_type opt_dataset_data opt_dataset_free opt_dataset_get_batch
    opt_dataset_get_batch_host opt_dataset_init opt_dataset_labels opt_dataset_ndata opt_dataset_shuffle
    opt_default_params opt_epoch opt_epoch_callback_progress_bar opt_eval opt_fit opt_free
    opt_get_constant_optimizer_params opt_get_default_optimizer_params opt_grad_acc opt_init opt_inputs opt_labels
    opt_loss opt_ncorrect opt_optimizer_name opt_optimizer_params opt_outputs opt_pred opt_prepare_alloc opt_reset
    opt_result_accuracy opt_result_free opt_result_init opt_result_loss opt_result_ndata opt_result_pred
    opt_result_reset opt_static_graphs
"""
# no model or training here needs them
INTERNAL = """
    abort can_repeat fopen ftype_to_ggml_type get_glu_op get_type_traits get_unary_op glu_op_name guid_matches log_get
    log_set op_desc op_name op_symbol quantize_requires_imatrix row_size set_abort_callback status_to_string type_sizef
    unary unary_op_name unravel_index unused_vars_impl validate_row_data are_same_shape is_3d is_empty is_matrix
    is_scalar is_vector nrows rope_yarn_corr_dims
"""
TYPES = "f32 f16 bf16 f64 i8 i32 i64 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k"

HEAD = """# Coming from ggml

Printed from the names that errors suggest by `python docs/coming_from/ggml.py`; a test keeps it so. In Python, too,
the error of a name of ggml names ours: `ggml_mul_mat` of `gl.ops`, `opt_fit` of `gl`.

- Shapes have NumPy's order, the reverse of `ne`: `ggml_new_tensor_2d(ctx, type, 784, 500)` has the shape `(500, 784)`.
  Axis 0 of ggml is axis -1 here. Files store ggml's order; `gl.save_gguf` and `gl.load_gguf` convert.
- There is no context and no allocation: values are nodes of a graph, and `gl.compile` plans the memory. Variants with
  `_inplace` do not exist: values never change, and the plan reuses their memory.
- [`examples/ggml_mnist.py`](../examples.md) is ggml's MNIST example; its `mnist-eval` reads the files that it writes.
- `gradloom quantize` and `gl.llm.quantize` are `llama-quantize` ([command.md](../command.md)).
"""


def page() -> str:
    """The whole page."""
    own = {name: text for table in sections().values() for name, text in table.items()}
    same, other, rest, missing = [], [], [], []
    for name in FUNCTIONS.split():
        text = own.get(f"ggml_{name}") or (NAMES.get(name) if name not in gl.ops.__all__ else None)
        if text is None and name in gl.ops.__all__:
            same.append(name)
        elif text is None:
            (rest if name in INTERNAL.split() else missing).append(name)
        elif text.startswith("not supported"):
            missing.append(name)
        else:
            other.append((name, text))
    lines = [HEAD, "## Functions\n", "| ggml | here |", "|---|---|"]
    lines += [f"| `ggml_{name}` | {_shown(text)} |" for name, text in other if not text.startswith("leave it out")]
    lines += ["", "## The same name in `gl.ops`\n", _listed(same), "", "## Types\n"]
    lines += [f"As in ggml, in lower case: {_listed(TYPES.split())}. `gl.save_gguf` also writes `i16`.", ""]
    lines += ["## Without an equivalent\n", "| ggml | because |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for name, text in other:
        if text.startswith("leave it out: "):
            reasons.setdefault(text.removeprefix("leave it out: "), []).append(name)
    reasons["no model or training here needs them: queries, logging and names of enumerations"] = rest
    reasons["no op here; compose it of `gl.ops`, or compute it in NumPy"] = missing
    lines += [f"| {', '.join(f'`ggml_{n}`' for n in names)} | {why} |" for why, names in reasons.items()]
    return "\n".join(lines) + "\n"


def _shown(text: str) -> str:
    """An instruction with its calls as code."""
    text = text.removeprefix("use ").replace("|", "\\|")
    call = r"\((?:[^()]|\([^()]*\))*\)"
    return re.sub(
        rf"(?:\w+ = )?\b(?:gl|trainer|dataset|result|value|run|net)(?:\.\w+)+(?:(?:{call}))?", r"`\g<0>`", text
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
