"""Elements in another order along axes: roll and flip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.leaves import constant
from ..graph.value import Value
from .common import f32_values, whole
from .index import get_rows
from .indexing import part
from .layout import axis_of, concat, permute, reshape, shape_error
from .reduce import axes_of


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Value:
    """x with its elements moved by `shift` along an axis; those that leave at the end return at the start.

    shift  a whole number, also negative; several with several axes
    axis   one axis or several, each with the only shift or one of its own; None: the elements in row-major order

    f32. Raises ShapeError for axes that do not exist, and for shifts and axes of different count.
    """
    (x,) = f32_values("roll", x, promote=False)
    if axis is None:
        return reshape(_moved(reshape(x, (x.size,)), whole("roll", "shift", shift), 0), x.shape)
    axes = [axis_of("roll", x, a, x.ndim) for a in (axis if isinstance(axis, Sequence) else [axis])]
    shifts = list(shift) if isinstance(shift, Sequence) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise shape_error("roll", x, f"{len(shifts)} shifts for {len(axes)} axes", "one shift for each axis")
    for a, s in zip(axes, shifts, strict=True):
        x = _moved(x, whole("roll", "shift", s), a)
    return x


def _moved(x: Value, shift: int, axis: int) -> Value:
    extent = x.shape[axis]
    start = -shift % extent if extent else 0
    return concat([part(x, axis, start, extent), part(x, axis, 0, start)], axis) if start else x


def flip(x: Any, axis: int | Sequence[int] | None = None) -> Value:
    """x with its elements in reverse order along an axis, along several, or along all (None).

    f32. Raises ShapeError for axes that do not exist.
    """
    (x,) = f32_values("flip", x, promote=False)
    for a in axes_of("flip", x, axis):
        x = reversed_along(x, a)
    return x


def reversed_along(x: Value, axis: int) -> Value:
    """x in reverse order along an axis: gathered by row numbers, for a view has no negative strides."""
    extent = x.shape[axis]
    if extent < 2:
        return x
    order = [axis, *(a for a in range(x.ndim) if a != axis)]
    ids = constant(np.arange(extent - 1, -1, -1, dtype=np.int32))
    rows = get_rows(permute(x, order) if axis else x, ids)
    return permute(rows, [order.index(a) for a in range(x.ndim)]) if axis else rows
