"""gl.gradients: sums over paths, several losses, seeds, what has none; gl.check_gradients and gl.compare."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.graph import reachable
from gradloom.graph.opspec import REGISTRY, op
from gradloom.graph.value import Value
from gradloom.run.numpy_backend import evaluate


def value_of(v: Value | None, **feeds: Any) -> np.ndarray:
    assert v is not None
    used = {n.attrs["key"] for n in reachable([v]) if n.op.name == "input"}
    return evaluate([v], {k: data for k, data in feeds.items() if k in used})[v]


def test_paths_add_up() -> None:
    x = gl.input("x")
    y = x * x + ops.sin(x) * x + x
    (g,) = gl.gradients(y, [x])
    assert value_of(g, x=0.7) == pytest.approx(2 * 0.7 + np.cos(0.7) * 0.7 + np.sin(0.7) + 1)


def test_the_same_value_twice() -> None:
    x, y = gl.input("x", (3,)), gl.input("y", (3,))
    for z, dx in ((x * x, [2, 4, 6]), (x - x, [0, 0, 0]), (x / x, [0, 0, 0]), (ops.maximum(x, y + 0.0), [1, 1, 0])):
        (g,) = gl.gradients(z, [x])
        assert np.allclose(value_of(g, x=[1, 2, 3], y=[0, 1, 5]), dx)
    (g,) = gl.gradients(ops.matmul(ops.reshape(x, (3, 1)), ops.reshape(x, (1, 3))), [x])
    assert value_of(g, x=[1.0, 2.0, 3.0]).tolist() == [12, 12, 12]


def test_broadcast_gradients_are_summed() -> None:
    """ggml: ADD1 took the mean, SUB and DIV did not reduce."""
    x = np.random.default_rng(0).uniform(1, 2, (4, 3))
    for f in (operator.add, operator.sub, operator.mul, operator.truediv, lambda a, b: b - a, lambda a, b: b / a):
        for shape in ((), (3,), (4, 1), (1, 3), (1,)):
            b = gl.parameter(np.full(shape, 1.5), "b")
            loss = ops.sum(f(gl.input("x", (4, 3)), b) * gl.constant(np.arange(12.0).reshape(4, 3)))
            (g,) = gl.gradients(loss, [b])
            assert g is not None and g.shape == shape
            assert gl.check_gradients(loss, {"x": x}) < 1e-6


def test_several_losses_and_a_loss_twice() -> None:
    x = gl.input("x")
    assert value_of(gl.gradients([x * 2.0, x * 3.0], [x])[0], x=1.0) == 5
    y = x * 2.0
    assert value_of(gl.gradients([y, y], [x])[0], x=1.0) == 4
    assert value_of(gl.gradients([x, x * x], [x])[0], x=3.0) == 7
    assert value_of(gl.gradients(x, [x])[0]) == 1


def test_a_loss_that_is_no_scalar_counts_with_all_its_elements() -> None:
    x = gl.input("x", (2, 2))
    assert value_of(gl.gradients(x * x, [x])[0], x=[[1, 2], [3, 4]]).tolist() == [[2, 4], [6, 8]]


def test_seeds() -> None:
    x, s = gl.input("x", (2,)), gl.input("s", (2,))
    (g,) = gl.gradients(x * x, [x], [s])
    assert value_of(g, x=[1, 2], s=[10, 100]).tolist() == [20, 400]
    with pytest.raises(gl.ShapeError, match=r"gradients: seed f32\[\] for .*; need shape \[2\]"):
        gl.gradients(x * x, [x], [gl.constant(1.0)])


def test_what_is_not_reached_has_none() -> None:
    x, y, ids = gl.input("x"), gl.input("y"), gl.input("ids", (2,), "i32")
    table = gl.parameter(np.ones((3, 2)), "table")
    rows = ops.get_rows(table, ids)
    assert gl.gradients(x * 2.0, [y, x])[0] is None
    assert gl.gradients(ops.sum(rows), [ids, table])[0] is None
    assert gl.gradients(ops.sum(ops.cast(ops.argmax(rows, 1), "f32")), [table]) == [None]


def test_gradients_of_values_inside() -> None:
    x = gl.input("x", (3,))
    h = ops.exp(x)
    k = h * h
    gx, gh, gk = gl.gradients(ops.sum(k), [x, h, k])
    data = [0.1, 0.2, 0.3]
    assert np.allclose(value_of(gh, x=data), 2 * np.exp(data)) and value_of(gk).tolist() == [1, 1, 1]
    assert np.allclose(value_of(gx, x=data), 2 * np.exp(data) ** 2)


def test_second_derivatives() -> None:
    x = gl.parameter([0.3, -0.8], "x")
    (g,) = gl.gradients(ops.sum(ops.tanh(x) * ops.sin(x)), [x])
    (h,) = gl.gradients(ops.sum(g), [x])
    t, s, c = np.tanh([0.3, -0.8]), np.sin([0.3, -0.8]), np.cos([0.3, -0.8])
    exact = (-2 * t * (1 - t * t)) * s + 2 * (1 - t * t) * c - t * s
    assert np.allclose(value_of(h), exact, atol=1e-6)
    assert gl.check_gradients(ops.sum(g)) < 1e-5


def test_an_op_without_a_gradient_says_so() -> None:
    x = gl.parameter(np.ones(3), "x")
    with gl.scope("head"):
        y = ops.guard(ops.sum(x), gl.constant(1.0), x)
    with pytest.raises(
        gl.GradientError, match=r"guard has no gradient: an update ends a step; .*node head at test_grad.py:\d+"
    ):
        gl.gradients(y * 2.0, [x])
    # Beside the path to the loss it does no harm.
    other = gl.input("other")
    assert gl.gradients(y * other, [other])[0] is not None


def test_deep_graphs_do_not_overflow_the_stack() -> None:
    x = gl.input("x")
    y = x
    for _ in range(5000):
        y = y + 0.001
    (g,) = gl.gradients(y * x, [x])
    run = gl.compile([y, g])
    found = run(x=1.0)
    assert found[0] == pytest.approx(6, rel=1e-4) and found[1] == pytest.approx(7, rel=1e-4)


def test_no_gradient_starts_from_zero_times_infinity() -> None:
    """ggml: VIEW's backward began with 0 * src."""
    x = gl.input("x", (4,))
    (g,) = gl.gradients(ops.sum(x[1:3]), [x])
    for backend in ("cpu", "numpy"):
        assert gl.compile(g, backend=backend)().pop().tolist() == [0, 1, 1, 0]
        (h,) = gl.gradients(ops.sum(ops.where(ops.greater(x, 0.0), x, 0.0)), [x])
        assert gl.compile(h, backend=backend)(x=[np.inf, -np.inf, 1, -1])[0].tolist() == [1, 0, 1, 0]


