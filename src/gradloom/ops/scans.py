"""Running sums and products along an axis, and the linear recurrence that is the gradient of a running product."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import f32
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Sample, Spec, bad, draw, need, need_axis
from .elementwise import cast, mul
from .layout import axis_of, slice_op
from .padding import pad

SCANNED: tuple[tuple[Shape, int], ...] = (
    ((1,), 0), ((7,), 0), ((5, 33), 1), ((5, 33), 0), ((2, 3, 4, 5), 1), ((2, 3, 1, 5), 2), ((3, 70, 65), 1),
    ((3, 4099), 1), ((257, 67), 0), ((401, 351), 1), ((401, 351), 0),
)  # fmt: skip


def _cumsum_shape(x: Spec, axis: int) -> Spec:
    need_axis(x, axis)
    return Spec(x.shape)


def _cumsum_reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    if not reverse:
        return np.cumsum(x, axis, dtype=x.dtype)
    return np.flip(np.cumsum(np.flip(x, axis), axis, dtype=x.dtype), axis)


_cumsum: OpSpec = op(
    "cumsum", inputs="x", attrs="axis:int reverse:bool=False",
    doc="y[i] = x[0] + ... + x[i] along the axis; reverse: x[i] + ... + x[n - 1]", dtypes="f32", shape=_cumsum_shape,
    may_overwrite="x", vjp=lambda g, axis, reverse: [_cumsum(g, axis=axis, reverse=not reverse)],
    reference=_cumsum_reference, cost=lambda x: (x.size, 8 * x.size),
    samples=lambda rng: [
        Sample((draw(rng, shape, -1.0, 3.0),), {"axis": axis, "reverse": i % 3 == 2})
        for i, (shape, axis) in enumerate(SCANNED)
    ] + [Sample((np.array([[1, np.inf, 2, -np.inf, 3], [1, 2, np.nan, 4, -0.0]], np.float32),), {"axis": 1})],
    bad_samples=[bad("cumsum: axis 2 does not exist: x f32[2,3]; need an axis from 0 to 1", (2, 3), axis=2)],
)  # fmt: skip


def _recurrence_shape(a: Spec, b: Spec, axis: int) -> Spec:
    need(a.shape == b.shape, "shapes differ", "a and b of one shape")
    need_axis(a, axis)
    return Spec(a.shape)


def _recurrence_reference(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    y = np.array(b)
    factors, sums = (np.moveaxis(np.flip(v, axis) if reverse else v, axis, 0) for v in (a, y))
    for i in range(1, len(sums)):
        sums[i] += factors[i] * sums[i - 1]
    return y


def _recurrence_vjp(g: Value, a: Value, y: Value, axis: int, reverse: bool) -> list[Value]:
    """With u[i] = g[i] + a[i + 1] u[i + 1]: db = u, da[i] = u[i] y[i - 1]."""
    by = -1 if reverse else 1
    u = recurrence(_shifted(a, axis, -by), g, axis=axis, reverse=not reverse)
    return [mul(u, _shifted(y, axis, by)), u]


def _shifted(x: Value, axis: int, by: int) -> Value:
    """x[i - by] at i, 0 where there is none. by: 1 or -1."""
    n = x.shape[axis]
    if n == 0:
        return x
    first, last = (0, n - 1) if by > 0 else (1, n)
    kept = slice_op(
        x,
        starts=[first if i == axis else 0 for i in range(x.ndim)],
        stops=[last if i == axis else e for i, e in enumerate(x.shape)],
        steps=[1] * x.ndim,
    )
    side = (1, 0) if by > 0 else (0, 1)
    return pad(kept, [side if i == axis else (0, 0) for i in range(x.ndim)])


def _recurrence_samples(rng: np.random.Generator) -> list[Sample]:
    samples = [
        Sample((draw(rng, shape, -1.0, 1.0), draw(rng, shape)), {"axis": axis, "reverse": i % 3 == 2})
        for i, (shape, axis) in enumerate(SCANNED)
    ]
    edges = np.array([[np.inf, 2, 0, 3, -1], [1, np.nan, 0, 1, 2], [0, 1, 1, np.inf, 0]], np.float32)
    return [*samples, Sample((edges, np.ones_like(edges)), {"axis": 1})]


recurrence: OpSpec = op(
    "recurrence", inputs="a b", attrs="axis:int reverse:bool=False",
    doc="y[0] = b[0], y[i] = a[i] y[i - 1] + b[i] along the axis; reverse: y[n - 1] = b[n - 1], y[i] = a[i] y[i + 1] + "
    "b[i]",
    dtypes="f32", shape=_recurrence_shape, may_overwrite="a b", vjp=_recurrence_vjp, reference=_recurrence_reference,
    cost=lambda a: (2 * a.size, 12 * a.size), samples=_recurrence_samples,
    bad_samples=[
        bad("recurrence: shapes differ: a f32[2,3], b f32[3]; need a and b of one shape", (2, 3), (3,), axis=0),
        bad("recurrence: axis 1 does not exist: a f32[3], b f32[3]; need an axis from 0 to 0", (3,), (3,), axis=1),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def cumsum(x: Any, axis: int = -1) -> Value:
    """Running sum along the axis: y[i] = x[0] + ... + x[i], f32 of x's shape; other dtypes are taken as f32.

    The CPU sums in f64 and rounds each y[i] to f32. Raises ShapeError for an axis that does not exist.
    """
    x = cast(as_value(x), f32)
    return _cumsum(x, axis=axis_of("cumsum", x, axis, x.ndim))


def cumprod(x: Any, axis: int = -1) -> Value:
    """Running product along the axis: y[i] = x[0] * ... * x[i], f32 of x's shape; other dtypes are taken as f32.

    The gradient is exact also where elements are 0. Raises ShapeError for an axis that does not exist.
    """
    x = cast(as_value(x), f32)
    at = axis_of("cumprod", x, axis, x.ndim)
    if not x.size:
        return x
    ones = slice_op(x, starts=[0] * x.ndim, stops=[1 if i == at else e for i, e in enumerate(x.shape)],
                    steps=[1] * x.ndim)  # fmt: skip
    first = pad(ones, [(0, x.shape[at] - 1 if i == at else 0) for i in range(x.ndim)])
    return recurrence(x, first, axis=at)
