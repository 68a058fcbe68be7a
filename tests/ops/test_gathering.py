"""gather, scatter_add, take and one_hot against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import DataError, DTypeError, ShapeError
from gradloom.graph.leaves import constant
from tests.kept import torch
from tests.ops.torch_functions import compare, drawn

SHAPES = [((1,), 0, 1), ((7,), 0, 9), ((5, 33), 1, 4), ((5, 33), 0, 8), ((2, 3, 5), 1, 4), ((3, 1, 4), -1, 6)]


def ids_for(shape: tuple[int, ...], axis: int, count: int) -> np.ndarray:
    wide = list(shape)
    wide[axis] = count
    return np.random.default_rng(2).integers(0, shape[axis], wide)


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axis, count", SHAPES, ids=str)
def test_gather_is_that_of_pytorch_and_numpy(shape: tuple[int, ...], axis: int, count: int):
    ids = ids_for(shape, axis, count)
    compare(
        lambda x: ops.gather(x, ids.astype(np.int32), axis),
        lambda x: torch.gather(x, axis, torch.tensor(ids)),
        drawn(*shape),
    )
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    (got,) = gl.compile(ops.gather(constant(whole), constant(ids), axis))()  # ids of i64
    assert got.dtype == np.int32 and got.tolist() == np.take_along_axis(whole, ids, axis).tolist()


@pytest.mark.oracle
@pytest.mark.parametrize("shape, axis, count", SHAPES, ids=str)
def test_scatter_add_is_that_of_pytorch(shape: tuple[int, ...], axis: int, count: int):
    ids = ids_for(shape, axis, count)
    compare(
        lambda x, src: ops.scatter_add(ops.sin(x), ids, ops.sqr(src), axis),
        lambda x, src: torch.scatter_add(torch.sin(x), axis, torch.tensor(ids), src**2),
        drawn(*shape), drawn(*ids.shape, seed=3),
    )  # fmt: skip


def test_scatter_add_of_a_number_counts():
    (got,) = gl.compile(ops.scatter_add(np.zeros(5), [1, 1, 4, 1, 0], 1.0))()
    assert got.tolist() == [1, 3, 0, 0, 1]


@pytest.mark.oracle
@pytest.mark.parametrize(
    "shape, axis", [((7,), 0), ((5, 33), 1), ((5, 33), 0), ((2, 3, 5), 1), ((3, 1, 4), -1)], ids=str
)
def test_take_is_that_of_pytorch_and_numpy(shape: tuple[int, ...], axis: int):
    row = np.random.default_rng(2).integers(0, shape[axis], 6)
    compare(lambda x: ops.take(x, row, axis), lambda x: torch.index_select(x, axis, torch.tensor(row)), drawn(*shape))
    for ids in (row.reshape(2, 3), row[0]):
        (got,) = gl.compile(ops.take(drawn(*shape), constant(np.asarray(ids, np.int32)), axis))()
        assert got.tolist() == np.take(drawn(*shape), ids, axis).tolist()


def test_a_number_of_python_is_a_position():
    x = drawn(3, 4)
    got, row = gl.compile([ops.take(x, 2, 1), ops.one_hot(2, 4)])()
    assert got.tolist() == x[:, 2].tolist() and row.tolist() == [0, 0, 1, 0]
    assert ops.take(gl.tensor(x), 2, 1).numpy().tolist() == x[:, 2].tolist()


def test_take_of_halves():
    x = constant(drawn(4, 6), "bf16")
    (got,) = gl.compile(ops.take(x, [5, 0], 1))()
    assert got.dtype == np.float32 and got.tolist() == gl.compile(ops.cast(x, "f32"))()[0][:, [5, 0]].tolist()


@pytest.mark.parametrize(
    "ids", [np.array([2, 0, 2]), np.array([[1], [3]], np.uint8), np.array(3)], ids=["i64", "u8", "()"]
)
def test_one_hot_is_a_row_of_the_identity(ids: np.ndarray):
    (got,) = gl.compile(ops.one_hot(constant(ids), 4))()
    assert got.dtype == np.float32 and got.tolist() == np.eye(4)[ids].tolist()


def test_eager_tensors_are_taken():
    p = gl.parameter([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "p")
    ids = gl.tensor(np.array([[2, 2], [0, 1]], np.int32))
    with gl.grad_tape() as tape:
        loss = ops.sum(ops.gather(p, ids) * np.array([1.0, 2.0])) + ops.sum(ops.take(p, [0], 1))
    assert tape.backward(loss)[p].numpy().tolist() == [[1, 0, 3], [2, 2, 0]]
    assert ops.one_hot(ids, 3).numpy()[1].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("build", [
    lambda ids: ops.gather(np.ones((2, 3)), ids), lambda ids: ops.scatter_add(np.ones((2, 3)), ids, 1.0),
    lambda ids: ops.take(np.ones((2, 3)), ids, 1), lambda ids: ops.one_hot(ids, 3),
], ids=["gather", "scatter_add", "take", "one_hot"])  # fmt: skip
@pytest.mark.parametrize("wrong", [3, -1])
def test_positions_out_of_range_stop_the_run(build: Any, wrong: int):
    ids = gl.input("ids", (2, 2), "i32")
    run = gl.compile(build(ids))
    run(ids=np.array([[0, 1], [2, 0]]))
    with pytest.raises(DataError, match=f"id {wrong} at position 3"):
        run(ids=np.array([[0, 1], [2, wrong]]))


X, IDS = np.ones((2, 3), np.float32), np.zeros((2, 2), np.int32)


@pytest.mark.parametrize("call, kind, message", [
    (lambda: ops.gather(X, IDS, 2), ShapeError, "gather: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda: ops.gather(X, IDS, 0), ShapeError,
     "gather: ids do not fit: x f32[2,3], ids i32[2,2]; need ids of shape [k, 3], as x has outside axis 0"),
    (lambda: ops.gather(X, IDS[0]), ShapeError, "gather: ids do not fit: x f32[2,3], ids i32[2]; need"),
    (lambda: ops.gather(X, 1, IDS), ShapeError, "gather: axis is"),
    (lambda: ops.gather(X, X), DTypeError, "gather: ids are f32[2,3]; need whole numbers; at test_gathering.py:"),
    (lambda: ops.gather(X, index=IDS, dim=1), TypeError, "use ids="),
    (lambda: ops.scatter_add(X, IDS, X), ShapeError,
     "scatter_add: src does not fit: i32[2,2], f32[2,3]; need src of the shape of ids"),
    (lambda: ops.scatter_add(X, IDS[:1], 1.0), ShapeError,
     "scatter_add: ids do not fit: f32[2,3], i32[1,2]; need ids with x's extents outside axis 1"),
    (lambda: ops.take(X, IDS, 2), ShapeError, "take: axis 2 does not exist: f32[2,3]; need an axis from -2 to 1"),
    (lambda: ops.take(X, IDS), TypeError, "axis"),
    (lambda: ops.one_hot(IDS, 0), ShapeError,
     "one_hot: num_classes=0 is not usable: i32[2,2]; need a whole number >= 1"),
    (lambda: ops.one_hot(X, 3), DTypeError, "one_hot: ids are f32[2,3]; need whole numbers"),
    (lambda: ops.take(X, [0.5], 1), DTypeError, "take: ids are f32[1]; need whole numbers"),
    (lambda: ops.one_hot(IDS, 3, axis=0), TypeError, "classes are the last axis"),
], ids=lambda v: v[:30] if isinstance(v, str) else "")  # fmt: skip
def test_refused(call: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)
