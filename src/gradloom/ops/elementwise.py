"""Elementwise ops: one element in, one element out, and their derivatives.

x_back(g, ...) is g times the derivative of x; those that can take the output y instead of x do, so that x may go.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.arrays import check_whole
from ..base.dtypes import QUANTISED, DType, bf16, f16, f32, f64, i8, i32, i64, u8
from ..base.dtypes import dtype as as_dtype
from ..base.errors import DTypeError
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import REGISTRY, OpSpec
from ..graph.rounding import to_bf16
from ..graph.value import Value
from .common import (
    LARGE,
    PAIRS,
    Quantised,
    Reject,
    Sample,
    Spec,
    bad,
    broadcast_of,
    broadcast_shape,
    draw,
    need,
    pairs,
    same_as,
    unary,
    unbroadcast,
)

INF, NAN = math.inf, math.nan
_RHO = 1 / math.sqrt(2 * math.pi)  # the normal density at 0
EDGES = (0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 3e38, -3e38, INF, -INF, NAN)


def unary_op(name: str, doc: str, **fields: Any) -> OpSpec:
    """Declare y = f(x)."""
    common: dict[str, Any] = {"shape": same_as("x"), "dtypes": "f32", "elementwise": True, "may_overwrite": "x"}
    return op(name, inputs="x", doc=doc, **(common | fields))


def _slope(name: str, inputs: str, doc: str, **fields: Any) -> OpSpec:
    """Declare dx = g f'(x), of the inputs g and x, or g and y = f(x)."""
    g, other = inputs.split()
    refused = bad(
        f"{name}: shapes differ: {g} f32[2,3], {other} f32[3,2]; need {g} and {other} of one shape", (2, 3), (3, 2)
    )
    return op(
        name, inputs=inputs, outputs="dx", doc=doc, dtypes="f32", shape=same_as(g, other), may_overwrite=inputs,
        elementwise=True, bad_samples=[refused], **fields,
    )  # fmt: skip


def binary_op(name: str, doc: str, **fields: Any) -> OpSpec:
    """Declare z = f(x, y), which broadcast together."""
    common: dict[str, Any] = {
        "shape": broadcast_of("x", "y"),
        "dtypes": "f32",
        "elementwise": True,
        "may_overwrite": "x y",
    }
    return op(name, inputs="x y", outputs="z", doc=doc, bad_samples=_unbroadcastable(name), **(common | fields))


def _unbroadcastable(name: str) -> list:
    return [
        bad(
            f"{name}: shapes do not broadcast: x f32[2,3], y f32[4]; need extents that are equal or 1, "
            "counted from the last axis",
            (2, 3), (4,),
        )
    ]  # fmt: skip


# ---- NumPy pieces ----------------------------------------------------------------------------------------

_erf_scalar = np.frompyfunc(math.erf, 1, 1)


def np_erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf_scalar(np.asarray(x, np.float64)), np.float64).astype(x.dtype)


def np_sigmoid(x: np.ndarray) -> np.ndarray:
    """Exact for both signs: never exp of a large number."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def np_phi(x: np.ndarray) -> np.ndarray:
    """The normal distribution's density."""
    return np.exp(-x * x / 2) * _RHO


def np_gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# ---- one input -------------------------------------------------------------------------------------------

