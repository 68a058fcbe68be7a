"""gl.grad_tape(precision="bf16"): the same rounding as in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import SettingError
from tests.refused import refused

X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 16)


def model() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(6, 32), gl.nn.ReLU(), gl.nn.Linear(32, 3)).init(0)


def loss_of(net: gl.nn.Module, x: Any, y: Any) -> Any:
    return ops.cross_entropy(net(x), y)


def in_graph(precision: str) -> list[np.ndarray]:
    """Loss and gradients as a compiled graph."""
    net = model()
    loss = loss_of(net, gl.input("x", X.shape), gl.input("y", Y.shape, "i32"))
    return gl.compile([loss, *gl.gradients(loss, list(net.parameters()))], precision=precision)(x=X, y=Y)


@pytest.mark.parametrize("look", [False, True])
def test_a_tape_computes_what_a_graph_computes(look: bool) -> None:
    """Also where the forward pass is looked at first, and so computed by a program of its own."""
    found = {}
    for precision in ("f32", "bf16", None):
        net = model()
        with gl.grad_tape(precision=precision) as tape:
            loss = loss_of(net, gl.tensor(X), gl.tensor(Y))
            seen = loss.numpy() if look else None
        grads = tape.backward(loss)
        found[precision] = [loss.numpy() if seen is None else seen, *(grads[p].numpy() for p in net.parameters())]
    for precision in ("f32", "bf16"):
        assert all(np.array_equal(a, b) for a, b in zip(found[precision], in_graph(precision), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(found[None], found["f32"], strict=True))
    assert not np.array_equal(found["f32"][1], found["bf16"][1])


def trained(precision: str | None, steps: int = 5) -> dict[str, np.ndarray]:
    net = model()
    optimizer = gl.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        with gl.grad_tape(precision=precision) as tape:
            loss = loss_of(net, gl.tensor(X), gl.tensor(Y))
        optimizer.step(tape.backward(loss))
    return net.state_dict()


def test_a_loop_reuses_its_program() -> None:
    before = gl.stats()
    plain, rounded = trained("f32"), trained("bf16")
    assert gl.stats().compiled - before.compiled <= 4
    assert any(not np.array_equal(plain[name], rounded[name]) for name in plain)
    assert all(np.allclose(plain[name], rounded[name], atol=0.02) for name in plain)


def test_one_model_on_tapes_of_both_kinds() -> None:
    net = model()
    found = []
    for precision in ("f32", "bf16", "f32", "bf16"):
        with gl.grad_tape(precision=precision) as tape:
            loss = loss_of(net, gl.tensor(X), gl.tensor(Y))
        found.append(tape.backward(loss)[net[0].weight].numpy())
    assert np.array_equal(found[0], found[2]) and np.array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])


def test_a_second_order_gradient() -> None:
    net = model()
    found = []
    for precision in ("f32", "bf16"):
        with gl.grad_tape(precision=precision) as outer:
            with gl.grad_tape() as inner:
                loss = ops.sum(ops.sqr(net(gl.tensor(X))))
            slope = inner.backward(loss)[net[2].weight]
            total = ops.sum(ops.sqr(slope))
        found.append(outer.backward(total)[net[0].weight].numpy())
    assert not np.array_equal(*found) and np.abs(found[0] - found[1]).max() < 0.1 * np.abs(found[0]).max()


def test_a_step_that_is_not_finite_names_its_node() -> None:
    net = model()
    optimizer = gl.optim.SGD(net.parameters(), lr=0.1)
    x = X.copy()
    x[3, 2] = np.nan
    with gl.grad_tape(precision="bf16") as tape:
        loss = loss_of(net, gl.tensor(x), gl.tensor(Y))
    with pytest.raises(gl.NonFiniteError, match=r"a tensor that goes in .* is not finite at \[3, 2\]"):
        optimizer.step(tape.backward(loss))


def test_what_is_refused() -> None:
    with refused("precision", "f16", need="f32 or bf16"):
        gl.grad_tape(precision="f16")
    with gl.grad_tape(), pytest.raises(SettingError, match=r"a tape inside of another one computes as that one"):
        gl.grad_tape(precision="bf16").__enter__()
