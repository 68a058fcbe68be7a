"""The gradient of a weight that several products read: one product of stacked rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.graph import reachable

ops = gl.ops


def of_steps(rows: list[int], transposed: bool = False) -> tuple[Any, dict[str, np.ndarray], Any, Any]:
    """A loss of sin(x_t @ w) over steps of these rows: w, feeds, the loss, w's gradient."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((3, 5)).astype(np.float32)
    w = gl.parameter(np.ascontiguousarray(numbers.T) if transposed else numbers, name="w")
    feeds = {f"x{i}": rng.standard_normal((n, 3)).astype(np.float32) for i, n in enumerate(rows)}
    terms = [
        ops.sum(ops.sin(ops.matmul(gl.input(name, x.shape), w, transpose_y=transposed))) for name, x in feeds.items()
    ]
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    return w, feeds, loss, gl.gradients(loss, [w])[0]


def products_of(gradient: Any) -> list[Any]:
    """Products of the gradient alone: those that no sine reads."""
    made = [node for node in reachable([gradient]) if node.op.name == "matmul"]
    return [node for node in made if set(node.outputs[0].shape) == {3, 5} and node.inputs[0].node.op.name == "permute"]


@pytest.mark.parametrize(
    ("rows", "products"), [([2] * 6, 1), ([4, 2, 7, 1], 1), ([2, 2, 2], 3), ([2, 2, 2, 129], 4)], ids=str
)
def test_a_product_of_all_steps(rows: list[int], products: int) -> None:
    w, feeds, loss, gradient = of_steps(rows)
    assert len(products_of(gradient)) == products
    (found,) = gl.compile([gradient])(**feeds)
    x = np.concatenate(list(feeds.values())).astype(np.float64)
    turned = of_steps(rows, True)[-1]
    np.testing.assert_allclose(gl.compile([turned])(**feeds)[0].T, found, rtol=0, atol=1e-5 * len(x) ** 0.5)
    assert len(products_of(turned)) == products
    np.testing.assert_allclose(found, x.T @ np.cos(x @ w.numpy()), rtol=0, atol=1e-5 * len(x) ** 0.5)
    gl.check_gradients(loss, feeds)


def test_gradients_of_gradients() -> None:
    _, feeds, _, gradient = of_steps([2] * 5)
    gl.check_gradients(ops.sum(ops.sqr(gradient)), feeds)


def test_any_number_of_threads() -> None:
    _, feeds, loss, gradient = of_steps([90] * 5)
    one, two = (gl.compile([loss, gradient], threads=n)(**feeds) for n in (1, 2))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