neg: OpSpec = unary_op(
    "neg", "y = -x", vjp=lambda g: [neg(g)], reference=lambda x: -x, exact=True, samples=unary(special=EDGES),
)  # fmt: skip
abs: OpSpec = unary_op(
    "abs", "y = |x|", vjp=lambda g, x: [mul(g, sgn(x))], reference=lambda x: np.abs(x), exact=True,
    samples=unary(avoid=(0,), special=EDGES),
)  # fmt: skip
sgn: OpSpec = unary_op(
    "sgn", "y = -1, 0 or 1: the sign of x; its slope is 0", vjp=lambda: [None],
    no_gradient_to={"x": "its slope is 0"}, reference=lambda x: np.sign(x), exact=True,
    samples=unary(avoid=(0,), special=EDGES),
)  # fmt: skip
step: OpSpec = unary_op(
    "step", "y = 1 where x > 0, else 0; its slope is 0", vjp=lambda: [None], no_gradient_to={"x": "its slope is 0"},
    reference=lambda x: (x > 0).astype(x.dtype), exact=True, samples=unary(avoid=(0,), special=EDGES[:-1]),
)  # fmt: skip
sqr: OpSpec = unary_op(
    "sqr", "y = x * x", vjp=lambda g, x: [mul(g, scale(x, factor=2.0))], reference=lambda x: x * x, exact=True,
    samples=unary(special=(0.0, -0.0, 1e19, -1e19, INF, -INF, NAN)),
)  # fmt: skip
sqrt: OpSpec = unary_op(
    "sqrt", "y = square root of x", vjp=lambda g, y: [div(g, scale(y, factor=2.0))], reference=lambda x: np.sqrt(x),
    exact=True, samples=unary(0.05, 4.0, special=(0.0, -0.0, 1e-30, 3e38, INF, -1.0, NAN)),
)  # fmt: skip
exp: OpSpec = unary_op(
    "exp", "y = e^x", vjp=lambda g, y: [mul(g, y)], reference=lambda x: np.exp(x),
    samples=unary(-5, 5, special=(0.0, -0.0, 1e-40, 88.0, -87.0, 100.0, -110.0, INF, -INF, NAN)),
)  # fmt: skip
expm1: OpSpec = unary_op(
    "expm1", "y = e^x - 1, exact near 0", vjp=lambda g, y: [mul(g, scale(y, factor=1.0, bias=1.0))],
    reference=lambda x: np.expm1(x),
    samples=unary(-5, 5, special=(0.0, 1e-6, -1e-6, 1e-3, 88.0, -87.0, 100.0, -110.0, INF, -INF, NAN)),
)  # fmt: skip
log: OpSpec = unary_op(
    "log", "y = natural logarithm of x", vjp=lambda g, x: [div(g, x)], reference=lambda x: np.log(x),
    samples=unary(0.05, 4.0, special=(0.0, 1.0, 1e-30, 3e38, INF, -1.0, NAN)),
)  # fmt: skip
sin: OpSpec = unary_op(
    "sin", "y = sine of x", vjp=lambda g, x: [mul(g, cos(x))], reference=lambda x: np.sin(x),
    samples=unary(-10, 10, special=(0.0, 1e-6, 1.5707964, 3.1415927, 100.5, -1000.25, INF, NAN)),
)  # fmt: skip
cos: OpSpec = unary_op(
    "cos", "y = cosine of x", vjp=lambda g, x: [neg(mul(g, sin(x)))], reference=lambda x: np.cos(x),
    samples=unary(-10, 10, special=(0.0, 1e-6, 1.5707964, 3.1415927, 100.5, -1000.25, INF, NAN)),
)  # fmt: skip
relu: OpSpec = unary_op(
    "relu", "y = max(x, 0)", vjp=lambda g, y: [relu_back(g, y)], reference=lambda x: np.maximum(x, x.dtype.type(0)),
    exact=True, samples=unary(avoid=(0,), special=EDGES),
)  # fmt: skip
leaky_relu: OpSpec = unary_op(
    "leaky_relu", "y = x where x > 0, else slope * x", attrs="slope:float=0.01",
    vjp=lambda g, x, slope: [leaky_relu_back(g, x, slope=slope)],
    reference=lambda x, slope: np.where(x > 0, x, slope * x), exact=True,
    samples=unary(avoid=(0,), special=EDGES, slope=0.1),
)  # fmt: skip
elu: OpSpec = unary_op(
    "elu", "y = x where x > 0, else alpha * (e^x - 1)", attrs="alpha:float=1",
    vjp=lambda g, x, alpha: [elu_back(g, x, alpha=alpha)],
    reference=lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    samples=unary(-4, 4, avoid=(0,), special=EDGES, alpha=1.5),
)  # fmt: skip
sigmoid: OpSpec = unary_op(
    "sigmoid", "y = 1 / (1 + e^-x)", vjp=lambda g, y: [sigmoid_back(g, y)], reference=np_sigmoid,
    samples=unary(-6, 6, special=(0.0, 20.0, -20.0, 80.0, -80.0, 200.0, -200.0, INF, -INF, NAN)),
)  # fmt: skip
tanh: OpSpec = unary_op(
    "tanh", "y = hyperbolic tangent of x", vjp=lambda g, y: [tanh_back(g, y)], reference=lambda x: np.tanh(x),
    samples=unary(-4, 4, special=(0.0, 1e-6, -1e-3, 20.0, -20.0, 200.0, INF, -INF, NAN)),
)  # fmt: skip
gelu: OpSpec = unary_op(
    "gelu", "y = x * P(normal < x), by erf", vjp=lambda g, x: [gelu_back(g, x)],
    reference=lambda x: 0.5 * x * (1 + np_erf(x / math.sqrt(2))),
    samples=unary(-4, 4, special=(0.0, 1e-6, 10.0, 100.0, -100.0, 1e30, NAN)),
)  # fmt: skip
gelu_tanh: OpSpec = unary_op(
    "gelu_tanh", "y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))", vjp=lambda g, x: [gelu_tanh_back(g, x)],
    reference=np_gelu_tanh, samples=unary(-4, 4, special=(0.0, 1e-6, 10.0, 100.0, -100.0, 1e30, -1e30, NAN)),
)  # fmt: skip
silu: OpSpec = unary_op(
    "silu", "y = x * sigmoid(x)", vjp=lambda g, x: [silu_back(g, x)], reference=lambda x: x * np_sigmoid(x),
    samples=unary(-6, 6, special=(0.0, 1e-6, 30.0, -30.0, 100.0, -100.0, 1e30, NAN)),
)  # fmt: skip
softplus: OpSpec = unary_op(
    "softplus", "y = log(1 + e^x)", vjp=lambda g, x: [mul(g, sigmoid(x))],
    reference=lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    samples=unary(-6, 6, special=(0.0, 1e-6, 30.0, -30.0, 80.0, -80.0, 1e30, INF, NAN)),
)  # fmt: skip


