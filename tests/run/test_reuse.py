"""Small programs of layout, products and rotation through a plan that shares buffers: same bits as unshared, the right
gradients. Views are what makes this hard: a buffer may only be given away when the last view of it has been read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.graph.value import Value
from tests.core.harness import isas

ISAS = isas()
WAYS: tuple[dict[str, Any], ...] = (
    {"reuse": False}, {"inplace": False}, {"poison": True}, {"fuse": False}, {"threads": 2}, {"check": 2},
)  # fmt: skip
N, D = 12, 24


def twisted(x: Value) -> Value:
    """A buffer of its own whose rows lie in the other order of axes."""
    return ops.permute(ops.sin(ops.permute(x, (1, 0)) * 1.5), (1, 0))


def concat(x: Value, w: Value) -> Value:
    """Halves meet again in the other order; each piece of the gradient is a view of one buffer."""
    y = x @ w
    left, right = ops.split(y, 2, axis=1)
    z = ops.concat([ops.silu(right), left, ops.sin(left)], axis=1)
    return ops.concat([z[:, D // 2 :], z[:, : D // 2] + left], axis=1) @ ops.concat([w, w[: D // 2]], axis=0)


def views(x: Value, w: Value) -> Value:
    """One buffer read through reshape, permute, slice and broadcast while others come and go."""
    y = ops.silu(x @ w)
    heads = ops.permute(y.reshape(N, 3, D // 3), (1, 0, 2))
    mean = ops.sum(heads, 0, keepdims=True)
    z = ops.silu(heads * mean) + heads
    back = ops.permute(z, (1, 0, 2)).reshape(N, D)
    return ops.concat([back[5:], back[:5]]) * y + ops.broadcast_to(back[:1], (N, D)) * ops.sin(y)


def strided_products(x: Value, w: Value) -> Value:
    """Operands that are transposed, sliced and stacked views of values that die in the product."""
    t = twisted(x)
    scores = ops.softmax(ops.matmul(t, twisted(x), transpose_y=True), scale=0.3)  # [N, N]
    mixed = ops.matmul(scores, t, transpose_x=True)
    thin = ops.silu(mixed)[:, ::2] @ ops.silu(w)[: D // 2]
    heads = ops.permute(thin.reshape(N, 4, D // 4), (1, 0, 2))  # [4, N, D/4]
    return ops.permute(ops.matmul(ops.matmul(heads, heads, transpose_y=True), heads), (1, 0, 2)).reshape(N, D) + mixed


def rotated(pairing: str, part: bool) -> Callable[[Value, Value], Value]:
    """Queries and keys of 3 heads; the rotation may take its input's buffer, forward and backward."""

    def build(x: Value, w: Value) -> Value:
        positions = gl.constant(np.arange(N).reshape(1, N) % 5, "i32")
        frequencies = gl.constant(np.float32([1.0, 0.3] if part else [1.0, 0.3, 0.1, 0.01]))
        y = ops.silu(x @ w).reshape(1, N, 3, D // 3)
        turned = ops.rope(ops.sin(y), positions, frequencies, pairing=pairing, scale=1.25)
        again = ops.rope(turned, positions, frequencies, pairing=pairing)
        return (again * y + turned).reshape(N, D)

    return build


PROGRAMS: dict[str, Callable[[Value, Value], Value]] = {
    "concat": concat,
    "views": views,
    "strided products": strided_products,
    "rope, neighbours": rotated("interleaved", False),
    "rope, halves": rotated("half", False),
    "rope, part of a head": rotated("half", True),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_through_a_plan_that_shares_buffers(name: str, isa: str) -> None:
    """Three rounds of the program, so that buffers of one round are those of the next."""
    rng = np.random.default_rng(0)
    x = gl.parameter(rng.standard_normal((N, D)), "x")
    w = gl.parameter(rng.normal(0, D**-0.5, (D, D)), "w")
    h: Value = x
    for _ in range(3):
        h = h + 0.3 * PROGRAMS[name](h, w)
    loss = ops.sum(ops.sin(h) * gl.input("g", (N, D)))
    outputs = [loss, h, *gl.gradients(loss, [x, w])]
    feeds = {"g": rng.standard_normal((N, D)).astype(np.float32)}
    run = gl.compile(outputs, isa=isa, threads=1)
    right = run(**feeds)
    assert run.plan.placement.inplace and run.plan.peak_bytes < 0.7 * run.plan.unshared_bytes
    for options in WAYS:
        found = gl.compile(outputs, isa=isa, **options)(**feeds)
        bits = [a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True)]
        assert all(bits), (options, bits)
    for value, a, b in zip(outputs, right, gl.compile(outputs, backend="numpy")(**feeds), strict=True):
        assert np.abs(b).max() > 1e-2, "a gradient of nothing proves nothing"
        assert np.abs(a - b).max() < 1e-5 * max(1.0, np.abs(b).max()), value
    assert gl.check_gradients(loss, feeds, parameters=[x, w], entries=8) < 1e-5
