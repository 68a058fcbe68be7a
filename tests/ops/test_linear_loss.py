"""linear_cross_entropy in whole programs: against matmul + cross_entropy, what the plan holds, tied weights."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import DataError
from gradloom.graph.leaves import constant, parameter

rng = np.random.default_rng(0)


def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)


def run(outputs, feeds=None, **options):
    return gl.compile(list(outputs), **options)(**(feeds or {}))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_as_the_composition(weighted):
    n, d, v = 90, 12, 1100
    x, w = draw(n, d), draw(v, d)
    ids = rng.integers(0, v, n).astype(np.int32)
    ids[::7] = -100
    weights = rng.random(n).astype(np.float32) if weighted else None
    found = []
    for pair in (
        lambda a, b: ops.linear_cross_entropy_pair(a, b, ids, weights),
        lambda a, b: ops.cross_entropy_pair(ops.matmul(a, b, transpose_y=True), ids, weights),
    ):
        a, b = parameter(x, "x"), parameter(w, "w")
        loss, weight = pair(a, b)
        mean = ops.div(loss, weight)
        found.append(run([loss, weight, mean, *gl.gradients(mean, [a, b])]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6 * np.abs(other).max())


def test_axes_before_the_last_are_rows():
    x, w, ids = draw(2, 5, 6), draw(40, 6), rng.integers(0, 40, (2, 5))
    weights = rng.random((2, 5)).astype(np.float32)
    one = run(ops.linear_cross_entropy_pair(constant(x), constant(w), ids, weights))
    other = run(ops.linear_cross_entropy_pair(constant(x.reshape(10, 6)), constant(w), ids.ravel(), weights.ravel()))
    assert one == other


def test_the_plan_never_holds_the_logits():
    """At 512 rows of a vocabulary of 49152: the peak with the logits is 96 MiB and more, without them a few."""
    n, d, v = 512, 64, 49152
    w = gl.graph.stored.Stored("w", np.zeros((v, d), np.float32), "f32")
    x = gl.input("x", (n, d))
    loss, weight = ops.linear_cross_entropy_pair(x, gl.graph.leaves.stored_value(w), np.zeros(n, np.int32))
    program = gl.compile([loss, weight, *gl.gradients(loss, [x])])
    plan = program.plan
    assert plan.bytecode.arena_bytes + 2 * plan.bytecode.scratch_bytes < n * v * 4 / 8


def test_a_tied_table_gets_both_gradients():
    """The embedding table is the output layer, too: its gradient is the sum of both."""
    v, d = 500, 8
    table, ids = draw(v, d), rng.integers(0, v, 30).astype(np.int32)
    labels = rng.integers(0, v, 30).astype(np.int32)
    tied = parameter(table, "table")
    loss, _ = ops.linear_cross_entropy_pair(ops.tanh(ops.get_rows(tied, ids)), tied, labels)
    (both,) = run(gl.gradients(loss, [tied]))
    inner, outer = parameter(table, "inner"), parameter(table, "outer")
    loss, _ = ops.linear_cross_entropy_pair(ops.tanh(ops.get_rows(inner, ids)), outer, labels)
    one, two = run(gl.gradients(loss, [inner, outer]))
    assert np.abs(one).max() > 0.1 and np.abs(two).max() > 0.1
    np.testing.assert_allclose(both, one + two, rtol=1e-6, atol=1e-6)


def test_a_label_out_of_range_is_named():
    x, w = draw(3, 4), draw(9, 4)
    labels = gl.input("labels", (3,), "i32")
    loss, _ = ops.linear_cross_entropy_pair(constant(x), constant(w), labels)
    program = gl.compile([loss])
    with pytest.raises(DataError, match="id 9 at position 1 is out of range; need 0..8, or -100 for a row to ignore"):
        program(labels=np.array([0, 9, 1], np.int32))
    assert np.isfinite(program(labels=np.array([0, -100, 1], np.int32))[0])
