"""Parts of arrays of halves are multiplied, forward and backward, as whole ones are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gradloom as gl
from gradloom import Value, ops
from gradloom.base.dtypes import dtype
from tests.gpu.adapter import need_adapter

PARTS: dict[str, Callable[[Value], Value]] = {
    "slice": lambda h: h[1:5],
    "every second row": lambda h: h[1::2],
    "transposed slice": lambda h: ops.transpose(h[:, 1:]),
    "broadcast": lambda h: ops.broadcast_to(h[:1], (4, 3)),
    "broadcast column": lambda h: ops.broadcast_to(h[1:5, :1], (4, 7)),
    "batch": lambda h: ops.broadcast_to(h[1:5], (2, 4, 3)),
}


@pytest.mark.no_adapter
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_is_multiplied(part: Callable[[Value], Value], device: str, kind: str) -> None:
    if device == "gpu":
        need_adapter()
    rng = np.random.default_rng(3)
    h = gl.input("h", (6, 3), kind)
    taken = part(h)
    x = gl.input("x", (2, 5, taken.shape[-2]))
    loss = ops.sum(ops.sqr(x @ taken))
    made = [loss, *(g for g in gl.gradients(loss, [x, h]) if g is not None)]
    assert len(made) == 3
    feeds = {"x": rng.standard_normal(x.shape), "h": rng.standard_normal((6, 3)).astype(dtype(kind).numpy)}
    for got, right in zip(*(gl.compile(made, device=name)(**feeds) for name in (device, "numpy")), strict=True):
        assert np.max(np.abs(got - right)) <= 2e-6 * np.max(np.abs(right))
