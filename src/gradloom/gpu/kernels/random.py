"""Dropout."""

from __future__ import annotations

import math

from ..calls import Call, Dispatch, groups_for
from .table import kernel


def _dropout(call: Call) -> list[Dispatch]:
    x, seed, step, row, y = call.args
    rows = x.shape[0] if x.shape else 1
    width = x.size // rows if rows else 0
    keep, stream = 1.0 - call.attrs["rate"], call.attrs["stream"]
    bound = math.floor(keep * 2.0**32)
    everything = bound >= 1 << 32
    words = (
        width, rows, stream & 0xFFFFFFFF, stream >> 32 & 0xFFFFFFFF, 0 if everything else bound, everything,
        1 / keep if keep > 0 else 0.0,
    )  # fmt: skip
    groups = groups_for(-(-width // 4) * rows)
    return [Dispatch(("random",), "dropout", (y, x, seed, step, row), groups, words)]


kernel("dropout", "f32_i64_f32", _dropout)
