"""Small random models of each family, and batches of rows for them."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from examples.random_gguf import write_random

SMALL = {"layers": 2, "width": 48, "heads": 6, "kv_heads": 2, "ffn": 80, "vocab": 300, "std": 0.15}
# name -> (architecture, what is special about it)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_untied": ("llama", {"tied": False, "rope_base": 1e5}),
    "llama3_factors": ("llama", {"rope_factors": [1.0, 1.5, 4.0, 8.0]}),
    "llama_linear": (
        "llama", {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}}
    ),
    "llama_heads": ("llama", {"kv_heads": 6, "layers": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2_partial": ("qwen2", {"rope_dims": 4, "tied": False}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3_untied": ("qwen3", {"tied": False, "kv_heads": 1}),
}  # fmt: skip


def write(folder: Path, case: str = "llama", **changes: Any) -> Path:
    arch, special = CASES[case]
    return write_random(folder / f"{case}.gguf", arch, **(SMALL | special | changes))


def rows_of(count: int = 2, length: int = 24, vocab: int = 300, seed: int = 0) -> Any:
    """TokenData of random rows: two samples in each, whose last tokens have no label."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, (count, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    labels = np.roll(tokens, -1, 1)
    cut = length // 2
    positions[:, cut:] -= cut
    labels[:, [cut - 1, -1]] = -100
    return SimpleNamespace(tokens=tokens, positions=positions, labels=labels)


def packed(rows: int = 2, length: int = 24, vocab: int = 300, seed: int = 0) -> Any:
    """tokens, positions, labels i32 [rows, T]: rows of two or three samples, each without a label at its end, and
    padding at the end of the last row."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, (rows, length)).astype(np.int32)
    positions, labels = np.zeros_like(tokens), np.full_like(tokens, -100)
    for row in range(rows):
        cuts = [0, *sorted(rng.choice(np.arange(2, length - 2), 1 + row % 2, replace=False).tolist()), length]
        if row == rows - 1:
            cuts[-1] = length - 3
        for start, stop in itertools.pairwise(cuts):
            positions[row, start:stop] = np.arange(stop - start)
            labels[row, start : stop - 1] = tokens[row, start + 1 : stop]
    tokens[-1, length - 3 :] = 0
    return SimpleNamespace(tokens=tokens, positions=positions, labels=labels)


def error(found: np.ndarray, truth: np.ndarray) -> float:
    """Relative to the truth's own size."""
    return float(np.linalg.norm(found.astype(np.float64) - truth) / max(np.linalg.norm(truth), 1e-300))
