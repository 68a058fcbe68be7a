"""Attention of heads so wide that a workgroup makes a piece of their output: here, of more than 32 dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.gpu.backend import place_of
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


def long_attention(tokens: int, device: str, heads: int = 16) -> Any:
    """The program of y, dq, dk, dv of 16 heads of 16 on one key head."""
    shapes = {"q": (1, tokens, heads, 16), "k": (1, tokens, 1, 16), "v": (1, tokens, 1, 16)}
    q, k, v = (gl.parameter(np.ones(shape, np.float32), name=name) for name, shape in shapes.items())
    positions = gl.input("positions", (1, tokens), "i32")
    y, _ = ops.attention(q, k, v, positions, scale=0.25)
    return gl.compile([y, *gl.gradients(ops.sum(y * y), [q, k, v])], device=device)


def test_an_adapter_that_ends_loops_early_refuses_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mesa's does, and dk was wrong for 3072 tokens; an adapter that does not takes them."""
    device = place_of(0).device
    assert device.rounds == (65535 if "llvmpipe" in device.name else None)
    monkeypatch.setattr(device, "rounds", 65535)
    with pytest.raises(
        gl.BackendError, match=r"gpu: attention_back#.*make up to \d+,\d+ rounds.* ends them after 65,535,"
    ):
        long_attention(3072, "gpu")
    long_attention(1024, "gpu")
    monkeypatch.setattr(device, "rounds", None)
    long_attention(3072, "gpu")
    table, ids = gl.parameter(np.ones((9, 600), np.float32)), gl.input("ids", (400,), "i32")
    (gradient,) = gl.gradients(ops.sum(ops.get_rows(table, ids)), [table])
    gl.compile(gradient, device="gpu")
    monkeypatch.setattr(device, "rounds", 1000)
    with pytest.raises(gl.BackendError, match="scatter_rows#.*make up to 1,205 rounds"):
        gl.compile(gradient, device="gpu")
