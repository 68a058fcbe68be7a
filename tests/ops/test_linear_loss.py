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


@pytest.mark.parametrize("kind", ["ids", "label rows", "linear"])
def test_weights_of_rows_of_labels(kind):
    """Weights [n] of labels [n, 2, 3]: sums, and the slopes of logits and weights, are PyTorch's in float64."""
    torch = pytest.importorskip("torch")
    x, w, weights = draw(5, 2, 3, 6), draw(7, 6), rng.uniform(0.1, 4, 5).astype(np.float32)
    ids = rng.integers(0, 7, (5, 2, 3)).astype(np.int32)
    if kind != "label rows":
        ids[1, 0], ids[3] = -100, -100
    labels = np.eye(7, dtype=np.float32)[ids] if kind == "label rows" else ids
    a, b, c = parameter(x, "x"), parameter(w, "w"), parameter(weights, "weights")
    if kind == "linear":
        loss, weight = ops.linear_cross_entropy_pair(a, b, labels, c)
    else:
        loss, weight = ops.cross_entropy_pair(ops.matmul(a, b, transpose_y=True), labels, c)
    mean = ops.div(loss, weight)
    found = run([loss, weight, *gl.gradients(mean, [a, b, c])])
    x, w, weights = (torch.tensor(v.astype(np.float64), requires_grad=True) for v in (x, w, weights))
    losses = torch.nn.functional.cross_entropy(
        (x @ w.T).reshape(-1, 7), torch.tensor(ids.astype(np.int64)).reshape(-1), reduction="none"
    ).reshape(ids.shape)
    every = weights[:, None, None] * torch.tensor(ids != -100)
    total = (every * losses).sum()
    (total / every.sum()).backward()
    for ours, want in zip(found, (total, every.sum(), x.grad, w.grad, weights.grad), strict=True):
        want = want.detach().numpy()
        np.testing.assert_allclose(ours, want, rtol=3e-6, atol=3e-6 * np.abs(want).max())


def test_weights_of_rows_of_labels_in_counts():
    logits, labels = draw(4, 3, 5), rng.integers(0, 5, (4, 3)).astype(np.int32)
    right = logits.argmax(-1) == labels
    right[[0, 2]] = False
    (found,) = run([ops.correct(constant(logits), labels, np.array([0, 2, 0, 1], np.float32))])
    assert found == right.sum()


def rows_in_torch(x, w, ids, g):
    """Losses of the rows, dx, dw of sum(g * losses), in float64."""
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(z.astype(np.float64), requires_grad=True) for z in (x, w))
    losses = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(a, b), torch.tensor(ids.astype(np.int64)), reduction="none"
    )
    (losses * torch.tensor(g.astype(np.float64))).sum().backward()
    return [z.detach().numpy() for z in (losses, a.grad, b.grad)]


@pytest.mark.parametrize("v", [7, 1100])
def test_rows_and_their_gradients_are_those_of_torch(v):
    """Any gradient per row: negative ones and 0, as preference losses have them."""
    n, d = 90, 12
    x, w, g = draw(n, d), draw(v, d), draw(n)
    ids = rng.integers(0, v, n).astype(np.int32)
    ids[::7] = -100
    g[1::5] = 0
    leaves = [gl.input("x", x.shape), gl.input("w", w.shape)]
    losses = ops.linear_cross_entropy_rows(*leaves, ids)
    grads = gl.gradients(losses, leaves, [gl.input("g", g.shape)])
    found = run([losses, *grads], {"x": x, "w": w, "g": g})
    assert (found[0][::7] == 0).all()
    for ours, want in zip(found, rows_in_torch(x, w, ids, g), strict=True):
        np.testing.assert_allclose(ours, want, rtol=2e-6, atol=2e-6 * np.abs(want).max())


def test_rows_weighted_and_summed_are_the_sum():
    """Bit for bit in the gradients: they are computed by one kernel, from the same row weights."""
    x, w, weights = draw(4, 10, 6), draw(500, 6), rng.random((4, 10)).astype(np.float32)
    ids = rng.integers(0, 500, (4, 10))
    a, b = parameter(x, "x"), parameter(w, "w")
    losses = ops.linear_cross_entropy_rows(a, b, ids)
    assert losses.shape == (4, 10)
    by_rows = ops.sum(losses * weights)
    whole, _ = ops.linear_cross_entropy_pair(a, b, ids, weights)
    one = run([by_rows, *gl.gradients(by_rows, [a, b])])
    other = run([whole, *gl.gradients(whole, [a, b])])
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    assert all(p.tobytes() == q.tobytes() for p, q in zip(one[1:], other[1:], strict=True))


def test_a_preference_loss_of_sequences():
    """-log sigmoid of the difference between two texts' log probabilities (Rafailov et al. 2023), by differences."""
    x, w = parameter(draw(2, 5, 4), "x"), parameter(draw(30, 4), "w")
    ids = rng.integers(0, 30, (2, 5))
    ids[1, 3:] = -100  # one is shorter
    chosen, rejected = (ops.sum(-ops.linear_cross_entropy_rows(x, w, ids), 1)[i] for i in range(2))
    loss = ops.softplus(rejected - chosen)
    assert gl.check_gradients(loss, parameters=[x, w]) < 1e-6


def test_rows_have_second_derivatives():
    x, w = parameter(draw(6, 3), "x"), parameter(draw(9, 3), "w")
    losses = ops.linear_cross_entropy_rows(x, w, np.array([0, 8, -100, 2, 2, 5]))
    (dx,) = gl.gradients(ops.sum(ops.sqr(losses)), [x])
    assert gl.check_gradients(ops.sum(ops.sqr(dx)), parameters=[x, w]) < 1e-6


def test_the_plan_of_rows_never_holds_the_logits():
    n, d, v = 512, 64, 49152
    w = gl.graph.stored.Stored("w", np.zeros((v, d), np.float32), "f32")
    x = gl.input("x", (n, d))
    losses = ops.linear_cross_entropy_rows(x, gl.graph.leaves.stored_value(w), np.zeros(n, np.int32))
    plan = gl.compile([losses, *gl.gradients(ops.sum(ops.sqr(losses)), [x])]).plan
    assert plan.peak_bytes < n * v * 4 / 8


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
