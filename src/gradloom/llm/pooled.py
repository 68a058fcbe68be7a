"""Pooled hidden states: one row for each part of the samples in rows of tokens."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..base.errors import SettingError
from ..graph.leaves import constant
from ..graph.value import Value
from .rows import Rows


def places_of_last(rows: Rows, parts: int) -> np.ndarray:
    """i32 [rows, L] that begins with the place of the last token of each part; parts: of a sample."""
    assert rows.parts is not None and rows.values is not None
    slots = rows.values.shape[1] * parts
    places = np.zeros_like(rows.tokens)
    row, place = np.nonzero(rows.parts >= 0)
    assert slots <= places.shape[1]
    places[row, rows.parts[row, place]] = place
    return places


def parts_of_tokens(rows: Rows) -> np.ndarray:
    """i32 [rows, L]: the part of each token, counted in its row; -1 in padding."""
    assert rows.parts is not None
    return np.where(rows.parts < 0, -2 - rows.parts, rows.parts)


def last_hidden(hidden: Value, places: Value, slots: int) -> Value:
    """The row of `hidden` [rows * L, width] of the last token of each part, [rows * slots, width]; places: see
    places_of_last, i32 [rows, L]."""
    rows, length = places.shape
    if rows * length >= 1 << 24:  # sums of places are exact in f32
        text = f"{{micro_batch_size}}: {rows} rows of {length} tokens at a time; need less than 2^24 tokens"
        raise SettingError(text, micro_batch_size=rows)
    starts = constant(length * np.arange(rows, dtype=np.float32)[:, None])
    flat = ops.cast(ops.cast(places[:, :slots], "f32") + starts, "i32")
    return ops.get_rows(hidden, flat.reshape(rows * slots))


def mean_hidden(hidden: Value, parts: Value, slots: int) -> Value:
    """The mean row of `hidden` [rows * L, width] over the tokens of each part, [rows * slots, width]; 0 of parts
    without tokens. parts: see parts_of_tokens, i32 [rows, L]."""
    rows, length = parts.shape
    slot = constant(np.arange(slots, dtype=np.int32)[None, :, None])
    own = ops.where(ops.equal(parts.reshape(rows, 1, length), slot), 1.0, 0.0)  # [rows, slots, L]
    sums = ops.matmul(own, hidden.reshape(rows, length, hidden.shape[1]))
    means = sums / ops.maximum(ops.sum(own, axes=2, keepdims=True), 1.0)
    return means.reshape(rows * slots, hidden.shape[1])
