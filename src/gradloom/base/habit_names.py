"""Names of other libraries, and what gradloom has in their place: the tables that error messages are made from.

A line is "name name ...: instruction"; an indented line continues it; [section] begins a table. Every `gl.` name and
keyword in an instruction exists (a test resolves them). What gradloom does not have in any form is "not supported",
with what to use instead.
"""

from __future__ import annotations


def _tables(text: str) -> dict[str, dict[str, str]]:
    """Section -> name -> instruction. A section of several names is one table under each of them."""
    tables: dict[str, dict[str, str]] = {}
    lines = text.replace("\n    ", " ").strip().splitlines()
    table: dict[str, str] = {}
    for line in lines:
        if line.startswith("["):
            table = {}
            tables |= dict.fromkeys(line.strip("[]").split(), table)
        else:
            names, _, instruction = line.partition(": ")
            table |= dict.fromkeys(names.split(), instruction)
    return tables


# Keywords, options and settings that mean the same. The error names the first one that the function has.
SYNONYMS = [
    line.split()
    for line in """
test_split test_size test_fraction
path model_path model_id filename file fname
system system_prompt system_message
ema ema_decay
steps total_steps T_max decay_steps
warmup warmup_steps
slope negative_slope alpha
factor s value c
groups n_groups num_groups
kind outtype out_type
shard_size ndata_shard shard
split idata_split
on_train_batch callback_train
on_eval_batch callback_eval
early_stopping patience
patience early_stopping
epochs max_epochs
progress silent
last_epoch epoch
weight gamma scale
sizes chunks split_size_or_sections
reps repeats
axes axis dim dims
axis axes dim dims
keepdims keepdim keep_dims
values tensors arrays inputs
shift shifts
k diagonal offset
ord p
start start_dim
kernel kernel_size pool_size ksize
stride strides
channels_in in_channels
channels_out out_channels filters
channels num_features num_channels
n_in in_features input_dim input_size input_shape
n_out out_features output_dim output_size units
features normalized_shape embed_dim embedding_dim d_model hidden_size dim model_dim dims
count num_embeddings vocab_size num_parameters
heads num_heads n_heads nhead
kv_heads num_kv_heads num_key_value_heads
input_size n_in in_features input_dim
hidden_size units features
rate p dropout_rate drop_prob
eps epsilon adam_epsilon layer_norm_eps
beta1 b1 adam_beta1
beta2 b2 adam_beta2
rho alpha
lr learning_rate learning_rate_init lr_rate rate eta
weight_decay wd l2
optimizer optim opt solver
parameters params
epochs epoch num_epochs n_epochs num_train_epochs nepoch max_iter
steps max_steps iters num_steps
batch_size batch bs n_batch minibatch_size per_device_train_batch_size train_batch_size nbatch_logical
micro_batch_size micro_batch micro_batchsize ubatch_size n_ubatch nbatch_physical
val validation_data validation valid valid_data eval_set eval_dataset val_data
val_split validation_split validation_fraction test_size
loss criterion loss_fn objective loss_function loss_type
metrics metric compute_metrics
data dataset train_dataset train_data
seed random_state random_seed rng_seed
max_norm max_grad_norm clipnorm clip_norm grad_clip clip_grad clip_grad_norm gradient_clip_val global_clipnorm
max_value clip_value clipvalue
progress verbose disable_tqdm
threads n_jobs num_threads n_threads nthreads
run output_dir run_dir checkpoint_dir logdir save_dir
eval_every eval_steps eval_freq validation_freq evaluation_strategy
checkpoint_every save_steps save_every save_freq
keep save_total_limit max_to_keep
log_every logging_steps log_freq
on_nonfinite skip_nonfinite
resume resume_from_checkpoint resume_from
patience early_stopping_patience n_iter_no_change early_stopping_rounds
rank r lora_r lora_rank
alpha lora_alpha
dropout lora_dropout
targets target_modules lora_target lora_target_modules
rslora use_rslora
adapter peft_config lora_adapter peft_model
lora adapter adapter_path lora_adapter lora_path peft
context max_seq_length max_seq_len max_length seq_len seq_length sequence_length n_ctx ctx_size block_size cutoff_len
warmup warmup_ratio
schedule lr_scheduler_type scheduler lr_schedule
max_tokens max_new_tokens n_predict num_tokens
top_k topk
ids indices index idx
src updates
num_classes depth n_classes
descending reverse
top_p topp
temperature temp
stop stop_strings stop_sequences stop_words
prompt text input question
hidden hidden_layer_sizes hidden_sizes hidden_units layers dim_feedforward ffn_dim
ensemble n_estimators members
out output outfile output_file o
target label label_column target_column y
drop exclude ignore drop_columns
model m model_path base_model model_name_or_path gguf_path
config settings config_file
device device_map backend
precision dtype bf16 fp16 mixed_precision torch_dtype
gpu_layers n_gpu_layers ngl num_gpu_layers
chat_template template
as_chat apply_chat_template
method finetuning_type
weights sample_weight sample_weights row_weights
weight sample_weight
weight_column sample_weight weights
y labels target targets
labels y targets
shuffle random
monitor metric
restore_best restore_best_weights
min_delta tol
function fn
trainable requires_grad
kind type dtype
quiet silent q
json as_json
keep_best load_best_model_at_end restore_best_weights
n_gpu num_gpus
""".strip().splitlines()
]

# Keywords of which functions take any spelling
SPELLINGS = [("axis", "axes", "dim", "dims"), ("keepdims", "keepdim", "keep_dims")]

