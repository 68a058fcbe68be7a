"""What is said of a step whose numbers are not finite: an input, a row, a node, or the norm of the gradients."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import GuardTripped
from gradloom.run.diagnose import OVERFLOW, first_bad, stopped


def failed(x: np.ndarray, w: float = 1.0) -> tuple[object, list[gl.Value], tuple[gl.Value, ...]]:
    """A step of sum(log(x) * w) that has just failed: its program, outputs and updates."""
    weight, given = gl.parameter(np.full(3, w), "w"), gl.input("x", (2, 3))
    loss = ops.sum(ops.log(given) * weight)
    (grad,) = gl.gradients(loss, [weight])
    outputs, updates = [ops.guard(loss, gl.constant(1.0), grad)], ops.assign(weight, weight + grad)
    run = gl.compile(outputs, updates)
    run.feed({"x": x})
    with pytest.raises(GuardTripped):
        run.run_many(1, {})
    return run, outputs, updates


def test_an_input_is_named_before_any_node():
    x = np.ones((2, 3))
    x[1, 2] = np.nan
    assert first_bad(*failed(x), {}) == "row 1 of the x is not finite"
    assert first_bad(*failed(x), {}, lambda name, array, at: f"{name} {array.shape} {at}") == "x (2, 3) 5"


@pytest.mark.parametrize("settled", [False, True])
def test_the_first_bad_node_is_named(settled):
    x = np.ones((2, 3))
    x[0, 1] = -1.0
    cause = first_bad(*failed(x), {}, settled=settled)
    assert cause.startswith("log") and "element 1" in cause


def test_a_norm_that_overflows_while_all_numbers_are_finite():
    weight, given = gl.parameter(np.ones(3), "w"), gl.input("x", (3,))
    loss = ops.sum(given * weight)
    (grad,) = gl.gradients(loss, [weight])
    outputs, updates = [ops.guard(loss, gl.constant(1.0), grad)], ops.assign(weight, weight + grad)
    run = gl.compile(outputs, updates)
    run.feed({"x": np.full(3, 1e30)})
    with pytest.raises(GuardTripped):
        run.run_many(1, {})
    assert first_bad(run, outputs, updates, {}) == OVERFLOW
    assert np.array_equal(weight.numpy(), np.ones(3))


def test_the_error_says_step_cause_and_hint():
    assert str(stopped(3, "row 7 of the data is not finite", 2)) == (
        "training stopped at step 3 (epoch 2): row 7 of the data is not finite; the weights before this step are kept; "
        "clean the data"
    )
    assert str(stopped(3, "mul#4")).endswith("a smaller learning rate or scaled inputs may help")
