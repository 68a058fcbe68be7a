"""The elementwise part of a step of an LSTM, forward and backward in one pass each."""

from __future__ import annotations

import numpy as np

from ..graph.declaration import called_with
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import BadSample, Sample, Spec, bad, draw, need, zeros_like
from .elementwise import add, mul, sigmoid, sigmoid_back, tanh, tanh_back
from .layout import concat, split

_ROWS = ((1, 1), (2, 3), (5, 33), (3, 300), (65, 67))  # N, H


def _cell_shape(x: Spec, h: Spec, c: Spec) -> list[Spec]:
    need(c.ndim == 2, "c is no matrix", "c of shape [N, H]")
    wide = (c.shape[0], 4 * c.shape[1])
    need(x.shape == h.shape == wide, "shapes do not fit c [N, H]", f"x and h of shape [N, 4H] = {list(wide)}")
    return [Spec(c.shape), Spec(c.shape), Spec(wide)]


def _back_shape(g: Spec, g_c: Spec, gates: Spec, c: Spec, c_new: Spec) -> list[Spec]:
    need(c.ndim == 2, "c is no matrix", "c of shape [N, H]")
    need(g.shape == g_c.shape == c_new.shape == c.shape, "shapes differ", "g, g_c, c and c_new of one shape")
    wide = (c.shape[0], 4 * c.shape[1])
    need(gates.shape == wide, "gates do not fit c [N, H]", f"gates of shape [N, 4H] = {list(wide)}")
    return [Spec(wide), Spec(c.shape)]


def _activated(x: Value, h: Value) -> list[Value]:
    i, f, g, o = split(add(x, h), 4, 1)
    return [sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)]


def _cell(x: Value, h: Value, c: Value) -> list[Value]:
    i, f, g, o = gates = _activated(x, h)
    c_new = add(mul(f, c), mul(i, g))
    return [mul(o, tanh(c_new)), c_new, concat(gates, 1)]


def _before_activation(di: Value, df: Value, dg: Value, do: Value, gates: list[Value]) -> Value:
    i, f, g, o = gates
    slopes = [sigmoid_back(di, i), sigmoid_back(df, f), tanh_back(dg, g), sigmoid_back(do, o)]
    return concat(slopes, 1)


def _cell_back(g: Value, g_c: Value, gates: Value, c: Value, c_new: Value) -> list[Value]:
    i, f, candidate, o = each = list(split(gates, 4, 1))
    t = tanh(c_new)
    state = add(g_c, tanh_back(mul(g, o), t))
    dx = _before_activation(mul(state, candidate), mul(state, c), mul(state, i), mul(g, t), each)
    return [dx, mul(state, f)]


def _cell_vjp(
    g_y: Value | None, g_c_new: Value | None, g_gates: Value | None, c: Value, gates: Value, c_new: Value
) -> list[Value]:
    g_y, g_c_new = (zeros_like(c) if g is None else g for g in (g_y, g_c_new))
    dx, dc = lstm_cell_back(g_y, g_c_new, gates, c, c_new)
    if g_gates is not None:  # of second derivatives alone
        di, df, dg, do = split(g_gates, 4, 1)
        dx = add(dx, _before_activation(di, df, dg, do, list(split(gates, 4, 1))))
    return [dx, dx, dc]


def _cell_samples(rng: np.random.Generator) -> list[Sample]:
    samples = [Sample((draw(rng, (n, 4 * h)), draw(rng, (n, 4 * h)), draw(rng, (n, h)))) for n, h in _ROWS]
    return [*samples, Sample((draw(rng, (3, 28), -50, 50), draw(rng, (3, 28), -50, 50), draw(rng, (3, 7))))]


def _back_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        Sample((draw(rng, (n, h)), draw(rng, (n, h)), draw(rng, (n, 4 * h), 0.05, 0.95), *draw(rng, (2, n, h))))
        for n, h in _ROWS
    ]


def _bad_cell() -> list[BadSample]:
    message = "lstm_cell: shapes do not fit c [N, H]: x f32[2,12], h f32[2,8], c f32[2,3]"
    return [bad(f"{message}; need x and h of shape [N, 4H] = [2, 12]", (2, 12), (2, 8), (2, 3))]


lstm_cell: OpSpec = op(
    "lstm_cell", inputs="x h c", outputs="y c_new gates",
    doc="a step of an LSTM: with i, f, g, o the quarters of x + h [N, 4H] after sigmoid, sigmoid, tanh, sigmoid, "
    "c_new = f * c + i * g, y = o * tanh(c_new); gates: i, f, g, o",
    dtypes="f32", shape=called_with(("x", "h", "c"), _cell_shape), may_overwrite={"c_new": "c", "gates": "x h"},
    composition=_cell, vjp=_cell_vjp, samples=_cell_samples, bad_samples=_bad_cell(),
)  # fmt: skip
lstm_cell_back: OpSpec = op(
    "lstm_cell_back", inputs="g g_c gates c c_new", outputs="dx dc",
    doc="the gradients of lstm_cell's x (and h) and c, of those of y and c_new",
    dtypes="f32", shape=called_with(("g", "g_c", "gates", "c", "c_new"), _back_shape),
    may_overwrite={"dx": "gates", "dc": "g g_c c c_new"}, composition=_cell_back, samples=_back_samples,
    bad_samples=[
        bad(
            "lstm_cell_back: shapes differ: g f32[2,3], g_c f32[2,3], gates f32[2,12], c f32[2,3], c_new f32[3,2]; "
            "need g, g_c, c and c_new of one shape",
            (2, 3), (2, 3), (2, 12), (2, 3), (3, 2),
        )
    ],
)  # fmt: skip