def _clamp_shape(x: Spec, min: float, max: float) -> Spec:
    need(min <= max, f"min {min} lies above max {max}", "min <= max")
    return Spec(x.shape)


clamp: OpSpec = unary_op(
    "clamp", "y = x held between min and max", attrs="min:float=-inf max:float=inf", shape=_clamp_shape,
    vjp=lambda g, x, min, max: [clamp_back(g, x, min=min, max=max)],
    reference=lambda x, min, max: np.minimum(np.maximum(x, x.dtype.type(min)), x.dtype.type(max)), exact=True,
    samples=unary(avoid=(-1, 0.5), special=EDGES, min=-1.0, max=0.5),
    bad_samples=[bad("clamp: min 2.0 lies above max 1.0: x f32[3]; need min <= max", (3,), min=2.0, max=1.0)],
)  # fmt: skip
scale: OpSpec = unary_op(
    "scale", "y = x * factor + bias", attrs="factor:float bias:float=0",
    vjp=lambda g, factor: [scale(g, factor=factor)], reference=lambda x, factor, bias: x * factor + bias,
    samples=lambda rng: [*unary(factor=-1.75, bias=0.5)(rng), *unary(factor=3.0)(rng)[:3]],
    bad_samples=[bad("scale: factor is missing: x f32[3]; need factor of kind float", (3,))],
)  # fmt: skip


# ---- derivatives: g times the slope ----------------------------------------------------------------------

SIGN = "only its sign counts"

