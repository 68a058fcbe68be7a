"""Rows of random pairs and triplets of texts, and their embeddings and losses in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from gradloom.llm.rows import Rows
from tests.llm.head_rows import rows_of


def texts(count: int = 8, parts: int = 2, val: int = 0, context: int = 20, seed: int = 0) -> Rows:
    """Random texts, `parts` of each sample, one to three samples in a row."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(5, 300, rng.integers(2, 9)).tolist() for _ in range(count * parts)]
    return rows_of(made, parts, None, val, context)


def parts_of(data: Rows, parts: int) -> list[list[np.ndarray]]:
    """The tokens of each part of each sample, in the order of the rows."""
    assert data.parts is not None and data.values is not None
    found = []
    for row in range(len(data.tokens)):
        for sample in range(int(data.values[row, :, 0].sum())):
            every = range(sample * parts, (sample + 1) * parts)
            masks = [(data.parts[row] == part) | (data.parts[row] == -2 - part) for part in every]
            found.append([data.tokens[row][mask] for mask in masks])
    return found


def loss_of(
    oracle: Any, samples: list[list[np.ndarray]], pooling: str, widths: Any, temperature: float, pairs: Any,
    scale: float,
) -> torch.Tensor:  # fmt: skip
    """InfoNCE of all samples, each text computed by itself: the mean over the samples and widths."""
    pooled = []
    for sample in samples:
        for text in sample:
            hidden = oracle.hidden(text[None], None, pairs, scale)
            pooled.append(hidden.mean(0) if pooling == "mean" else hidden[-1])
    every = torch.stack(pooled).reshape(len(samples), len(samples[0]), -1)
    losses = []
    for width in widths or [every.shape[2]]:
        e = normalize(every[:, :, :width], dim=2)
        candidates = torch.cat([e[:, side] for side in range(1, e.shape[1])])
        losses.append(cross_entropy(e[:, 0] @ candidates.T / temperature, torch.arange(len(e))))
    return torch.stack(losses).mean()
