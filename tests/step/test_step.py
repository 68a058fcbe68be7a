"""The end of a step: one place builds each of its nodes, and the nodes are those of the hand-written formula."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import GuardTripped
from gradloom.optim.state import OptimizerState
from gradloom.step.step import end_step

PACKAGE = Path(gl.__file__).parent


def calls() -> Iterator[tuple[str, str]]:
    """(file, called) of every call in the package, as in ("step/step.py", "ops.guard")."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(PACKAGE)), ast.unparse(node.func)


@pytest.mark.parametrize(
    ("called", "file"),
    [
        ("ops.guard", "step/step.py"), ("clip_weight", "step/step.py"), ("state.update", "step/step.py"),
        ("rule.update", "optim/state.py"),
        ("compile_checked", "run/diagnose.py"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_one_file_builds_it(called: str, file: str) -> None:
    files = {where for where, name in calls() if f".{name}".endswith((f".{called}", f"_{called}"))}
    assert files == {file}


@pytest.mark.slow
def test_the_settings_of_random_ops_stand_once() -> None:
    files = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
        and {"seed", "step", "row"} <= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    }
    assert files == {"step/step.py", "run/feeds.py"}  # the latter: what a call by hand need not say


@pytest.mark.parametrize("max_norm", [np.inf, 0.5])
def test_the_sum_over_a_window_is_the_sum_over_the_batch(max_norm: float) -> None:
    """Micro-batches of 3 and 5 rows, accumulated, take the step of 8 rows."""
    x, y = np.random.default_rng(0).standard_normal((2, 8, 4)).astype(np.float32)

    def trained(cuts: list[tuple[int, int]]) -> np.ndarray:
        w = gl.parameter(np.linspace(-1, 1, 4), "w")
        state = OptimizerState(gl.optim.SGD(lr=0.1))
        for i, (first, end) in enumerate(cuts):
            rows = end - first
            seen, truth = gl.input("x", (rows, 4)), gl.input("y", (rows, 4))
            loss = ops.sum(ops.sqr(seen * w - truth))
            grads = [g for g in gl.gradients(loss, [w]) if g is not None]
            last = end == 8
            norms, written = end_step(
                state, [w], grads, loss, gl.constant(float(rows)),
                accumulates=len(cuts) > 1, updates=last, max_norm=max_norm,
            )  # fmt: skip
            state.join([w], i == 0)
            run = gl.compile(norms, written)
            values = {"x": x[first:end], "y": y[first:end], "keep": float(i > 0), **state.settings()}
            run(**{k: v for k, v in values.items() if k in run.inputs or k in run.settings})
        return w.numpy()

    whole, parts = trained([(0, 8)]), trained([(0, 3), (3, 8)])
    assert np.allclose(whole, parts, atol=1e-6)
    moved = float(np.linalg.norm(whole - np.linspace(-1, 1, 4)))
    assert moved == pytest.approx(0.05, rel=1e-5) if max_norm == 0.5 else moved > 0.05


@pytest.mark.parametrize("optimizer", [gl.optim.AdamW, gl.optim.RMSprop])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_mean_gradient_whose_square_overflows_is_refused(optimizer, device) -> None:
    """The sum of gradients is small, and so is the weight that it is divided by: its square would make v infinite, and
    the parameter would never move again."""
    w = gl.parameter(np.ones(4, np.float32), name="w")
    state = OptimizerState(optimizer(), [w])
    loss = ops.sum(w * 1.0)
    grads = [g for g in gl.gradients(loss, [w]) if g is not None]
    norms, written = end_step(
        state, [w], grads, loss, gl.constant(1e-20), accumulates=False, updates=True, max_norm=float("inf")
    )
    state.join([w], True)
    run = gl.compile(norms, written, backend=device)
    values = {"keep": 0.0, **state.settings()}
    with pytest.raises(GuardTripped):
        run(**{k: v for k, v in values.items() if k in run.inputs or k in run.settings})
    assert (w.numpy() == 1).all()