relu_back: OpSpec = _slope(
    "relu_back", "g y", "dx = g where y > 0, else 0; y = relu(x)", vjp=lambda g_dx, y: [relu_back(g_dx, y), None],
    no_gradient_to={"y": SIGN}, rounds="y", reference=lambda g, y: np.where(y > 0, g, 0), exact=True,
    samples=unary(avoid=(0,), count=2, special=EDGES[:-1]),
)  # fmt: skip
leaky_relu_back: OpSpec = _slope(
    "leaky_relu_back", "g x", "dx = g where x > 0, else slope * g", attrs="slope:float=0.01",
    vjp=lambda g_dx, x, slope: [leaky_relu_back(g_dx, x, slope=slope), None], no_gradient_to={"x": SIGN},
    reference=lambda g, x, slope: np.where(x > 0, g, slope * g), exact=True,
    samples=unary(avoid=(0,), count=2, slope=0.1),
)  # fmt: skip
elu_back: OpSpec = _slope(
    "elu_back", "g x", "dx = g where x > 0, else g * alpha * e^x", attrs="alpha:float=1",
    composition=lambda g, x, alpha: where(greater(x, 0.0), g, mul(g, scale(exp(minimum(x, 0.0)), factor=alpha))),
    vjp=lambda g_dx, g, x, alpha: [
        elu_back(g_dx, x, alpha=alpha),
        mul(mul(g_dx, g), sub(elu_back(full_like(x, 1.0), x, alpha=alpha), step(x))),
    ],
    samples=unary(-4, 4, avoid=(0,), count=2, alpha=1.5, special=(1.0, -1.0, 100.0, -100.0)),
)  # fmt: skip
sigmoid_back: OpSpec = _slope(
    "sigmoid_back", "g y", "dx = g * y * (1 - y); y = sigmoid(x)",
    composition=lambda g, y: mul(g, mul(y, scale(y, factor=-1.0, bias=1.0))),
    vjp=lambda g_dx, g, y: [sigmoid_back(g_dx, y), mul(mul(g_dx, g), scale(y, factor=-2.0, bias=1.0))],
    samples=unary(0, 1, count=2),
)  # fmt: skip
tanh_back: OpSpec = _slope(
    "tanh_back", "g y", "dx = g * (1 - y^2); y = tanh(x)",
    composition=lambda g, y: mul(g, scale(sqr(y), factor=-1.0, bias=1.0)),
    vjp=lambda g_dx, g, y: [tanh_back(g_dx, y), mul(mul(g_dx, g), scale(y, factor=-2.0))],
    samples=unary(-1, 1, count=2),
)  # fmt: skip
gelu_back: OpSpec = _slope(
    "gelu_back", "g x", "dx = g * (P(normal < x) + x * density(x))",
    vjp=lambda g_dx, g, x: [  # gelu'' = density(x) * (2 - x^2)
        gelu_back(g_dx, x),
        mul(
            mul(g_dx, g),
            mul(exp(scale(sqr(x), factor=-0.5)), scale(sqr(x), factor=-_RHO, bias=2 * _RHO)),
        ),
    ],
    reference=lambda g, x: g * (0.5 * (1 + np_erf(x / math.sqrt(2))) + x * np_phi(x)),
    samples=unary(-4, 4, count=2, special=(0.0, 10.0, -10.0, 100.0, -100.0)),
)  # fmt: skip
gelu_tanh_back: OpSpec = _slope(
    "gelu_tanh_back", "g x", "dx = g * gelu_tanh'(x)", composition=lambda g, x: _gelu_tanh_back(g, x),
    samples=unary(-4, 4, count=2, special=(0.0, 10.0, -10.0, 100.0, -100.0, 1e30, -1e30)),
)  # fmt: skip
silu_back: OpSpec = _slope(
    "silu_back", "g x", "dx = g * s * (1 + x * (1 - s)); s = sigmoid(x)", composition=lambda g, x: _silu_back(g, x),
    samples=unary(-6, 6, count=2, special=(0.0, 30.0, -30.0, 100.0, -100.0)),
)  # fmt: skip
clamp_back: OpSpec = _slope(
    "clamp_back", "g x", "dx = g where min <= x <= max, else 0", attrs="min:float=-inf max:float=inf",
    vjp=lambda g_dx, x, min, max: [clamp_back(g_dx, x, min=min, max=max), None],
    no_gradient_to={"x": "only whether it is between min and max counts"},
    reference=lambda g, x, min, max: np.where((x >= min) & (x <= max), g, 0), exact=True,
    samples=unary(avoid=(-1, 0.5), count=2, min=-1.0, max=0.5),
)  # fmt: skip


def _gelu_tanh_back(g: Value, x: Value) -> Value:
    c = math.sqrt(2 / math.pi)
    t = tanh(mul(scale(x, factor=c), scale(sqr(x), factor=0.044715, bias=1.0)))
    near = clamp(x, min=-1e6, max=1e6)  # beyond it tanh' is 0, and x^3 may pass f32
    inner = scale(sqr(near), factor=3 * 0.044715 * c, bias=c)
    slope = add(scale(t, factor=0.5, bias=0.5), mul(scale(near, factor=0.5), tanh_back(inner, t)))
    return mul(g, slope)


