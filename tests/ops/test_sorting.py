"""sort, argsort and top_k against NumPy and PyTorch: order, ties, NaN, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import DTypeError, GradientError, ShapeError
from gradloom.graph.leaves import constant
from tests.kept import torch
from tests.ops.torch_functions import compare, drawn

SHAPES = [((1,), 0), ((7,), 0), ((5, 33), 1), ((5, 33), 0), ((2, 3, 5), 1), ((3, 1, 4), -1)]
SPECIAL = np.array([[2, np.nan, -1, 0, np.inf, 2, -0.0, np.nan], [-np.inf, 1, 1, 1, np.nan, 0, 5, 1]], np.float32)


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sorted_values_are_those_of_pytorch(shape: tuple[int, ...], axis: int, descending: bool):
    compare(
        lambda x: ops.sort(ops.sqr(x), axis, descending)[0],
        lambda x: torch.sort(x**2, axis, descending).values,
        drawn(*shape, low=0.1),
    )


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_top_k_is_that_of_pytorch(shape: tuple[int, ...], axis: int, largest: bool):
    for k in sorted({1, shape[axis] // 2 + 1, shape[axis]}):
        compare(
            lambda x, k=k: ops.top_k(ops.sqr(x), k, axis, largest)[0],
            lambda x, k=k: torch.topk(x**2, k, axis, largest).values,
            drawn(*shape, low=0.1),
        )


@pytest.mark.oracle
@pytest.mark.parametrize("descending", [False, True])
def test_ties_and_nan_are_those_of_pytorch(descending: bool):
    torch = pytest.importorskip("torch")
    for x in (SPECIAL, np.random.default_rng(0).integers(-3, 4, (3, 500)).astype(np.float32)):
        values, order = gl.compile(list(ops.sort(constant(x), descending=descending)))()
        want = torch.sort(torch.tensor(x), stable=True, descending=descending)
        assert order.dtype == np.int32 and order.tolist() == want.indices.tolist()
        np.testing.assert_array_equal(values, want.values.numpy())


@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize("n", [1, 2, 47, 48, 49, 255, 3000])
def test_order_is_the_stable_one_of_numpy(n: int, kind: Any):
    """Lengths around those where the kernel changes its way. 0 and -0 are equal."""
    rng = np.random.default_rng(n)
    x = rng.integers(-5, 5, (3, n)).astype(kind) * rng.choice([-1, 1], (3, n)).astype(kind)
    order = np.argsort(x, -1, kind="stable")
    got, few = gl.compile([ops.argsort(constant(x)), ops.top_k(constant(x), min(n, 3), largest=False)[1]])()
    assert got.tolist() == order.tolist() and few.tolist() == order[:, :3].tolist()


def test_the_gradient_goes_to_the_elements():
    p = gl.parameter([3.0, 1.0, 2.0], "p")
    with gl.grad_tape() as tape:
        values, order = ops.top_k(p, 2)
        loss = ops.sum(values * np.array([1.0, 10.0]))
    assert tape.backward(loss)[p].numpy().tolist() == [1, 0, 10]
    assert order.numpy().tolist() == [0, 2]


def test_no_element_is_kept():
    values, order = gl.compile(list(ops.top_k(constant(drawn(3, 4)), 0)))()
    assert values.shape == order.shape == (3, 0)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("call, kind, message", [
    (lambda: ops.sort(X, 2), ShapeError, "sort: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda: ops.argsort(X, -3), ShapeError, "argsort: axis -3 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda: ops.sort(1.0), ShapeError, "sort: axis -1 does not exist: f32[]; need"),
    (lambda: ops.top_k(X, 4), ShapeError, "top_k: k=4 is not usable: f32[2,3]; need a whole number from 0 to 3"),
    (lambda: ops.top_k(X, 1.5), ShapeError, "top_k: k=1.5 is not usable"),
    (lambda: ops.top_k(X, constant(2.0)), DTypeError, "top_k: k is a value, f32[]; need a number of Python"),
    (lambda: ops.sort(np.ones(3, np.uint8)), DTypeError, "argsort: dtype u8 is not taken: x u8[3]; need f32 or i32"),
    (lambda: ops.argsort(X, kind="stable"), TypeError, "sorting is stable"),
    (lambda: ops.top_k(X, 2, sorted=True), TypeError, "leave it out"),
], ids=lambda v: v[:30] if isinstance(v, str) else "")  # fmt: skip
def test_refused(call: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_positions_have_no_gradient_and_say_so():
    x = gl.input("x", (3,))
    with pytest.raises(GradientError, match="argsort has no gradient: a position has no slope"):
        gl.gradients(ops.sum(ops.cast(ops.argsort(x), "f32")), [x])