# Keywords that need more than another name, by function or class; "*": any function
KEYWORDS = _tables("""
[*]
inplace: leave it out: values never change, and the plan reuses their memory
num_workers: leave it out: batches are gathered by the training itself
pin_memory: leave it out
fp16 bf16 amp mixed_precision: use precision="bf16"
gradient_checkpointing: use memory="2GiB", or a smaller micro_batch_size=
data_format: leave it out: images are [N, C, H, W]
bias_initializer: not supported; use layer.bias.assign(array)
kernel_initializer: not supported; use layer.weight.assign(array)
label_smoothing: use gl.losses.CrossEntropy(label_smoothing=0.1)
ignore_index: leave it out: a label of -100 is ignored
reduction: not supported; use the mean over the rows, or gl.ops.cross_entropy_pair for (sum, weight)
[fit]
*: use data as a pair: gl.fit(model, (x, y)); all else by keyword
train_loader val_loader dataloader train_dataloader: use arrays: gl.fit(model, (x, y), val=(x_val, y_val))
get_opt_pars optimizer_params: use optimizer=gl.optim.AdamW(lr=...), with a function of (step, epoch) as lr
opt_period: use batch_size= for the rows of a step and micro_batch_size= for those at once
max_steps: use epochs=
lr: use optimizer=gl.optim.AdamW(lr=...)
weight_decay: use optimizer=gl.optim.AdamW(weight_decay=...)
momentum: use optimizer=gl.optim.SGD(momentum=...)
scheduler schedule lr_scheduler lr_schedule: use optimizer=gl.optim.AdamW(lr=gl.optim.schedules.Cosine(1e-3,
    steps=1000))
patience: use callbacks=[gl.train.EarlyStopping(patience=...)]
sample_weight: use gl.data.Dataset(x, y, weights=...) as data
shuffle: leave it out: the training rows are shuffled before each epoch, by seed=
y labels x: use data=(x, y)
steps: use epochs=
gradient_accumulation_steps accumulate: use batch_size= for the rows of a step and micro_batch_size= for those at
    once
jit_compile: leave it out: models are always compiled
[evaluate]
*: use data as a pair: gl.evaluate(model, (x, y)); for language models gl.llm.evaluate(model, data, adapter)
lora lora_path: use adapter=
lr: leave it out: nothing is trained
y: use data=(x, y)
[Trainer]
opt_period: use accumulate=
max_epochs epochs: use gl.fit(model, data, epochs=...)
train_dataset: use gl.fit(model, data), or gl.epoch(trainer, data)
args: use gl.fit(model, data), or gl.llm.finetune(model, data) with keywords
lr: use optimizer=gl.optim.AdamW(lr=...)
[finetune Run]
*: use keywords after the adapter: epochs=, batch_size=, lr=
ema_decay: use ema=
rank alpha r lora_r lora_alpha targets target_modules dropout lora_dropout rslora: use adapter=gl.llm.LoRA(rank=8,
    alpha=16)
warmup_steps: use warmup=, a share of the steps
gradient_accumulation_steps: use batch_size= for the rows of a step and micro_batch_size= for those at once
per_device_train_batch_size: use micro_batch_size= for the rows at once and batch_size= for those of a step
packing: leave it out: short samples are always packed, with masks between them
dataset_text_field text_key: use data_options={"text_key": ...}
prompt_key: use data_options={"prompt_key": ...}
completion_key: use data_options={"completion_key": ...}
messages_key: use data_options={"messages_key": ...}
chosen_key: use data_options={"chosen_key": ...}
rejected_key: use data_options={"rejected_key": ...}
label_key: use data_options={"label_key": ...}
as_chat: use data_options={"as_chat": True}
chat_template: use data_options={"chat_template": ...}
skip_bad_lines: use data_options={"skip_bad_lines": True}
special: use data_options={"special": True}
loss_on: use data_options={"train_on_all": ...}
out: use run.save(path) of the run that finetune returns
train_on_all train_on_inputs: use data_options={"train_on_all": True}
completion_only_loss assistant_only_loss: use data_options={"train_on_all": False}
formatting_func: not supported; use a list of dicts as data: {'text': ...}, or prompt and completion
tokenizer processing_class: leave it out: the tokenizer is that of the model's file
data_collator: leave it out: samples are packed into rows
load_in_4bit load_in_8bit: leave it out: quantised weights of the GGUF file stay quantised
args: use the keywords of gl.llm.finetune: epochs=, batch_size=, lr=
shuffle: leave it out: the training rows are shuffled before each epoch, by seed=
[LoRA]
bias lora_bias: not supported: biases stay frozen
use_dora: not supported; use rslora=True, or plain LoRA
task_type: leave it out: models are causal language models
modules_to_save: not supported; use gl.llm.TrainedTensors for whole tensors
layers_to_transform: use targets=["blk.[0-3].attn_q"]: patterns name layers
init_lora_weights: leave it out: A is random, B is 0, as in PEFT
inference_mode: leave it out
[generate]
*: use keywords after the adapter: max_tokens=, temperature=
lora lora_path: use adapter=
do_sample: use temperature=0 for the likeliest token, above 0 to sample
num_beams: not supported; use temperature=0
repetition_penalty repeat_penalty: not supported; use temperature=, top_p=
min_p: not supported; use top_p=
messages: use gl.llm.Conversation(model).say(text)
input_ids: use prompt=, a text
attention_mask: leave it out: attention masks and positions of samples are part of the rows
echo: leave it out: the result is what follows the prompt
streamer: use stream=, a function that gets each piece of text
[Flatten]
start_dim end_dim: leave it out: all axes but the first become one
[MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer]
batch_first: leave it out: rows are [batch, tokens, features]
[LSTM]
return_sequences: leave it out: the result is (outputs, state)
[GRU RNN]
return_sequences: leave it out: the result is (outputs, state)
proj_size: not supported; use a gl.nn.Linear behind it, or a gl.nn.LSTM(proj_size=...)
[GroupNorm]
num_groups: use groups=
[InstanceNorm]
track_running_stats momentum: not supported: statistics are those of each row; use gl.nn.BatchNorm
[Softplus softplus]
threshold: leave it out: large values do not overflow
[cross_entropy]
weight: use weights=, one for each row; class_weight= of gl.fit weighs classes
[transpose]
*: use gl.ops.transpose(x, axes) with all axes in their new order
[sort argsort]
*: use keywords after the axis: descending=
kind stable: leave it out: sorting is stable
[top_k]
dim: use axis=
sorted: leave it out: the elements are sorted
[gather take]
mode: leave it out: positions out of range are errors
[scatter_add]
*: use gl.ops.scatter_add(x, ids, src, axis)
[one_hot]
axis: leave it out: classes are the last axis
dtype: use gl.ops.cast(x, dtype)
[solve_triangular]
upper: use lower=, the opposite
left: use matrices transposed: x.transpose(axes)
unitriangular: use unit_diagonal=
trans: use transpose_a=
overwrite_b check_finite: leave it out
[cumsum cumprod]
dtype: use gl.ops.cast(x, dtype)
exclusive: use gl.ops.cumsum(x) - x
[var std]
ddof: use correction=, the same number
unbiased: use correction=1 for True, correction=0 for False
[concat]
*: use gl.ops.concat(values, axis) with a list of values
[pad]
*: use gl.ops.pad(x, pads) with a pair (before, after) for each axis
[predict]
*: use gl.predict(model, x); all else by keyword
verbose: leave it out
[Classifier Regressor]
early_stopping: leave it out: patience= is on by default
hidden_layer_sizes: use hidden=
activation: leave it out: hidden layers are ReLU
alpha: not supported; use dropout=
verbose: leave it out
n_iter_no_change: use patience=
[Cosine Linear]
warmup_steps: use warmup=, a number of steps
min_lr eta_min: use final=
lr_min end_value: use final=
[load]
n_gpu_layers: use gpu_layers= of gl.llm.generate, gl.llm.evaluate or gl.llm.finetune
n_ctx: use context= of gl.llm.evaluate or gl.llm.finetune
device_map device: use device= of gl.llm.generate, gl.llm.evaluate or gl.llm.finetune; gl.fit for other networks
torch_dtype dtype: leave it out: weights stay as the file has them
load_in_4bit load_in_8bit quantization_config: leave it out: quantised weights stay quantised
[tensor]
requires_grad: use gl.parameter(data), or tape.watch(x) of a gl.grad_tape()
device: use device= of gl.grad_tape
[encode]
return_tensors: leave it out: the result is a list of ids
add_special_tokens: use bos=, eos=
padding truncation max_length: leave it out: samples are packed into rows
[decode]
skip_special_tokens: use skip_special=
clean_up_tokenization_spaces: leave it out
[say]
max_tokens max_new_tokens n_predict: use max_tokens= of gl.llm.Conversation
temperature: use temperature= of gl.llm.Conversation
top_p: use top_p= of gl.llm.Conversation
top_k: use top_k= of gl.llm.Conversation
seed: use seed= of gl.llm.Conversation
compile: leave it out: models are always compiled
weights_only: leave it out: no code is loaded
map_location: use device= of gl.fit or gl.predict
[Adam AdamW]
betas: use beta1=, beta2=
amsgrad: not supported; use gl.optim.AdamW(lr=...)
fused: leave it out: the update is one kernel
foreach: leave it out
optim_bits: use state_bits=8
[Lion]
optim_bits: use state_bits=8
betas: use beta1=, beta2=
[SGD]
dampening: not supported; use momentum=
state_bits optim_bits: not supported; use gl.optim.AdamW, gl.optim.Adam or gl.optim.Lion(state_bits=8)
[RMSprop]
rho: use alpha=
state_bits optim_bits: not supported; use gl.optim.AdamW, gl.optim.Adam or gl.optim.Lion(state_bits=8)
[Adafactor Muon]
state_bits optim_bits: not supported; use gl.optim.AdamW, gl.optim.Adam or gl.optim.Lion(state_bits=8)
[DataLoader]
collate_fn: not supported; use arrays, or a gl.data.Dataset
sampler: not supported; use shuffle=True, seed=
[EarlyStopping]
verbose: leave it out
[conv2d]
weight: use w=
[compile]
mode fullgraph: leave it out
dynamic: leave it out: shapes are static
loss: use gl.fit(model, data, loss=...): gl.compile takes the outputs of a graph
optimizer: use gl.fit(model, data, optimizer=...): gl.compile takes the outputs of a graph
[grad_tape]
persistent: leave it out: tape.backward may be called more than once
""")

