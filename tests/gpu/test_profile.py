"""run.profile and run.watch on a GPU: times of each instruction; the same bits with and without them."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


@pytest.mark.parametrize("devices", [("gpu",), ("gpu", "cpu")])
def test_a_profile_leaves_no_trace(devices: tuple[str, ...]) -> None:
    rng = np.random.default_rng(5)
    w = gl.parameter(rng.standard_normal((16, 16)).astype(np.float32), name="w")
    x = gl.input("x", (8, 16))
    with gl.device(devices[-1] if len(devices) > 1 else None):
        y = ops.sin(x @ w)
    with gl.device("gpu" if len(devices) > 1 else None):
        loss = ops.mean(ops.sqr(y))
    (gradient,) = gl.gradients(loss, [w])
    updates = ops.assign(w, w - 0.5 * gradient)
    run = gl.compile(loss, updates, **({"devices": devices} if len(devices) > 1 else {"device": "gpu"}))
    feeds = {"x": rng.standard_normal((8, 16)).astype(np.float32)}
    run(**feeds)
    before = w.numpy()
    profile = run.profile(feeds, steps=3)
    assert w.numpy().tobytes() == before.tobytes()
    run(**feeds)
    trained = w.numpy()
    assert trained.tobytes() != before.tobytes()
    w.assign(before)
    run(**feeds)
    assert w.numpy().tobytes() == trained.tobytes()  # the steps of the profile are in none of them
    assert len(profile.rows) == len(run.timed_nodes()) and all(row.seconds > 0 for row in profile.by("op"))
    assert {row.device for row in profile.rows} == (set(devices) if len(devices) > 1 else {""})
    assert profile.rates is None and "gpu" in profile.where


def test_watching_changes_no_bit() -> None:
    found = []
    for is_watched in (False, True):
        rng = np.random.default_rng(5)
        w = gl.parameter(rng.standard_normal((16, 16)).astype(np.float32), name="w")
        y = gl.named(ops.sin(gl.input("x", (8, 16)) @ w), "y")
        loss = ops.mean(ops.sqr(y))
        (gradient,) = gl.gradients(loss, [w])
        run = gl.compile(loss, ops.assign(w, w - 0.5 * gradient), device="gpu")
        watch = run.watch(["y", "grad:w"], every=2) if is_watched else None
        run.run_many(5, {}, feeds={"x": rng.standard_normal((8, 16)).astype(np.float32)})
        found.append(w.numpy().tobytes())
        if watch is not None:
            assert [step for step, _ in watch.records] == [2, 4]
            assert all(value > 0 for _, values in watch.records for value in values.values())
    assert found[0] == found[1]
