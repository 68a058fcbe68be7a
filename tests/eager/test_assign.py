"""Parameters that a loop writes by hand: p.assign(p - lr * g[p]), and their numbers as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 40).astype(np.int32)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8, "tanh"), nn.Linear(8, 3)).init(3)


def loss_of(model: nn.Module) -> Any:
    return ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))


def by_hand(steps: int, inside: bool) -> tuple[nn.Module, list[Any]]:
    model, counts = net(), []
    for _ in range(steps):
        with gl.grad_tape() as tape:
            g = tape.backward(loss_of(model))
            if inside:
                for p in model.parameters():
                    p.assign(p - 0.1 * g[p])
        if not inside:
            for p in model.parameters():
                p.assign(p - 0.1 * g[p])
        counts.append(gl.stats())
    return model, counts


@pytest.mark.parametrize("inside", [False, True])
def test_steps_by_hand_are_those_of_sgd(inside: bool) -> None:
    model, counts = by_hand(30, inside)
    other = net()
    optimizer = gl.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(30):
        with gl.grad_tape() as tape:
            loss = loss_of(other)
        optimizer.step(tape.backward(loss))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-5, atol=1e-6)
    assert counts[1].compiled == counts[-1].compiled and counts[1].nodes == counts[-1].nodes
    calls = [c.native_calls for c in counts]
    assert (
        np.diff(calls).tolist() == [4] * 29
    )  # the first update with forward and backward, then one for each parameter


def test_the_order_of_gradients_does_not_matter() -> None:
    model = net()
    before = [p.numpy() for p in model.parameters()]
    with gl.grad_tape() as tape:
        g = tape.backward(loss_of(model))
    want = [g[p].numpy() for p in model.parameters()]
    with gl.grad_tape() as tape:
        g = tape.backward(loss_of(model))
    for p in reversed(model.parameters()):
        p.assign(p - g[p])
    for p, old, slope in zip(model.parameters(), before, want, strict=True):
        np.testing.assert_array_equal(p.numpy(), old - slope)


def test_gradients_that_nobody_asked_for_before_a_write_are_refused() -> None:
    model = net()
    with gl.grad_tape() as tape:
        g = tape.backward(loss_of(model))
    first, second, *_ = model.parameters()
    first.assign(np.zeros(first.shape))
    with pytest.raises(gl.GradientError, match="weight"):
        g[second]


def test_what_assign_takes() -> None:
    p, q = gl.parameter(np.ones((2, 3)), "p"), gl.parameter(2.0, "q")
    for data, want in (
        (gl.tensor(np.full((2, 3), 4.0)), 4.0), (np.full((2, 3), 5), 5.0), ([[6.0] * 3] * 2, 6.0),
        (lambda: p * 0.5, 3.0), (p, 3.0), (lambda: ops.exp(p * 0.0), 1.0),
    ):  # fmt: skip
        p.assign(data() if callable(data) else data)
        np.testing.assert_array_equal(p.numpy(), np.full((2, 3), want, np.float32))
    q.assign(3)
    q.assign(q + gl.tensor(1.5))
    assert q.numpy() == 4.5
    for bad, kind in (
        (gl.tensor([1.0]), gl.ShapeError), (q, gl.ShapeError), (1.0, gl.ShapeError), ("a", gl.DTypeError),
        (p * gl.input("x", (2, 3)), gl.GraphError),
    ):  # fmt: skip
        with pytest.raises(kind):
            p.assign(bad)
    np.testing.assert_array_equal(p.numpy(), np.ones((2, 3)))


def test_a_parameter_as_an_array() -> None:
    p = gl.parameter(np.arange(6.0).reshape(2, 3), "p")
    assert np.asarray(p).dtype == np.float32 and np.asarray(p, np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.array(p, copy=True), p.numpy())
    taken = np.asarray(p)
    taken[:] = 0
    p.assign(p + 1.0)
    np.testing.assert_array_equal(np.asarray(p), np.arange(6.0).reshape(2, 3) + 1)
    with pytest.raises(ValueError, match="copy"):
        p.__array__(np.float64, copy=False)
    view = p.__array__(copy=False)  # the memory itself: tests/eager/test_dlpack.py
    p.assign(p + 1.0)
    assert not view.flags.writeable and (view == p.numpy()).all()
    with pytest.raises(TypeError):  # it would be a constant of the graph
        np.exp(p)
    assert isinstance(np.ones((2, 3), np.float32) * p, gl.graph.value.Value)


def test_an_expression_made_before_a_parameter_changed_is_refused() -> None:
    def pair() -> tuple[Any, Any]:
        return gl.parameter([1.0, 2.0], "p"), gl.parameter([3.0, 4.0], "q")

    for saved in (lambda p: p * 1, ops.copy, lambda p: ops.exp(p.T), lambda p: p.detach()):
        p, q = pair()
        old = saved(p)
        p.assign(p - 5.0)
        for target in (p, q):
            with pytest.raises(gl.GraphError, match=r"p\.numpy\(\) or gl\.tensor\(p\)"):
                target.assign(old)
        assert p.numpy().tolist() == [-4.0, -3.0] and q.numpy().tolist() == [3.0, 4.0]
    p, q = pair()
    both = [p - q, q - p]
    p.assign(both[0])
    with pytest.raises(gl.GraphError, match="parameter p has changed"):
        q.assign(both[1])
    p, q = pair()
    both = [gl.tensor(p) - gl.tensor(q), gl.tensor(q) - gl.tensor(p)]
    p.assign(both[0])
    q.assign(both[1])
    assert q.numpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("train", ["fit", "step", "trainer"])
def test_a_lazy_copy_from_before_a_training_is_refused(train: str) -> None:
    model = net()
    copies, snapshots = [p * 1 for p in model.parameters()], [gl.tensor(p) for p in model.parameters()]
    want = [p.numpy() for p in model.parameters()]
    if train == "fit":
        gl.fit(model, (X, Y), epochs=1, progress=False)
    elif train == "step":
        with gl.grad_tape() as tape:
            loss = loss_of(model)
        gl.optim.SGD(model.parameters(), lr=0.1).step(tape.backward(loss))
    else:
        gl.train.Trainer(model, optimizer=gl.optim.SGD(lr=0.1)).step(X, Y)
    for p, copy in zip(model.parameters(), copies, strict=True):
        with pytest.raises(gl.GraphError, match="numpy"):
            p.assign(copy)
    for p, snapshot, old in zip(model.parameters(), snapshots, want, strict=True):
        p.assign(snapshot)
        with pytest.raises(AttributeError, match=r"numpy\(\) or gl\.tensor"):
            p.clone()
        np.testing.assert_array_equal(p.numpy(), old)


def test_a_compiled_expression_follows_its_parameter() -> None:
    a = gl.parameter(2.0, "a")
    f = gl.compile([a * a])
    doubled = a * a
    a.assign(3.0)
    assert [float(x) for x in f()] == [9.0]
    assert [float(x) for x in gl.compile([doubled])()] == [9.0]
    a.assign(a * 1)
