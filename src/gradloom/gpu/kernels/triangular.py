"""Triangular systems of linear equations."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for
from .table import kernel


def _solve(call: Call) -> list[Dispatch]:
    a, b, x = call.args
    if not x.size:
        return []
    n, columns = x.shape[-2:]
    over = (*x.shape[:-2], columns)
    args = (
        x.seen_as(over, (*x.strides[:-2], x.strides[-1])),
        a.seen_as(over, (*a.strides[:-2], 0)),
        b.seen_as(over, (*b.strides[:-2], b.strides[-1])),
    )
    words = (
        n, x.strides[-2], *a.strides[-2:], b.strides[-2], int(call.attrs["lower"]), int(call.attrs["unit_diagonal"]),
    )  # fmt: skip
    rounds = n * (n + 1) // 2
    return [Dispatch(("triangular",), "solve", args, groups_for(x.size // n), words, rounds=rounds)]


kernel("solve_triangular", "f32", _solve)
