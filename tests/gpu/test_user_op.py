"""gl.op in programs on a GPU and the CPU: the op runs on the CPU, its errors come before any update."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops

X = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)


def test_it_runs_on_the_cpu() -> None:
    op = gl.op(lambda x: x / (1 + abs(x)), lambda inputs, gradients: gradients[0] / (1 + abs(inputs[0])) ** 2)
    w = gl.parameter(np.random.default_rng(0).standard_normal((3, 4)), name="w")
    y = op(gl.input("x", (2, 3)) @ w) @ w.T
    loss = ops.sum(y * y)
    outputs = [loss, *gl.gradients(loss, [w]), y]
    run = gl.compile(outputs, devices=("gpu", "cpu"))
    assert sorted(run.plan.parts) == ["cpu", "gpu"]
    for mine, theirs in zip(run(x=X), gl.compile(outputs)(x=X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(gl.BackendError, match=r"no kernel for: user_op .*run on the CPU: use devices=\('gpu', 'cpu'\)"):
        gl.compile(outputs, device="gpu")


def test_an_error_comes_before_any_update() -> None:
    calls = []

    def fails(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("disk is gone")
        return x

    w = gl.parameter(np.ones((3, 4)), name="w")
    loss = ops.sum(gl.op(fails)(gl.input("x", (2, 3)) @ w))
    run = gl.compile(loss, ops.assign(w, w * 2), devices=("gpu", "cpu"))
    with pytest.raises(gl.UserOpError, match=r"fails#\d+ at test_user_op.py:\d+: OSError: disk is gone$") as caught:
        run.run_many(5, {}, feeds={"x": X})
    assert caught.value.steps_done == 2 and len(caught.value.outputs[0]) == 2
    assert w.numpy().tolist() == np.full((3, 4), 4.0).tolist()
