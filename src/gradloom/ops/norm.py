"""Normalisation: layer, RMS, batch and group norm. The ops have no weights of their own: those are mul and add nodes.

Batch norm is the exception: its statistics run over all axes but the channels, and its backward is one op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.declaration import called_with
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import BadSample, Sample, Spec, bad, draw, need, need_plain, zeros_like
from .elementwise import add, div, mul, scale, sqr, sqrt, sub
from .layout import broadcast_to, product, reshape, shape_error
from .reduce import mean as mean_over
from .reduce import sum as sum_over

ROWS: tuple[Shape, ...] = ((7,), (3, 2), (5, 33), (2, 3, 4), (4, 1, 17), (65, 67), (300, 576), (3, 5000))
OFFSET = 1.5  # samples are not centred: a norm that forgets the mean must fail


def rows_shape(*names: str) -> Callable[..., Spec]:
    """Shape rule: f32 inputs of one shape with at least one axis, not empty along the last."""

    def rule(**specs: Any) -> Spec:
        first = specs[names[0]]
        need(first.ndim >= 1 and first.shape[-1] > 0, "no last axis to work along", "a last axis with an extent >= 1")
        for name in names[1:]:
            need(specs[name].shape == first.shape, "shapes differ", f"{names[0]} and {name} of one shape")
        return Spec(first.shape)

    return called_with(names, rule)


def _row_samples(count: int, least: int = 1) -> Callable[[np.random.Generator], list[Sample]]:
    def samples(rng: np.random.Generator) -> list[Sample]:
        samples = []
        for shape in ROWS:
            if shape[-1] >= least:
                others = [draw(rng, shape) for _ in range(count - 1)]
                samples.append(Sample((*others, draw(rng, shape) + np.float32(OFFSET)), {"eps": 1e-5}))
        return samples

    return samples


def _bad_rows(name: str, count: int) -> list[BadSample]:
    if count == 1:
        return [
            bad(f"{name}: no last axis to work along: x f32[]; need a last axis with an extent >= 1", ()),
            bad(f"{name}: dtype i32 is not taken: x i32[3]; need f32", ("i32", (3,))),
        ]
    return [bad(f"{name}: shapes differ: g f32[2,3], x f32[3,2]; need g and x of one shape", (2, 3), (3, 2))]


def _unit(x: Value, eps: float, centre: bool) -> tuple[Value, Value]:
    """Rows of mean 0 (when centred) and mean square 1, and their divisors."""
    if centre:
        x = sub(x, mean_over(x, -1, keepdims=True))
    deviation = sqrt(scale(mean_over(sqr(x), -1, keepdims=True), factor=1.0, bias=eps))
    return div(x, deviation), deviation


def _layer_back(g: Value, x: Value, eps: float) -> Value:
    h, deviation = _unit(x, eps, centre=True)
    centred = sub(g, mean_over(g, -1, keepdims=True))
    return div(sub(centred, mul(h, mean_over(mul(g, h), -1, keepdims=True))), deviation)


def _rms_back(g: Value, x: Value, eps: float) -> Value:
    h, deviation = _unit(x, eps, centre=False)
    return div(sub(g, mul(h, mean_over(mul(g, h), -1, keepdims=True))), deviation)


_layer_norm: OpSpec = op(
    "layer_norm", inputs="x", attrs="eps:float=1e-5", doc="y = (x - mean) / sqrt(var + eps) along the last axis",
    dtypes="f32", shape=rows_shape("x"), dense="x", may_overwrite="x",
    vjp=lambda g, x, eps: [layer_norm_back(g, x, eps=eps)], composition=lambda x, eps: _unit(x, eps, centre=True)[0],
    samples=_row_samples(1, least=2), bad_samples=_bad_rows("layer_norm", 1),
)  # fmt: skip
layer_norm_back: OpSpec = op(
    "layer_norm_back", inputs="g x", outputs="dx", attrs="eps:float=1e-5",
    doc="dx = (g - mean(g) - h * mean(g * h)) / sqrt(var + eps); h = layer_norm(x)", dtypes="f32",
    shape=rows_shape("g", "x"), dense="g x", may_overwrite="g x", composition=_layer_back, tolerance=1e-5,
    samples=_row_samples(2, least=3), bad_samples=_bad_rows("layer_norm_back", 2),
)  # fmt: skip
_rms_norm: OpSpec = op(
    "rms_norm", inputs="x", attrs="eps:float=1e-5", doc="y = x / sqrt(mean(x^2) + eps) along the last axis",
    dtypes="f32", shape=rows_shape("x"), dense="x", may_overwrite="x",
    vjp=lambda g, x, eps: [rms_norm_back(g, x, eps=eps)], composition=lambda x, eps: _unit(x, eps, centre=False)[0],
    samples=_row_samples(1), bad_samples=_bad_rows("rms_norm", 1),
)  # fmt: skip
rms_norm_back: OpSpec = op(
    "rms_norm_back", inputs="g x", outputs="dx", attrs="eps:float=1e-5",
    doc="dx = (g - h * mean(g * h)) / sqrt(mean(x^2) + eps); h = rms_norm(x)", dtypes="f32", shape=rows_shape("g", "x"),
    dense="g x", may_overwrite="g x", composition=_rms_back, tolerance=1e-5, samples=_row_samples(2, least=2),
    bad_samples=_bad_rows("rms_norm_back", 2),
)  # fmt: skip


# ---- batch norm ------------------------------------------------------------------------------------------


def _others(ndim: int) -> tuple[int, ...]:
    """All axes but the channels."""
    return (0, *range(2, ndim))


def _wide(value: Value, ndim: int) -> Value:
    """[C] -> [C, 1, ...]: it broadcasts along the channels of a value of ndim axes."""
    return reshape(value, (value.shape[0], *(1,) * (ndim - 2)))


def _batch_shape(x: Spec, weight: Spec, bias: Spec) -> list[Spec]:
    need(x.ndim >= 2, "x has no channels", "x of shape [N, C, ...]")
    need(x.size > 0, "x is empty", "at least one element per channel")
    channels = x.shape[1:2]
    fits = weight.shape == bias.shape == channels
    need(fits, "weight or bias does not fit", f"weight and bias of shape [{x.shape[1]}]")
    return [Spec(x.shape), Spec(channels), Spec(channels)]


def _batch(x: Value, weight: Value, bias: Value, eps: float) -> list[Value]:
    axes = _others(x.ndim)
    mean = mean_over(x, axes)
    centred = sub(x, _wide(mean, x.ndim))
    var = mean_over(sqr(centred), axes)
    h = div(centred, sqrt(scale(_wide(var, x.ndim), factor=1.0, bias=eps)))
    return [add(mul(h, _wide(weight, x.ndim)), _wide(bias, x.ndim)), mean, var]


def _batch_vjp(
    g_y: Value | None,
    g_mean: Value | None,
    g_var: Value | None,
    x: Value,
    weight: Value,
    mean: Value,
    var: Value,
    eps: float,
) -> list[Value | None]:
    dx, dweight, dbias = None, zeros_like(weight), zeros_like(weight)
    if g_y is not None:
        dx, dweight, dbias = batch_norm_back(g_y, x, weight, mean, var, eps=eps)
    share = 1 / product([x.shape[a] for a in _others(x.ndim)])
    if g_mean is not None:
        part = broadcast_to(scale(_wide(g_mean, x.ndim), factor=share), x.shape)
        dx = part if dx is None else add(dx, part)
    if g_var is not None:
        part = mul(scale(_wide(g_var, x.ndim), factor=2 * share), sub(x, _wide(mean, x.ndim)))
        dx = part if dx is None else add(dx, part)
    return [dx, dweight, dbias]


def _batch_back_shape(g: Spec, x: Spec, weight: Spec, mean: Spec, var: Spec) -> list[Spec]:
    need(x.ndim >= 2 and x.size > 0, "x has no channels", "x of shape [N, C, ...]")
    need(g.shape == x.shape, "shapes differ", "g and x of one shape")
    fits = weight.shape == mean.shape == var.shape == x.shape[1:2]
    need(fits, "weight, mean or var does not fit", f"shape [{x.shape[1]}] each")
    return [Spec(x.shape), Spec(x.shape[1:2]), Spec(x.shape[1:2])]


def _batch_back(g: Value, x: Value, weight: Value, mean: Value, var: Value, eps: float) -> list[Value]:
    axes, share = _others(x.ndim), 1 / product([x.shape[a] for a in _others(x.ndim)])
    deviation = sqrt(scale(var, factor=1.0, bias=eps))
    h = div(sub(x, _wide(mean, x.ndim)), _wide(deviation, x.ndim))
    dbias, dweight = sum_over(g, axes), sum_over(mul(g, h), axes)
    centred = sub(g, _wide(scale(dbias, factor=share), x.ndim))
    inner = sub(centred, mul(h, _wide(scale(dweight, factor=share), x.ndim)))
    return [mul(_wide(div(weight, deviation), x.ndim), inner), dweight, dbias]


IMAGES: tuple[Shape, ...] = (
    (6, 3),
    (4, 1),
    (33, 17),
    (4, 3, 5),
    (3, 2, 4, 5),
    (5, 7, 1, 1),
    (20, 8, 14, 14),
    (300, 500),
    (7, 3, 5, 5),
)


def _batch_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for shape in IMAGES:
        c = shape[1:2]
        x = draw(rng, shape) + np.float32(OFFSET)
        samples.append(Sample((x, draw(rng, c, 0.5, 2.0), draw(rng, c)), {"eps": 1e-5}))
    return samples


def _batch_back_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for sample in _batch_samples(rng):
        x, weight, _ = sample.inputs
        axes = _others(x.ndim)
        mean, var = x.mean(axes, dtype=np.float64), x.var(axes, dtype=np.float64)
        g = draw(rng, x.shape)
        samples.append(Sample((g, x, weight, mean.astype(np.float32), var.astype(np.float32)), sample.attrs))
    return samples


_batch_norm: OpSpec = op(
    "batch_norm", inputs="x weight bias", outputs="y mean var", attrs="eps:float=1e-5",
    doc="y = (x - mean) / sqrt(var + eps) * weight + bias per channel (axis 1); mean, var (biased) over all other axes",
    dtypes="f32", shape=_batch_shape, dense="x weight bias", may_overwrite={"y": "x"}, vjp=_batch_vjp,
    composition=_batch, samples=_batch_samples,
    bad_samples=[
        bad(
            "batch_norm: x has no channels: x f32[3], weight f32[3], bias f32[3]; need x of shape [N, C, ...]",
            (3,), (3,), (3,),
        ),
        bad(
            "batch_norm: weight or bias does not fit: x f32[5,3], weight f32[5], bias f32[3]; "
            "need weight and bias of shape [3]",
            (5, 3), (5,), (3,),
        ),
    ],
)  # fmt: skip
batch_norm_back: OpSpec = op(
    "batch_norm_back", inputs="g x weight mean var", outputs="dx dweight dbias", attrs="eps:float=1e-5",
    doc="dx = weight / sqrt(var + eps) * (g - mean(g) - h * mean(g * h)), dweight = sum(g * h), dbias = sum(g); "
    "h = (x - mean) / sqrt(var + eps)",
    dtypes="f32", shape=_batch_back_shape, dense="g x weight mean var", may_overwrite={"dx": "g x"},
    composition=_batch_back, tolerance=1e-5, samples=_batch_back_samples,
    bad_samples=[
        bad(
            "batch_norm_back: shapes differ: g f32[3,5], x f32[5,3], weight f32[3], mean f32[3], var f32[3]; "
            "need g and x of one shape",
            (3, 5), (5, 3), (3,), (3,), (3,),
        ),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def _affine(y: Value, weight: Any, bias: Any) -> Value:
    if weight is not None:
        y = mul(y, weight)
    return y if bias is None else add(y, bias)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Value:
    """Mean 0 and variance 1 along the last axis, then * weight + bias where given."""
    return _affine(_layer_norm(x, eps=eps), weight, bias)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Value:
    """Mean square 1 along the last axis, then * weight where given."""
    return _affine(_rms_norm(x, eps=eps), weight, None)


def batch_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Value, Value, Value]:
    """The training form: (y, mean, var), with the batch's own statistics per channel (axis 1); var is biased."""
    x = as_value(x)
    if x.ndim >= 2:
        weight = np.ones(x.shape[1], np.float32) if weight is None else weight
        bias = np.zeros(x.shape[1], np.float32) if bias is None else bias
    return _batch_norm(x, weight, bias, eps=eps)


def batch_norm_eval(x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float = 1e-5) -> Value:
    """The evaluation form: with statistics that are given; weight and bias may be None."""
    x, mean, var = as_value(x), as_value(mean), as_value(var)
    inverse = div(1.0, sqrt(scale(var, factor=1.0, bias=eps)))
    factor = inverse if weight is None else mul(inverse, weight)
    offset = mul(mean, factor) if bias is None else sub(mul(mean, factor), bias)
    return sub(mul(x, _wide(factor, x.ndim)), _wide(offset, x.ndim))


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Value:
    """layer_norm of each group of channels of each row; x is [N, C, ...], weight and bias are [C]."""
    x = as_value(x)
    need_plain("group_norm", groups=groups, eps=eps)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise shape_error(
            "group_norm", x, f"channels do not form {groups} groups", "[N, C, ...] with C a multiple of groups"
        )
    per_group = product(x.shape[1:]) // groups
    y = reshape(_layer_norm(reshape(x, (x.shape[0], groups, per_group)), eps=eps), x.shape)
    weight = None if weight is None else _wide(as_value(weight), x.ndim)
    return _affine(y, weight, None if bias is None else _wide(as_value(bias), x.ndim))
