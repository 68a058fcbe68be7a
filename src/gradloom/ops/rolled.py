"""Elements in another order along axes: roll and flip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.declare import op
from ..graph.leaves import constant
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import LARGE, Sample, Spec, bad, draw, f32_values, need, whole
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


# ---- flip ------------------------------------------------------------------------------------------------


def _flip_shape(x: Spec, axes: Shape) -> Spec:
    ordered = axes == tuple(sorted(set(axes))) and all(0 <= a < x.ndim for a in axes)
    need(ordered and len(axes) > 0, f"axes {list(axes)} are not usable", f"some of 0..{x.ndim - 1} in order")
    return Spec(x.shape)


def _gathered(x: Value, axes: Shape) -> Value:
    """x in reverse order along the axes, by row numbers."""
    for axis in axes:
        order = [axis, *(a for a in range(x.ndim) if a != axis)]
        ids = constant(np.arange(x.shape[axis])[::-1].astype(np.int32))
        x = permute(get_rows(permute(x, order), ids), [order.index(a) for a in range(x.ndim)])
    return x


flip_op: OpSpec = op(
    "flip", inputs="x", attrs="axes:ints", doc="x in reverse order along the axes", dtypes="f32", shape=_flip_shape,
    composition=_gathered, reference=lambda x, axes: np.flip(x, axes), vjp=lambda g, axes: [flip_op(g, axes=axes)],
    exact=True,
    samples=lambda rng: [
        Sample((draw(rng, shape),), {"axes": axes})
        for shape, axes in (
            ((7,), (0,)), ((1, 3), (0,)), ((3, 33), (1,)), ((3, 33), (0,)), ((2, 3, 4, 5), (1, 3)),
            ((2, 3, 4, 5), (0, 1, 2, 3)), ((65, 67), (0, 1)), (LARGE, (1,)), (LARGE, (0,)), ((300, 5, 301), (0, 2)),
        )
    ],
    bad_samples=[
        bad("flip: axes [2] are not usable: x f32[2,3]; need some of 0..1 in order", (2, 3), axes=(2,)),
        bad("flip: axes [1, 0] are not usable: x f32[2,3]; need some of 0..1 in order", (2, 3), axes=(1, 0)),
    ],
)  # fmt: skip


def flip(x: Any, axis: int | Sequence[int] | None = None) -> Value:
    """x with its elements in reverse order along an axis, along several, or along all (None).

    f32. Raises ShapeError for axes that do not exist.
    """
    (x,) = f32_values("flip", x, promote=False)
    axes = [a for a in axes_of("flip", x, axis) if x.shape[a] > 1]
    return flip_op(x, axes=axes) if axes and x.size else x
