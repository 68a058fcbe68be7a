"""cumsum and cumprod against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import ShapeError
from gradloom.graph.leaves import constant
from tests.kept import torch
from tests.ops.torch_functions import compare, drawn

SHAPES = [((1,), 0), ((7,), 0), ((5, 33), 1), ((5, 33), 0), ((3, 1, 4), -2), ((2, 3, 5), 1)]


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_they_are_those_of_pytorch(name: str, shape: tuple[int, ...], axis: int):
    compare(lambda x: getattr(ops, name)(x, axis), lambda x: getattr(torch, name)(x, axis), drawn(*shape))


@pytest.mark.oracle
@pytest.mark.parametrize("zeros", [(0,), (2,), (6,), (1, 4), (0, 3, 6)], ids=str)
def test_products_with_zeros_have_exact_gradients(zeros: tuple[int, ...]):
    x = drawn(3, 7, low=0.5)
    x[1, list(zeros)] = 0
    compare(lambda v: ops.cumprod(v, 1), lambda v: torch.cumprod(v, 1), x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_they_are_those_of_numpy(name: str):
    arrays = (
        np.array([[3, 1, 2], [0, -4, 5]], np.int32), np.array([1, 2, 200], np.uint8), np.zeros((0, 3), np.float32),
        np.zeros((3, 0), np.float32), np.array([np.inf, 2, np.nan, 1], np.float32),
        np.array([-0.0, 3, 1e-3], np.float32),
    )  # fmt: skip
    assert gl.compile(ops.cumsum(constant([1, 2, 4], "bf16")))()[0].tolist() == [1, 3, 7]
    for x in arrays:
        for axis in range(x.ndim):
            (got,) = gl.compile(getattr(ops, name)(constant(x), axis))()
            want = getattr(np, name)(x.astype(float), axis)
            assert got.dtype == np.float32 and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_long_sums_do_not_lose_digits():
    """Sums in f32 would be wrong by 1e-4 of the last."""
    x = drawn(300_000, low=0, high=1)
    (got,) = gl.compile(ops.cumsum(constant(x)))()
    np.testing.assert_allclose(got, np.cumsum(x, dtype=float), rtol=1e-7)


def test_eager_tensors_are_taken():
    p = gl.parameter([1.0, 0.0, 3.0], "p")
    with gl.grad_tape() as tape:
        loss = ops.sum(ops.cumsum(p * 2.0)) + ops.sum(ops.cumprod(p))
    assert tape.backward(loss)[p].numpy().tolist() == [6 + 1, 4 + 1 + 3, 2]
    assert ops.cumprod(gl.tensor([2.0, 3.0])).numpy().tolist() == [2, 6]


@pytest.mark.parametrize("call, kind, message", [
    (lambda x: ops.cumsum(x, 2), ShapeError, "cumsum: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda x: ops.cumprod(x, -3), ShapeError, "cumprod: axis -3 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda x: ops.cumsum(x, None), ShapeError, "cumsum: axis is a NoneType: f32[2,3]; need a whole number"),
    (lambda x: ops.cumsum(x, dtype="f32"), TypeError, "use gl.ops.cast(x, dtype)"),
], ids=lambda v: v[:30] if isinstance(v, str) else "")  # fmt: skip
def test_refused(call: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as caught:
        call(constant(np.ones((2, 3), np.float32)))
    assert message in str(caught.value) and "\n" not in str(caught.value)
