"""Gated linear units: the activation of one half times the other half, forward and backward in one pass each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.dtypes import bf16, f32
from ..graph.declaration import called_with
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import LARGE, SHAPES, BadSample, Sample, Spec, bad, draw, need
from .elementwise import (
    cast,
    gelu_tanh,
    gelu_tanh_back,
    mul,
    sigmoid,
    silu,
    silu_back,
)
from .layout import axis_of, shape_error, split


def _shape(*names: str, outputs: int) -> Callable[..., list[Spec]]:
    """Shape rule: f32 inputs of one shape; so are the outputs."""

    def rule(**specs: Spec) -> list[Spec]:
        first = specs[names[0]]
        need(all(s.shape == first.shape for s in specs.values()), "shapes differ", f"{', '.join(names)} of one shape")
        return [Spec(first.shape)] * outputs

    return called_with(names, rule)


def _back_shape(g: Spec, gate: Spec, up: Spec) -> list[Spec]:
    """Both gradients, f32; gate and up are f32, or both bf16."""
    need(g.shape == gate.shape == up.shape, "shapes differ", "g, gate, up of one shape")
    need(gate.dtype is up.dtype, "dtypes differ", "gate, up of one dtype")
    return [Spec(g.shape)] * 2


def _samples(count: int) -> Callable[[np.random.Generator], list[Sample]]:
    def samples(rng: np.random.Generator) -> list[Sample]:
        samples = [Sample(tuple(draw(rng, s, -4, 4) for _ in range(count))) for s in (*SHAPES, (2, 3, 4, 5), LARGE)]
        far = np.array([0.0, -0.0, 30.0, -30.0, 100.0, -100.0], np.float32)
        samples.append(Sample((*[draw(rng, far.shape) for _ in range(count - 2)], far, draw(rng, far.shape))))
        if count == 3:  # gate and up as bf16
            kept = [sample.inputs for sample in samples[::2]]
            samples += [Sample((g, gate.astype(bf16.numpy), up.astype(bf16.numpy))) for g, gate, up in kept]
        return samples

    return samples


def _bad(name: str) -> list[BadSample]:
    return [
        bad(f"{name}: shapes differ: gate f32[2,3], up f32[3,2]; need gate, up of one shape", (2, 3), (3, 2)),
        bad(f"{name}: dtype i32 is not taken: gate i32[3], up f32[3]; need f32", ("i32", (3,)), (3,)),
    ]


def _bad_back(name: str) -> list[BadSample]:
    return [
        bad(
            f"{name}: shapes differ: g f32[2,3], gate f32[2,3], up f32[3,2]; need g, gate, up of one shape",
            (2, 3), (2, 3), (3, 2),
        )
    ]  # fmt: skip


def _back(g: Value, gate: Value, up: Value, act: OpSpec, act_back: OpSpec) -> list[Value]:
    gate, up = cast(gate, f32), cast(up, f32)
    return [act_back(mul(g, up), gate), mul(g, act(gate))]


swiglu: OpSpec = op(
    "swiglu", inputs="gate up", doc="y = silu(gate) * up", dtypes="f32", shape=_shape("gate", "up", outputs=1),
    may_overwrite="gate up", vjp=lambda g, gate, up: list(swiglu_back(g, gate, up)),
    composition=lambda gate, up: mul(silu(gate), up), samples=_samples(2), bad_samples=_bad("swiglu"),
)  # fmt: skip
geglu: OpSpec = op(
    "geglu", inputs="gate up", doc="y = gelu_tanh(gate) * up", dtypes="f32", shape=_shape("gate", "up", outputs=1),
    may_overwrite="gate up", vjp=lambda g, gate, up: list(geglu_back(g, gate, up)),
    composition=lambda gate, up: mul(gelu_tanh(gate), up), samples=_samples(2), bad_samples=_bad("geglu"),
)  # fmt: skip


_OVER = {"dgate": "g gate up", "dup": "g gate up"}
swiglu_back: OpSpec = op(
    "swiglu_back", inputs="g gate up", outputs="dgate dup", doc="dgate = g * up * silu'(gate), dup = g * silu(gate)",
    dtypes="f32 gate:f32|bf16 up:f32|bf16", shape=_back_shape, rounds="gate up", may_overwrite=_OVER,
    composition=lambda g, gate, up: _back(g, gate, up, silu, silu_back), samples=_samples(3),
    bad_samples=_bad_back("swiglu_back"),
)  # fmt: skip
geglu_back: OpSpec = op(
    "geglu_back", inputs="g gate up", outputs="dgate dup",
    doc="dgate = g * up * gelu_tanh'(gate), dup = g * gelu_tanh(gate)",
    dtypes="f32 gate:f32|bf16 up:f32|bf16", shape=_back_shape, rounds="gate up", may_overwrite=_OVER,
    composition=lambda g, gate, up: _back(g, gate, up, gelu_tanh, gelu_tanh_back), samples=_samples(3),
    bad_samples=_bad_back("geglu_back"),
)  # fmt: skip


def glu(x: Any, axis: int = -1) -> Value:
    """The first half of x along the axis times the sigmoid of the second: [..., 2n, ...] -> [..., n, ...].

    Raises ShapeError for an axis of odd extent (Dauphin et al. 2017, arXiv 1612.08083).
    """
    x = as_value(x)
    axis = axis_of("glu", x, axis, x.ndim)
    if x.shape[axis] % 2:
        raise shape_error("glu", x, f"axis {axis} has the odd extent {x.shape[axis]}", "an even extent")
    value, gate = split(x, 2, axis)
    return mul(value, sigmoid(gate))
