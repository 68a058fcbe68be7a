"""gl.gradients: sums over paths, several losses, seeds, what has none; gl.check_gradients and gl.compare."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.declare import op
from gradloom.graph.graph import reachable
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.value import Value
from gradloom.nn.initial import uniform
from gradloom.run.numpy_backend import evaluate
from tests.refused import refused


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


# ---- what has none, or is easily lost -----------------------------------------------------------------------

UNDIFFERENTIABLE = {
    "argmax": (lambda x: ops.argmax(x, 1), "argmax has no gradient: a position has no slope"),
    "greater": (lambda x: ops.greater(x, 0.0), "greater has no gradient: a comparison has no slope"),
    "equal": (lambda x: ops.equal(x, 0.0), "equal has no gradient: a comparison has no slope"),
    "cast": (lambda x: ops.cast(x, "i32"), "cast has no gradient: i32 numbers have no slope"),
    "a view of whole numbers": (
        lambda x: ops.transpose(ops.cast(ops.scale(x, factor=2.0), "i32"))[1:], "cast has no gradient: i32 numbers"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNDIFFERENTIABLE))
def test_whole_numbers_made_of_floats_have_no_gradient_and_say_so(name: str) -> None:
    whole, message = UNDIFFERENTIABLE[name]
    w = gl.parameter(np.ones((3, 2)), "w")
    found = ops.cast(whole(w), "f32")
    with pytest.raises(gl.GradientError, match=rf"{message}.*; node .* at test_grad.py:\d+; keep it out of .*detach"):
        gl.gradients(ops.sum(found * found), [w])
    with pytest.raises(gl.GradientError, match=message):  # also where another path has a gradient
        gl.gradients(ops.sum(found) + ops.sum(w * w), [w])
    (g,) = gl.gradients(ops.sum(ops.detach(found)) + ops.sum(w * w), [w])
    assert value_of(g).tolist() == [[2, 2]] * 3


def test_conditions_row_numbers_and_positions_carry_no_gradient_and_disturb_none() -> None:
    x = gl.parameter(np.array([[0.5, -1.0], [2.0, 3.0]]), "x")
    chosen = ops.where(ops.greater(x, 0.0), x * x, 0.0)
    rows = ops.get_rows(x, ops.argmax(x, 1))
    (g,) = gl.gradients(ops.sum(chosen) + ops.sum(rows), [x])
    assert value_of(g).tolist() == [[2.0, 1.0], [5.0, 7.0]]


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_gradients_pass_through_halves(kind: str) -> None:
    """Whether a weight is frozen is not told by the dtype in which a product reads it."""
    x, ids = gl.constant(np.ones((2, 3))), gl.constant(np.array([1, 2], np.int32))
    w, table = gl.parameter(np.ones((3, 2)), "w"), gl.parameter(np.ones((4, 3)), "table")
    h = ops.cast(w, kind)
    losses = {
        "matmul": (ops.sum(ops.matmul(x, h)), w, 2.0),
        "two paths": (ops.sum(ops.matmul(x, h)) + ops.sum(x @ w), w, 4.0),
        "matmul_act": (ops.sum(ops.matmul_act(x, h, act="relu")), w, 2.0),
        "matmul_relu_back": (ops.sum(ops.matmul_relu_back(x, h, np.ones((2, 2), np.float32))), w, 2.0),
        "get_rows": (ops.sum(ops.get_rows(ops.cast(table, kind), ids)), table, None),
        "linear_cross_entropy": (ops.linear_cross_entropy_pair(x, ops.cast(table, kind), ids)[0], table, None),
        "detour": (ops.sum(ops.cast(ops.transpose(h)[:, 1:], "f32")), w, None),
    }
    for name, (loss, wrt, each) in losses.items():
        (g,) = gl.gradients(loss, [wrt])
        assert g is not None and g.dtype.name == "f32", name
        if each is not None:
            assert np.all(gl.compile(g)()[0] == each), name
        assert gl.check_gradients(loss) < 1e-6, name
        assert np.allclose(gl.compile(g)()[0], value_of(g), atol=2e-2), name


def test_a_model_whose_weights_are_read_as_halves_is_trained() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.parameter((4, 1), uniform(0.1))

        def forward(self, x: Value) -> Value:
            return ops.matmul(x, ops.cast(self.weight, "bf16"))

    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
    net = Rounded()
    gl.fit(net, (x, y), loss="mse", optimizer=gl.optim.AdamW(lr=0.1), epochs=60, batch_size=16, progress=False)
    assert np.allclose(net.weight.numpy()[:, 0], [1, -2, 0.5, 3], atol=0.05)
    with gl.grad_tape() as tape:
        loss = ops.mse(net(gl.tensor(x)), gl.tensor(y))
    assert tape.backward(loss)[net.weight] is not None


def test_every_input_and_output_of_a_cross_entropy_has_its_gradient() -> None:
    """Second derivatives, label rows that are computed, row weights that are computed."""
    x = gl.parameter([[1.0, 2.0, 3.0], [0.5, -1.0, 0.2]], "x")
    y = gl.constant(np.array([1, 0], np.int32))

    def again(loss: Value) -> np.ndarray:
        (g,) = gl.gradients(loss, [x])
        assert g is not None
        (h,) = gl.gradients(ops.sum(g * g), [x])
        assert gl.check_gradients(ops.sum(g * g)) < 1e-5
        return value_of(h)

    rows = ops.log_softmax(ops.exp(x))
    by_hand = (rows[0, 1] + rows[1, 0]) * -0.5
    eye = gl.constant(np.eye(3, dtype=np.float32))
    fused = {
        "ids": ops.cross_entropy(ops.exp(x), y),
        "rows": ops.cross_entropy(ops.exp(x), gl.constant([[0.0, 1, 0], [1, 0, 0]])),
        "linear": ops.linear_cross_entropy_pair(ops.exp(x), eye, y)[0] / 2.0,
    }
    for name, loss in fused.items():
        assert np.allclose(again(loss), again(by_hand)), name
    for loss in (
        ops.cross_entropy(x, ops.softmax(x)),
        ops.cross_entropy(x, y, ops.sigmoid(x[:, 0])),
        ops.linear_cross_entropy_pair(x, eye, y, ops.sigmoid(x[:, 0]))[0],
        ops.cross_entropy_pair(x, y, ops.sigmoid(x[:, 0]))[1],
    ):
        assert gl.check_gradients(loss) < 1e-6
        (g,) = gl.gradients(loss, [x])
        assert np.any(value_of(g) != 0)


def test_what_an_op_does_not_declare_is_refused() -> None:
    silent = op(
        "silent", inputs="x y", outputs="z", doc="z = x * y, y's gradient forgotten", dtypes="f32",
        shape=lambda x, y: x,
        vjp=lambda g, y: [g * y, None], reference=lambda x, y: x * y, no_samples="made by a test",
    )  # fmt: skip
    try:
        w = gl.parameter(np.ones(3), "w")
        with pytest.raises(gl.GradientError, match="silent has no gradient: it gives none to its input y"):
            gl.gradients(ops.sum(silent(ops.sin(w), w)), [w])
        (g,) = gl.gradients(ops.sum(silent(w, gl.input("y", (3,)))), [w])  # y is not on the way
        assert g is not None
    finally:
        del REGISTRY["silent"]


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
        "wrong_gradient", inputs="x", doc="y = x^2, with a wrong gradient", dtypes="f32", shape=lambda x: x,
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
            match=r"check_gradients: w at .*\[1,2\]: gradient 2\.\d+, finite difference 2\.5\d*, .*error",
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


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-12])
def test_check_gradients_finds_half_of_a_small_gradient(scale: float) -> None:
    w, v = gl.parameter(np.linspace(1, 2, 200), "w"), gl.parameter(np.ones(3), "v")
    loss = (ops.sum(ops.sin(w)) + ops.sum(v)) * scale
    found = gl.check_gradients(loss, entries=5)
    assert found < 1e-6 and (found.tried, found.size) == (8, 203)
    with pytest.raises(gl.GradientError, match="8 of 203"):
        gl.check_gradients(loss * 0.5 + ops.detach(loss) * 0.5, entries=5)
    with pytest.raises(gl.GradientError, match="v"):  # of one parameter alone
        gl.check_gradients((ops.sum(ops.sin(w)) + ops.sum(v) * 0.5 + ops.sum(ops.detach(v)) * 0.5) * scale)


def test_check_gradients_accepts_exact_zeros_and_cancelling_terms() -> None:
    w = gl.parameter(np.linspace(-1, 3, 7), "w")
    assert gl.check_gradients(ops.sum(ops.softmax(w)) * 1e3 - 1e3) <= 1e-5
    assert gl.check_gradients(ops.sum(ops.softmax(w)) - 1.0) <= 1e-5


def test_check_gradients_with_nothing_to_try_is_refused() -> None:
    with pytest.raises(gl.GradientError, match="0 trainable parameters"):
        gl.check_gradients(ops.sum(gl.constant(np.ones(3))))
    with pytest.raises(gl.SettingError, match="entries"):
        gl.check_gradients(ops.sum(gl.parameter(np.ones(3))), entries=0)


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
        "tampered", inputs="x", doc="y = x (the reference says 1.01 x)", dtypes="f32", shape=lambda x: x,
        vjp=lambda g: [g], view=lambda strides: (0, list(strides)),
        reference=lambda x: x * 1.01 if x.dtype == np.float64 else x,
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
        assert gl.compare(y, {"x": [0.1, 0.2, 0.3, 0.4]}, ("cpu", "cpu")) is None
        found = gl.compare(y, {"x": [0.1, 0.2, 0.3, 0.4]}, ("cpu", "cpu", "numpy"))
        assert found is not None and found[0] is first  # the third is held against the first
        with refused("backends", ("cpu",), need="two or more", place="compare"):
            gl.compare(y, {"x": [0.1, 0.2, 0.3, 0.4]}, ("cpu",))
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


def test_compare_rounds_for_float64_what_it_rounds_for_others() -> None:
    """To bf16, where a product reads it; what is wrong by less than that is found."""
    rng = np.random.default_rng(0)
    x, w = gl.input("x", (9, 40)), gl.parameter(rng.standard_normal((40, 7)).astype(np.float32))
    feeds = {"x": rng.standard_normal((9, 40)).astype(np.float32)}
    for backends in (("numpy", "cpu"), ("cpu", "numpy")):
        assert gl.compare(x @ w, feeds, backends, tolerance=1e-5, precision="bf16", threads=1) is None
    found = gl.compare(x @ w, feeds, ("cpu", "cpu", "numpy"), tolerance=1e-5, precision="f32")
    exact, rounded = (gl.compile(x @ w, backend="numpy", precision=p)(**feeds)[0] for p in ("f32", "bf16"))
    assert found is None and np.max(np.abs(exact - rounded)) > 1e-3


def test_compare_counts_nan_against_numbers_as_a_difference() -> None:
    x = gl.input("x", (2,))
    assert gl.compare(ops.log(x), {"x": [-1.0, 1.0]}) is None  # both are NaN
    flipped = op(
        "flipped", inputs="x", doc="y = x (the reference says NaN)", dtypes="f32", shape=lambda x: x,
        vjp=lambda g: [g], view=lambda strides: (0, list(strides)),
        reference=lambda x: x * np.nan if x.dtype == np.float64 else x,
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


def test_check_gradients_reports_what_rounding_hides() -> None:
    w = gl.parameter([0.5, 1.5], "w")
    loss = ops.sum(ops.sin(w))
    plain = gl.check_gradients(loss)
    assert plain.unresolved == 0 and "unresolved" not in repr(plain)
    wrong = loss * 0.5 + ops.detach(loss) * 0.5
    for hidden in (gl.check_gradients(wrong + 1e9), gl.check_gradients(wrong, step=1e-15)):
        assert hidden.unresolved == 2 and "2 unresolved" in repr(hidden)
    with pytest.raises(gl.SettingError, match="step=1e-20"):
        gl.check_gradients(loss, step=1e-20)