def _silu_back(g: Value, x: Value) -> Value:
    s = sigmoid(x)
    return mul(mul(g, s), scale(mul(x, scale(s, factor=-1.0, bias=1.0)), factor=1.0, bias=1.0))


# ---- two inputs, broadcasting ----------------------------------------------------------------------------

add: OpSpec = binary_op(
    "add", "z = x + y", vjp=lambda g, x, y: [unbroadcast(g, x), unbroadcast(g, y)], reference=lambda x, y: x + y,
    exact=True, samples=pairs(special=((INF, 1.0), (3e38, 3e38), (NAN, 1.0), (1.0, -1.0))),
)  # fmt: skip
sub: OpSpec = binary_op(
    "sub", "z = x - y", vjp=lambda g, x, y: [unbroadcast(g, x), unbroadcast(neg(g), y)], reference=lambda x, y: x - y,
    exact=True, samples=pairs(special=((INF, 1.0), (3e38, -3e38), (NAN, 1.0), (1.0, 1.0))),
)  # fmt: skip
mul: OpSpec = binary_op(
    "mul", "z = x * y", vjp=lambda g, x, y: [unbroadcast(mul(g, y), x), unbroadcast(mul(g, x), y)],
    reference=lambda x, y: x * y, exact=True,
    samples=pairs(special=((INF, 1.0), (3e38, 3e38), (NAN, 1.0), (0.0, INF))),
)  # fmt: skip
div: OpSpec = binary_op(
    "div", "z = x / y", vjp=lambda g, x, y, z: [unbroadcast(div(g, y), x), unbroadcast(neg(div(mul(g, z), y)), y)],
    reference=lambda x, y: x / y, exact=True,
    samples=pairs(
        -4, 4, avoid=(0,), margin=0.3, first=(-2, 2), special=((1.0, 0.0), (0.0, 0.0), (1.0, INF), (1e-30, 1e30)),
    ),
)  # fmt: skip
power: OpSpec = binary_op(
    "pow", "z = x ^ y",
    vjp=lambda g, x, y, z: [
        unbroadcast(where(equal(y, 0.0), 0.0, mul(g, mul(y, power(x, sub(y, 1.0))))), x),
        unbroadcast(mul(mul(g, z), log(where(equal(x, 0.0), 1.0, x))), y),
    ],
    reference=lambda x, y: np.power(x, y), tolerance=1e-5,
    samples=pairs(
        -2, 2, first=(0.2, 3),
        special=((0.0, 0.0), (0.0, 2.0), (-2.0, 3.0), (-2.0, 2.0), (-2.0, 0.5), (2.0, 10.0), (0.0, -1.0), (NAN, 0.0)),
    ),
)  # fmt: skip
maximum: OpSpec = binary_op(
    "maximum", "z = the larger of x and y; equal ones share the gradient",
    vjp=lambda g, x, y: [unbroadcast(_share(g, y, x), x), unbroadcast(_share(g, x, y), y)],
    reference=lambda x, y: np.maximum(x, y), exact=True,
    samples=pairs(special=((1.0, 1.0), (INF, 1.0), (NAN, 1.0), (1.0, NAN), (-INF, -3.0))),
)  # fmt: skip
minimum: OpSpec = binary_op(
    "minimum", "z = the smaller of x and y; equal ones share the gradient",
    vjp=lambda g, x, y: [unbroadcast(_share(g, x, y), x), unbroadcast(_share(g, y, x), y)],
    reference=lambda x, y: np.minimum(x, y), exact=True,
    samples=pairs(special=((1.0, 1.0), (INF, 1.0), (NAN, 1.0), (1.0, NAN), (-INF, -3.0))),
)  # fmt: skip


def _share(g: Value, low: Value, high: Value) -> Value:
    """g where low < high, half of it where they are equal."""
    return where(less(low, high), g, where(equal(low, high), scale(g, factor=0.5), 0.0))


# ---- comparisons -----------------------------------------------------------------------------------------

COMPARISON = "a comparison has no slope"


def _equal_shape(x: Spec, y: Spec) -> Spec:
    if x.dtype is not y.dtype:
        raise Reject("dtypes differ", "x and y of one dtype", DTypeError)
    return Spec(broadcast_shape(x, y), u8)


