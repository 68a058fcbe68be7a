"""Tensors outside of all tapes: what they hold, when they are computed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


def test_dtypes_and_copies():
    a = np.arange(6, dtype=np.float64).reshape(2, 3)
    t = gl.tensor(a)
    a[...] = 0
    assert t.shape == (2, 3) and t.dtype.name == "f32" and t.numpy().sum() == 15
    assert gl.tensor([1, 2]).dtype.name == "i32" and gl.tensor(np.array([True])).dtype.name == "u8"
    assert gl.tensor(3).dtype.name == "f32" and gl.tensor(np.zeros(2, np.uint8)).dtype.name == "u8"
    assert gl.tensor([1.5], dtype="f16").numpy().dtype == np.float16
    copied = t.numpy()
    copied[...] = -1
    assert t.numpy().sum() == 15
    assert len(t) == 2 and t.ndim == 2 and t.size == 6


def test_bad_data():
    with pytest.raises(gl.ShapeError, match="rows differ in length"):
        gl.tensor([[1, 2], [3]])
    with pytest.raises(gl.DTypeError, match="need numbers"):
        gl.tensor(["a"])
    with pytest.raises(gl.DataError, match="4294967296 at position 1 .*i32"):
        gl.tensor(np.array([0, 2**32]))
    with pytest.raises(gl.ShapeError, match=r"item: f32\[2\] holds 2 numbers"):
        float(gl.tensor([1.0, 2.0]))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_arithmetic_is_lazy_and_right():
    before = gl.stats().native_calls
    a, b = gl.tensor([[1.0, 2.0], [3.0, 4.0]]), gl.tensor([1.0, -1.0])
    c = (a @ b + 1.0).sum() / np.float32(2.0)
    d = (np.array([2.0, 2.0]) * b)[1]
    assert gl.stats().native_calls == before
    assert float(c) == 0.0 and int(d) == -2 and bool(d)
    assert gl.stats().native_calls == before + 1
    assert f"{c:.3f}" == "0.000" and repr(d) == "tensor(-2., f32[])" and d.item() == -2.0
    assert np.asarray(a).shape == (2, 2) and [float(v) for v in b] == [1.0, -1.0]
    assert ops.argmax(a, -1).tolist() == [1, 1]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_a_total_does_not_grow():
    total = gl.tensor(0.0)
    for i in range(5000):
        total = total + gl.tensor(1.0)
        if i == 1000:
            before = gl.stats()
    assert float(total) == 5000.0
    after = gl.stats()
    assert after.nodes == before.nodes and after.compiled <= before.compiled + 1
    total = gl.tensor(0.0)
    for _ in range(5000):
        total = total * 1.0 + 1.0
    assert float(total) == 5000.0


def test_copies_and_pickles():
    t = gl.tensor([1.0, 2.0]) * 2.0
    for twin in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert isinstance(twin, gl.Tensor) and twin.tolist() == [2.0, 4.0] and twin.dtype is t.dtype


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_parameters_and_models_without_a_tape():
    model = gl.nn.Linear(3, 2).init(0)
    x = np.ones((4, 3), np.float32)
    expected = gl.predict(model, x)
    assert np.array_equal(model(gl.tensor(x)).numpy(), expected)
    assert gl.tensor(model.bias).tolist() == model.bias.numpy().tolist()
    labels = np.array([0, 1, 0, 1])
    before = None
    for _ in range(3):
        loss = ops.cross_entropy(model(gl.tensor(x)), labels)
        float(loss)
        labels = 1 - labels
        before = before or gl.stats().compiled
    assert gl.stats().compiled == before


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_the_cache_is_bounded():
    model = gl.nn.Linear(3, 2).init(0)
    evicted = gl.stats().evicted
    for n in range(1, 140):
        model(gl.tensor(np.ones((n, 3)))).numpy()
    assert len(model.weight.programs.programs) <= 128 and gl.stats().evicted >= evicted + 11


def test_comparisons_mean_the_same_eagerly_and_in_graphs():
    """One function of a loss or model serves both; `==` once compared identities of graph values in silence."""
    data = np.array([[0.0, 1.0], [2.0, 0.0]], np.float32)
    forms = [
        lambda x: ops.where(x == 0.0, x + 5, x), lambda x: ops.where(x != 0.0, x + 5, x),
        lambda x: ops.where(x == x * 1.0, x + 5, x), lambda x: ops.where(x <= 1, x + 5, x),
        lambda x: ops.where(x >= [1.0, 0.0], x + 5, x), lambda x: ops.where(x > 1, x + 5, x),
        lambda x: ops.where(np.zeros(2, np.float32) == x, x + 5, x),
    ]  # fmt: skip
    for form in forms:
        graph = gl.compile(form(gl.input("x", (2, 2))))(x=data)[0]
        assert np.array_equal(form(gl.tensor(data)).numpy(), graph) and not np.array_equal(graph, data)
        p = gl.parameter(data, "p")
        with gl.grad_tape() as tape:
            loss = ops.sum(form(p) * form(p))
        assert np.array_equal(tape.backward(loss)[p].numpy(), 2 * graph)
    p, q = gl.parameter(1.0), gl.parameter(1.0)
    assert {p: 1, q: 2}[q] == 2 and p != None and (p == None) is False  # noqa: E711
    with pytest.raises(TypeError, match="has no truth"):
        bool(p == 1.0)
    with pytest.raises(TypeError, match="has no truth"):
        1.0 in gl.parameter([1.0, 2.0])  # noqa: B015


def test_tensors_inside_of_a_tape_keep_their_gradients():
    w = gl.parameter([3.0], "w")
    with gl.grad_tape() as tape:
        loss = ops.sum(gl.tensor(w) * gl.tensor(w * 2.0))
    assert tape.backward(loss)[w].tolist() == [12.0]
    with gl.grad_tape():
        for make in (lambda: gl.tensor([w[0] * 2.0, w[0]]), lambda: ops.mul([w[0], w[0] * 3.0], w)):
            with pytest.raises(gl.GradientError, match=r"a list of tensors inside of a tape .*need ops.stack"):
                make()
    assert gl.tensor([gl.tensor(1.0), gl.tensor(2.0)]).tolist() == [1.0, 2.0]


def test_only_a_scalar_of_whole_numbers_is_a_position() -> None:
    t = gl.tensor([[5.0, 6.0], [7.0, 8.0], [1.0, 2.0]])
    row = t[0:1]
    for x, index in (
        (row, row[:, 0] > 10),
        (t, t[0, 0] > 1),
        (t, gl.tensor([2])),
        (t, t[:, 0] > 5),
        (t, (0, t[0] > 5)),
    ):
        with pytest.raises(gl.ShapeError, match=r"get_rows.*where"):
            x[index]
    assert t[gl.tensor(np.int32(2))].tolist() == [1.0, 2.0] and t[: gl.tensor(np.int32(1))].shape == (1, 2)
    assert t[int(t[0, 0] > 1)].tolist() == [7.0, 8.0]


@pytest.mark.parametrize("eager", [True, False])
def test_whole_arrays_lists_and_bools_count_as_floats_beside_floats(eager: bool) -> None:
    numbers = np.array([0.5, 1.5], np.float32)
    for other in (np.array([1, 2]), [1, 2], np.array([True, False]), True, np.True_, np.array([1, 2], np.uint8)):
        real = np.asarray(other, np.float32)
        for function, want in (
            (lambda t, x: t + x, numbers + real),
            (lambda t, x: x * t, numbers * real),
            (ops.maximum, np.maximum(numbers, real)),
        ):
            if eager:
                made = function(gl.tensor(numbers), other).numpy()
            else:
                made = gl.compile([function(gl.input("t", (2,)), other)])(t=numbers)[0]
            assert made.dtype == np.float32 and np.array_equal(made, want)
    for bad in ("a", [[1], [1, 2]], np.array([None, 1]), np.ma.masked_array([1, 2], [True, False])):
        with pytest.raises(gl.GradloomError):
            gl.tensor(numbers) + bad


def test_functions_of_numpy_give_arrays():
    t = gl.tensor([[1.0, 2.0], [3.0, 6.0]])
    for function in (np.mean, np.sum, np.max, np.std, np.prod):
        assert function(t) == function(t.numpy())
        np.testing.assert_array_equal(function(t, axis=0), function(t.numpy(), axis=0))
    joined = np.concatenate([t, t])
    assert type(joined) is np.ndarray and joined.shape == (4, 2)
