"""x[index] in NumPy's manner: slices, single entries, new axes. Rows by id are in index.py."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.dtypes import u8
from ..graph.leaves import as_value
from ..graph.value import Value, define_operators, describe
from .layout import reshape, shape_error, slice_op


def slice(x: Any, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None) -> Value:
    """Elements from start up to stop along each axis, as Python slices count them; all axes are named."""
    x = as_value(x)
    steps = [1] * x.ndim if steps is None else steps
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        counts = f"{len(starts)} starts, {len(stops)} stops, {len(steps)} steps"
        raise shape_error("slice", x, counts, f"{x.ndim} of each")
    return getitem(x, tuple(builtins.slice(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True)))


def part(x: Value, axis: int, start: int, stop: int) -> Value:
    """Elements from start up to stop along one axis; x itself where these are all."""
    if start == 0 and stop == x.shape[axis]:
        return x
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return slice_op(x, starts=starts, stops=stops, steps=[1] * x.ndim)


def getitem(x: Any, index: Any) -> Value:
    """x[index] for whole numbers, slices with positive steps, None and ...; rows by an id array: get_rows."""
    x = as_value(x)
    entries = list(index) if isinstance(index, tuple) else [index]
    named = sum(1 for e in entries if e is not None and e is not Ellipsis)
    if sum(e is Ellipsis for e in entries) > 1:
        raise shape_error("getitem", x, "two ... in one index", "at most one")
    if named > x.ndim:
        raise shape_error("getitem", x, f"{named} indices", f"at most {x.ndim}")
    if not any(e is Ellipsis for e in entries):
        entries.append(Ellipsis)
    at = next(i for i, e in enumerate(entries) if e is Ellipsis)
    entries[at : at + 1] = [builtins.slice(None)] * (x.ndim - named)

    starts: list[int] = []
    stops: list[int] = []
    steps: list[int] = []
    shape: list[int] = []
    for entry in entries:
        axis = len(starts)
        if entry is None:
            shape.append(1)
        elif isinstance(entry, builtins.slice):
            a, b, s = _slice_bounds(x, entry, axis)
            starts, stops, steps = [*starts, a], [*stops, b], [*steps, s]
            shape.append(max(0, -(-(b - a) // s)))
        else:
            a = _whole(x, entry, axis)
            starts, stops, steps = [*starts, a], [*stops, a + 1], [*steps, 1]
    whole = all(a == 0 and b == n and s == 1 for a, b, s, n in zip(starts, stops, steps, x.shape, strict=True))
    picked = x if whole else slice_op(x, starts=starts, stops=stops, steps=steps)
    return reshape(picked, shape)


def _slice_bounds(x: Value, entry: builtins.slice, axis: int) -> tuple[int, int, int]:
    try:
        if entry.step is not None and operator.index(entry.step) <= 0:
            raise shape_error("getitem", x, f"step {entry.step}", "a step >= 1")
        a, b, s = entry.indices(x.shape[axis])
    except TypeError:
        raise shape_error("getitem", x, f"slice {entry!r} is not usable", "whole numbers") from None
    return a, max(a, b), s


def _whole(x: Value, entry: Any, axis: int) -> int:
    extent = x.shape[axis]
    try:
        if isinstance(entry, (bool, np.bool_)) or (isinstance(entry, Value) and (entry.ndim or entry.dtype is u8)):
            raise TypeError  # comparisons give u8: a condition, not a position
        i = operator.index(entry)
    except TypeError:
        kind = type(entry).__name__ + (f" {describe(entry)}" if isinstance(entry, Value) else "")
        wanted = "whole numbers, slices, None or ...; for rows by id: get_rows(x, ids); for conditions: where"
        wanted += "; for a position of u8: int(tensor)" * (isinstance(entry, Value) and not entry.ndim)
        raise shape_error("getitem", x, f"index of type {kind}", wanted) from None
    if not -extent <= i < extent:
        raise shape_error("getitem", x, f"index {i} leaves axis {axis}", f"{-extent} to {extent - 1}")
    return i % extent


define_operators(getitem=getitem)