# Names that are missing in gl, gl.nn, gl.ops, gl.optim, gl.data, gl.llm and gl.train. What another of these modules has
# under the same name (but for case and underscores) needs no entry.
NAMES = _tables("""
[names]
nn.Parameter: use gl.parameter(data)
llm.Trainer: use gl.llm.finetune(model, data)
onnx to_onnx export_to_onnx: use gl.export_onnx(net, path, example)
from_onnx load_onnx: use gl.import_onnx(path)
from_pytorch from_torch load_torch: use gl.nn.from_torch(module)
torch: use gl: gl.nn, gl.ops, gl.optim
set_grad_enabled: use gl.no_grad()
lax scan: use a loop of Python
random PRNGKey normal uniform: use numpy.random.default_rng(seed) and gl.tensor(array)
tree_map tree_util: use model.state_dict()
numpy np: use gl.ops, or gl.tensor(array)
mul_mat_id ssm_scan ssm_conv rwkv_wkv6: not supported; use ops of gl.ops
map_custom1 map_custom2 map_custom3 custom_4d: use gl.op(forward, vjp, shape)
out_prod: use gl.ops.matmul(x, y, transpose_x=True)
count_equal: use gl.ops.sum(gl.ops.equal(x, y)), or gl.ops.correct(logits, labels)
repeat_back: use gl.ops.sum(x, axes)
acc: use gl.ops.add(x, y)
gelu_erf: use gl.ops.gelu(x)
gelu_quick: not supported; use gl.ops.gelu_tanh(x)
swiglu_split swiglu_oai: use gl.ops.swiglu
conv_1d: use gl.ops.conv1d(x, w)
conv_transpose_1d: use gl.ops.conv_transpose1d(x, w)
conv_transpose_2d: use gl.ops.conv_transpose2d(x, w)
conv_2d_dw: use gl.ops.conv2d(x, w, groups=groups)
conv_3d: not supported; use gl.ops.conv2d
upscale resize: use gl.ops.interpolate(x, size)
tri: use gl.ops.tril(x), or gl.tensor(tri of NumPy)
solve_tri: use gl.ops.solve_triangular(a, b, lower=True)
cross_entropy_loss_back soft_max_back: use gl.gradients(outputs, wrt)
rope_multi rope_ext_back: not supported; use gl.ops.rope
new_f32 new_i32 new_tensor: use gl.input("x", shape), or gl.constant(data)
backend_alloc_ctx_tensors opt_prepare_alloc graph_reset opt_reset: leave it out: gl.compile plans and allocates
backend_tensor_set: use parameter.assign(array), or an input: run(x=array)
backend_tensor_get: use parameter.numpy(), or the result of run(x=array)
opt_result_init: use gl.Result()
opt_result_pred opt_result_accuracy: use result.accuracy of a gl.Result
opt_default_params opt_get_default_optimizer_params opt_get_constant_optimizer_params: use gl.optim.AdamW(lr=1e-3)
opt_alloc opt_eval: use gl.Trainer(model).step(x, y)
ADAMW OPT_OPTIMIZER_TYPE_ADAMW: use gl.optim.AdamW(lr=1e-3)
GGML_TYPE_F32 TYPE_F32 type_f32: use the text "f32" as dtype
quantize quantize_chunk: use gl.llm.quantize(model_path, out_path, "q4_k_m"), or gl.save_gguf(net, path, types="q8_0")
gguf_init_from_file: use gl.llm.load("model.gguf")
Dense: use gl.nn.Linear(n_in, n_out, activation=None)
SELU: not supported; use gl.nn.GELU()
Swish: use gl.nn.SiLU()
Conv2D Convolution2D: use gl.nn.Conv2d(channels_in, channels_out, kernel)
Conv1D Convolution1D: use gl.nn.Conv1d(channels_in, channels_out, kernel)
Conv3d Conv3D: not supported; use gl.nn.Conv2d
Conv2DTranspose: use gl.nn.ConvTranspose2d(channels_in, channels_out, kernel)
Conv1DTranspose: use gl.nn.ConvTranspose1d(channels_in, channels_out, kernel)
DepthwiseConv2D: use gl.nn.Conv2d(channels_in, channels_out, kernel, groups=channels_in)
SeparableConv2D: use gl.nn.Conv2d(channels_in, channels_out, kernel, groups=channels_in), then one with kernel 1
BatchNorm1d BatchNorm2d BatchNormalization SyncBatchNorm: use gl.nn.BatchNorm(channels)
LayerNormalization: use gl.nn.LayerNorm(features)
MaxPooling2D MaxPool2D: use gl.nn.MaxPool2d(kernel)
AveragePooling2D AvgPool2D: use gl.nn.AvgPool2d(kernel)
ParameterList: use a list of parameters as an attribute
Buffer: use gl.parameter(data, trainable=False)
Transformer TransformerEncoder TransformerDecoder TransformerBlock: use gl.nn.TransformerEncoderLayer(features, heads)
    and gl.nn.TransformerDecoderLayer(features, heads) in a gl.nn.Module
MultiHeadAttention: use gl.nn.MultiheadAttention(features, heads)
SimpleRNN RNNCell: use gl.nn.RNN(input_size, hidden_size)
LSTMCell: use gl.nn.LSTM(input_size, hidden_size) with one step
GRUCell: use gl.nn.GRU(input_size, hidden_size) with one step
Bidirectional: use bidirectional=True of gl.nn.LSTM, gl.nn.GRU or gl.nn.RNN
pack_padded_sequence pad_packed_sequence PackedSequence: use lengths in the call of a gl.nn.LSTM, gl.nn.GRU or
    gl.nn.RNN
SinePositionEncoding SinusoidalPositionalEncoding: use gl.nn.PositionalEncoding(features)
InstanceNorm1d InstanceNorm2d InstanceNorm3d: use gl.nn.InstanceNorm(channels)
GroupNormalization: use gl.nn.GroupNorm(groups, channels)
GlobalAveragePooling2D GlobalAvgPool2D: use gl.nn.AdaptiveAvgPool2d(1), then gl.nn.Flatten()
GlobalMaxPooling2D GlobalMaxPool2D: use gl.nn.AdaptiveMaxPool2d(1), then gl.nn.Flatten()
GlobalAveragePooling1D: use gl.nn.AdaptiveAvgPool1d(1), then gl.nn.Flatten()
GlobalMaxPooling1D: use gl.nn.AdaptiveMaxPool1d(1), then gl.nn.Flatten()
UpSampling2D Resizing UpsamplingNearest2d UpsamplingBilinear2d: use gl.nn.Upsample(size)
SpatialDropout2D FeatureAlphaDropout: use gl.nn.Dropout2d(rate)
AlphaDropout: not supported; use gl.nn.Dropout(rate)
Unflatten Reshape: use gl.ops.reshape(x, shape) in forward
Permute: use gl.ops.permute(x, axes) in forward
Add: use gl.nn.Residual(layer), or x + y in forward
Concatenate: use gl.ops.concat(values, axis) in forward
ZeroPad1d ZeroPad2d ZeroPadding2D ConstantPad1d ConstantPad2d: use gl.ops.pad(x, pads, value) in forward
ReflectionPad1d ReflectionPad2d: use gl.ops.pad(x, pads, mode="reflect") in forward
ReplicationPad1d ReplicationPad2d: use gl.ops.pad(x, pads, mode="replicate") in forward
CircularPad1d CircularPad2d: use gl.ops.pad(x, pads, mode="circular") in forward
LogSigmoid: use gl.ops.logsigmoid(x) in forward
Lambda: use a gl.nn.Module with a forward
Input InputLayer: leave it out: the first layer's n_in is the input's size
Layer: use gl.nn.Module
Model: use gl.nn.Module, or gl.nn.Sequential(layer, ...)
functional F: use gl.ops
layers: use gl.nn
keras: use gl.nn and gl.fit
init: use model.init(seed), or parameter.assign(array)
utils: use gl.optim.clip_grad_norm(grads, max_norm) to clip gradients
CrossEntropyLoss SparseCategoricalCrossentropy CategoricalCrossentropy softmax_cross_entropy cross_entropy_loss:
    use loss="cross_entropy" of gl.fit, or gl.ops.cross_entropy(logits, labels)
MSELoss MeanSquaredError mse_loss: use loss="mse" of gl.fit, or gl.ops.mse(pred, target)
BCELoss BCEWithLogitsLoss BinaryCrossentropy binary_cross_entropy binary_cross_entropy_with_logits: use loss="bce" of
    gl.fit, or gl.losses.BCE(), on logits
BinaryFocalCrossentropy CategoricalFocalCrossentropy sigmoid_focal_loss: use loss="focal" of gl.fit, or
    gl.losses.Focal()
NLLLoss nll_loss: use loss="nll" of gl.fit, or gl.losses.NLL()
KLDivLoss KLDivergence kl_div: use loss="kl" of gl.fit, or gl.losses.KL()
HuberLoss huber_loss: use loss="huber" of gl.fit, or gl.losses.Huber()
SmoothL1Loss smooth_l1_loss: use loss="smooth_l1" of gl.fit, or gl.losses.SmoothL1()
L1Loss MeanAbsoluteError l1_loss: use loss="l1" of gl.fit, or gl.losses.L1()
HingeLoss: use loss="hinge" of gl.fit, or gl.losses.Hinge()
PoissonNLLLoss poisson_nll_loss Poisson: use loss="poisson_nll" of gl.fit, or gl.losses.PoissonNLL()
GaussianNLLLoss gaussian_nll_loss: use loss="gaussian_nll" of gl.fit, or gl.losses.GaussianNLL()
TripletMarginLoss triplet_margin_loss: use loss="triplet" of gl.fit, or gl.losses.Triplet()
CosineEmbeddingLoss cosine_embedding_loss CosineSimilarity: use loss="cosine" of gl.fit, or gl.losses.Cosine()
cat concatenate: use gl.ops.concat(values, axis)
hstack: use gl.ops.concat(values, axis=1)
vstack: use gl.ops.concat(values, axis=0)
mul_mat: use gl.ops.matmul(x, w, transpose_y=True): ggml_mul_mat(w, x) is x @ w.T
mm bmm: use gl.ops.matmul(x, y), or x @ y
dot: use gl.ops.matmul(x, y), or gl.ops.sum(x * y)
tensordot inner vdot kron bilinear: use gl.ops.einsum(subscripts, x, y)
trace: use gl.ops.einsum("ii->", x)
diagonal diag_embed: use gl.ops.diag(x), or gl.ops.einsum("...ii->...i", x)
fliplr flipud rot90: use gl.ops.flip(x, axis)
view reshape_2d reshape_3d: use gl.ops.reshape(x, shape)
view_1d view_2d view_3d: use gl.ops.reshape, or an index: x[2:4]
unsqueeze: use gl.ops.expand_dims(x, axis)
swapaxes moveaxis movedim: use gl.ops.permute(x, axes)
expand: use gl.ops.broadcast_to(x, shape)
tile: use gl.ops.repeat(x, reps)
cont: use gl.ops.contiguous(x)
dup clone: use gl.ops.copy(x)
cpy: use gl.ops.copy(x), or gl.ops.cast(x, dtype)
chunk: use gl.ops.split(x, sizes, axis)
vector_norm matrix_norm linalg: use gl.ops.norm(x, axes=axes)
normalize: use gl.ops.l2_norm(x, axis)
index_select: use gl.ops.take(x, ids, axis)
take_along_axis take_along_dim: use gl.ops.gather(x, ids, axis)
scatter scatter_reduce index_add: use gl.ops.scatter_add(x, ids, src, axis), or gl.ops.scatter_rows(g, ids, rows=n)
put_along_axis index_put index_fill: use gl.ops.where(cond, x, y)
soft_max: use gl.ops.softmax(x)
soft_max_ext: use gl.ops.softmax(x, mask=mask, scale=1.0)
diag_mask_inf: use gl.ops.attention, or gl.ops.softmax(x, mask=mask)
flash_attn_ext scaled_dot_product_attention: use gl.ops.attention
rope_ext: use gl.ops.rope
sum_rows: use gl.ops.sum(x, axes=-1, keepdims=True)
sqr_sum: use gl.ops.sum(gl.ops.sqr(x))
opt_step_adamw: use gl.optim.AdamW(lr=1e-3)
opt_step_sgd: use gl.optim.SGD(lr=1e-3)
add1: use x + number
add_inplace: use gl.ops.add(x, y): the plan reuses memory
scale_inplace: use gl.ops.scale(x, factor=2.0): the plan reuses memory
im2col: use gl.ops.unfold(x, kernel)
col2im: use gl.ops.fold(x, output_size, kernel)
conv_2d: use gl.ops.conv2d
pool_2d: use gl.ops.max_pool2d, or gl.ops.avg_pool2d
square: use gl.ops.sqr(x)
subtract: use gl.ops.sub(x, y)
multiply: use gl.ops.mul(x, y)
divide: use gl.ops.div(x, y)
power: use gl.ops.pow(x, number)
negative: use gl.ops.neg(x)
absolute: use gl.ops.abs(x)
sign: use gl.ops.sgn(x)
mod: use gl.ops.remainder(x, y), or x % y
fmod: use x - y * gl.ops.trunc(x / y)
floor_divide: use gl.ops.floor(x / y)
rint: use gl.ops.round(x)
fix: use gl.ops.trunc(x)
erfc: use 1 - gl.ops.erf(x)
log10: use gl.ops.log(x) * 0.4342944819
clip: use gl.ops.clamp(x, min=0.0, max=1.0)
amax: use gl.ops.max(x, axes)
amin: use gl.ops.min(x, axes)
masked_fill: use gl.ops.where(cond, x, y)
eq: use gl.ops.equal(x, y)
ne: use gl.ops.not_equal(x, y)
gt: use gl.ops.greater(x, y)
lt: use gl.ops.less(x, y)
le: use gl.ops.less_equal(x, y)
ge: use gl.ops.greater_equal(x, y)
bitwise_and: use gl.ops.logical_and(x, y)
bitwise_or: use gl.ops.logical_or(x, y)
bitwise_not invert: use gl.ops.logical_not(x)
bitwise_xor: use gl.ops.logical_xor(x, y)
astype: use gl.ops.cast(x, dtype)
stop_gradient: use gl.ops.detach(x)
onehot: use gl.ops.one_hot(ids, num_classes)
var_mean std_mean: use gl.ops.var(x, axes) or gl.ops.std(x, axes), and gl.ops.mean(x, axes)
topk: use gl.ops.top_k(x, k)
msort: use gl.ops.sort(x, axis=0)
lexsort: use gl.ops.argsort(x): it is stable
reduce_sum: use gl.ops.sum(x, axes)
reduce_mean: use gl.ops.mean(x, axes)
linear: use gl.ops.matmul(x, w, transpose_y=True) + bias
zeros: use gl.tensor(zeros of NumPy)
ones: use gl.tensor(ones of NumPy)
randn rand: use gl.tensor(an array of NumPy)
arange: use gl.tensor(arange of NumPy)
eye: use gl.tensor(eye of NumPy)
full: use gl.tensor(full of NumPy)
zeros_like: use gl.ops.full_like(x, value=0.0)
ones_like: use gl.ops.full_like(x, value=1.0)
from_numpy: use gl.tensor(array)
array as_tensor asarray: use gl.tensor(data)
Variable set_param: use gl.parameter(data)
new_tensor_1d new_tensor_2d new_tensor_3d new_tensor_4d set_input: use gl.input("x", shape)
set_output build_forward_expand new_graph backend_sched_new function: use gl.compile(outputs)
set_name: use gl.named(value, name)
build_backward_expand: use gl.gradients(outputs, wrt)
graph_compute: use run = gl.compile(outputs); run(x=...)
backend_cpu_init: use device="cpu" of gl.compile
gallocr_new: use gl.compile(outputs): its plan allocates
opt_fit: use gl.fit(model, data)
opt_epoch: use gl.epoch(trainer, data)
opt_init: use gl.Trainer(model)
opt_dataset_init TensorDataset: use gl.data.Dataset(x, y)
opt_result_loss: use result.loss of a gl.Result
grad value_and_grad GradientTape backward autograd enable_grad: use with gl.grad_tape() as tape: loss = ..., then
    grads = tape.backward(loss)
jit: use gl.compile(outputs), or gl.fit, which compiles
vmap: not supported; rows are the first axis
pmap DataParallel: use gl.dp_train, or parallel= of gl.fit
inference_mode: use gl.no_grad()
manual_seed set_seed: use gl.seed(n)
float32 float16 f32: use the text "f32" as dtype
int32: use the text "i32" as dtype
bfloat16: use precision="bf16" of gl.fit or gl.compile
cuda: use device="gpu" of gl.fit; gl.devices() lists devices
set_num_threads: use threads= of gl.fit or gl.compile
save_model save_file: use gl.save(model, path)
load_model: use gl.load(path)
load_weights load_file: use gl.load(model, path)
relu6 ReLU6: use gl.ops.clamp(x, min=0.0, max=6.0)
swish: use gl.ops.silu(x)
eval: use gl.evaluate(model, data)
mlx: use gl
train_on_batch: use gl.Trainer(model).step(x, y)
random_split train_test_split: use val_split= of gl.fit
Subset: use gl.data.Dataset(x[rows], y[rows])
StandardScaler: use gl.nn.Standardize(mean, std) as the first layer
load_dataset read_csv datasets: use gl.data.read_table(path)
from_tensor_slices: use gl.data.DataLoader(x, y, batch_size=32, shuffle=True)
torchvision MNIST: use gl.data.read_table("mnist/")
lr_scheduler: use gl.optim.schedules
Function custom_vjp custom_gradient custom_op custom_function defvjp pure_callback py_function numpy_function:
    use gl.op(forward, vjp, shape)
CosineAnnealingLR CosineDecay cosine_decay: use gl.optim.schedules.Cosine(1e-3, steps=1000) as lr= of an optimizer
StepLR: use gl.optim.schedules.Step as lr= of an optimizer
ExponentialLR: use gl.optim.schedules.Exponential as lr= of an optimizer
LambdaLR LearningRateScheduler: use a function of (step, epoch) as lr= of an optimizer
LinearLR: use gl.optim.schedules.Linear(1e-3, steps=1000) as lr= of an optimizer
OneCycleLR: use gl.optim.schedules.OneCycle(1e-3, steps=1000) as lr= of an optimizer
CosineAnnealingWarmRestarts: use gl.optim.schedules.CosineWarmRestarts(1e-3, period=100) as lr= of an optimizer
PolynomialLR get_polynomial_decay_schedule_with_warmup: use gl.optim.schedules.Polynomial(1e-3, steps=1000, power=2.0)
    as lr= of an optimizer
get_wsd_schedule: use gl.optim.schedules.WarmupStableDecay(1e-3, steps=1000, decay=100, warmup=10) as lr= of an
    optimizer
get_cosine_schedule_with_warmup: use gl.optim.schedules.Cosine(1e-3, steps=1000, warmup=100) as lr= of
    an optimizer
ReduceLROnPlateau: use gl.optim.schedules.Plateau as lr= of an optimizer
get_linear_schedule_with_warmup: use gl.optim.schedules.Linear(1e-3, steps=1000, warmup=100) as lr= of an optimizer
optimizers: use gl.optim
Adagrad Adadelta: not supported; use gl.optim.RMSprop(lr=...)
NAdam: not supported; use gl.optim.Adam(lr=...)
Adam8bit AdamW8bit PagedAdamW8bit: use gl.optim.AdamW(lr=..., state_bits=8)
Lion8bit PagedLion8bit: use gl.optim.Lion(lr=..., state_bits=8)
RAdam LBFGS: not supported; use gl.optim.AdamW(lr=...)
clip_grad_norm_ clip_by_global_norm: use gl.optim.clip_grad_norm(grads, max_norm)
clip_grad_value_: use gl.optim.clip_grad_value(grads, max_value)
chain: use one optimizer of gl.optim; clipping is max_norm= of gl.fit
apply_updates: use opt.step(grads)
EMA: use gl.train.AveragedWeights(parameters), or ema= of gl.fit
swa_utils: use ema= of gl.fit
callbacks: use gl.train
ModelCheckpoint: use run= of gl.fit, or gl.train.Checkpoint(folder)
Callbacks TrainerCallback: use gl.train.Callback
TensorBoard SummaryWriter: use run= and log="tensorboard" of gl.fit
CSVLogger: use run= and log="csv" of gl.fit
TrainingArguments: use the keywords of gl.llm.finetune or gl.fit
LightningModule: use gl.nn.Module and gl.fit
Accelerator: use device= and precision= of gl.fit
DistributedDataParallel: use parallel="mpi" of gl.fit under mpiexec
summary: use print(model)
MLPClassifier: use gl.sklearn.Classifier()
MLPRegressor: use gl.sklearn.Regressor()
classification_report: use metrics= of gl.evaluate
AutoModelForCausalLM AutoModel Llama from_pretrained FastLanguageModel: use gl.llm.load("model.gguf")
AutoTokenizer: use gl.llm.load("model.gguf").tokenizer
pipeline: use gl.llm.generate(model, prompt)
LoraConfig Lora: use gl.llm.LoRA(rank=8, alpha=16)
get_peft_model SFTTrainer SFTConfig fine_tune linear_to_lora_layers: use gl.llm.finetune(model, "data.jsonl",
    gl.llm.LoRA(rank=8))
PeftModel: use gl.llm.LoRA.load(path, model)
DPOTrainer: use gl.llm.finetune(model, data, objective="dpo")
BitsAndBytesConfig: leave it out: quantised weights of a GGUF file stay quantised
merge_and_unload: use gl.llm.merge(model_path, adapter_path, out_path)
perplexity: use gl.llm.evaluate(model, data).perplexity
chat ChatSession: use gl.llm.Conversation(model).say(text)
tokenize: use gl.llm.load(path).tokenizer.encode(text)
DataCollatorForLanguageModeling: leave it out: samples are packed into rows
TextStreamer: use stream= of gl.llm.generate
""")["names"]

