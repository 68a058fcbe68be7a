"""Axes and keepdims in the spellings of NumPy and PyTorch."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.habit_names import SPELLINGS

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CALLS = [
    ("sum(x, axes=1)", "sum(x, dim=1)"), ("sum(x, axes=(0, 2))", "sum(x, axis=(0, 2))"),
    ("sum(x, 1, keepdims=True)", "sum(x, 1, keepdim=True)"), ("mean(x, axes=1)", "mean(x, axis=1)"),
    ("mean(x, axes=1, keepdims=True)", "mean(x, dim=1, keepdim=True)"), ("max(x, axes=2)", "max(x, dim=2)"),
    ("min(x, axes=2)", "min(x, axis=2)"), ("argmax(x, axis=1)", "argmax(x, dim=1)"),
    ("softmax(x, axis=0)", "softmax(x, dim=0)"), ("log_softmax(x, axis=1)", "log_softmax(x, dim=1)"),
    ("concat([x, x], axis=1)", "concat([x, x], dim=1)"), ("stack([x, x], axis=1)", "stack([x, x], dim=1)"),
    ("split(x, 2, axis=2)[1]", "split(x, 2, dim=2)[1]"), ("squeeze(x[:1], axes=0)", "squeeze(x[:1], dim=0)"),
    ("expand_dims(x, axis=1)", "expand_dims(x, dim=1)"), ("permute(x, axes=(2, 0, 1))", "permute(x, dims=(2, 0, 1))"),
    ("transpose(x, axes=(2, 0, 1))", "transpose(x, dims=(2, 0, 1))"), ("glu(x, axis=2)", "glu(x, dim=2)"),
    ("roll(x, 1, axis=1)", "roll(x, 1, dims=1)"), ("flip(x, axis=1)", "flip(x, dims=1)"),
    ("norm(x, axes=1, keepdims=True)", "norm(x, axis=1, keepdim=True)"), ("l2_norm(x, axis=1)", "l2_norm(x, dim=1)"),
]  # fmt: skip


@pytest.mark.parametrize("x", [gl.tensor(X), gl.input("x", X.shape)], ids=["eager", "graph"])
@pytest.mark.parametrize(("ours", "theirs"), CALLS)
def test_the_fields_spellings_are_taken(ours, theirs, x):
    values = [eval(f"gl.ops.{call}", {"gl": gl, "x": x}) for call in (ours, theirs)]
    if x.recorder is None:
        values = gl.compile(values)(x=X)
    first, second = (np.asarray(v) for v in values)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("x", [gl.tensor(X), gl.input("x", X.shape)], ids=["eager", "graph"])
def test_methods_take_them_too(x):
    assert x.sum(dim=1).shape == x.mean(axis=1).shape == (2, 4)
    assert x.sum(dim=1, keepdim=True).shape == x.mean(1, keep_dims=True).shape == (2, 1, 4)


def test_every_function_with_an_axis_takes_each_spelling():
    spelled = {name for group in SPELLINGS for name in group} - {"dims"}  # of rope_frequencies: a number
    functions = [getattr(gl.ops, name) for name in gl.ops.__all__]
    without = [
        f.__name__ for f in functions
        if inspect.isfunction(f) and spelled & set(inspect.signature(f).parameters) and not hasattr(f, "__wrapped__")
    ]  # fmt: skip
    assert without == []


def test_two_spellings_at_once_and_other_keywords_are_refused():
    x = gl.tensor(X)
    with pytest.raises(TypeError, match="'dim'; use axes="):
        gl.ops.sum(x, axes=1, dim=1)
    with pytest.raises(TypeError, match="multiple values for argument 'axes'"):
        gl.ops.sum(x, 1, dim=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ax'"):
        gl.ops.sum(x, ax=1, keepdim=True)
    with pytest.raises(TypeError, match="use k="):
        gl.ops.tril(x, diagonal=1)
