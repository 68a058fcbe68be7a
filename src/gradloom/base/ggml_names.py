"""Functions of ggml.h and ggml-opt.h, and the calls that replace them: for errors, and for docs/coming_from/ggml.md.

A name without `ggml_`; names that are also those of other libraries are in habit_names.py. An instruction that begins
with "leave it out" states why nothing replaces the function.
"""

from __future__ import annotations

_TEXT = """
[ops]
add_cast: use gl.ops.cast(gl.ops.add(x, y), "f32")
cont_1d cont_2d cont_3d cont_4d: use gl.ops.contiguous(gl.ops.reshape(x, shape))
reshape_1d reshape_4d: use gl.ops.reshape(x, shape)
view_4d view_tensor: use gl.ops.reshape, or an index: x[2:4]
transpose: use gl.ops.transpose(x, axes), which reverses all axes without axes
permute: use gl.ops.permute(x, axes), NumPy's: output axis i is input axis axes[i]
concat: use gl.ops.concat([x, y], axis)
pad: use gl.ops.pad(x, [(0, 0), (0, 3)])
repeat: use gl.ops.repeat(x, reps), or gl.ops.broadcast_to(x, shape)
repeat_4d: use gl.ops.broadcast_to(x, shape)
mean: use gl.ops.mean(x, axes=-1, keepdims=True)
argmax: use gl.ops.argmax(x, axis=-1)
gelu: use gl.ops.gelu_tanh(x)
norm: use gl.ops.layer_norm(x, eps=1e-5)
scale_bias: use gl.ops.scale(x, factor=2.0, bias=1.0)
fill: use gl.ops.full_like(x, 1.0)
diag_mask_zero: use gl.ops.where(mask, x, 0.0), with a constant mask of NumPy
acc: use gl.ops.add(x, gl.ops.pad(y, pads))
conv_1d_dw: use gl.ops.conv1d(x, w, groups=groups)
conv_1d_dw_ph: use gl.ops.conv1d(x, w, padding="same", groups=groups)
conv_1d_ph: use gl.ops.conv1d(x, w, padding="same")
conv_2d_direct: use gl.ops.conv2d(x, w)
conv_2d_dw_direct: use gl.ops.conv2d(x, w, groups=groups)
conv_2d_s1_ph: use gl.ops.conv2d(x, w, padding="same")
conv_2d_sk_p0: use gl.ops.conv2d(x, w, stride=2)
conv_transpose_2d_p0: use gl.ops.conv_transpose2d(x, w)
upscale_ext: use gl.ops.interpolate(x, size=size)
geglu_split: use gl.ops.geglu(gate, up)
swiglu: use gl.ops.swiglu(gate, up), with both halves of gl.ops.split(x, 2, axis=-1)
geglu: use gl.ops.geglu(gate, up), with both halves of gl.ops.split(x, 2, axis=-1)
reglu: use gl.ops.mul(gl.ops.relu(gate), up), with both halves of gl.ops.split(x, 2, axis=-1)
reglu_split: use gl.ops.mul(gl.ops.relu(gate), up)
geglu_erf: use gl.ops.mul(gl.ops.gelu(gate), up), with both halves of gl.ops.split(x, 2, axis=-1)
geglu_erf_split: use gl.ops.mul(gl.ops.gelu(gate), up)
get_rows_back soft_max_ext_back im2col_back pool_2d_back flash_attn_back rope_multi_back rope_ext_back: use
    gl.gradients(outputs, wrt)
flash_attn_ext: use gl.ops.attention
swiglu_oai: not supported; use gl.ops.clamp and gl.ops.swiglu
glu glu_split: use gl.ops.swiglu or gl.ops.geglu of gate and up; gl.ops.glu has a sigmoid
set_rows: use gl.ops.set_rows for rows from one position on, or gl.ops.scatter_rows
rope_ext rope_custom: use gl.ops.rope
[tensors]
new_tensor: use gl.input("x", shape), gl.parameter(data) or gl.constant(data)
dup_tensor: use gl.input("x", shape)
set_name format_name: use gl.named(value, name)
get_name: use value.name
set_loss: use gl.set_loss(value)
n_dims: use value.ndim
nelements: use value.size
nbytes: use value.bytes
type_name: use value.dtype.name
element_size type_size: use value.dtype.bytes
blck_size: use value.dtype.block
is_quantized: use value.dtype.is_quantised
get_data get_data_f32 set_zero: use gl.parameter(data), and parameter.assign(array)
get_tensor: use net.state_dict(), of names and arrays
quantize_chunk: use gl.save_gguf(arrays, path, types="q8_0"), or gl.llm.quantize(model_path, out_path, "q4_k_m")
fp32_to_fp16 fp32_to_fp16_row: use gl.ops.cast(x, "f16"), or array.astype of NumPy
fp32_to_bf16 fp32_to_bf16_row fp32_to_bf16_row_ref: use gl.ops.cast(x, "bf16"), or array.astype with ml_dtypes
fp16_to_fp32 fp16_to_fp32_row bf16_to_fp32 bf16_to_fp32_row: use gl.ops.cast(x, "f32"), or array.astype of NumPy
version: use gl.__version__
[graphs]
new_graph_custom: use gl.compile(outputs)
build_backward_expand: use gl.gradients(outputs, wrt), or gl.Graph(loss) and its backward()
graph_get_grad: use grads = gl.gradients(outputs, wrt)
graph_get_grad_acc: use trainer.grad_acc(name) of gl.Trainer
graph_dump_dot: use gl.Graph(loss).dot()
graph_print graph_n_nodes graph_node graph_nodes graph_size: use print(run.plan), where run = gl.compile(outputs)
threadpool_params_default threadpool_params_init threadpool_params_match: use gl.compile(outputs, threads=2)
time_ms time_us time_init cycles cycles_per_ms: use run.profile(feeds), where run = gl.compile(outputs)
graph_reset: use trainer.reset() of gl.Trainer
[training]
opt_fit: use gl.fit(net, data, loss="cross_entropy", epochs=30, batch_size=1000, val_split=0.05)
opt_epoch: use gl.epoch(trainer, data, result_train, result_eval)
opt_init opt_default_params opt_alloc opt_prepare_alloc: use gl.Trainer(net, "cross_entropy", gl.optim.AdamW(lr=1e-3))
opt_eval: use trainer.step(batch, labels) of gl.Trainer, with backward=False for no update
opt_reset: use trainer.reset(optimizer=False) of gl.Trainer
opt_grad_acc: use trainer.grad_acc(name) of gl.Trainer
opt_inputs opt_outputs opt_labels opt_pred: use gl.predict(net, x)
opt_loss opt_ncorrect: use gl.evaluate(net, data), whose Result has loss and accuracy
opt_dataset_init: use gl.data.Dataset(images, labels, shard_size=10)
opt_dataset_data opt_dataset_labels opt_dataset_ndata: use dataset.data, dataset.labels and len(dataset) of
    gl.data.Dataset
opt_dataset_shuffle: use gl.fit(net, data, seed=0), which shuffles, or dataset.shuffle of gl.data.Dataset
opt_dataset_get_batch opt_dataset_get_batch_host: use dataset.get_batch of gl.data.Dataset, or gl.data.DataLoader
opt_result_init: use gl.Result()
opt_result_reset: use a new gl.Result()
opt_result_loss: use result.loss and result.loss_unc of gl.Result
opt_result_accuracy: use result.accuracy and result.accuracy_unc of gl.Result
opt_result_pred: use result.predictions of gl.Result
opt_result_ndata: use result.ndata of gl.EpochResult
opt_get_default_optimizer_params opt_get_constant_optimizer_params opt_optimizer_params: use
    gl.optim.AdamW(lr=lambda step, epoch: 1e-3): settings are numbers or functions
opt_context_optimizer_type opt_optimizer_name: use gl.optim.AdamW or gl.optim.SGD
opt_epoch_callback_progress_bar: use gl.fit(net, data, progress=True)
opt_static_graphs: leave it out: graphs are compiled once for each structure
[memory]
init free reset used_mem get_mem_buffer get_mem_size get_max_tensor_size get_no_alloc set_no_alloc new_buffer: leave
    it out: gl.compile plans all memory
tensor_overhead graph_overhead graph_overhead_custom nbytes_pad commit print_object print_objects: leave it out:
    gl.compile plans all memory
opt_free opt_dataset_free opt_result_free: leave it out: Python frees objects
is_contiguous is_contiguous_0 is_contiguous_1 is_contiguous_2 is_contiguous_channels is_contiguous_rows: leave it
    out: the plan decides strides
is_contiguous_to_1 is_contiguous_to_2 is_contiguous_to_3 is_contiguously_allocated is_permuted is_transposed is_view
    are_same_stride: leave it out: the plan decides strides
mul_mat_set_prec flash_attn_ext_set_prec flash_attn_ext_get_prec mul_mat_set_hint: leave it out: products of f32 are
    computed in f32; precision="bf16" of gl.compile rounds operands
quantize_init quantize_free: leave it out: encoders have no tables to initialise
graph_add_node graph_clear graph_cpy graph_dup graph_get_tensor build_forward_order build_forward_select: leave it
    out: graphs are values that never change
get_first_tensor get_next_tensor: leave it out: tensors belong to no context
"""


def sections() -> dict[str, dict[str, str]]:
    """Section -> name of ggml, with its prefix -> instruction."""
    found: dict[str, dict[str, str]] = {}
    for line in _TEXT.replace("\n    ", " ").strip().splitlines():
        if line.startswith("["):
            table = found[line.strip("[]")] = {}
        else:
            names, _, instruction = line.partition(": ")
            table |= dict.fromkeys((f"ggml_{name}" for name in names.split()), instruction)
    return found


def instruction(name: str) -> str | None:
    """The instruction for a name, which may lack its prefix."""
    name = "ggml_" + name.removeprefix("ggml_")
    return next((table[name] for table in sections().values() if name in table), None)
