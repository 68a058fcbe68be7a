"""Rows of random preference pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradloom.llm.rows import Rows


def pairs(
    rows: int, context: int = 24, vocab: int = 300, seed: int = 0, val: int = 0, judged: bool = False,
    prompts: bool = False,
) -> Rows:  # fmt: skip
    """Rows of one and two random pairs by turns, packed: the parts of a pair share a prompt of 3 to 5 tokens. val: the
    number of rows to validate on, the last ones. judged: the second part is the completion of another sample, and each
    sample is good or bad. prompts: labels at all places."""
    rng = np.random.default_rng(seed)

    def text(least: int, most: int) -> list[int]:
        found: list[int] = rng.integers(5, vocab, rng.integers(least, most)).tolist()
        return found

    made = rows_of(
        [[(text(3, 6), [text(2, 7), text(2, 7)]) for _ in range(1 + i % 2)] for i in range(rows)], context, prompts
    )
    if judged:
        labels = np.indices(made.values.shape[:2]).sum(0).astype(np.float32) % 2
        made = replace(made, values=np.stack([made.values[:, :, 0], labels], 2))
    return replace(made, train=np.arange(rows - val), val=np.arange(rows - val, rows))


def rows_of_pairs(pairs: list[tuple[list[int], list[list[int]]]], context: int = 24, prompts: bool = False) -> Rows:
    """A row for each pair."""
    return rows_of([[pair] for pair in pairs], context, prompts)


def rows_of(given: list[list[tuple[list[int], list[list[int]]]]], context: int, prompts: bool = False) -> Rows:
    """Rows of samples (prompt, completions)."""
    of_each = len(given[0][0][1])
    shape = len(given), of_each * context
    tokens, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    labels, parts = np.full(shape, -100, np.int32), np.full(shape, -1, np.int32)
    values = np.zeros((len(given), max(map(len, given)), 1), np.float32)
    for row, samples in enumerate(given):
        at = 0
        for sample, (prompt, completions) in enumerate(samples):
            values[row, sample, 0] = 1
            for side, completion in enumerate(completions):
                text = np.array([*prompt, *completion])
                size, part = len(text) - 1, of_each * sample + side
                place = np.s_[row, at : at + size]
                counts = np.arange(1, size + 1) >= len(prompt)
                tokens[place], positions[place] = text[:-1], np.arange(size)
                labels[place] = np.where(counts | prompts, text[1:], -100)
                parts[place] = np.where(counts, part, -2 - part)
                at += size
    return Rows(tokens, positions, labels, np.arange(len(given)), np.arange(0), (), parts, values, _numbered(values))


def _numbered(values: np.ndarray) -> np.ndarray:
    """Indices of the samples of each row, i32 [rows, K], -1 beyond the last one."""
    there = values[:, :, 0] == 1
    return np.where(there, there.cumsum().reshape(there.shape) - 1, -1).astype(np.int32)
