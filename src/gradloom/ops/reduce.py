"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtypes import i32
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value, define_operators
from .common import LARGE, Reject, Sample, Spec, bad, draw, need, normal_axes
from .elementwise import div, equal, mul, scale, where
from .layout import axis_of, broadcast_to, product, reshape, shape_error


def _kept(shape: Shape, axes: Shape) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _keep(value: Value, x: Value, axes: Shape) -> Value:
    """A reduced value with its axes back, as extents of 1."""
    return reshape(value, _kept(x.shape, axes))


def _reduce_shape(filled: bool) -> Callable[..., Spec]:
    """Shape rule; filled: no axis may be empty."""

    def rule(x: Spec, axes: Shape, keepdims: bool) -> Spec:
        ordered = axes == tuple(sorted(set(axes))) and all(0 <= a < x.ndim for a in axes)
        need(ordered and len(axes) > 0, f"axes {list(axes)} are not usable", f"some of 0..{x.ndim - 1} in order")
        need(not filled or all(x.shape[a] for a in axes), "nothing to reduce", "extents >= 1")
        if keepdims:
            return Spec(_kept(x.shape, axes))
        return Spec(tuple(n for i, n in enumerate(x.shape) if i not in axes))

    return rule


def _reduced(distinct: bool = False) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples; distinct: no two elements so close that finite differences could swap them."""
    cases: tuple[tuple[Shape, Shape, bool], ...] = (
        ((1,), (0,), False), ((7,), (0,), False), ((33,), (0,), True), ((5, 33), (1,), False), ((5, 33), (0,), False),
        ((5, 33), (0, 1), False), ((5, 33), (0,), True), ((2, 3, 4, 5), (1, 3), False), ((2, 3, 4, 5), (0, 2), True),
        ((2, 3, 1, 5), (0, 2, 3), False), ((3, 4, 5), (1,), False), ((257, 67), (0,), False), ((3, 4099), (1,), False),
        (LARGE, (0,), False), (LARGE, (1,), False), (LARGE, (0, 1), False), ((40, 8, 31, 31), (0, 2, 3), False),
    )  # fmt: skip

    def samples(rng: np.random.Generator) -> list[Sample]:
        samples = []
        for shape, axes, keepdims in cases:
            x = draw(rng, shape, -1.0, 3.0)
            if distinct:
                order = rng.permutation(x.size).reshape(shape)
                x = np.asarray(order / x.size * 4 - 2, np.float32)
            samples.append(Sample((x,), {"axes": axes, "keepdims": keepdims}))
        return samples

    return samples


def _extreme_samples(rng: np.random.Generator) -> list[Sample]:
    edges = np.array(
        [[1, np.inf, 3], [-np.inf, 2, 1], [np.nan, 1, 2], [1, 2, np.nan], [-np.inf, -np.inf, -np.inf]], np.float32
    )
    return [*_reduced(distinct=True)(rng), Sample((edges,), {"axes": (1,)}), Sample((edges,), {"axes": (0,)})]


def _bad(name: str) -> list:
    return [
        bad(f"{name}: axes [2] are not usable: x f32[2,3]; need some of 0..1 in order", (2, 3), axes=(2,)),
        bad(f"{name}: axes [] are not usable: x f32[2,3]; need some of 0..1 in order", (2, 3), axes=()),
        bad(f"{name}: dtype i32 is not taken: x i32[3]; need f32", ("i32", (3,)), axes=(0,)),
    ]


_EMPTY = "{}: nothing to reduce: x f32[0]; need extents >= 1"
AXES = "axes:ints keepdims:bool=False"

_sum: OpSpec = op(
    "sum", inputs="x", attrs=AXES, doc="y = sum over the axes", dtypes="f32", shape=_reduce_shape(filled=False),
    vjp=lambda g, x, axes: [broadcast_to(_keep(g, x, axes), x.shape)],
    reference=lambda x, axes, keepdims: np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype),
    cost=lambda x: (x.size, 4 * x.size), samples=_reduced(), bad_samples=_bad("sum"),
)  # fmt: skip
_mean: OpSpec = op(
    "mean", inputs="x", attrs=AXES, doc="y = mean over the axes", dtypes="f32", shape=_reduce_shape(filled=True),
    vjp=lambda g, x, axes: [
        broadcast_to(_keep(scale(g, factor=1 / product([x.shape[a] for a in axes])), x, axes), x.shape)
    ],
    reference=lambda x, axes, keepdims: np.mean(x, axis=axes, keepdims=keepdims, dtype=x.dtype),
    cost=lambda x: (x.size, 4 * x.size), samples=_reduced(),
    bad_samples=[*_bad("mean"), bad(_EMPTY.format("mean"), (0,), axes=(0,))],
)  # fmt: skip
_max: OpSpec = op(
    "max", inputs="x", attrs=AXES, doc="y = largest over the axes; equal ones share the gradient", dtypes="f32",
    shape=_reduce_shape(filled=True), vjp=lambda g, x, y, axes: [_share(g, x, y, axes)],
    reference=lambda x, axes, keepdims: np.max(x, axis=axes, keepdims=keepdims), cost=lambda x: (x.size, 4 * x.size),
    exact=True, samples=_extreme_samples, bad_samples=[*_bad("max"), bad(_EMPTY.format("max"), (0,), axes=(0,))],
)  # fmt: skip
_min: OpSpec = op(
    "min", inputs="x", attrs=AXES, doc="y = smallest over the axes; equal ones share the gradient", dtypes="f32",
    shape=_reduce_shape(filled=True), vjp=lambda g, x, y, axes: [_share(g, x, y, axes)],
    reference=lambda x, axes, keepdims: np.min(x, axis=axes, keepdims=keepdims), cost=lambda x: (x.size, 4 * x.size),
    exact=True, samples=_extreme_samples, bad_samples=[*_bad("min"), bad(_EMPTY.format("min"), (0,), axes=(0,))],
)  # fmt: skip


def _share(g: Value, x: Value, y: Value, axes: Shape) -> Value:
    """g for the element that was picked; ties share it."""
    hit = where(equal(x, _keep(y, x, axes)), 1.0, 0.0)
    return mul(hit, div(_keep(g, x, axes), _sum(hit, axes=axes, keepdims=True)))


def _argmax_shape(x: Spec, axis: int) -> Spec:
    need(0 <= axis < x.ndim, f"axis {axis} does not exist", f"an axis from 0 to {x.ndim - 1}")
    need(x.shape[axis] > 0, "nothing to choose from", "an extent >= 1")
    return Spec((*x.shape[:axis], *x.shape[axis + 1 :]), i32)


_EDGES = np.array([[1, np.nan, 3], [np.inf, 2, np.inf], [np.nan, np.nan, 1], [-np.inf, 2, 5]], np.float32)
_argmax: OpSpec = op(
    "argmax", inputs="x", attrs="axis:int",
    doc="y = position of the first largest along the axis (i32); NaN is largest", dtypes="f32", shape=_argmax_shape,
    no_gradient="a position has no slope", reference=lambda x, axis: np.argmax(x, axis=axis).astype(np.int32),
    cost=lambda x: (x.size, 4 * x.size), exact=True,
    samples=lambda rng: [
        *[
            Sample((rng.integers(-5, 6, s).astype(np.float32),), {"axis": a})  # ties: the first one counts
            for s,
            a in (((1,), 0), ((7,), 0), ((33, 10), 1), ((10, 33), 0), ((3, 4, 5), 1), ((5, 67), 1), ((500, 10), 1))
        ],
        Sample((draw(rng, LARGE),), {"axis": 1}),
        Sample((_EDGES,), {"axis": 1}),
    ],
    bad_samples=[bad("argmax: axis 2 does not exist: x f32[2,3]; need an axis from 0 to 1", (2, 3), axis=2)],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------

Axes = int | Sequence[int] | None


def axes_of(name: str, x: Value, axes: Axes) -> Shape:
    """Axes of x in order, all of them for None; ShapeError for one that does not exist."""
    try:
        return normal_axes(axes, x.ndim)
    except Reject as reject:
        raise shape_error(name, x, reject.seen, reject.need) from None


def _reduce(reduction: OpSpec, x: Any, axes: Axes, keepdims: bool) -> Value:
    x = as_value(x)
    ordered = axes_of(reduction.name, x, axes)
    return reduction(x, axes=ordered, keepdims=keepdims) if ordered else x


def sum(x: Any, axes: Axes = None, keepdims: bool = False) -> Value:
    """Sum over the axes (all when none is given)."""
    return _reduce(_sum, x, axes, keepdims)


def mean(x: Any, axes: Axes = None, keepdims: bool = False) -> Value:
    """Mean over the axes (all when none is given)."""
    return _reduce(_mean, x, axes, keepdims)


def max(x: Any, axes: Axes = None, keepdims: bool = False) -> Value:
    """Largest over the axes (all when none is given)."""
    return _reduce(_max, x, axes, keepdims)


def min(x: Any, axes: Axes = None, keepdims: bool = False) -> Value:
    """Smallest over the axes (all when none is given)."""
    return _reduce(_min, x, axes, keepdims)


def argmax(x: Any, axis: int = -1) -> Value:
    """Position of the first largest element along the axis, as i32."""
    x = as_value(x)
    return _argmax(x, axis=axis_of("argmax", x, axis, x.ndim))


define_operators(sum=sum, mean=mean)