def _compared(rng: np.random.Generator) -> list[Sample]:
    """Numbers of which many are equal."""
    samples = []
    for a, b in (*PAIRS, (LARGE, LARGE[1:])):
        samples.append(Sample((rng.integers(-2, 3, a).astype(np.float32), rng.integers(-2, 3, b).astype(np.float32))))
    edges = np.array([(NAN, NAN), (0.0, -0.0), (INF, INF), (-INF, INF), (1.0, NAN)], np.float32).T
    return [*samples, Sample((edges[0].copy(), edges[1].copy()))]


equal: OpSpec = op(
    "equal", inputs="x y", outputs="z", doc="z = 1 where x == y, else 0 (u8)", dtypes="f32|i32", shape=_equal_shape,
    no_gradient=COMPARISON, reference=lambda x, y: np.equal(x, y).astype(np.uint8), exact=True, elementwise=True,
    samples=lambda rng: [
        *_compared(rng),
        *[Sample(tuple(rng.integers(-2, 3, s).astype(np.int32) for s in p)) for p in (*PAIRS, (LARGE, LARGE))],
    ],
    bad_samples=[
        bad("equal: dtypes differ: x f32[2], y i32[2]; need x and y of one dtype", (2,), ("i32", (2,))),
        bad("equal: dtype u8 is not taken: x u8[2], y u8[2]; need f32 or i32", ("u8", (2,)), ("u8", (2,))),
        _unbroadcastable("equal")[0],
    ],
)  # fmt: skip
less: OpSpec = op(
    "less", inputs="x y", outputs="z", doc="z = 1 where x < y, else 0 (u8)", dtypes="f32",
    shape=broadcast_of("x", "y", kind=u8), no_gradient=COMPARISON,
    reference=lambda x, y: np.less(x, y).astype(np.uint8), exact=True, elementwise=True, samples=_compared,
    bad_samples=_unbroadcastable("less"),
)  # fmt: skip
greater: OpSpec = op(
    "greater", inputs="x y", outputs="z", doc="z = 1 where x > y, else 0 (u8)", dtypes="f32",
    shape=broadcast_of("x", "y", kind=u8), no_gradient=COMPARISON,
    reference=lambda x, y: np.greater(x, y).astype(np.uint8), exact=True, elementwise=True, samples=_compared,
    bad_samples=_unbroadcastable("greater"),
)  # fmt: skip


# ---- choice and conversion -------------------------------------------------------------------------------


def _where_shape(cond: Spec, x: Spec, y: Spec) -> Spec:
    return Spec(broadcast_shape(cond, x, y))


def _where_samples(rng: np.random.Generator) -> list[Sample]:
    shapes: list[tuple] = [
        ((), (), ()), ((7,), (7,), (7,)), ((5, 33), (5, 33), (5, 33)), ((5, 1), (5, 33), ()), ((5, 33), (), (33,)),
        ((3, 1, 4), (2, 1), (4,)), (LARGE, LARGE, LARGE), (LARGE, LARGE, ()),
    ]  # fmt: skip
    samples = [Sample((rng.integers(0, 2, c).astype(np.uint8), draw(rng, a), draw(rng, b))) for c, a, b in shapes]
    edges = np.array([INF, NAN, 1.0, -INF], np.float32)
    return [*samples, Sample((np.array([0, 0, 1, 2], np.uint8), edges, np.array([1, 2, 3, 4], np.float32)))]


where: OpSpec = op(
    "where", inputs="cond x y", outputs="z", doc="z = x where cond (u8) is not 0, else y", dtypes="f32 cond:u8",
    shape=_where_shape, may_overwrite="x y",
    vjp=lambda g, cond, x, y: [None, unbroadcast(where(cond, g, 0.0), x), unbroadcast(where(cond, 0.0, g), y)],
    no_gradient_to={"cond": "a condition has no slope"}, reference=lambda cond, x, y: np.where(cond != 0, x, y),
    exact=True, elementwise=True, samples=_where_samples,
    bad_samples=[
        bad("where: dtype f32 is not taken: cond f32[2], x f32[2], y f32[2]; need u8", (2,), (2,), (2,)),
        bad(
            "where: shapes do not broadcast: cond u8[3], x f32[2], y f32[2]; need extents that are equal or 1, "
            "counted from the last axis",
            ("u8", (3,)), (2,), (2,),
        ),
    ],
)  # fmt: skip


