"""Sorted elements and their positions. Sorting is stable; NaN counts as larger than all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import i32
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Sample, Spec, bad, draw, need, need_axis, need_plain
from .gathering import gather
from .layout import axis_of, shape_error

# (shape, axis, how many positions are kept)
SORTED: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 0, 1), ((7,), 0, 7), ((5, 33), 1, 33), ((5, 33), 0, 5), ((2, 3, 4, 5), 1, 3), ((2, 3, 4, 5), 3, 2),
    ((3, 300), 1, 300), ((300, 3), 0, 300), ((3, 1000), 1, 5), ((3, 1000), 1, 1), ((4, 9), 1, 0), ((401, 351), 1, 351),
    ((2, 70000), 1, 70000), ((2, 70000), 1, 40),
)  # fmt: skip


def _argsort_shape(x: Spec, axis: int, count: int) -> Spec:
    need_axis(x, axis)
    extent = x.shape[axis]
    need(0 <= count <= extent, f"count {count} leaves axis {axis}", f"a whole number from 0 to {extent}")
    return Spec((*x.shape[:axis], count, *x.shape[axis + 1 :]), i32)


def _argsort_reference(x: np.ndarray, axis: int, descending: bool, count: int) -> np.ndarray:
    order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    if descending:  # backwards from the end: the first of equal elements comes first again
        order = x.shape[axis] - 1 - np.flip(order, axis)
    return np.take(order, np.arange(count), axis).astype(np.int32)


def _argsort_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (shape, axis, count) in enumerate(SORTED):
        attrs = {"axis": axis, "descending": i % 2 == 1, "count": count}
        ties = rng.integers(-5, 6, shape)
        samples.append(Sample((draw(rng, shape),), attrs))
        samples.append(Sample((ties.astype(np.float32),), attrs | {"descending": i % 2 == 0}))
        samples.append(Sample((ties.astype(np.int32),), attrs))
    edges = np.array([0, np.nan, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 3, -3, np.inf, 0], np.float32)
    wild = rng.integers(0, 2**32, 500, np.uint64).astype(np.uint32).view(np.float32)  # NaN of both signs, denormals
    far = np.array([0, 2**31 - 1, -(2**31), -1, 1, 2**31 - 1], np.int32)
    for descending in (False, True):
        for x in (edges, wild, far):
            samples += [Sample((x.copy(),), {"axis": 0, "descending": descending, "count": n}) for n in (x.size, 3)]
    return samples


_argsort: OpSpec = op(
    "argsort", inputs="x", attrs="axis:int descending:bool=False count:int",
    doc="y = positions of the first `count` elements in sorted order along the axis (i32); equal elements keep their "
    "order, NaN is largest",
    dtypes="f32|i32", shape=_argsort_shape, no_gradient="a position has no slope", reference=_argsort_reference,
    cost=lambda x: (16.0 * x.size, 8.0 * x.size), exact=True, samples=_argsort_samples,
    bad_samples=[
        bad("argsort: axis 2 does not exist: x f32[2,3]; need an axis from 0 to 1", (2, 3), axis=2, count=1),
        bad("argsort: count 4 leaves axis 1: x f32[2,3]; need a whole number from 0 to 3", (2, 3), axis=1, count=4),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Value:
    """Positions (i32) that sort x along the axis: gather(x, argsort(x, axis), axis) is sorted.

    x is f32 or i32. Equal elements keep their order. NaN counts as larger than all numbers: it comes last, as in NumPy,
    and first with descending=True, as in PyTorch. A position has no gradient. Raises ShapeError for an axis that does
    not exist, DTypeError for other dtypes.
    """
    x = as_value(x)
    at = axis_of("argsort", x, axis, x.ndim)
    return _argsort(x, axis=at, descending=descending, count=x.shape[at])


def sort(x: Any, axis: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """(values, positions): x in sorted order along the axis, and the positions (i32) of its elements in x.

    x is f32 or i32. Equal elements keep their order. NaN counts as larger than all numbers: it comes last, as in NumPy,
    and first with descending=True, as in PyTorch. The gradient of a value is that of its element. Raises ShapeError for
    an axis that does not exist, DTypeError for other dtypes.
    """
    x = as_value(x)
    at = axis_of("sort", x, axis, x.ndim)
    order = _argsort(x, axis=at, descending=descending, count=x.shape[at])
    return gather(x, order, at), order


def top_k(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Value, Value]:
    """(values, positions): the k largest elements along the axis, largest first, and their positions (i32) in x.

    x         f32 or i32
    k         a whole number from 0 to x.shape[axis]
    largest   False: the k smallest elements, smallest first

    Of equal elements the first one comes first. NaN counts as larger than all numbers. The gradient of a value is that
    of its element. Raises ShapeError for an axis that does not exist and for k out of range, DTypeError for other
    dtypes.
    """
    x = as_value(x)
    need_plain("top_k", k=k)
    at = axis_of("top_k", x, axis, x.ndim)
    if not isinstance(k, (int, np.integer)) or not 0 <= k <= x.shape[at]:
        raise shape_error("top_k", x, f"k={k} is not usable", f"a whole number from 0 to {x.shape[at]}")
    order = _argsort(x, axis=at, descending=bool(largest), count=int(k))
    return gather(x, order, at), order
