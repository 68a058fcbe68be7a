"""Rounding to bf16 as the references do it, and a block without it: a program as if nothing were rounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ..base.dtypes import bf16

_left_out: ContextVar[str] = ContextVar("gradloom_roundings_left_out", default="")  # "", "computed" or "all"


def to_bf16(x: np.ndarray, operand: bool = False) -> np.ndarray:
    """The numbers rounded to bf16, in the dtype that they have; as they are where `unrounded` leaves that out.
    operand: the rounded values are those that a product reads, not those that an op computes."""
    skipped = _left_out.get() == "all" or (_left_out.get() == "computed" and not operand)
    return x if skipped else x.astype(bf16.numpy).astype(x.dtype)


@contextmanager
def unrounded(operands: bool) -> Iterator[None]:
    """Inside the block references do not round computed values to bf16, nor, with `operands`, the values they read."""
    before = _left_out.set("all" if operands else "computed")
    try:
        yield
    finally:
        _left_out.reset(before)
