"""Elements by id along an axis, and sums back to where they came from."""

from __future__ import annotations

import math

from ..calls import Arg, Call, Dispatch, groups_for
from .index import check_ids
from .layout import filled
from .table import kernel


def _words(wide: Arg, ids: Arg, axis: int) -> tuple[int, int, int]:
    """Extents of both along the axis; elements of the axes behind it."""
    return wide.shape[axis], ids.shape[axis], math.prod(ids.shape[axis + 1 :])


def _gather(call: Call) -> list[Dispatch]:
    x, ids, y = call.args
    words = _words(x, ids, call.attrs["axis"])
    made = [check_ids(ids, words[0])]
    if y.size:
        made.append(Dispatch(("gather",), "gather", (y, x, ids), groups_for(y.size), words))
    return made


def _gather_back(call: Call) -> list[Dispatch]:
    g, ids, y = call.args
    n, m, inner = _words(y, ids, call.attrs["axis"])
    made = [check_ids(ids, n), filled(y, 0.0)]
    if g.size and y.size:
        lines = g.size // m
        args, words = (y, g, ids), (n, m, inner, lines)
        made.append(Dispatch(("gather_back",), "gather_back", args, groups_for(lines), words, rounds=m))
    return made


kernel("gather", "f32_i32_f32 i32", _gather)
kernel("gather_back", "f32_i32_f32", _gather_back)