# ---- check_gradients --------------------------------------------------------------------------------------


def wrong(factor: float = 1.001) -> Any:
    return op(
        "wrong_gradient", inputs="x", doc="y = x^2, with a wrong gradient", shape=lambda x: x,
        vjp=lambda g, x: [ops.scale(g * x, factor=2 * factor)], reference=lambda x: x * x, no_samples="made by a test",
    )  # fmt: skip


def test_check_gradients_finds_one_wrong_entry() -> None:
    w, v = gl.parameter(np.ones((2, 3)), "w"), gl.parameter([[1.0, 2.0, 3.0]], "v")
    mask = np.zeros((2, 3))
    mask[1, 2] = 1
    bad = wrong()
    try:
        loss = ops.sum(ops.sin(w)) + ops.sum(bad(w) * gl.constant(mask)) + ops.sum(v)
        with pytest.raises(
            gl.GradientError,
            match=r"check_gradients: w at .*\[1,2\]: gradient 2\.\d+, finite difference 2\.5\d*; error",
        ):
            gl.check_gradients(loss)
        assert gl.check_gradients(loss, parameters=[v]) < 1e-8
        assert gl.check_gradients(loss, tolerance=0.01) > 1e-4
    finally:
        del REGISTRY["wrong_gradient"]


def test_check_gradients_notices_a_gradient_that_is_missing() -> None:
    """Numbers that flow where no gradient does: the argument of a comparison moved across its step."""
    w = gl.parameter([0.5, 0.5], "w")
    loss = ops.sum(ops.where(ops.greater(w, 0.4999999), 3.0 * gl.constant([1.0, 1.0]), 0.0)) + ops.sum(w) * 0.0
    with pytest.raises(gl.GradientError, match="gradient 0, finite difference"):
        gl.check_gradients(loss)


