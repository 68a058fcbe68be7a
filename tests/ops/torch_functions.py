"""A function of gl.ops against the same of PyTorch in float64: values, gradients, second gradients, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import ops
from gradloom.graph.grad import gradients
from gradloom.graph.leaves import input
from gradloom.graph.value import Value
from gradloom.run.numpy_backend import evaluate
from tests import kept


def drawn(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def _weighted(values: Sequence[Value], weights: Sequence[np.ndarray]) -> Value:
    total = ops.sum(values[0] * weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + ops.sum(value * weight)
    return total


def _ours(build: Callable[..., Value], arrays: Sequence[np.ndarray], weights: list[np.ndarray], second: bool) -> Any:
    """Values of y, gradients and second gradients, of which none is None."""
    values = [input(f"x{i}", x.shape) for i, x in enumerate(arrays)]
    y = build(*values)
    grads = [g if g is not None else ops.full_like(v, 0.0)
             for g, v in zip(gradients(ops.sum(y * weights[0]), values), values, strict=True)]  # fmt: skip
    found = [y, *grads]
    if second:
        again = gradients(_weighted(grads, weights[1:]), values)
        found += [g if g is not None else ops.full_like(v, 0.0) for g, v in zip(again, values, strict=True)]
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    exact = evaluate(found, {k: x.astype(np.float64) for k, x in feeds.items()})
    return [exact[v] for v in found], gl.compile(found)(**feeds)


def _theirs(function: Callable[..., Any], arrays: Sequence[np.ndarray], weights: list[np.ndarray], second: bool) -> Any:
    import torch

    values = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in arrays]
    y = function(*values)
    grads = torch.autograd.grad((y * torch.tensor(weights[0])).sum(), values, create_graph=second)
    found = [y, *grads]
    if second:
        total = sum((g * torch.tensor(w)).sum() for g, w in zip(grads, weights[1:], strict=True))
        found += [
            g if g is not None else torch.zeros_like(v)
            for g, v in zip(
                torch.autograd.grad(total, values, allow_unused=True)
                if isinstance(total, torch.Tensor) and total.requires_grad
                else [None] * len(values),
                values,
                strict=True,
            )
        ]
    return [v.detach().numpy() for v in found]


def compare(
    build: Callable[..., Value], function: Callable[..., Any], *arrays: np.ndarray, second: bool = True
) -> None:
    """Fail unless y = build(values) and y = function(tensors) agree, with their first and second derivatives: the
    references in float64 to 1e-10, the compiled program in f32 to 1e-4 of the largest number. Without PyTorch its kept
    answers take its place."""
    rng = np.random.default_rng(1)
    y_shape = build(*[input(f"x{i}", x.shape) for i, x in enumerate(arrays)]).shape
    weights = [rng.uniform(0.5, 1.5, shape).astype(np.float32) for shape in (y_shape, *(x.shape for x in arrays))]
    exact, compiled = _ours(build, arrays, weights, second)
    want = _theirs(function, arrays, weights, second) if kept.INSTALLED else exact
    kept.check_kept(exact)
    for got, single, one in zip(exact, compiled, want, strict=True):
        assert got.shape == one.shape
        scale = float(np.max(np.abs(one[np.isfinite(one)]), initial=1.0))
        np.testing.assert_allclose(got, one, rtol=1e-10, atol=1e-10 * scale)
        np.testing.assert_allclose(single, one, rtol=1e-4, atol=1e-4 * scale)
