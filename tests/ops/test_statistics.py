"""var, std, logsumexp and argmin against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import DTypeError, SettingError, ShapeError
from gradloom.graph.leaves import constant
from gradloom.run.numpy_backend import evaluate
from tests.kept import torch
from tests.ops.torch_functions import compare, drawn

SHAPES = [((7,), 0), ((5, 33), 1), ((5, 33), 0), ((3, 1, 4), -1), ((2, 3, 5), (0, 2)), ((1, 9), None)]
INF, NAN = np.inf, np.nan


def number(value: Any) -> np.ndarray:
    return evaluate([value])[value]


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axes", SHAPES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_moments_are_those_of_pytorch(name: str, shape: tuple[int, ...], axes: Any, keepdims: bool, correction: float):
    compare(
        lambda x: getattr(ops, name)(x, axes, keepdims, correction),
        lambda x: getattr(torch, name)(x, axes, correction=correction, keepdim=keepdims),
        drawn(*shape),
    )


@pytest.mark.parametrize("shape, axes", [*SHAPES, ((4,), ()), ((), None)], ids=str)
def test_moments_are_those_of_numpy(shape: tuple[int, ...], axes: Any):
    x = drawn(*shape)
    np.testing.assert_allclose(number(ops.var(x, axes)), np.var(x.astype(float), axes), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(number(ops.std(x, axes)), np.std(x.astype(float), axes), rtol=1e-5, atol=1e-7)


def test_std_of_equal_numbers_has_the_gradient_0():
    p = gl.parameter([2.0, 2.0, 2.0], "p")
    (g,) = gl.gradients(ops.std(p), [p])
    assert gl.compile([ops.std(p), g])()[1].tolist() == [0, 0, 0]


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axes", [s for s in SHAPES if s[1] is not None], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp_is_that_of_pytorch(shape: tuple[int, ...], axes: Any, keepdims: bool):
    compare(
        lambda x: ops.logsumexp(x, axes, keepdims), lambda x: torch.logsumexp(x, axes, keepdims), drawn(*shape, high=4)
    )


def test_logsumexp_of_large_and_infinite_numbers():
    x = np.array([[1e4, 1e4, -1e4], [-3e38, 0, 0], [-INF, 1, -INF], [-INF, -INF, -INF], [INF, 1, 2], [NAN, 1, 2]])
    p = gl.parameter(x, "p")
    y = ops.logsumexp(p, 1)
    (g,) = gl.gradients(ops.sum(y), [p])
    got, slope = gl.compile([y, g], check=1)()  # a scan for NaN would stop it
    np.testing.assert_allclose(got, [1e4 + np.log(2), np.log(2), 1, -INF, INF, NAN], rtol=1e-6)
    np.testing.assert_allclose(slope[:4], [[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 1, 0], [0, 0, 0]], rtol=1e-6)
    assert number(ops.logsumexp(1.5)) == 1.5


@pytest.mark.parametrize("shape, axis", [((7,), 0), ((5, 33), -1), ((5, 33), 0), ((3, 4, 5), 1)], ids=str)
def test_argmin_is_that_of_numpy(shape: tuple[int, ...], axis: int):
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)  # ties: the first one counts
    (got,) = gl.compile(ops.argmin(constant(x), axis))()
    assert got.dtype == np.int32
    assert got.tolist() == np.argmin(x, axis).tolist()


def test_argmin_of_nan_is_the_place_of_the_first():
    x = np.array([[1, NAN, 0], [INF, 2, -INF], [NAN, NAN, 1]], np.float32)
    assert gl.compile(ops.argmin(constant(x)))()[0].tolist() == np.argmin(x, -1).tolist()


def test_whole_numbers_are_taken_as_f32():
    x = np.array([[3, 1, 2], [9, 9, 4]], np.int32)
    assert number(ops.argmin(constant(x))).tolist() == [1, 2]
    np.testing.assert_allclose(number(ops.var(constant(x), 1)), np.var(x, 1), rtol=1e-6)


@pytest.mark.parametrize("call, kind, message", [
    (lambda x: ops.var(x, 2), ShapeError, "var: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda x: ops.std(x, (0, 0)), ShapeError, "std: axes (0, 0) name one axis twice: f32[2,3]; need each axis once"),
    (lambda x: ops.var(x, 0, correction=2), ShapeError,
     "var: 2 elements with correction 2: f32[2,3]; need more than 2 elements"),
    (lambda x: ops.std(x[:0], 0), ShapeError, "std: 0 elements with correction 0: f32[0,3]; need more than 0"),
    (lambda x: ops.var(x, correction=-1), SettingError, "var: correction -1 is not usable; need a number >= 0"),
    (lambda x: ops.var(x, correction=x), DTypeError, "var: correction is a value, f32[2,3]; need a number of Python"),
    (lambda x: ops.logsumexp(x, 5), ShapeError, "logsumexp: axis 5 does not exist: f32[2,3]; need"),
    (lambda x: ops.logsumexp(x[:0], 0), ShapeError, "logsumexp: nothing to reduce: f32[0,3]; need extents >= 1"),
    (lambda x: ops.argmin(x, 2), ShapeError, "argmin: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda x: ops.argmin(x[:0], 0), ShapeError, "argmin: nothing to choose from: f32[0,3]; need an extent >= 1"),
    (lambda x: ops.var(x, ddof=1), TypeError, "use correction="),
    (lambda x: ops.std(x, unbiased=True), TypeError, "use correction=1"),
], ids=lambda v: v[:40] if isinstance(v, str) else "")  # fmt: skip
def test_refused(call: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as caught:
        call(constant(np.ones((2, 3), np.float32)))
    assert message in str(caught.value) and "\n" not in str(caught.value)
