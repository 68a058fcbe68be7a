"""Further elementwise functions: rounding to whole numbers, remainders, erf, log1p, and compositions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Value, define_operators
from .common import LARGE, PAIRS, Sample, draw, unary, unbroadcast
from .elementwise import (
    EDGES,
    INF,
    NAN,
    binary_op,
    cos,
    div,
    exp,
    log,
    mul,
    neg,
    np_erf,
    scale,
    sin,
    sqrt,
    sub,
    unary_op,
)

FLAT = "its slope is 0"
HALVES = (0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388607.5, -8388607.5, 16777216.0)


def _rounded(name: str, doc: str, reference: Any, avoid: tuple[float, ...]) -> OpSpec:
    return unary_op(
        name, doc, vjp=lambda: [None], no_gradient_to={"x": FLAT}, reference=reference, exact=True,
        samples=unary(-4, 4, avoid=avoid, special=(*EDGES, *HALVES)),
    )  # fmt: skip


_WHOLE = tuple(float(i) for i in range(-4, 5))
floor = _rounded("floor", "y = the largest whole number <= x; its slope is 0", lambda x: np.floor(x), _WHOLE)
ceil = _rounded("ceil", "y = the smallest whole number >= x; its slope is 0", lambda x: np.ceil(x), _WHOLE)
trunc = _rounded("trunc", "y = x without its fraction; its slope is 0", lambda x: np.trunc(x), _WHOLE)
round = _rounded(
    "round", "y = the nearest whole number, the even one for halves; its slope is 0", lambda x: np.rint(x),
    tuple(i + 0.5 for i in range(-5, 5)),
)  # fmt: skip
erf: OpSpec = unary_op(
    "erf", "y = 2/sqrt(pi) * integral of e^(-t^2) from 0 to x",
    vjp=lambda g, x: [mul(g, scale(exp(neg(mul(x, x))), factor=2 / math.sqrt(math.pi)))], reference=np_erf,
    samples=unary(-4, 4, special=(0.0, -0.0, 1e-6, 1.0, -1.0, 10.0, -100.0, INF, -INF, NAN)),
)  # fmt: skip
exp2: OpSpec = unary_op(
    "exp2", "y = 2^x, exact at whole numbers", vjp=lambda g, y: [mul(g, scale(y, factor=math.log(2)))],
    reference=lambda x: np.exp2(x),
    samples=unary(
        -5, 5, special=(0.0, -0.0, 1e-40, 0.5, -0.5, 10.0, 127.0, 128.0, -126.0, -130.5, -149.0, -151.0, INF, -INF, NAN)
    ),
)  # fmt: skip
log1p: OpSpec = unary_op(
    "log1p", "y = log(1 + x), exact near 0", vjp=lambda g, x: [div(g, scale(x, factor=1.0, bias=1.0))],
    reference=lambda x: np.log1p(x),
    samples=unary(-0.9, 4.0, special=(0.0, 1e-6, -1e-6, 1e-30, 0.5, 1e10, 3e38, INF, -1.0, -2.0, NAN)),
)  # fmt: skip


def _remainders(rng: np.random.Generator) -> list[Sample]:
    """x = (a whole number + a fraction of 0.05 to 0.95) * y: a small change of either changes no quotient."""
    samples = []
    for first, second in (*PAIRS, (LARGE, LARGE), (LARGE, LARGE[1:])):
        y = draw(rng, second, -4, 4, (0,), 0.3)
        if len(np.broadcast_shapes(first, second)) == len(first) and np.broadcast_shapes(first, second) == first:
            x = (rng.integers(-8, 8, first) + rng.uniform(0.05, 0.95, first)) * y
        else:  # x is smaller than each y
            x = draw(rng, first, -0.25, 0.25, (0,), 0.05)
        samples.append(Sample((np.asarray(x, np.float32), y)))
    edges = (
        (7.0, 2.0), (-7.0, 2.0), (7.0, -2.0), (-7.0, -2.0), (6.0, 3.0), (-6.0, 3.0), (1e30, 7.0), (-1e30, 7.0),
        (3e38, 1e-30), (1.0, 1e-40), (5e-41, 2e-41), (1e8, 3.0), (1.0, INF), (-1.0, INF), (1.0, 0.0), (INF, 1.0),
        (NAN, 1.0), (1.0, NAN), (0.0, -3.0), (-0.0, 3.0), (-1e-10, 1.0),
    )  # fmt: skip
    x, y = np.array(edges, np.float32).T
    return [*samples, Sample((x.copy(), y.copy()))]


remainder: OpSpec = binary_op(
    "remainder", "z = x - floor(x / y) * y, exact, with the sign of y (NumPy's mod); d/dy = -floor(x / y)",
    vjp=lambda g, x, y, z: [unbroadcast(g, x), unbroadcast(neg(mul(g, round(div(sub(x, z), y)))), y)],
    reference=lambda x, y: np.mod(x, y), exact=True, samples=_remainders,
)  # fmt: skip
define_operators(remainder=remainder)


def reciprocal(x: Any) -> Value:
    """1 / x, of any shape. f32."""
    return div(1.0, x)


def rsqrt(x: Any) -> Value:
    """1 / sqrt(x), of any shape. f32."""
    return div(1.0, sqrt(as_value(x)))


def log2(x: Any) -> Value:
    """Logarithm of x to base 2, of any shape. f32."""
    return scale(log(as_value(x)), factor=1 / math.log(2))


def tan(x: Any) -> Value:
    """Tangent of x, of any shape: sin(x) / cos(x). f32."""
    x = as_value(x)
    return div(sin(x), cos(x))
