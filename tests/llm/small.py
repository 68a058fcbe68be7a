"""Small random models and rows of tokens, for tests of what is done with a model; stories260K where it is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.random_gguf import write_random

DATA = Path(__file__).parents[3] / "shared" / "data"
SHAPE = {"layers": 2, "width": 48, "heads": 6, "kv_heads": 2, "ffn": 80, "vocab": 300, "std": 0.15}


def write(folder: Path, arch: str = "llama", **changes: Any) -> Path:
    return write_random(folder / f"{arch}.gguf", arch, **(SHAPE | changes))


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


def need(name: str) -> Path:
    """A file of the real data; the test is skipped where it is not there."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {DATA}")
    return path
