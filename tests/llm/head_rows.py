"""Rows of random texts for objectives with a head."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradloom.llm.labels import Classes
from gradloom.llm.packing import pack
from gradloom.llm.rows import Rows
from gradloom.llm.samples import Report, Samples


def pairs(count: int = 8, val: int = 0, context: int = 20, seed: int = 0, margins: bool = False) -> Rows:
    """Random preference pairs, of one or two in each row. val: the number of rows to validate on, the last ones."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        prompt = rng.integers(5, 300, rng.integers(2, 5)).tolist()
        texts += [prompt + rng.integers(5, 300, rng.integers(2, 10)).tolist() for _ in range(2)]
    values = rng.uniform(0, 1, (count, 1)) if margins else None
    return rows_of(texts, 2, values, val, context)


def rows_of(
    texts: list[list[int]], parts: int, values: Any, val: int = 0, context: int = 20, packing: bool = True, **facts: Any
) -> Rows:
    """Packed rows of texts of tokens."""
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    tokens = np.concatenate([np.array(text, np.int32) for text in texts])
    numbers = None if values is None else np.asarray(values, np.float32)
    samples = Samples(tokens, np.ones(tokens.size, bool), starts, Report("random"), False, parts, numbers)
    data = pack(samples, context, packing, last=True)
    n = len(data)
    return Rows(
        data.tokens, data.positions, data.labels, np.arange(n - val), np.arange(n - val, n), (data.report,),
        data.parts, data.values, data.samples, **facts,
    )  # fmt: skip


def classes(count: int = 8, val: int = 0, several: bool = False, context: int = 20, seed: int = 0) -> Rows:
    """Random texts of three classes; of several labels, 1 for each."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, 300, rng.integers(1, 12)).tolist() for _ in range(count)]
    values = rng.integers(0, 2, (count, 3)) if several else (np.arange(count) % 3)[:, None]
    return rows_of(texts, 1, values, val, context, classes=Classes(("bad", "fair", "good"), several))


def numbers(count: int = 8, val: int = 0, context: int = 20, seed: int = 0) -> Rows:
    """Random texts, each with a number."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, 300, rng.integers(1, 12)).tolist() for _ in range(count)]
    return rows_of(texts, 1, rng.normal(7, 3, (count, 1)), val, context)
