"""Attention of heads so wide that a workgroup makes a piece of their output: here, of more than 32 dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom.gpu.kernels import attention
from gradloom.graph.opspec import REGISTRY
from tests.gpu.harness import run_node
from tests.noise import assert_noise
from tests.ops.cases import node_of, reference

WIDE = 40  # dimensions


@pytest.mark.parametrize("tokens", [1, 37])
def test_wide_heads(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """y and lse of two heads on one key head, and the gradients; also where outputs lie in inputs."""
    monkeypatch.setattr(attention, "PIECE", 32)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, tokens, heads, WIDE)).astype(np.float32) for heads in (2, 1, 1))
    positions = np.arange(tokens, dtype=np.int32).reshape(1, tokens)
    attrs = {"scale": WIDE**-0.5}
    forward = node_of(REGISTRY["attention"], (q, k, v, positions), attrs)
    y, lse = (a.astype(np.float32) for a in reference(forward, (q, k, v, positions)))
    g, g_lse = rng.normal(size=y.shape).astype(np.float32), rng.normal(size=lse.shape).astype(np.float32)
    for name, inputs, aliases in (
        ("attention", (q, k, v, positions), ({}, {0: 0})),
        ("attention_back", (g, q, k, v, y, lse, positions, g_lse), ({}, {0: 0, 1: 2, 2: 3}, {0: 1, 1: 3}, {0: 4})),
    ):
        node = node_of(REGISTRY[name], inputs, attrs)
        single, double = reference(node, inputs, np.float32), reference(node, inputs)
        for alias in aliases:
            found = run_node(node, inputs, alias=alias)
            for slot, *each in zip(REGISTRY[name].outputs, found, single, double, strict=True):
                assert_noise(f"{name} {slot.name} {alias}", *each, longest=WIDE)
