"""gradloom's side of a comparison: a GGUF model with LoRA arrays that are given, and batches to train it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

import gradloom as gl
from gradloom import llm

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
LINEAR = (*ATTENTION, "ffn_gate", "ffn_up", "ffn_down")


def lora_arrays(
    path: Path, rank: int = 8, targets: tuple[str, ...] = ATTENTION, b_std: float = 0.0, seed: int = 1
) -> Arrays:
    """Tensor -> A [r, n_in] uniform within 1 / sqrt(n_in), B [n_out, r] of this spread (0: as training starts)."""
    rng, found = np.random.default_rng(seed), {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = tensor.name
        if any(f".{name}".endswith(f".{target}.weight") for target in targets):
            n_in, n_out = (int(n) for n in tensor.shape)
            if name == "token_embd.weight":  # a row of A for each token
                n_in, n_out = n_out, n_in
            a = rng.uniform(-1, 1, (rank, n_in)).astype(np.float32) * np.float32(n_in**-0.5)
            a = np.ascontiguousarray(a.T) if name == "token_embd.weight" else a
            found[name] = (a, rng.standard_normal((n_out, rank), dtype=np.float32) * np.float32(b_std))
    return found


def packed(vocab: int, batch: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, positions, labels) i32 [B, T]: rows of several samples each, every fifth label ignored."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, vocab, (batch, length + 1)).astype(np.int32)
    positions, labels = np.zeros((batch, length), np.int32), tokens[:, 1:].copy()
    for row in range(batch):
        starts = np.zeros(length, np.int32)
        if row:  # the first row is one sample
            cuts = np.sort(rng.choice(np.arange(1, length), min(3, length - 1), replace=False))
            starts[cuts] = cuts
            labels[row, cuts - 1] = -100  # a sample does not foretell the next one
        positions[row] = np.arange(length) - np.maximum.accumulate(starts)
    labels[rng.random(labels.shape) < 0.2] = -100
    return tokens[:, :-1].copy(), positions, labels


def rank_of(arrays: Arrays) -> int:
    return next(iter(arrays.values()))[1].shape[1]


class GivenLora:
    """gradloom: the model with a LoRA of these arrays; `options` go to gl.compile."""

    def __init__(self, path: Path, arrays: Arrays, alpha: float = 16.0, **options: Any) -> None:
        self.model = llm.load(path)
        rank = rank_of(arrays) if arrays else 8
        self.adapter = llm.LoRA(rank=rank, alpha=alpha, targets=tuple(arrays) or ATTENTION)
        self.adapter.bind(self.model)
        for name, (a, b) in arrays.items():
            self.adapter.a[name].assign(a)
            self.adapter.b[name].assign(b)
        self.options = options

    def trainer(self, build: str = "opt", optimizer: Any = None, adapter: Any = None) -> gl.Trainer:
        adapter = adapter or self.adapter
        return gl.Trainer(
            lambda x: self.model.hidden(x[:, 0], x[:, 1], adapter, training=True),
            lambda hidden, labels: self.model.loss_pair(hidden, labels, adapter),
            optimizer,
            build=build,
            **self.options,
        )

    def gradients(
        self, tokens: Any, positions: Any, labels: Any, adapter: Any = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """(loss, gradient per trained array) of one batch; the arrays are named TENSOR.lora_a and TENSOR.lora_b."""
        trainer = self.trainer("grad", adapter=adapter)
        loss = trainer.step(np.stack([tokens, positions], 1), labels).loss
        return loss, {name: trainer.grad_acc(name) for name in (adapter or self.adapter).parameters()}

    def logits(self, tokens: Any, positions: Any, with_adapter: bool = True) -> np.ndarray:
        """[B, T, V]."""
        shape = np.shape(tokens)
        leaves = gl.input("tokens", shape, "i32"), gl.input("positions", shape, "i32")
        run = gl.compile(self.model.logits(*leaves, self.adapter if with_adapter else None), **self.options)
        return run(tokens=np.int32(tokens), positions=np.int32(positions))[0].reshape(*shape, -1)