# Missing attributes of objects, by "package.Class"; a base class counts
ATTRIBUTES = _tables("""
[graph.Value]
nb: leave it out: the plan decides strides
n_dims: use x.ndim
assign_sub assign_add: use parameter.assign(array)
backward: use with gl.grad_tape() as tape: loss = ..., then grads = tape.backward(loss)
grad: use grads[parameter], where grads = tape.backward(loss) of a gl.grad_tape()
view: use x.reshape(shape)
view_as reshape_as: use x.reshape(y.shape)
t: use x.T
mT: use x.transpose(0, 2, 1)
cpu: leave it out: x.numpy() copies from any device
numpy item tolist: use gl.compile(value) and call the result: a graph value holds no numbers yet
data block_until_ready eval: use x.numpy()
to: use device= of gl.grad_tape or gl.compile; gl.ops.cast(x, dtype) for a dtype
cuda: use device="gpu" of gl.grad_tape or gl.compile
float type: use gl.ops.cast(x, "f32")
long int: use gl.ops.cast(x, "i32")
half: use precision="bf16" of gl.grad_tape
requires_grad requires_grad_: use trainable= of gl.parameter; tape.watch(x) for a tensor
zero_ copy_ fill_: use parameter.assign(array)
add_: use x = x + y
mul_: use x = x * y
sub_: use x = x - y
div_: use x = x / y
dims ne: use x.shape
device is_cuda: use gl.devices() to list devices
retain_grad: use tape.watch(x)
register_hook: use the gradients: grads = tape.backward(loss)
at: use gl.ops.where(cond, x, y)
dim: use x.ndim
numel nbytes: use x.size
[graph.Parameter]
clone copy: use p.numpy() or gl.tensor(p) for a snapshot
sub_: use p.assign(p - x)
add_: use p.assign(p + x)
mul_: use p.assign(p * x)
[nn.Module]
requires_grad: use freeze= of gl.fit, or parameter.trainable = False
call: use forward
cuda: use device="gpu" of gl.fit, gl.predict or gl.compile
cpu: leave it out: weights are on the CPU
half bfloat16: use precision="bf16" of gl.fit
float: leave it out: weights are f32
double: not supported: weights are f32
zero_grad: leave it out: grads = tape.backward(loss) are new each time
compile: use loss= and optimizer= of gl.fit(model, data)
fit: use gl.fit(model, data)
evaluate score: use gl.evaluate(model, data)
predict: use gl.predict(model, x)
predict_proba: use gl.predict(model, x), then softmax
save save_weights save_pretrained: use gl.save(model, path)
load load_weights: use gl.load(model, path)
register_buffer: use self.name = self.parameter(shape, init, trainable=False)
register_parameter: use self.name = self.parameter(shape, init)
add_module register_module: use self.name = module
apply: use for layer in model.modules()
add append: use gl.nn.Sequential(layer, ...)
requires_grad_ trainable: use freeze= of gl.fit, or parameter.trainable = False
named_modules: use model.modules()
named_children: use model.children()
buffers: use model.named_buffers()
trainable_parameters: use model.named_parameters()
update set_weights: use model.load_state_dict(arrays)
get_weights: use model.state_dict()
trainable_weights trainable_variables weights params: use model.parameters()
register_forward_hook: use forward of a gl.nn.Module, which may return more values
num_params count_params num_parameters: use model.parameter_count()
freeze: use freeze= of gl.fit
[optim.Optimizer]
param_groups: use opt.groups, or opt.lr for the rate
minimize apply_gradients: use opt.step(grads), where grads = tape.backward(loss)
init: use gl.optim.AdamW(model.parameters())
learning_rate: use opt.lr
add_param_group: use groups= of the optimizer
[eager.GradTape]
gradient gradients grad: use tape.backward(loss)
[train.History]
history params: use history.to_dict()
loss: use history[-1].train.loss
accuracy: use history[-1].train.accuracy
val_loss: use history[-1].val.loss
epoch: use history[-1].epoch
best best_score_: use history.kept
[train.EpochResult]
loss: use result.train.loss
accuracy: use result.train.accuracy
val_loss: use result.val.loss
val_accuracy: use result.val.accuracy
[train.Trainer]
train fit: use gl.fit(model, data), or gl.epoch(trainer, data)
evaluate: use gl.evaluate(model, data)
save_model: use gl.save(model, path)
[llm.Model]
generate create_completion prepare_inputs_for_generation: use gl.llm.generate(model, prompt)
create_chat_completion chat: use gl.llm.Conversation(model).say(text)
tokenize: use model.tokenizer.encode(text)
eval: leave it out: nothing is trained before gl.llm.finetune
train: use gl.llm.finetune(model, data)
parameters: use gl.llm.LoRA, or gl.llm.TrainedTensors
to: use device= of gl.llm.generate or gl.llm.finetune
cuda: use device="gpu" of gl.llm.generate or gl.llm.finetune
merge_and_unload: use gl.llm.merge(model_path, adapter_path, out_path)
save_pretrained: use run.save(path), or gl.llm.merge(model_path, adapter_path, out_path)
print_trainable_parameters: use print(run.table) of a gl.llm.Run
add_adapter: use adapter= of gl.llm.finetune or gl.llm.generate
load_adapter: use gl.llm.LoRA.load(path, model)
num_parameters: use gradloom info MODEL.gguf
eval_perplexity: use gl.llm.evaluate(model, data)
[llm.Tokenizer]
tokenize: use tokenizer.encode(text)
detokenize batch_decode: use tokenizer.decode(ids)
apply_chat_template: use gl.llm.Conversation(model).say(text)
eos_token_id: use tokenizer.eos
bos_token_id: use tokenizer.bos
pad_token: leave it out: samples are packed, not padded
vocab_size: use gradloom info MODEL.gguf
[llm.LoRA]
save_pretrained: use adapter.save(path)
r: use adapter.rank
lora_alpha: use adapter.alpha
target_modules: use adapter.targets
merge: use gl.llm.merge(model_path, adapter_path, out_path)
from_pretrained: use gl.llm.LoRA.load(path, model)
[llm.Perplexity]
loss val_loss eval_loss mean_loss: use result.nll, in nats for each token
ppl: use result.perplexity
[llm.Run]
evaluate: use gl.llm.evaluate(model, data, run.adapter)
save_model save_pretrained: use run.save(path)
model_parameters: use run.adapter
[tables.Model]
save: use gl.save(model, path)
fit: use gl.fit(model.net, data) for the network, or gradloom fit DATA
evaluate: use model.score(rows, targets)
transform: use model.predict(rows)
classes_: use model.classes
parameters named_parameters state_dict eval train to: use model.net, the network
[train.Result]
get_loss: use result.loss
pred: use gl.predict(model, x)
[sklearn._Perceptron]
partial_fit warm_start: not supported; use gl.fit(model, data) on a gl.nn.Module
loss_curve_: use model_.about
[data.Dataset]
map: use arrays of NumPy
train_test_split: use val_split= of gl.fit
""")

