"""Comparisons, conditions and their operators against NumPy, as functions and on graph values and eager tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import DTypeError, GradientError
from gradloom.graph.leaves import constant, input

INF, NAN = np.inf, np.nan
X = np.array([[1, 2, NAN, 0.0], [-0.0, INF, -INF, NAN]], np.float32)
Y = np.array([2, 2, 1, 0], np.float32)
WHOLE = np.array([[3, 2, 0, 2**24 + 1]], np.int32)
OTHER = np.array([[3], [2**24]], np.int32)
BYTES = np.array([0, 1, 2, 255], np.uint8)


def number(value: Any) -> np.ndarray:
    return gl.compile(value)()[0]


@pytest.mark.parametrize("x, y", [(X, Y), (Y, X), (X, X), (X, 2.0), (2.0, X), (WHOLE, 2), (BYTES, 1)],
                         ids=["broadcast", "wider", "same", "number", "left", "whole", "bytes"])  # fmt: skip
@pytest.mark.parametrize("name", ["not_equal", "less_equal", "greater_equal"])
def test_comparisons_are_those_of_numpy(name: str, x: Any, y: Any):
    want = getattr(np, name)(x, y)
    for made in (lambda v: constant(v), gl.tensor):
        one = made(x) if isinstance(x, np.ndarray) else x
        two = made(y) if isinstance(y, np.ndarray) else y
        got = getattr(ops, name)(one, two)
        got = got.numpy() if made is gl.tensor else number(got)
        assert got.dtype == np.uint8 and got.tolist() == want.astype(np.uint8).tolist()


def test_whole_numbers_of_i32_differ_exactly():
    """f32 does not tell 2^24 and 2^24 + 1 apart."""
    got = number(ops.not_equal(constant(WHOLE), constant(OTHER)))
    assert got.tolist() == np.not_equal(WHOLE, OTHER).astype(int).tolist()


@pytest.mark.parametrize("x", [X, Y, WHOLE, BYTES, np.float32(NAN)], ids=["f32", "row", "i32", "u8", "scalar"])
@pytest.mark.parametrize("name", ["isnan", "isfinite", "isinf", "logical_not"])
def test_tests_of_numbers_are_those_of_numpy(name: str, x: Any):
    got = number(getattr(ops, name)(constant(x)))
    assert got.dtype == np.uint8 and got.tolist() == getattr(np, name)(x).astype(np.uint8).tolist()


@pytest.mark.parametrize("x, y", [(X, Y), (X, X > 0), (BYTES, X), (WHOLE, OTHER), (True, X), (X, 0.0)],
                         ids=["f32", "bool", "u8", "i32", "left", "number"])  # fmt: skip
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_conditions_are_those_of_numpy(name: str, x: Any, y: Any):
    one, two = (constant(v) if isinstance(v, np.ndarray) else v for v in (x, y))
    got = number(getattr(ops, name)(one, two))
    assert got.dtype == np.uint8 and got.tolist() == getattr(np, name)(x, y).astype(np.uint8).tolist()


@pytest.mark.parametrize("made", [constant, gl.tensor], ids=["graph", "eager"])
def test_operators_join_conditions(made: Any):
    x = made(np.array([-2, 0, 1, 3, NAN], np.float32))
    kept = np.array([True, True, False, True, True])
    for got, want in (
        ((x > -1) & (x < 2), [0, 1, 1, 0, 0]), ((x <= -1) | (x >= 2), [1, 0, 0, 1, 0]), (~(x > 0), [1, 1, 0, 0, 1]),
        ((x > 0) ^ (x < 2), [1, 1, 0, 1, 0]), (kept & (x > 0), [0, 0, 0, 1, 0]), ((x > 0) & kept, [0, 0, 0, 1, 0]),
        (False | (x > 0), [0, 0, 1, 1, 0]), (True ^ (x > 0), [1, 1, 0, 0, 1]), (ops.isnan(x) & True, [0, 0, 0, 0, 1]),
    ):  # fmt: skip
        assert (got.numpy() if made is gl.tensor else number(got)).tolist() == want
    chosen = ops.where((x > -1) & (x < 2), x, 9.0)
    assert (chosen.numpy() if made is gl.tensor else number(chosen)).tolist() == [9, 0, 1, 9, 9]


@pytest.mark.parametrize("call, message", [
    (lambda x: x & (x > 0), "&: an operand is f32[2]; need conditions (u8 or bool), such as x > 0; "
     "gl.ops.logical_and takes numbers; at test_comparisons.py:"),
    (lambda x: (x > 0) | 1, "|: an operand is int; need conditions"),
    (lambda x: 3 ^ (x > 0), "^: an operand is int; need conditions"),
    (lambda x: (x > 0) & np.array([1, 2]), "&: an operand is ndarray; need conditions"),
    (lambda x: ~x, "~: an operand is f32[2]; need conditions"),
], ids=["and", "or", "xor", "array", "not"])  # fmt: skip
def test_operators_refuse_numbers(call: Any, message: str):
    """& is bitwise in NumPy: on numbers it would be something else here."""
    with pytest.raises(DTypeError) as caught:
        call(constant(np.ones(2, np.float32)))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["isnan", "logical_not"])
def test_conditions_have_no_gradient_and_say_so(name: str):
    x = input("x", (3,))
    with pytest.raises(GradientError, match="a comparison has no slope"):
        gl.gradients(ops.sum(ops.cast(getattr(ops, name)(x), "f32")), [x])
