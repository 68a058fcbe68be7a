"""softmax and log_softmax along the last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Reject, Sample, Spec, bad, broadcast_shape, draw, need, unbroadcast
from .elementwise import add, div, exp, log, mul, scale, sub
from .layout import axis_of, permute, shape_error
from .norm import ROWS, rows_shape
from .reduce import max as max_over
from .reduce import sum as sum_over


def _softmax_shape(x: Spec, mask: Spec | None) -> Spec:
    need(x.ndim >= 1 and x.shape[-1] > 0, "no last axis to work along", "a last axis with an extent >= 1")
    if mask is not None:
        try:
            fits = broadcast_shape(x, mask) == x.shape
        except Reject:
            fits = False
        need(fits, "mask does not broadcast to x", f"a mask that broadcasts to {list(x.shape)}")
    return Spec(x.shape)


def _softmax(x: Value, mask: Value | None, factor: float) -> Value:
    z = scale(x, factor=factor)
    if mask is not None:
        z = add(z, mask)
    e = exp(sub(z, max_over(z, -1, keepdims=True)))
    return div(e, sum_over(e, -1, keepdims=True))


def _log_softmax(x: Value) -> Value:
    z = sub(x, max_over(x, -1, keepdims=True))
    return sub(z, log(sum_over(exp(z), -1, keepdims=True)))


def _along(g: Value, y: Value) -> Value:
    """sum(g * y) along the last axis, kept."""
    return sum_over(mul(g, y), -1, keepdims=True)


def _softmax_back(g: Value, y: Value, factor: float) -> Value:
    return scale(mul(y, sub(g, _along(g, y))), factor=factor)


def _softmax_back_vjp(g_dx: Value, g: Value, y: Value, factor: float) -> list[Value]:
    # dx = factor * y * (g - sum(g y)):  d/dy = factor * (u * (g - sum(g y)) - g * sum(u y)), u = g_dx
    dy = sub(mul(g_dx, sub(g, _along(g, y))), mul(g, _along(g_dx, y)))
    return [softmax_back(g_dx, y, scale=factor), scale(dy, factor=factor)]


def _softmax_samples(rng: np.random.Generator) -> list[Sample]:
    samples = [Sample((draw(rng, s, -4, 4), None), {"scale": 1.0}) for s in ROWS]
    samples += [
        Sample((draw(rng, (2, 3, 5, 5)), draw(rng, m)), {"scale": 0.37}) for m in ((5, 5), (2, 1, 1, 5), (2, 3, 5, 1))
    ]
    causal = np.where(np.tri(9, dtype=bool), 0, -np.inf).astype(np.float32)
    samples.append(Sample((draw(rng, (2, 3, 9, 9)), causal), {"scale": 0.5}))
    samples.append(
        Sample((np.array([[1e4, 1e4 - 1, -1e4], [-3e38, 0, 1], [-np.inf, 0, 1]], np.float32), None), {"scale": 1.0})
    )
    return samples


def _probabilities(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _back_samples(
    of: Callable[[np.ndarray], np.ndarray], **attrs: Any
) -> Callable[[np.random.Generator], list[Sample]]:
    return lambda rng: [
        Sample((draw(rng, s), of(draw(rng, s, -4, 4).astype(np.float64)).astype(np.float32)), dict(attrs)) for s in ROWS
    ]


_softmax_op: OpSpec = op(
    "softmax", inputs="x mask?", attrs="scale:float=1", doc="y = softmax(x * scale + mask) along the last axis",
    dtypes="f32", shape=_softmax_shape, dense="x", may_overwrite="x",
    vjp=lambda g, y, mask, scale: [
        softmax_back(g, y, scale=scale),
        None if mask is None else unbroadcast(softmax_back(g, y, scale=1.0), mask),
    ],
    composition=lambda x, mask, scale: _softmax(x, mask, scale), samples=_softmax_samples,
    bad_samples=[
        bad("softmax: no last axis to work along: x f32[]; need a last axis with an extent >= 1", ()),
        bad(
            "softmax: mask does not broadcast to x: x f32[2,3], mask f32[4]; need a mask that broadcasts to [2, 3]",
            (2, 3), (4,),
        ),
        bad(
            "softmax: mask does not broadcast to x: x f32[3], mask f32[2,3]; need a mask that broadcasts to [3]",
            (3,), (2, 3),
        ),
    ],
)  # fmt: skip
softmax_back: OpSpec = op(
    "softmax_back", inputs="g y", outputs="dx", attrs="scale:float=1",
    doc="dx = scale * y * (g - sum(g * y)); y = softmax(x * scale)", dtypes="f32", shape=rows_shape("g", "y"),
    dense="g y", may_overwrite="g y", composition=lambda g, y, scale: _softmax_back(g, y, scale),
    vjp=lambda g_dx, g, y, scale: _softmax_back_vjp(g_dx, g, y, scale),
    samples=_back_samples(_probabilities, scale=0.7),
    bad_samples=[bad("softmax_back: shapes differ: g f32[2,3], y f32[3,2]; need g and y of one shape", (2, 3), (3, 2))],
)  # fmt: skip
_log_softmax_op: OpSpec = op(
    "log_softmax", inputs="x", doc="y = x - log(sum(exp(x))) along the last axis", dtypes="f32", shape=rows_shape("x"),
    dense="x", may_overwrite="x", vjp=lambda g, y: [log_softmax_back(g, y)], composition=_log_softmax,
    samples=lambda rng: [Sample((draw(rng, s, -4, 4),)) for s in ROWS]
    + [Sample((np.array([[1e4, 1e4 - 1, -1e4], [-3e38, 0, 1], [-np.inf, 0, 1]], np.float32),))],
    bad_samples=[bad("log_softmax: no last axis to work along: x f32[]; need a last axis with an extent >= 1", ())],
)  # fmt: skip
log_softmax_back: OpSpec = op(
    "log_softmax_back", inputs="g y", outputs="dx", doc="dx = g - exp(y) * sum(g); y = log_softmax(x)", dtypes="f32",
    shape=rows_shape("g", "y"), dense="g y", may_overwrite="g y",
    composition=lambda g, y: sub(g, mul(exp(y), sum_over(g, -1, keepdims=True))),
    vjp=lambda g_dx, g, y: [
        sub(g_dx, _along(g_dx, exp(y))),
        scale(mul(mul(g_dx, exp(y)), sum_over(g, -1, keepdims=True)), factor=-1.0),
    ],
    samples=_back_samples(lambda x: np.log(_probabilities(x))),
    bad_samples=[
        bad(
            "log_softmax_back: shapes differ: g f32[2,3], y f32[3,2]; need g and y of one shape",
            (2, 3), (3, 2),
        ),
    ],
)  # fmt: skip


def _swapped(function: Callable[[Value], Value], name: str, x: Value, axis: int) -> Value:
    """function along `axis`, which changes places with the last."""
    at = axis_of(name, x, axis, x.ndim) if x.ndim else -1
    if at in (-1, x.ndim - 1):
        return function(x)
    order = list(range(x.ndim))
    order[at], order[-1] = order[-1], order[at]
    return permute(function(permute(x, order)), order)


def softmax(x: Any, axis: int = -1, mask: Any = None, scale: float = 1.0) -> Value:
    """softmax(x * scale + mask) along an axis; the mask (such as 0 or -inf) broadcasts to x with that axis last."""
    if isinstance(axis, Value):
        raise shape_error("softmax", as_value(x), "axis is a value", "a whole number; use mask=value for a mask")
    return _swapped(lambda v: _softmax_op(v, mask, scale=scale), "softmax", as_value(x), axis)


def log_softmax(x: Any, axis: int = -1) -> Value:
    """Logarithm of softmax along an axis."""
    return _swapped(_log_softmax_op, "log_softmax", as_value(x), axis)
