"""Calls from the habits of other libraries are answered with the right one in one line.

Each line of a table is a wrong call, the type of its error, and what the message must contain. The instructions
themselves are resolved: every name and keyword in them exists.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import gradloom as gl
from gradloom.base import ggml_names, habit_names
from gradloom.base.habits import command_hint, option_hint
from gradloom.cli.main import app, main
from gradloom.eager.tape import GradTape
from gradloom.graph.opspec import OpSpec
from tests.llm.random_models import write

# Tables: habits of scikit-learn and Keras
TABLES = """
gl.fit(model, X, y) -> TypeError: gl.fit
gl.fit(model, (X, y), lr=1e-2) -> SettingError: gl.optim.AdamW
gl.fit(model, (X, y), learning_rate=1e-2) -> SettingError: gl.optim.AdamW
gl.fit(model, (X, y), optimizer="adam") -> SettingError: gl.optim
gl.fit(model, (X, y), optimizer=gl.optim.Adam, progress=False) -> SettingError: gl.optim
gl.fit(model, (X, y), loss="sparse_categorical_crossentropy") -> SettingError: 'cross_entropy'
gl.fit(model, (X, y), loss="categorical_crossentropy") -> SettingError: 'cross_entropy'
gl.fit(model, (X, y), loss="mean_squared_error") -> SettingError: 'mse'
gl.fit(model, (X, y), loss="mae") -> SettingError: use 'l1'
gl.fit(model, (X, y), validation_split=0.2) -> SettingError: val_split=
gl.fit(model, (X, y), validation_data=(X, y)) -> SettingError: val=
gl.fit(model, (X, y), verbose=0) -> SettingError: progress=
gl.fit(model, (X, y), patience=3) -> SettingError: gl.train.EarlyStopping
gl.fit(model, (X, y), sample_weight=np.ones(120)) -> SettingError: gl.data.Dataset
gl.fit(model, (X, y), shuffle=True) -> SettingError: seed=
gl.fit(model, (X, y), random_state=0) -> SettingError: seed=
model.fit(X, y) -> AttributeError: gl.fit
model.predict(X) -> AttributeError: gl.predict
model.predict_proba(X) -> AttributeError: gl.predict
model.evaluate(X, y) -> AttributeError: gl.evaluate
model.save("m.h5") -> AttributeError: gl.save
model.get_weights() -> AttributeError: model.state_dict()
model.add(gl.nn.Linear(2, 2)) -> AttributeError: gl.nn.Sequential
h.history["loss"] -> AttributeError: history.to_dict()
h.loss -> AttributeError: history[-1].train.loss
h["loss"] -> TypeError: history.to_dict()['loss']
h.accuracy -> AttributeError: history[-1].train.accuracy
gl.evaluate(model, X, y) -> TypeError: gl.evaluate
gl.load_model("m.keras") -> AttributeError: gl.load
gl.nn.Dense(8) -> AttributeError: gl.nn.Linear
gl.nn.Dense(8, activation="relu", input_shape=(4,)) -> AttributeError: gl.nn.Linear
gl.layers.Dense(4) -> AttributeError: gl.nn
gl.keras -> AttributeError: gl.nn
gl.nn.Linear(4, 8, "softmax") -> SettingError: leave it out
gl.nn.Linear(4, 8, activation=gl.ops.relu) -> SettingError: 'relu'
gl.nn.Linear(4, 8, activation="LeakyReLU") -> SettingError: 'leaky_relu'
gl.nn.Linear(units=3, input_dim=4) -> TypeError: n_out=
gl.nn.Dropout(p=0.5) -> TypeError: rate=
gl.nn.BatchNormalization() -> AttributeError: gl.nn.BatchNorm
gl.nn.Input(4) -> AttributeError: leave it out
gl.nn.Sequential([gl.nn.Linear(4, 8), gl.nn.Linear(8, 2)]) -> GraphError: Sequential(*layers)
gl.data.read_csv("t.csv") -> AttributeError: gl.data.read_table
gl.data.read_table("t.csv", label="y") -> TypeError: target=
gl.data.read_table("t.csv", test_size=.2) -> TypeError: test_split=
gl.data.StandardScaler() -> AttributeError: gl.nn.Standardize
table_model.save("m.safetensors") -> AttributeError: use gl.save(model, path)
table_model.fit(X, y) -> AttributeError: use gl.fit(model.net, data)
table_model.evaluate(X, y) -> AttributeError: use model.score(rows, targets)
table_model.classes_ -> AttributeError: use model.classes
table_model(X) -> TypeError: use model.predict(rows)
gl.predict(table_model, X) -> GraphError: use model.predict(rows)
gl.evaluate(table_model, (X, y)) -> GraphError: model.score(rows, targets)
gl.fit(table_model, (X, y)) -> GraphError: model.net for its network
gl.fit(model, (X, y), clip_grad=1.0) -> SettingError: use max_norm=
gl.relu(X) -> AttributeError: use gl.ops.relu
gl.softmax(X, dim=1) -> AttributeError: use gl.ops.softmax
gl.gelu(X) -> AttributeError: use gl.ops.gelu
gl.ops.normalize(X) -> AttributeError: gl.ops.l2_norm
gl.tensor(X, requires_grad=True) -> TypeError: use gl.parameter(data)
gl.tensor(X, device="cuda") -> TypeError: use device= of gl.grad_tape
gl.sklearn.MLPClassifier() -> AttributeError: gl.sklearn.Classifier
gl.MLPClassifier() -> AttributeError: gl.sklearn.Classifier
gl.sklearn.Classifier(hidden_layer_sizes=(100,)) -> TypeError: hidden=
gl.sklearn.Classifier(max_iter=200) -> TypeError: epochs=
gl.sklearn.Classifier(learning_rate_init=1e-3) -> TypeError: lr=
gl.sklearn.Classifier(early_stopping=True) -> TypeError: patience=
gl.sklearn.Classifier(solver="adam") -> TypeError: optimizer=
gl.fit(model, (X, y), metrics=["accuracy"]) -> SettingError: leave it out
gl.fit(model, (X, y), class_weight="auto") -> SettingError: 'balanced'
gl.save(model, "m.h5") -> FileError: .safetensors
gl.fit(model, (X, names)) -> DTypeError: return_inverse=True
gl.fit(model, (X, names.astype(object))) -> DTypeError: return_inverse=True
"""

# Images: habits of PyTorch
IMAGES = """
gl.nn.Conv2d(1, 8, kernel_size=3) -> TypeError: kernel=
gl.nn.Conv2d(in_channels=1, out_channels=8, kernel_size=3, padding=1) -> TypeError: channels_in=
gl.nn.Conv1D(8, 3) -> AttributeError: gl.nn.Conv1d
gl.nn.Conv2DTranspose(8, 3) -> AttributeError: gl.nn.ConvTranspose2d
gl.nn.DepthwiseConv2D(3) -> AttributeError: groups=
gl.nn.Conv2D(8, 3) -> AttributeError: gl.nn.Conv2d
gl.nn.BatchNorm2d(8) -> AttributeError: gl.nn.BatchNorm
gl.nn.BatchNorm(num_features=8) -> TypeError: channels=
gl.nn.MaxPool2D(2) -> AttributeError: gl.nn.MaxPool2d
gl.nn.MaxPool2d(kernel_size=2) -> TypeError: kernel=
gl.nn.LeakyReLU(negative_slope=0.1) -> TypeError: slope=
gl.nn.Softplus(1, threshold=20) -> TypeError: leave it out
gl.nn.PReLU(num_parameters=3) -> TypeError: count=
gl.nn.LeakyRelu(0.1) -> AttributeError: gl.nn.LeakyReLU
gl.nn.ReLU(inplace=True) -> TypeError: leave it out
gl.nn.Dropout(p=.5) -> TypeError: rate=
gl.nn.SpatialDropout2D(.5) -> AttributeError: gl.nn.Dropout2d
gl.nn.GlobalAveragePooling2D() -> AttributeError: gl.nn.AdaptiveAvgPool2d(1)
gl.nn.InstanceNorm2d(8) -> AttributeError: gl.nn.InstanceNorm
gl.nn.UpSampling2D(2) -> AttributeError: gl.nn.Upsample
gl.nn.Add() -> AttributeError: gl.nn.Residual
gl.nn.AdaptiveAvgPool2D(1) -> AttributeError: gl.nn.AdaptiveAvgPool2d
gl.nn.Lambda(f) -> AttributeError: gl.nn.Module
gl.nn.CrossEntropyLoss() -> AttributeError: gl.fit
gl.nn.functional.relu(x) -> AttributeError: gl.ops
gl.nn.Linear(in_features=3, out_features=4) -> TypeError: n_in=
gl.nn.Embedding(num_embeddings=10, embedding_dim=4) -> TypeError: count=
gl.nn.LayerNorm(normalized_shape=4) -> TypeError: features=
gl.nn.Softmax(dim=1) -> TypeError: axis=
gl.nn.Flatten(start_dim=1) -> TypeError: leave it out
gl.nn.LSTMCell(3, 4) -> AttributeError: gl.nn.LSTM
gl.nn.LSTM(units=3) -> TypeError: hidden_size=
gl.nn.GRU(3, 4, proj_size=2) -> TypeError: not supported
gl.nn.SimpleRNN(3) -> AttributeError: gl.nn.RNN
gl.nn.Bidirectional(x) -> AttributeError: bidirectional=True
gl.nn.TransformerEncoder(8) -> AttributeError: gl.nn.TransformerEncoderLayer
gl.nn.TransformerEncoderLayer(d_model=8, nhead=2) -> TypeError: features=
gl.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16) -> TypeError: hidden=
gl.nn.TransformerEncoderLayer(8, 2, batch_first=True) -> TypeError: leave it out
gl.nn.GroupNorm(num_groups=2, num_channels=4) -> TypeError: groups=
gl.nn.InstanceNorm(4, track_running_stats=True) -> TypeError: gl.nn.BatchNorm
gl.nn.init.xavier_uniform_(net[0].weight) -> AttributeError: model.init(seed),
Net()(x) -> AttributeError: x.reshape(shape)
x.view(-1, 64) -> AttributeError: x.reshape(shape)
x.unsqueeze(1) -> AttributeError: gl.ops.expand_dims
x.flatten(1) -> AttributeError: gl.ops.flatten
x.permute(0, 2, 3, 1) -> AttributeError: gl.ops.permute
x.cuda() -> AttributeError: gl.grad_tape
x.to("cuda") -> AttributeError: gl.grad_tape
x.cpu() -> AttributeError: leave it out
x.requires_grad -> AttributeError: gl.parameter
x.max(dim=1) -> AttributeError: gl.ops.max
x.argmax(1) -> AttributeError: gl.ops.argmax
x.sum(1, keep=True) -> TypeError: keepdims
x.dim() -> AttributeError: x.ndim
x.numel() -> AttributeError: x.size
x.float() -> AttributeError: gl.ops.cast
x.long() -> AttributeError: gl.ops.cast
x.clone() -> AttributeError: gl.ops.copy
x.relu() -> AttributeError: gl.ops.relu
x.softmax(-1) -> AttributeError: gl.ops.softmax
opt.param_groups[0]["lr"] -> AttributeError: opt.groups,
net.cuda() -> AttributeError: gl.fit
net.zero_grad() -> AttributeError: leave it out
net.apply(print) -> AttributeError: for
net.named_modules() -> AttributeError: model.modules()
net.register_buffer("a", 1) -> AttributeError: trainable=
net.load_state_dict("file.pt") -> SettingError: gl.load
gl.optim.Adam(net.parameters(), lr=1e-3, betas=(.9, .99)) -> TypeError: beta1=
gl.optim.Adam(lr=1e-3, params=net.parameters()) -> TypeError: parameters=
gl.optim.SGD(net.parameters(), 0.1) -> TypeError: lr=
gl.optim.lr_scheduler.StepLR(opt, 5) -> AttributeError: gl.optim.schedules
gl.optim.Adagrad(net.parameters()) -> AttributeError: gl.optim.RMSprop
gl.optim.adam(net.parameters()) -> AttributeError: gl.optim.Adam
gl.fit(net3, (nhwc, labels), progress=False) -> ShapeError: permute(x, (0, 3, 1, 2))
net3(gl.tensor(nhwc)) -> ShapeError: f32[64,8,8,3]
Net2() -> GraphError: super().__init__()
opt.step() -> GradientError: step(grads)
net.to("cuda") -> SettingError: device='cuda' does not exist here
gl.Tensor([1, 2]) -> TypeError: gl.tensor
"""

# Language models: habits of transformers, PEFT, TRL and llama.cpp
LANGUAGE_MODELS = """
gl.llm.finetune(model, "d.jsonl", lr=lambda step, epoch: 1e-3, **kw) -> SettingError: optimizer=gl.optim.AdamW
gl.llm.AutoModelForCausalLM.from_pretrained(M) -> AttributeError: gl.llm.load
gl.llm.Llama(M) -> AttributeError: gl.llm.load
gl.llm.load(M, n_ctx=512) -> TypeError: gl.llm.evaluate
gl.llm.load(M, n_gpu_layers=3) -> TypeError: gl.llm.generate
gl.llm.load(model_path=M) -> TypeError: path=
gl.llm.LoraConfig(r=8) -> AttributeError: gl.llm.LoRA
gl.llm.Lora(r=8) -> AttributeError: gl.llm.LoRA
gl.llm.LoRA(r=8) -> TypeError: rank=
gl.llm.LoRA(rank=8, lora_alpha=16) -> TypeError: alpha=
gl.llm.LoRA(rank=8, target_modules=["q_proj"]) -> TypeError: targets=
gl.llm.LoRA(8, lora_dropout=.1) -> TypeError: dropout=
gl.llm.LoRA(8, bias="none", task_type="CAUSAL_LM") -> TypeError: not supported
gl.llm.LoRA(8, use_rslora=True) -> TypeError: rslora=
gl.llm.LoRA(8, use_dora=True) -> TypeError: rslora=
gl.llm.LoRA(8, modules_to_save=["lm_head"]) -> TypeError: gl.llm.TrainedTensors
gl.llm.get_peft_model(model, None) -> AttributeError: gl.llm.finetune
gl.llm.PeftModel.from_pretrained(model, "x") -> AttributeError: gl.llm.LoRA.load
gl.llm.SFTTrainer(model) -> AttributeError: gl.llm.finetune
gl.llm.finetune(model, "d.jsonl", lr=1e-4, num_train_epochs=1) -> SettingError: epochs=
gl.llm.finetune(model, "d.jsonl", learning_rate=1e-4) -> SettingError: lr=
gl.llm.finetune(model, "d.jsonl", max_seq_length=64) -> SettingError: context=
gl.llm.finetune(model, "d.jsonl", per_device_train_batch_size=8) -> SettingError: micro_batch_size=
gl.llm.finetune(model, "d.jsonl", gradient_accumulation_steps=8) -> SettingError: batch_size=
gl.llm.finetune(model, "d.jsonl", output_dir="out") -> SettingError: run=
gl.llm.finetune(model, "d.jsonl", max_steps=8) -> SettingError: steps=
gl.llm.finetune(model, "d.jsonl", warmup_steps=8) -> SettingError: warmup=
gl.llm.finetune(model, "d.jsonl", warmup_ratio=.1) -> SettingError: warmup=
gl.llm.finetune(model, "d.jsonl", lr_scheduler_type="cosine") -> SettingError: schedule=
gl.llm.finetune(model, "d.jsonl", eval_dataset="d.jsonl") -> SettingError: val=
gl.llm.finetune(model, "d.jsonl", prompt_key="a") -> SettingError: data_options=
gl.llm.finetune(model, "d.jsonl", packing=True) -> SettingError: leave it out
gl.llm.finetune(model, "d.jsonl", bf16=True) -> SettingError: precision=
gl.llm.finetune(model, "d.jsonl", gradient_checkpointing=True) -> SettingError: micro_batch_size=
gl.llm.finetune(model, "d.jsonl", load_in_4bit=True) -> SettingError: leave it out
gl.llm.finetune(model, "d.jsonl", peft_config=None) -> SettingError: adapter=
gl.llm.finetune(model, "d.jsonl", train_on_inputs=True) -> SettingError: data_options=
gl.llm.finetune(model, "d.jsonl", optim="adamw_torch") -> SettingError: optimizer=
gl.llm.finetune(model, "d.jsonl", gl.llm.LoRA(4), 3) -> TypeError: epochs=
gl.llm.finetune(model, train_dataset="d.jsonl") -> TypeError: data=
gl.llm.finetune(model, {"train": "d.jsonl"}, **kw) -> DataError: gl.llm.pack
gl.llm.evaluate(model, "d.jsonl", max_length=64) -> SettingError: context=
gl.llm.evaluate(model, "d.jsonl", lora="x") -> SettingError: adapter=
gl.llm.perplexity(model, "d.jsonl") -> AttributeError: gl.llm.evaluate
gl.llm.generate(model, "Once", max_new_tokens=4) -> SettingError: max_tokens=
gl.llm.generate(model, "Once", do_sample=False) -> SettingError: temperature=
gl.llm.generate(model, "Once", num_beams=4) -> SettingError: temperature=
gl.llm.generate(model, "Once", min_p=.1) -> SettingError: top_p=
gl.llm.generate(model, "Once", streamer=None) -> SettingError: stream=
gl.llm.generate(model, messages=[{"role": "user", "content": "hi"}]) -> TypeError: gl.llm.Conversation
gl.llm.generate(model, input_ids=[1, 2]) -> TypeError: prompt=
model.generate("Once") -> AttributeError: gl.llm.generate
model.create_chat_completion([]) -> AttributeError: gl.llm.Conversation
model.tokenize("hi") -> AttributeError: model.tokenizer.encode(text)
model.print_trainable_parameters() -> AttributeError: gl.llm.Run
model.save_pretrained("x") -> AttributeError: gl.llm.merge
model.merge_and_unload() -> AttributeError: gl.llm.merge
model.tokenizer.eos_token_id -> AttributeError: tokenizer.eos
model.tokenizer.batch_decode([]) -> AttributeError: tokenizer.decode(ids)
gl.llm.Conversation(model).say("hi") -> DataError: chat_template=
gl.llm.finetune(model, "d.jsonl", optimizer="adamw_torch", **kw) -> SettingError: adamw
gl.llm.generate(model, "Once", stream=True) -> SettingError: function
gl.llm.finetune(model, ["one text"], **kw) -> DataError: {'text': ...}
gl.llm.Trainer(model, "d.jsonl") -> AttributeError: use gl.llm.finetune
model.tokenizer("Once") -> TypeError: use tokenizer.encode(text)
model.tokenizer.encode("Once", return_tensors="pt") -> TypeError: leave it out
model.tokenizer.decode([1, 2], skip_special_tokens=True) -> TypeError: use skip_special=
gl.llm.load("m.gguf", device_map="auto") -> TypeError: use device= of gl.llm.generate
gl.llm.load("m.gguf", torch_dtype="auto") -> TypeError: leave it out
gl.llm.Conversation.say(None, "hi", max_tokens=3) -> TypeError: use max_tokens= of gl.llm.Conversation
gl.llm.merge(model, gl.llm.LoRA(4), "x.gguf") -> SettingError: Model.path
"""

# Loops of one's own: habits of JAX, TensorFlow and PyTorch
RESEARCH = """
gl.grad(lambda w: w) -> AttributeError: gl.grad_tape
gl.value_and_grad(lambda w: w) -> AttributeError: gl.grad_tape
gl.jit(lambda w: w) -> AttributeError: gl.compile
gl.vmap(lambda w: w) -> AttributeError: not supported
tape.gradient(loss, net.parameters()) -> AttributeError: tape.backward(loss)
tape.gradients(loss) -> AttributeError: tape.backward(loss)
gl.optim.AdamW(net, lr=1e-3) -> SettingError: lr=
gl.optim.AdamW(1e-3) -> SettingError: lr=
gl.optim.AdamW(net.parameters(), lr=gl.optim.CosineAnnealingLR(3)) -> AttributeError: gl.optim.schedules.Cosine
gl.optim.schedules.Cosine(1e-3, T_max=10) -> TypeError: steps=
gl.optim.schedules.Cosine(1e-3, steps=10, warmup_steps=3) -> TypeError: warmup=
gl.optim.schedules.CosineAnnealingLR(1e-3) -> AttributeError: gl.optim.schedules.Cosine
gl.optim.schedules.StepLR(1e-3) -> AttributeError: gl.optim.schedules.Step
gl.optim.chain() -> AttributeError: gl.optim
gl.optim.AdamW(net.parameters(), lr=1e-3).init(net) -> AttributeError: gl.optim.AdamW
opt.apply_gradients(grads) -> AttributeError: opt.step(grads),
opt.minimize(loss) -> AttributeError: opt.step(grads),
opt.learning_rate -> AttributeError: opt.lr
gl.optim.clip_grad_norm_(net.parameters(), 1.0) -> AttributeError: gl.optim.clip_grad_norm
gl.nn.utils.clip_grad_norm_(net.parameters(), 1.0) -> AttributeError: gl.optim.clip_grad_norm
gl.fit(net, (X, Y), clip_norm=1.0) -> SettingError: max_norm=
gl.fit(net, (X, Y), gradient_clip_val=1.0) -> SettingError: max_norm=
gl.fit(net, (X, Y), scheduler="cosine") -> SettingError: gl.optim.AdamW
gl.fit(net, (X, Y), callbacks=[print], progress=False) -> SettingError: gl.train.Callback
gl.fit(net, (X, Y), checkpoint_dir="x") -> SettingError: run=
gl.fit(net, (X, Y), max_steps=3) -> SettingError: epochs=
gl.fit(net, (X, Y), accumulate=3) -> SettingError: batch_size=
gl.fit(net, (X, Y), dtype="bf16") -> SettingError: precision=
gl.fit(net, (X, Y), jit_compile=True) -> SettingError: leave it out
gl.fit(net, (X, Y), ema_decay=.9) -> SettingError: ema=
gl.train.ModelCheckpoint("x") -> AttributeError: gl.fit
gl.train.ReduceLROnPlateau() -> AttributeError: gl.optim.schedules.Plateau
gl.train.TensorBoard("x") -> AttributeError: gl.fit
gl.train.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True) -> TypeError: restore_best=
gl.train.EarlyStopping(patience=3, verbose=True) -> TypeError: leave it out
gl.EarlyStopping() -> AttributeError: gl.train.EarlyStopping
gl.callbacks.EarlyStopping() -> AttributeError: gl.train
gl.epoch(net, (X, Y)) -> SettingError: gl.Trainer
gl.train_on_batch(X, Y) -> AttributeError: gl.Trainer
net[0].weights -> AttributeError: model.parameters()
net[0].weight.data -> AttributeError: x.numpy()
net[0].weight.assign_sub(1) -> AttributeError: parameter.assign(array)
x.at[0].set(1) -> AttributeError: gl.ops.where
gl.compile(lambda v: v) -> GraphError: gl.input
gl.compile(net) -> GraphError: gl.input
gl.compile([gx * 2])(y=X[:8]) -> GraphError: x=
gl.compile([gx * 2], mode="max-autotune") -> TypeError: leave it out
(gx * 2).numpy() -> AttributeError: gl.compile
(gx * 2).eval() -> AttributeError: x.numpy()
gl.Variable(X) -> AttributeError: gl.parameter
gl.nn.Parameter(X) -> AttributeError: use gl.parameter(data)
gl.stop_gradient(x) -> AttributeError: gl.ops.detach
gl.lax.scan -> AttributeError: a
gl.tree_map -> AttributeError: model.state_dict()
gl.random.normal -> AttributeError: gl.tensor
gl.PRNGKey(0) -> AttributeError: gl.tensor
gl.numpy -> AttributeError: gl.ops
gl.optim.AdamW(net.parameters(), lr=lambda step: 1e-3) -> SettingError: (step, epoch)
gl.fit(net, (X, Y), callbacks=print, progress=False) -> SettingError: on_epoch=
gl.optim.clip_grad_norm(net.parameters(), 1.0) -> GradientError: tape.backward(loss)
"""

# Graphs: names of ggml.h and ggml-opt.h
GGML = """
gl.ops.mul_mat(w, x) -> AttributeError: gl.ops.matmul
gl.mul_mat(w, x) -> AttributeError: gl.ops.matmul
gl.ops.mul_mat_id(w, x) -> AttributeError: gl.ops
gl.ops.view_2d(x, 2, 2, 4, 0) -> AttributeError: gl.ops.reshape
gl.ops.view_1d(x, 2, 0) -> AttributeError: gl.ops.reshape
gl.ops.cont(x) -> AttributeError: gl.ops.contiguous
gl.ops.dup(x) -> AttributeError: gl.ops.copy
gl.ops.cpy(x, x) -> AttributeError: gl.ops.copy
gl.ops.soft_max(x) -> AttributeError: gl.ops.softmax
gl.ops.soft_max_ext(x, None, 1.0, 0.0) -> AttributeError: gl.ops.softmax
gl.ops.diag_mask_inf(x, 0) -> AttributeError: gl.ops.attention
gl.ops.flash_attn_ext(x, x, x, None, 1.0) -> AttributeError: gl.ops.attention
gl.ops.rope_ext(x) -> AttributeError: gl.ops.rope
gl.ops.rope_multi(x) -> AttributeError: gl.ops.rope
gl.ops.rms_norm(x, epsilon=1e-5) -> TypeError: eps=
gl.ops.group_norm(x, n_groups=2) -> TypeError: groups=
gl.ops.sum_rows(x) -> AttributeError: gl.ops.sum
gl.ops.count_equal(x, x) -> AttributeError: gl.ops.sum
gl.ops.concat(x, x, 0) -> TypeError: gl.ops.concat
gl.ops.add_inplace(x, x) -> AttributeError: gl.ops.add
gl.ops.add1(x, x) -> AttributeError: x
gl.ops.acc(x, x, 0) -> AttributeError: gl.ops.add
gl.ops.scale_inplace(x, 2.0) -> AttributeError: gl.ops.scale
gl.ops.gelu_quick(x) -> AttributeError: gl.ops.gelu_tanh
gl.ops.gelu_erf(x) -> AttributeError: gl.ops.gelu
gl.ops.swiglu_split(x, x) -> AttributeError: gl.ops.swiglu
gl.ops.conv_2d(x, x) -> AttributeError: gl.ops.conv2d
gl.ops.conv_1d(x, x) -> AttributeError: gl.ops.conv1d
gl.ops.conv_transpose_2d(x, x) -> AttributeError: gl.ops.conv_transpose2d
gl.ops.pool_2d(x) -> AttributeError: gl.ops.max_pool2d
gl.ops.upscale(x) -> AttributeError: gl.ops.interpolate
gl.ops.pad(x, 1, 1, 0, 0) -> TypeError: gl.ops.pad
gl.ops.im2col(x) -> AttributeError: gl.ops.unfold
gl.ops.arange(0, 3) -> AttributeError: gl.tensor
gl.ops.solve_tri(x, x) -> AttributeError: use gl.ops.solve_triangular
gl.ops.index_select(x, 0, x) -> AttributeError: use gl.ops.take(x, ids, axis)
gl.ops.take_along_axis(x, x, 0) -> AttributeError: use gl.ops.gather(x, ids, axis)
gl.ops.topk(x, 1) -> AttributeError: use gl.ops.top_k(x, k)
gl.ops.sort(x, stable=True) -> TypeError: leave it out
gl.ops.gather(x, index=x, dim=0) -> TypeError: use ids=
gl.ops.scatter(x, 0, x, x) -> AttributeError: use gl.ops.scatter_add(x, ids, src, axis)
gl.ops.solve_triangular(x, x, upper=True) -> TypeError: use lower=
x.cumsum(0) -> AttributeError: use gl.ops.cumsum(x)
x.topk(1) -> AttributeError: use gl.ops.top_k(x, k)
x.gather(0, x) -> AttributeError: use gl.ops.gather(x)
gl.ops.std(x, ddof=1) -> TypeError: use correction=
gl.ops.var(x, unbiased=True) -> TypeError: use correction=1
gl.ops.le(x, x) -> AttributeError: use gl.ops.less_equal(x, y)
gl.ops.ne(x, x) -> AttributeError: use gl.ops.not_equal(x, y)
x.var(0) -> AttributeError: use gl.ops.var(x)
x.isnan() -> AttributeError: use gl.ops.isnan(x)
gl.ops.cross_entropy_loss(x, x) -> AttributeError: gl.fit
gl.ops.cross_entropy_loss_back(x, x, x) -> AttributeError: gl.gradients
gl.ops.opt_step_adamw(x, x, x, x, x) -> AttributeError: gl.optim.AdamW
gl.ops.tri(x) -> AttributeError: gl.ops.tril
gl.ops.map_custom1(x, None) -> AttributeError: gl.op
gl.custom_vjp(lambda x: x) -> AttributeError: gl.op
gl.new_tensor_2d("f32", 4, 8) -> AttributeError: gl.input
gl.new_f32(1.0) -> AttributeError: gl.input
gl.set_param(w) -> AttributeError: gl.parameter
gl.set_output(x) -> AttributeError: gl.compile
gl.set_name(x, "a") -> AttributeError: gl.named
gl.build_forward_expand(x) -> AttributeError: gl.compile
gl.build_backward_expand(x) -> AttributeError: gl.gradients
gl.init() -> AttributeError: model.init(seed),
gl.ggml_init() -> AttributeError: gl.compile plans all memory
gl.backend_tensor_set(w, W) -> AttributeError: x=
gl.backend_tensor_get(w) -> AttributeError: x=
gl.opt_init() -> AttributeError: gl.Trainer
gl.opt_fit(w) -> AttributeError: gl.fit
gl.opt_epoch(w) -> AttributeError: gl.epoch
gl.opt_dataset_init() -> AttributeError: gl.data.Dataset
gl.opt_result_init() -> AttributeError: gl.Result
gl.opt_result_loss() -> AttributeError: gl.Result
gl.opt_default_params() -> AttributeError: gl.optim.AdamW
gl.opt_eval() -> AttributeError: gl.Trainer
gl.GGML_TYPE_F32 -> AttributeError: the
"""

TABLES_OF_CALLS = {
    "tables": TABLES, "images": IMAGES, "llm": LANGUAGE_MODELS, "research": RESEARCH, "ggml": GGML,
}  # fmt: skip


class _Net(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = gl.nn.Linear(64, 3)

    def forward(self, x: Any) -> Any:
        return self.fc(x.view(-1, 64))


class _WithoutSuper(gl.nn.Module):
    def __init__(self) -> None:
        self.fc = gl.nn.Linear(64, 3)


def _tables(folder: Path) -> dict[str, Any]:
    X = np.random.default_rng(0).random((120, 4), dtype=np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    model = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 2))
    h = gl.fit(model, (X, y), epochs=1, progress=False)
    clf = gl.sklearn.Classifier(epochs=1, hidden=[4], ensemble=1).fit(X, y)
    made = {"X": X, "y": y, "names": np.where(y, "yes", "no"), "model": model, "h": h, "table_model": clf.model_}
    return made | {"clf": gl.sklearn.Classifier()}


def _images(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images, nhwc = rng.random((64, 1, 8, 8), dtype=np.float32), rng.random((64, 8, 8, 3), dtype=np.float32)
    labels = rng.integers(0, 3, 64)
    net, net3 = (
        gl.nn.Sequential(
            gl.nn.Conv2d(n, 4, 3, activation="relu"), gl.nn.MaxPool2d(2), gl.nn.Flatten(), gl.nn.Linear(36, 3)
        )
        for n in (1, 3)
    )
    return {
        "images": images, "nhwc": nhwc, "labels": labels, "net": net, "net3": net3, "Net": _Net, "Net2": _WithoutSuper,
        "x": gl.tensor(images), "y": gl.tensor(labels), "opt": gl.optim.Adam(net.parameters(), lr=1e-3),
        "loader": gl.data.DataLoader(images, labels),
    }  # fmt: skip


def _language(folder: Path) -> dict[str, Any]:
    path = write(folder)
    (folder / "d.jsonl").write_text('{"text": "a b c d e f"}\n' * 8)
    model = gl.llm.load(path)
    kw = {"steps": 1, "context": 32, "progress": False}
    return {"M": str(path), "model": model, "kw": kw, "rows": [{"text": "a b c"}]}


def _research(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Y = rng.random((64, 4), dtype=np.float32), rng.integers(0, 3, 64)
    net = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3))
    x, y = gl.tensor(X), gl.tensor(Y)
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(net(x), y)
    grads, opt = tape.backward(loss), gl.optim.AdamW(net.parameters(), lr=1e-3)
    made = {"X": X, "Y": Y, "net": net, "x": x, "y": y, "tape": tape, "loss": loss, "grads": grads, "opt": opt}
    return made | {"gx": gl.input("x", (8, 4))}


def _ggml(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, W = rng.random((8, 4), dtype=np.float32), rng.random((3, 4), dtype=np.float32)
    return {"X": X, "W": W, "x": gl.input("x", (8, 4)), "w": gl.parameter(W, "w"), "e": gl.tensor(X)}


MADE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tables": _tables, "images": _images, "llm": _language, "research": _research, "ggml": _ggml,
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES_OF_CALLS)
def test_a_wrong_call_is_answered_with_the_right_one(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"gl": gl, "np": np, **MADE[kind](tmp_path)}
    lines = TABLES_OF_CALLS[kind].strip().splitlines()
    wrong = []
    for line in lines:
        call, _, rest = line.rpartition(" -> ")
        error, _, needed = rest.partition(": ")
        try:
            exec(call, dict(names))
        except Exception as seen:
            text = str(seen)
            if type(seen).__name__ != error or needed not in text or "\n" in text:
                wrong.append(f"{call}: {type(seen).__name__}: {text}")
        else:
            wrong.append(f"{call}: no error")
    assert len(lines) >= 25 and not wrong, "\n".join(wrong)


# ---- what is accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "targets",
    [
        ["q_proj", "v_proj"], "q_proj,v_proj", ["self_attn.q_proj", "self_attn.v_proj"],
        ["model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.v_proj.weight"], ["attn_q", "attn_v"],
    ],
)  # fmt: skip
def test_targets_of_a_lora_by_their_hugging_face_names(targets, tmp_path):
    model = gl.llm.load(write(tmp_path))
    adapter, same = gl.llm.LoRA(4, targets=targets), gl.llm.LoRA(4, targets=["attn_q", "attn_v"])
    adapter.bind(model), same.bind(model)
    assert list(adapter.a) == list(same.a)


def test_one_layer_and_all_linear_layers(tmp_path):
    model = gl.llm.load(write(tmp_path))
    first, every = gl.llm.LoRA(4, targets=["model.layers.0.mlp.up_proj"]), gl.llm.LoRA(4, targets="all-linear")
    first.bind(model), every.bind(model)
    assert list(first.a) == ["blk.0.ffn_up.weight"]
    assert len(every.a) > 4 and not any("token_embd" in name for name in every.a)


# ---- the tables are true ---------------------------------------------------------------------------------------------

CLASSES: dict[str, type] = {
    "graph.Value": gl.Value, "graph.Parameter": type(gl.parameter(0.0)),
    "nn.Module": gl.nn.Module, "optim.Optimizer": gl.optim.Optimizer,
    "eager.GradTape": GradTape, "train.History": gl.train.History, "train.EpochResult": gl.EpochResult,
    "train.Trainer": gl.Trainer, "train.Result": gl.Result, "llm.Model": gl.llm.Model, "llm.LoRA": gl.llm.LoRA,
    "llm.Tokenizer": gl.llm.Tokenizer, "llm.Run": gl.llm.Run, "data.Dataset": gl.data.Dataset,
    "sklearn._Perceptron": gl.sklearn.Classifier, "tables.Model": gl.train.Model,
    "llm.Perplexity": gl.llm.Perplexity,
}  # fmt: skip


def _instructions() -> list[str]:
    tables = [
        *habit_names.KEYWORDS.values(), habit_names.NAMES, *habit_names.ATTRIBUTES.values(), habit_names.COMMANDS,
        *habit_names.OPTIONS.values(), *habit_names.VALUES.values(), *ggml_names.sections().values(),
    ]  # fmt: skip
    return sorted({text for table in tables for text in table.values()})


def _resolved(name: str) -> Any:
    found: Any = gl
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def _takes(function: Any, keyword: str) -> bool:
    if isinstance(function, OpSpec):
        return keyword in {attr.name for attr in function.attrs} | {slot.name for slot in function.inputs}
    parameters = inspect.signature(function).parameters
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_every_name_and_keyword_of_an_instruction_exists():
    missing = []
    for text in _instructions():
        for name in re.findall(r"\bgl(?:\.\w+)+", text):
            try:
                _resolved(name)
            except AttributeError:
                missing.append(f"{name}: {text}")
        calls = [(name, keyword) for name, inside in re.findall(r"\b(gl(?:\.\w+)+)\(([^()]*)\)", text)
                 for keyword in re.findall(r"(\w+)=", inside)]  # fmt: skip
        calls += [(name, keyword) for keyword, name in re.findall(r"(\w+)= of (gl(?:\.\w+)+)", text)]
        missing += [f"{name}({keyword}=): {text}" for name, keyword in calls if not _takes(_resolved(name), keyword)]
    assert not missing, "\n".join(missing)


def test_no_instruction_hides_what_exists():
    hidden = [f"{key}.{name}" for key, table in habit_names.ATTRIBUTES.items() for name in table
              if hasattr(CLASSES[key], name)]  # fmt: skip
    hidden += [f"gl.{name}" for name in habit_names.NAMES if name in gl.__all__]
    assert not hidden


def _commands() -> dict[str, Any]:
    context = click.Context(app)
    return {name: app.get_command(context, name) for name in app.list_commands(context)}


def test_instructions_of_the_command_name_its_options_and_commands():
    commands = _commands()
    options = {one for command in commands.values() for option in command.params for one in option.opts}
    for text in [text for table in (*habit_names.OPTIONS.values(), habit_names.COMMANDS) for text in table.values()]:
        assert set(re.findall(r"--[a-z-]+", text)) - {"--version", "--help"} <= options, text
        assert set(re.findall(r"gradloom ([a-z]+)", text)) <= set(commands), text


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("fit x.csv --learning-rate 1", "use --lr;"), ("fit x.csv --lr-rate 1", "use --lr;"),
        ("fit x.csv --epoch 1", "use --epochs;"), ("fit x.csv --batch 1", "use --batch-size;"),
        ("fit x.csv --output y", "use --out;"), ("fit x.csv -o y", "use --out;"), ("fit x.csv --verbose", "--quiet"),
        ("fit --data x.csv", "DATA is given without an option"), ("finetune --model m", "MODEL is given without"),
        ("finetune m d --lora-r 4", "use --rank;"), ("finetune m d --max-seq-length 4", "use --context;"),
        ("finetune m d --gradient-accumulation-steps 4", "--micro-batch-size"), ("finetune m d --bf16", "--precision"),
        ("finetune m d --target-modules x", "use --targets;"), ("finetune m d --lora-alpha 3", "use --alpha;"),
        ("generate m --n-predict 4", "use --max-tokens;"), ("generate m --temp 0", "use --temperature;"),
        ("generate m --lora-path a", "use --lora;"), ("predict m d --outfile x", "use --out;"),
        ("train x", "gradloom fit DATA"), ("eval m d", "gradloom evaluate"), ("perplexity m d", "gradloom evaluate"),
        ("list", "gradloom runs"), ("inspect m", "gradloom info"),
        ("fit x.csv --epocs 3", "did you mean --epochs"),
        ("fit x.csv --test-size 0.2", "use --test FILE; without it"), ("fit x.csv --weight-decay 1", "leave it"),
        ("fit x.csv --output_dir o", "use --out;"), ("fit x.csv --lr-scheduler cosine", "leave it out: the rate falls"),
        ("fit x.csv --momentum 0.9", "gl.optim.SGD(momentum=...)"), ("fit x.csv --continue", "use --resume;"),
        ("fit x.csv --gradient_accumulation_steps 4", "--micro-batch-size"), ("fit x --batch_size 4", "--batch-size;"),
        ("finetune m d --gradient_accumulation_steps 4", "--micro-batch-size"), ("convert m", "convert_hf_to_gguf.py"),
        ("finetune m d --load_in_4bit", "leave it out"), ("finetune m d --ctx-size 5", "use --context;"),
        ("finetune m d --continue", "use --resume;"), ("finetune m d --lr_scheduler cosine", "use --schedule cosine"),
        ("generate m -ngl 20", "use --gpu-layers for -ngl"), ("chat m -ngl 20", "use --gpu-layers for -ngl"),
        ("generate m --ctx-size 5", "leave it out"), ("generate m --num-beams 3", "use --temperature 0"),
        ("predict m d --batch-size 3", "leave it out"),
    ],
)  # fmt: skip
def test_options_and_commands_of_other_tools(line, needed, capsys):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert needed in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("line", ["-h", "fit -h", "generate -h", "predict -h"])
def test_help_has_a_short_option(line, capsys):
    assert main(line.split()) == 0
    short = capsys.readouterr().out
    assert main([*line.split()[:-1], "--help"]) == 0
    assert short == capsys.readouterr().out and "Usage: gradloom" in short


def test_an_option_that_the_command_lacks_is_not_recommended():
    assert "--warmup" not in option_hint("--warmup-steps", ["--epochs"], [])
    assert "--warmup" in option_hint("--warmup-steps", ["--warmup"], [])
    assert command_hint("qwerty") == ""


def test_a_keyword_of_settings_files(tmp_path, capsys):
    (tmp_path / "s.toml").write_text('data = "x.csv"\nlearning_rate = 1.0\n')
    assert main(["fit", "--config", str(tmp_path / "s.toml")]) == 2
    assert "learning_rate" in (err := capsys.readouterr().err) and "lr" in err.split("learning_rate")[1]


@pytest.mark.parametrize(
    ("module", "name", "needed"),
    [
        (gl.ops, "mul_mat", "use gl.ops.matmul(x, w, transpose_y=True)"), (gl.ops, "ggml_mul_mat", "gl.ops.matmul"),
        (gl, "ggml_opt_fit", "use gl.fit(net, data, loss="), (gl, "opt_fit", "use gl.fit"),
        (gl, "opt_dataset_init", "use gl.data.Dataset"), (gl.ops, "ggml_gelu_inplace", "use gl.ops.gelu_tanh(x)"),
        (gl, "ggml_init", "leave it out: gl.compile plans all memory"), (gl.ops, "ggml_relu", "use gl.ops.relu"),
        (gl, "ggml_graph_get_grad", "gl.gradients(outputs, wrt)"), (gl, "ggml_opt_result_loss", "result.loss_unc"),
    ],
)  # fmt: skip
def test_names_of_ggml(module: Any, name: str, needed: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert needed in str(caught.value) and "\n" not in str(caught.value)
