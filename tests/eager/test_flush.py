"""gl.grad_tape(flush=True): denormal numbers are 0 in all programs of the tape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.runs.state import load_window, of_window
from tests.refused import refused

SMALL = np.full(5, 1e-39, np.float32)  # denormal


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADLOOM_FLUSH", "GRADLOOM_PRECISION"):
        monkeypatch.delenv(name, raising=False)


def tape_of(flush: bool | None, w: gl.Parameter) -> tuple[Any, Any]:
    """(a tape, its loss), whose gradient with respect to w is 3e-39."""
    with gl.grad_tape(flush=flush) as tape:
        loss = ops.sum(w * gl.tensor(SMALL) * 3.0)
    return tape, loss


def weights() -> gl.Parameter:
    return gl.parameter(np.zeros(5, np.float32), name="w")


def forward(flush: bool | None) -> np.ndarray:
    with gl.grad_tape(flush=flush):
        return (gl.tensor(SMALL) * 3.0).numpy()


def gradient(flush: bool | None) -> np.ndarray:
    w = weights()
    tape, loss = tape_of(flush, w)
    return tape.backward(loss)[w].numpy()


def step(flush: bool | None) -> np.ndarray:
    w = weights()
    optimizer = gl.optim.SGD([w], lr=1.0)
    tape, loss = tape_of(flush, w)
    optimizer.step(tape.backward(loss))
    return w.numpy()


def step_after_a_look(flush: bool | None) -> np.ndarray:
    """The gradients are not computed by the program of the update, which reads denormal numbers."""
    w = weights()
    optimizer = gl.optim.SGD([w], lr=1e-39)
    with gl.grad_tape(flush=flush) as tape:
        loss = ops.sum(w * 2.0)
    grads = tape.backward(loss)
    assert grads[w].numpy().tolist() == [2.0] * 5
    optimizer.step(grads)
    return w.numpy()


def accumulated(flush: bool | None) -> np.ndarray:
    """The program of the window's step is the one that meets them."""
    w = weights()
    optimizer = gl.optim.SGD([w], lr=1e-39)
    for _ in range(2):
        with gl.grad_tape(flush=flush) as tape:
            loss = ops.sum(w * 2.0)
        optimizer.accumulate(tape.backward(loss))
    optimizer.step()
    return w.numpy()


def resumed(flush: bool | None) -> np.ndarray:
    """The step of a window that a checkpoint brought is computed as its tapes were; so is the norm before it."""
    made = []
    for _ in range(2):
        w = weights()
        made.append((w, gl.optim.SGD([w], lr=1e-39)))
    (w, optimizer), (other, after) = made
    with gl.grad_tape(flush=flush) as tape:
        loss = ops.sum(w * 2.0)
    optimizer.accumulate(tape.backward(loss))
    load_window(values_of(of_window(optimizer.state)), after.state)()
    after.state.window.gradients = optimizer.state.window.gradients
    assert after.clip(100.0) == pytest.approx(2 * 5**0.5)
    after.step()
    return other.numpy()


def values_of(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value.read().copy() if hasattr(value, "read") else value for name, value in part.items()}


@pytest.mark.parametrize("compute", [resumed, forward, gradient, step, step_after_a_look, accumulated])
def test_denormal_numbers_are_0_in_each_program_of_a_tape(compute: Any) -> None:
    assert compute(None).all() and compute(False).all()
    assert not compute(True).any()


def test_one_model_on_tapes_of_both_kinds() -> None:
    w = weights()
    found = []
    for flush in (False, True, False):
        tape, loss = tape_of(flush, w)
        found.append(bool(tape.backward(loss)[w].numpy().any()))
    assert found == [True, False, True]


def test_what_is_refused() -> None:
    with refused("flush", 2):
        gl.grad_tape(flush=2)  # type: ignore[arg-type]
    with gl.grad_tape(), pytest.raises(gl.SettingError, match="give the flush to the outer one"):
        gl.grad_tape(flush=True).__enter__()
    with gl.grad_tape(flush=True), gl.grad_tape(flush=True):
        pass
