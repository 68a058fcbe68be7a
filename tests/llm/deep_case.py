"""Thirty layers with LoRA: where a kernel that was not safe in place once made every gradient wrong, unseen.

One batch of 32 tokens, eight tokens over and over, twenty steps of plain SGD at a fixed rate. The case runs at any
width: reduced in the tests, at full size in bench/deep.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradloom as gl
from examples.random_gguf import SHAPES, write_random
from tests.llm.given_lora import Arrays, GivenLora, lora_arrays

STEPS, TOKENS, CYCLE = 20, 32, 8
CASES: dict[str, dict[str, Any]] = {
    "deep": {"std": 0.06, "embedding_std": 0.3, "lr": 0.02},
    "smollm2-135m": {"std": 0.02, "embedding_std": 0.1, "lr": 0.003},
}
WAYS: dict[str, dict[str, Any]] = {
    "reuse": {},
    "no reuse": {"reuse": False},
    "poison": {"poison": True},
    "no in-place, no fusion": {"inplace": False, "fuse": False},
    "one thread": {"threads": 1},
}


class DeepCase:
    def __init__(self, folder: Path, shape: str) -> None:
        case = dict(CASES[shape])
        self.lr = case.pop("lr")
        self.path = write_random(folder / f"{shape}.gguf", **SHAPES[shape], **case)
        vocab = SHAPES[shape]["vocab"]
        ids = np.tile(np.random.default_rng(0).choice(np.arange(259, vocab), CYCLE, replace=False), TOKENS)
        self.tokens = ids[None, :TOKENS].astype(np.int32)
        self.labels = ids[None, 1 : TOKENS + 1].astype(np.int32)
        self.positions = np.arange(TOKENS, dtype=np.int32)[None]

    @property
    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.tokens, self.positions, self.labels

    def arrays(self, b_std: float = 0.0) -> Arrays:
        return lora_arrays(self.path, b_std=b_std)

    def ours(self, steps: int = STEPS, **options: Any) -> tuple[list[float], dict[str, np.ndarray], Any]:
        """(the loss before each step of SGD, the trained arrays at the end, the plan)."""
        ours = GivenLora(self.path, self.arrays(), **options)
        trainer = ours.trainer("opt", gl.optim.SGD(lr=self.lr))
        x = np.stack([self.tokens, self.positions], 1)
        losses = [trainer.step(x, self.labels).loss for _ in range(steps)]
        (step,) = trainer.compiled
        return losses, {k: p.numpy() for k, p in ours.adapter.parameters().items()}, step.run.plan

    def theirs(self, dtype: Any, steps: int = STEPS) -> list[float]:
        """PyTorch's losses in one precision."""
        from tests.llm.torch_lora import TorchLora

        return TorchLora(self.path, self.arrays(), dtype).sgd(*self.batch, self.lr, steps)

    def bf16_errors(self, steps: int = STEPS) -> Iterator[tuple[float, float]]:
        """Relative L2 errors against float64 of (our gradient in bf16, that of PyTorch's autocast), for each trained
        array before each step. B is not zero; the steps are those of float64, so both have the same weights."""
        import torch

        from tests.llm.torch_lora import TorchLora

        arrays = self.arrays(b_std=0.05)
        for _ in range(steps):
            exact = TorchLora(self.path, arrays, torch.float64).gradients(*self.batch)[1]
            with torch.autocast("cpu", torch.bfloat16):
                autocast = TorchLora(self.path, arrays, torch.float32).gradients(*self.batch)[1]
            ours = GivenLora(self.path, arrays, precision="bf16").gradients(*self.batch)[1]
            for name, gradient in exact.items():
                norm = np.linalg.norm(gradient)
                mine, theirs = (float(np.linalg.norm(found[name] - gradient) / norm) for found in (ours, autocast))
                yield mine, theirs
            for tensor, (a, b) in arrays.items():
                slopes = [np.float32(self.lr) * exact[f"{tensor}.lora_{n}"].astype(np.float32) for n in "ab"]
                arrays[tensor] = (a - slopes[0], b - slopes[1])
