"""What is said of a step whose numbers are not finite: an input, a row, a node, or the norm of the gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import GuardTripped
from gradloom.run.diagnose import OVERFLOW, first_bad, step_error


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
    assert first_bad(*failed(x), {}) == "row 1 of the x is not finite at [2]"
    words = first_bad(*failed(x), {}, lambda name, array, at: (f"{name} {array.shape}", f": {at}"))
    assert words == "x (2, 3) is not finite: 5"


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
    assert first_bad(run, outputs, updates, {}) == OVERFLOW + (
        "; the largest number that goes in is 1e+30, in row 0 of the x"
    )
    assert np.array_equal(weight.numpy(), np.ones(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_parameter_that_is_not_finite_already_is_named(bad, kind):
    run, *step = failed(np.ones((2, 3)), w=bad)
    assert first_bad(run, *step, {}, precision=kind) == f"parameter w holds {bad:g} at [0] already"


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("big", [3.4e38, 1e30, 1e39])
def test_a_number_of_the_data_that_overflows_is_named(big, device):
    """f32 does not hold the last one."""
    x = np.random.default_rng(0).standard_normal((40, 4))
    x[17, 2] = big
    net = gl.nn.Sequential(gl.nn.Linear(4, 3))
    with pytest.raises(gl.NonFiniteError) as caught:
        gl.fit(net, gl.data.Dataset(x, np.arange(40) % 3), epochs=1, batch_size=10, progress=False, val_split=0,
               backend=device)  # fmt: skip
    told = str(caught.value)
    if big < 3.5e38:
        assert f"; the largest number that goes in is {big:g}, in row 17 of the data at [2]; the weights" in told
    elif device == "cpu":  # numpy computes in float64
        assert f": row 17 of the data holds {big:g} at [2], which f32 does not hold; " in told


def test_ordinary_numbers_are_not_held_for_the_cause_of_an_overflow():
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    net = gl.nn.Sequential(gl.nn.Linear(4, 3))
    net.parameters()[0].assign(np.full((3, 4), 3e38, np.float32))
    with pytest.raises(
        gl.NonFiniteError, match=r"matmul 0 .* produced a number .*, at element \d+; the weights before"
    ):
        gl.fit(net, gl.data.Dataset(x, np.arange(40) % 3), epochs=1, progress=False, val_split=0)


def test_the_error_says_step_cause_and_hint():
    assert str(step_error(3, "row 7 of the data is not finite", 2)) == (
        "training stopped at step 3 (epoch 2): row 7 of the data is not finite; the weights before this step are kept; "
        "clean the data"
    )
    cause = "parameter w holds nan at [0] already"
    assert str(step_error(1, cause)).endswith("; begin with finite parameters")
    assert str(step_error(2, cause)) == (
        "training stopped at step 2: parameter w holds nan at [0] already, written by the update of an earlier step; "
        "need an earlier checkpoint; a smaller learning rate may help"
    )
    assert str(step_error(3, "mul#4")).endswith("a smaller learning rate or scaled inputs may help")


def test_a_gradient_without_a_name_is_behind_its_forward_node():
    """Its own line is that of `fit`; the error also names the line of the forward node."""

    class Length(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = gl.nn.Linear(2, 2, bias=False)

        def forward(self, x):
            y = self.dense(x)
            return gl.ops.sqrt(gl.ops.sum(y * y, 1)).reshape(-1, 1)

    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "ops.sqrt(gl.ops.sum(y" in text
    )
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(gl.NonFiniteError, match=rf"produced a number .*, behind sqrt\S* at test_diagnose.py:{line};"):
        gl.fit(Length(), (x, np.ones((4, 1), np.float32)), loss="mse", progress=False)