def test_check_gradients_of_a_whole_model() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))
    net.ensure_init(1)
    rng = np.random.default_rng(0)
    loss = ops.cross_entropy(net(gl.input("x", (5, 4))), gl.input("y", (5,), "i32"))
    feeds = {"x": rng.standard_normal((5, 4)), "y": rng.integers(0, 3, 5)}
    assert gl.check_gradients(loss, feeds) < 1e-7
    frozen = gl.parameter(2.0, "frozen", trainable=False)
    assert gl.check_gradients(loss * frozen, feeds) < 1e-7


def test_check_gradients_leaves_everything_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3))
    net.ensure_init(1)
    before = {k: v.copy() for k, v in net.state_dict().items()}
    gl.check_gradients(
        ops.sum(ops.sqr(net(gl.input("x", (5, 4))))), {"x": np.random.default_rng(0).normal(size=(5, 4))}
    )
    assert all(np.array_equal(v, before[k]) for k, v in net.state_dict().items())


# ---- compare ----------------------------------------------------------------------------------------------


def test_compare_names_the_first_node_that_differs() -> None:
    x = gl.input("x", (4,))
    tampered = op(
        "tampered", inputs="x", doc="y = x (the reference says 1.01 x)", shape=lambda x: x, vjp=lambda g: [g],
        view=lambda strides: (0, list(strides)), reference=lambda x: x * 1.01 if x.dtype == np.float64 else x,
        no_samples="made by a test",
    )  # fmt: skip
    try:
        first = tampered(ops.exp(x))
        y = ops.sin(first) + ops.sum(first)
        found = gl.compare(y, {"x": [0.1, 0.2, 0.3, 0.4]})
        assert found is not None
        node, difference = found
        assert node is first and difference == pytest.approx(0.01, rel=0.01)
        assert gl.compare(ops.exp(x), {"x": [0.1, 0.2, 0.3, 0.4]}) is None
        assert gl.compare(y, {"x": [0.1, 0.2, 0.3, 0.4]}, tolerance=0.1) is None
    finally:
        del REGISTRY["tampered"]


def test_compare_leaves_running_statistics_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.ReLU())
    net.ensure_init(1)
    before = {k: v.copy() for k, v in net.state_dict().items()}
    feeds = {"x": np.random.default_rng(0).normal(size=(5, 4))}
    assert gl.compare(net(gl.input("x", (5, 4))), feeds) is None
    assert gl.compare(net(gl.input("x", (5, 4))), feeds, backends=("cpu", "cpu"), isa="scalar") is None
    assert all(np.array_equal(v, before[k]) for k, v in net.state_dict().items())


def test_compare_counts_nan_against_numbers_as_a_difference() -> None:
    x = gl.input("x", (2,))
    assert gl.compare(ops.log(x), {"x": [-1.0, 1.0]}) is None  # both are NaN
    flipped = op(
        "flipped", inputs="x", doc="y = x (the reference says NaN)", shape=lambda x: x, vjp=lambda g: [g],
        view=lambda strides: (0, list(strides)), reference=lambda x: x * np.nan if x.dtype == np.float64 else x,
        no_samples="made by a test",
    )  # fmt: skip
    try:
        found = gl.compare(flipped(ops.exp(x)), {"x": [0.0, 1.0]})
        assert found is not None and found[0].node.op.name == "flipped"
    finally:
        del REGISTRY["flipped"]


def test_gradient_nodes_are_called_after_what_they_belong_to() -> None:
    w = gl.parameter(np.ones((3, 3)), "w")
    with gl.scope("fc"):
        y = gl.ops.tanh(gl.input("x", (2, 3)) @ w) @ w
    (g,) = gl.gradients(gl.ops.sum(y), [w])
    names = {n.op.name: n.name for n in reachable([g]) if not n.op.leaf and n.name.endswith("grad")}
    assert names["tanh_back"] == names["matmul"] == "fc.grad" and names["add"] == "w.grad"