def mask(x: Value, mask: Any, value: float) -> Value:
    """x with `value` wherever mask (u8 or bool) is not 0."""
    return where(mask, value, x)


CASTS = (
    (u8, f32), (i8, f32), (i32, f32), (i64, f32), (f64, f32), (f16, f32), (f32, f16), (bf16, f32), (f32, bf16),
    (f32, i32), (i64, i32), (u8, i32), *((q, f32) for q in QUANTISED),
)  # fmt: skip


_I32 = np.iinfo(np.int32)


def _cast_shape(x: Spec, dtype: DType) -> Spec:
    if (x.dtype, dtype) not in CASTS:
        known = ", ".join(b.name for a, b in CASTS if a is x.dtype) or "another source"
        raise Reject(f"{x.dtype.name} is not converted to {dtype.name}", f"one of: {known}", DTypeError)
    return Spec(x.shape, dtype)


def _cast_reference(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.is_float and x.dtype == np.float64:
        return x  # float64 stays: this is how gradients are checked
    if x.dtype == np.int64 and dtype is i32:
        return np.clip(x, _I32.min, _I32.max).astype(np.int32)
    return x.astype(dtype.numpy)


def _cast_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for source, target in CASTS:
        if source.is_quantised:
            n = source.block
            for blocks, axes in (((n,), None), ((5, 2 * n), (1, 0)), ((3, 2, n), (1, 2, 0)), ((101, 4 * n), None)):
                samples.append(Sample((Quantised.draw(rng, source, blocks, axes),), {"dtype": target}))
            continue
        for shape in ((), (5, 33), LARGE):
            low, high = (0, 200) if source is u8 else (-100, 100)
            x = rng.uniform(low, high, shape) if source.is_float else rng.integers(low, high, shape)
            samples.append(Sample((np.asarray(x).astype(source.numpy),), {"dtype": target}))
    beyond = np.array([2**31 - 1, 2**31, 2**33, 2**62, -(2**31), -(2**31) - 1, -(2**33), -1])
    return [*samples, Sample((beyond,), {"dtype": i32})]


_cast: OpSpec = op(
    "cast", inputs="x", attrs="dtype:dtype",
    doc="y = x in another dtype; to integers it cuts towards 0, to halves it rounds to nearest even, with slope 1; "
    "quantised to f32; i64 to the nearest i32",
    dtypes="any", shape=_cast_shape, vjp=lambda g, x: [g if x.dtype.is_float else None], reference=_cast_reference,
    exact=True, elementwise=True, samples=_cast_samples,
    bad_samples=[bad("cast: f32 is not converted to i64: x f32[2]; need one of: f16, bf16, i32", (2,), dtype="i64")],
)  # fmt: skip


def _round_bf16_shape(x: Spec) -> Spec:
    return Spec(x.shape, bf16)


round_bf16: OpSpec = op(
    "round_bf16", inputs="x",
    doc='y = x rounded to bf16, to nearest even: what precision="bf16" puts in front of products; its reference rounds '
    "in float64 as well, which that of a cast does not",
    dtypes="f32", shape=_round_bf16_shape, reference=lambda x: to_bf16(x),
    no_gradient="it is made behind the gradients; a cast to bf16 has slope 1", exact=True, elementwise=True,
    samples=lambda rng: [Sample((rng.uniform(-100, 100, shape).astype(np.float32),)) for shape in ((), (5, 33), LARGE)],
)  # fmt: skip


def cast(x: Value, dtype: str | DType) -> Value:
    """x in another dtype; x itself where it has it already. IndexOutOfRange for a constant that i32 does not hold."""
    x = as_value(x)
    kind = as_dtype(dtype)
    if kind is i32 and x.dtype is i64 and x.recorder is None and x.node.op.name == "constant":
        check_whole(x.name or "constant", x.node.attrs["data"], kind.numpy)
    return x if x.dtype is kind else _cast(x, dtype=kind)


def full_like(x: Value, value: float) -> Value:
    """One number, repeated to x's shape."""
    return REGISTRY["broadcast_to"](value, shape=x.shape)
