"""Running sums and linear recurrences along an axis."""

from __future__ import annotations

from ..calls import Arg, Call, Dispatch, groups_for, joined
from .table import kernel


def beside(x: Arg, *axes: int) -> Arg:
    """x at 0 of these axes, over the others."""
    kept = [i for i in range(len(x.shape)) if i not in axes]
    return joined([x.seen_as([x.shape[i] for i in kept], [x.strides[i] for i in kept])])[0]


def _scan(entry: str, call: Call) -> list[Dispatch]:
    *inputs, y = call.args
    axis, n = call.attrs["axis"], y.shape[call.attrs["axis"]]
    args = (y, *inputs)
    words = (n, *(x.strides[axis] for x in args), int(call.attrs["reverse"]))
    lines = y.size // n if n else 0
    if not lines:
        return []
    return [Dispatch((entry,), entry, tuple(beside(x, axis) for x in args), groups_for(lines), words, rounds=n)]


kernel("cumsum", "f32", lambda call: _scan("cumsum", call))
kernel("recurrence", "f32", lambda call: _scan("recurrence", call))