# Values of settings: those of other libraries
VALUES = _tables("""
[loss]
sparse_categorical_crossentropy categorical_crossentropy crossentropy ce crossentropyloss: use 'cross_entropy'
binary_crossentropy bce_with_logits binary_cross_entropy_with_logits logistic: use 'bce'
binary_cross_entropy bcewithlogitsloss: use 'bce'
mean_squared_error l2 squared_error mse_loss: use 'mse'
mae mean_absolute_error absolute_error l1_loss: use 'l1'
huber_loss: use 'huber'
kl_div kl_divergence kullback_leibler_divergence: use 'kl'
nll_loss: use 'nll'
pinball pinball_loss: use 'quantile'
poisson: use 'poisson_nll'
triplet_margin: use 'triplet'
cosine_embedding cosine_similarity: use 'cosine'
[metrics]
accuracy acc: leave it out: always measured with cross_entropy and nll; with bce use 'binary_accuracy'
confusion_matrix: use gl.metrics.confusion_matrix(outputs, labels) of arrays
top_k top_k_categorical_accuracy top_k_accuracy: use 'top_5', or gl.metrics.TopK(k=3)
fbeta: use 'f_beta'
auc: use 'roc_auc'
ap: use 'average_precision'
jaccard mean_iou meaniou: use 'iou'
r2_score: use 'r2'
expected_calibration_error calibration_error: use 'ece'
mean_absolute_error l1: use 'mae'
mean_absolute_percentage_error: use 'mape'
root_mean_squared_error: use 'rmse'
mse mean_squared_error: use 'rmse', or the loss 'mse'
[activation]
softmax: leave it out: the loss cross_entropy takes logits
linear none identity: use None
swish: use 'silu'
gelu_new gelu_pytorch_tanh: use 'gelu_tanh'
[pad_mode]
edge border nearest: use 'replicate'
wrap periodic: use 'circular'
mirror: use 'reflect'
zeros: use 'constant'
[device]
cuda mps metal vulkan opencl rocm hip xpu: use 'gpu'
""")

