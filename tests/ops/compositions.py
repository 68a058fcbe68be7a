"""How a function that is a composition of ops is held against its definition: values, gradients, second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gradloom as gl
from gradloom.graph.graph import reachable
from gradloom.graph.value import Value
from gradloom.run.feeds import leaves
from gradloom.run.numpy_backend import evaluate


def numbers(shapes: Sequence[tuple[int, ...]], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.2, 2.0, s) * rng.choice([-1.0, 1.0], s) for s in shapes]


def check(
    function: Callable[..., Value],
    definition: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    second: bool = True,
    room: float = 2e-6,
    exact: float = 1e-11,
) -> None:
    """function of values is definition of float64 arrays: in float64, in f32 on the CPU, and its derivatives are those
    of finite differences. second: the second ones, too.
    exact: room in float64; constants of a function are f32."""
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [gl.input(name, x.shape) for name, x in zip(names, arrays, strict=True)]
    feeds = dict(zip(names, arrays, strict=True))
    y = function(*inputs)
    want = np.asarray(definition(*arrays))
    assert y.shape == want.shape
    used = {k: feeds[k] for k in leaves(reachable([y]), "input")}
    np.testing.assert_allclose(evaluate([y], used)[y], want, rtol=exact, atol=exact)
    small = {k: x.astype(np.float32) for k, x in used.items()}
    got = gl.compile([y])(**small)[0]
    np.testing.assert_allclose(got, want, rtol=room, atol=room * np.abs(want).max(initial=1.0))
    if not want.size or not any(x.size for x in arrays):
        return
    weights = np.random.default_rng(7).uniform(0.5, 1.5, want.shape)
    loss = gl.ops.sum(y * y * weights)
    wrt = [v for v in inputs if v.node.name in used and v.size]
    gl.check_gradients(loss, used, parameters=wrt, entries=3)
    if second:
        grads = gl.gradients(loss, wrt)
        again = sum(
            (gl.ops.sum(g * (1.0 + 0.1 * i) * g) for i, g in enumerate(grads) if g is not None), start=0.0 * loss
        )
        gl.check_gradients(again, used, parameters=wrt, entries=3)
        on_the_cpu = gl.compile([g for g in grads if g is not None])(**small)
        for value, found in zip([g for g in grads if g is not None], on_the_cpu, strict=True):
            slope = evaluate([value], used)[value]
            np.testing.assert_allclose(found, slope, rtol=20 * room, atol=20 * room * np.abs(slope).max(initial=1.0))
