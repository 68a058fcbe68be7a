"""cross and solve_triangular against NumPy and PyTorch."""

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


@pytest.mark.oracle
@pytest.mark.parametrize("first, second, axis", [
    ((3,), (3,), -1), ((5, 3), (5, 3), -1), ((3, 7), (3, 7), 0), ((2, 3, 4), (2, 3, 4), 1), ((4, 3), (1, 3), -1),
    ((2, 1, 3), (5, 3), -1),
], ids=str)  # fmt: skip
def test_cross_is_that_of_pytorch_and_numpy(first: tuple[int, ...], second: tuple[int, ...], axis: int):
    x, y = drawn(*first), drawn(*second, seed=1)
    compare(
        lambda a, b: ops.cross(a, b, axis),
        lambda a, b: torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=axis),
        x, y,
    )  # fmt: skip
    (got,) = gl.compile(ops.cross(x, y, axis))()
    np.testing.assert_allclose(got, np.cross(x, y, axis=axis), rtol=1e-5, atol=1e-6)


def triangle(*shape: int, lower: bool) -> np.ndarray:
    """A full matrix whose triangle is well conditioned, and whose other numbers would change each result."""
    a = drawn(*shape) / np.float32(shape[-1])
    a[..., np.arange(shape[-1]), np.arange(shape[-1])] = drawn(*shape[:-1], low=1.0)
    return a


@pytest.mark.oracle
@pytest.mark.parametrize("a_shape, b_shape", [
    ((1, 1), (1, 1)), ((5, 5), (5, 3)), ((2, 4, 4), (2, 4, 1)), ((4, 4), (3, 4, 2)), ((2, 1, 3, 3), (5, 3, 2)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_systems_are_those_of_pytorch(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], lower: bool, unit_diagonal: bool, transpose_a: bool
):
    def theirs(a: Any, b: Any) -> Any:
        inside = torch.tril(a) if lower else torch.triu(a)
        given = inside.mT if transpose_a else inside
        return torch.linalg.solve_triangular(given, b, upper=lower is transpose_a, unitriangular=unit_diagonal)

    compare(
        lambda a, b: ops.solve_triangular(a, b, lower, unit_diagonal, transpose_a), theirs,
        triangle(*a_shape, lower=lower), drawn(*b_shape, seed=1),
    )  # fmt: skip


def test_the_defaults_are_those_of_scipy():
    """scipy.linalg.solve_triangular(a, b): an upper triangle, b a vector."""
    a = np.array([[2, 1, 4], [9, 4, 2], [9, 9, 8]], np.float32)
    b = np.array([12, 8, 8], np.float32)
    (got,) = gl.compile(ops.solve_triangular(a, b))()
    np.testing.assert_allclose(got, np.linalg.solve(np.triu(a), b), rtol=1e-6)


def test_a_zero_on_the_diagonal_is_infinite():
    with np.errstate(all="ignore"):
        (got,) = gl.compile(ops.solve_triangular(np.array([[0.0, 0], [1, 1]]), np.ones(2), lower=True))()
    assert got.tolist() == [np.inf, -np.inf]


def test_eager_tensors_are_taken():
    a, b = gl.parameter([[2.0, 9.0], [1.0, 4.0]], "a"), gl.tensor([[2.0], [9.0]])
    with gl.grad_tape() as tape:
        x = ops.solve_triangular(a, b, lower=True)
        loss = ops.sum(x) + ops.sum(ops.cross(gl.tensor([1.0, 0, 0]), gl.tensor([0.0, 1, 0])))
    assert x.numpy().tolist() == [[1], [2]] and float(loss) == 4
    assert tape.backward(loss)[a].numpy().tolist() == [[-0.375, 0], [-0.25, -0.5]]


X = np.ones((2, 3), np.float32)
EYE = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize("call, kind, message", [
    (lambda: ops.cross(X, X, 0), ShapeError,
     "cross: axis -2 does not hold three numbers: f32[2,3], f32[2,3]; need extent 3 in x and y"),
    (lambda: ops.cross(X, X[:, :1]), ShapeError, "cross: axis -1 does not hold three numbers: f32[2,3], f32[2,1]"),
    (lambda: ops.cross(X, X, 2), ShapeError, "cross: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda: ops.cross(1.0, X), ShapeError, "cross: axis -1 does not hold three numbers: f32[], f32[2,3]"),
    (lambda: ops.solve_triangular(X, X), ShapeError,
     "solve_triangular: a is not square: f32[2,3]; need a of shape [..., n, n]"),
    (lambda: ops.solve_triangular(EYE, X), ShapeError,
     "solve_triangular: b does not fit: f32[3,3], f32[2,3]; need b of shape [..., 3, m] or [3]"),
    (lambda: ops.solve_triangular(EYE[None], X[0]), ShapeError,
     "solve_triangular: b does not fit: f32[1,3,3], f32[3]; need b of shape [..., 3, m]"),
    (lambda: ops.solve_triangular(np.ones((2, 3, 3)), np.ones((4, 3, 1))), ShapeError,
     "solve_triangular: shapes do not broadcast"),
    (lambda: ops.solve_triangular(EYE, X, upper=True), TypeError, "use lower="),
    (lambda: ops.solve_triangular(EYE, X, trans="T"), TypeError, "use transpose_a="),
    (lambda: ops.solve_triangular(EYE, X, unitriangular=True), TypeError, "use unit_diagonal="),
], ids=lambda v: v[:30] if isinstance(v, str) else "")  # fmt: skip
def test_refused(call: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_check_gradients_accepts_them():
    a = gl.parameter(triangle(4, 4, lower=True), "a")
    b = gl.parameter(drawn(4, 2), "b")
    assert gl.check_gradients(ops.sum(ops.sqr(ops.solve_triangular(a, b, lower=True)))) < 1e-5
    x = ops.solve_triangular(a, constant(drawn(4, 3)), transpose_a=True)
    assert gl.check_gradients(ops.sum(ops.cross(x, ops.sqr(x)))) < 1e-5