# Options of the commands that need more than another name; commands of other tools
_COMMAND = _tables("""
[options]
verbose: leave it out: progress is shown by default, --quiet hides it
lr-scheduler: use --schedule cosine, linear, constant, wsd, one_cycle, polynomial or cosine_restarts
    (finetune)
n-epochs: use --epochs
help-all: use --help
shuffle: leave it out: rows are shuffled before each epoch, by --seed
gpu cuda: use --device gpu
cpu: use --device cpu
bf16 fp16: use --precision bf16
no-progress: use --quiet
full: use --method full
qlora load-in-4bit: leave it out: quantised weights stay quantised
packing: leave it out: short samples are always packed
gradient-accumulation-steps grad-accum: use --batch-size for the rows of a step and --micro-batch-size for those
    at once
warmup-steps: use --warmup, a share of the steps
checkpointing: use --checkpoint-every
greedy: use --temperature 0
repeat-penalty: not supported; use --temperature or --top-p
interactive conversation: use gradloom chat MODEL
valid-file: use --val FILE
continue: use --resume
[fit]
output-dir run-dir: use --out
test-size test-split test-fraction: use --test FILE; without it a fifth of the rows is held out for the test
weight-decay wd l2: leave it out: --optimizer sets it; in Python gl.optim.AdamW(weight_decay=...)
momentum: leave it out: --optimizer sets it; in Python gl.optim.SGD(momentum=...)
lr-scheduler lr-scheduler-type lr-schedule scheduler schedule warmup warmup-steps: leave it out: the rate falls to 0
    along a cosine; in Python gl.optim.schedules
[finetune]
momentum: leave it out: --optimizer sets it; in Python gl.optim.SGD(momentum=...)
test-size test-split: use --val-split for validation
[predict]
batch-size: leave it out: rows are predicted in batches of their own
[generate chat]
ctx-size context max-seq-length n-ctx: leave it out: the context is that of the model
num-beams: not supported; use --temperature 0
[commands]
convert: not supported; convert_hf_to_gguf.py of llama.cpp writes GGUF models
train: use gradloom fit DATA (tables, arrays, images), or gradloom finetune MODEL DATA (language models)
fine-tune sft lora: use gradloom finetune MODEL DATA
eval test: use gradloom evaluate MODEL DATA (language models), or gradloom predict MODEL DATA (tables)
score: use gradloom predict MODEL DATA
perplexity ppl: use gradloom evaluate MODEL DATA
infer complete: use gradloom generate MODEL --prompt TEXT
run: use gradloom generate MODEL --prompt TEXT, or gradloom chat MODEL
fuse export-lora: use gradloom merge MODEL ADAPTER --out FILE.gguf
show inspect: use gradloom info FILE
list ls: use gradloom runs
resume: use gradloom fit --resume, or gradloom finetune --out FILE --resume
devices: use gradloom doctor
version: use gradloom --version
help: use gradloom --help
serve: not supported; use gradloom chat MODEL
""")
COMMANDS = _COMMAND.pop("commands")
OPTIONS = _COMMAND  # by command; "options": of any command
