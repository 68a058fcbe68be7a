"""What other systems got wrong in their ops, each on this package's references and kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom import ops
from gradloom.graph.grad import gradients
from gradloom.graph.graph import reachable
from gradloom.graph.leaves import constant, input
from gradloom.run.compile import compile as compile_graph
from tests.core.harness import isas, run

ISAS = isas()
BACKENDS = [("numpy", None), *(("cpu", isa) for isa in ISAS)]
everywhere = pytest.mark.parametrize("backend,isa", BACKENDS)


def compute(values, backend, isa, **feeds):
    options = {"isa": isa, "threads": 2} if backend == "cpu" else {}
    nodes = reachable(values)
    asked = {n.attrs["key"] for n in nodes if n.op.name in ("input", "setting")}
    return compile_graph(list(values), backend=backend, **options)(**{k: x for k, x in feeds.items() if k in asked})


def near(got, want, tolerance=2e-6):
    want = np.asarray(want)
    assert np.shape(got) == want.shape
    assert np.all(np.abs(got - want) <= tolerance * max(1.0, float(np.abs(want).max()))), (got, want)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# ---- cross entropy: (softmax - label) / n holds for plain rows only ----------------------------------------


@everywhere
def test_cross_entropy_gradient_of_weighted_and_ignored_rows(backend, isa):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    ids = np.array([1, -100, 4, 0, -100, 2], np.int32)
    weights = np.array([1, 3, 0.5, 2, 7, 0], np.float32)
    logits = input("x", x.shape)
    loss = ops.cross_entropy(logits, constant(ids), constant(weights))
    got, g = compute([loss, *gradients(loss, [logits])], backend, isa, x=x)
    rows, counted = softmax(x.astype(np.float64)), ids >= 0
    total = weights[counted].sum()
    onehot = np.eye(5)[np.where(counted, ids, 0)]
    near(got, (weights * -np.log(rows[np.arange(6), np.where(counted, ids, 0)]))[counted].sum() / total)
    near(g, np.where(counted, weights, 0)[:, None] * (rows - onehot) / total)
    assert np.all(g[[1, 4, 5]] == 0)  # exactly


@everywhere
def test_an_ignored_row_may_hold_anything(backend, isa):
    x = np.array([[1, 2, 3], [np.nan, np.inf, -np.inf], [0, 1, 0]], np.float32)
    logits = input("x", x.shape)
    loss = ops.cross_entropy(logits, constant(np.array([0, -100, 1], np.int32)))
    got, g = compute([loss, *gradients(loss, [logits])], backend, isa, x=x)
    assert np.isfinite(got) and np.all(g[1] == 0) and np.all(np.isfinite(g))


@everywhere
def test_cross_entropy_of_label_rows_of_any_sum(backend, isa):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 3)).astype(np.float32)
    labels = np.array([[0.2, 0.3, 0.5], [0, 0, 0], [2, 1, 0], [0, 0.5, 0]], np.float32)
    logits = input("x", x.shape)
    loss = ops.cross_entropy(logits, constant(labels))
    got, g = compute([loss, *gradients(loss, [logits])], backend, isa, x=x)
    rows = softmax(x.astype(np.float64))
    near(got, -(labels * np.log(rows)).sum() / 4)  # the divisor is the number of rows, not what labels sum to
    near(g, (labels.sum(1, keepdims=True) * rows - labels) / 4)
    assert np.all(g[1] == 0)


@everywhere
def test_nonfinite_logits_give_a_nonfinite_loss(backend, isa):
    for wrong in (np.nan, np.inf):
        x = np.array([[wrong, 2, 3], [0, 1, 0]], np.float32)
        loss = ops.cross_entropy(input("x", x.shape), constant(np.array([1, 1], np.int32)))
        (got,) = compute([loss], backend, isa, x=x)
        assert not np.isfinite(got)


def test_ids_never_expand():
    """A loss over ids, and an embedding, never hold (rows x classes) beyond the logits and their gradient."""
    classes, rows, width = 5000, 64, 8
    ids = input("ids", (rows,), "i32")
    table, w = input("table", (classes, width)), input("w", (width, classes))
    loss = ops.cross_entropy(ops.matmul(ops.embedding(table, ids), w), ids)
    grads = gradients(loss, [table, w])
    wide = [v for n in reachable([loss, *grads]) for v in n.outputs if v.shape == (rows, classes)]
    assert sorted({v.node.op.name for v in wide}) == [
        "cross_entropy_sum",
        "matmul",
        "mul",
    ]  # logits, gradient, its scale
    plan = compile_graph([loss, *grads], backend="null").plan
    assert plan.peak_bytes < 4 * (3 * rows * classes + 4 * classes * width)


# ---- sums, not means; over every broadcast axis -----------------------------------------------------------


@everywhere
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum"])
def test_gradients_are_summed_over_broadcast_axes(name, backend, isa):
    rng = np.random.default_rng(2)
    x, y = rng.uniform(1, 2, (2, 3, 4)).astype(np.float32), rng.uniform(1, 2, (3, 1)).astype(np.float32)
    s = np.float32(1.25)
    op = getattr(ops, name)
    vx, vy, vs = input("x", x.shape), input("y", y.shape), input("s")
    loss = ops.sum(op(op(vx, vy), vs))
    gx, gy, gs = compute(gradients(loss, [vx, vy, vs]), backend, isa, x=x, y=y, s=s)

    wide_y, wide_s = input("y", x.shape), input("s", x.shape)  # the same without broadcasting
    loss = ops.sum(op(op(vx, wide_y), wide_s))
    feeds = {"x": x, "y": np.broadcast_to(y, x.shape).copy(), "s": np.full(x.shape, s)}
    hx, hy, hs = compute(gradients(loss, [vx, wide_y, wide_s]), backend, isa, **feeds)
    near(gx, hx)
    near(gy, hy.sum((0, 2))[:, None])
    near(gs, hs.sum(), 4e-6)


@everywhere
def test_a_scalar_added_gets_the_sum_not_the_mean(backend, isa):
    x, b = input("x", (5,)), input("b")
    (g,) = compute(gradients(ops.sum((x + b) * x), [b]), backend, isa, x=np.arange(5), b=1.0)
    assert g == 10


@everywhere
def test_the_gradient_of_a_slice_never_reads_its_source(backend, isa):
    """zeros + g, not 0 * source + g: infinities outside the slice stay outside."""
    source = np.array([[1, np.inf, 3], [np.nan, 5, -np.inf]], np.float32)
    x = input("x", source.shape)
    for part, want in ((x[0, ::2], [[2, 0, 6], [0, 0, 0]]), (x[1:, 1], [[0, 0, 0], [0, 10, 0]])):
        (g,) = compute(gradients(ops.sum(ops.sqr(part)), [x]), backend, isa, x=source)
        assert np.array_equal(g, np.array(want, np.float32))


# ---- kernels that read what they have overwritten ----------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alias", [None, {0: 0}, {0: 1}])
def test_rms_norm_back_over_its_inputs(alias, isa):
    g, x = np.ones((3, 4), np.float32), np.array([[1, 0, 0, 0]] * 3, np.float32)
    (dx,) = run("rms_norm_back", [g, x], [("f32", (3, 4))], [0.0], isa=isa, alias=alias)
    near(dx, [[0, 2, 2, 2]] * 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alias", [None, {0: 0}, {0: 1}])
def test_softmax_back_over_its_inputs(alias, isa):
    rng = np.random.default_rng(3)
    g = rng.normal(size=(5, 37)).astype(np.float32)
    y = softmax(rng.normal(size=(5, 37))).astype(np.float32)
    want = y * (g - (g * y.astype(np.float64)).sum(1, keepdims=True))
    (dx,) = run("softmax_back", [g, y], [("f32", (5, 37))], [1.0], isa=isa, alias=alias)
    near(dx, want)


@pytest.mark.parametrize("isa", ISAS)
def test_a_deep_stack_of_norms_has_the_gradients_of_the_definition(isa):
    """Thirty residual blocks, planned with buffers in place of each other."""
    rng = np.random.default_rng(4)
    data = {"x": rng.normal(size=(6, 16)), "w": rng.normal(size=(16, 16)) / 4}
    x, w = input("x", (6, 16)), input("w", (16, 16))
    h = x
    for _ in range(30):
        h = h + ops.softmax(ops.rms_norm(h) @ w)
    loss = ops.mean(ops.sqr(h))
    values = [loss, *gradients(loss, [x, w])]
    want = compute(values, "numpy", None, **data)
    got = compute(values, "cpu", isa, **data)
    for a, b in zip(got, want, strict=True):
        near(a, b, 2e-5)


@everywhere
def test_an_input_that_is_also_another_input_keeps_its_bytes(backend, isa):
    """The gradient may take the place of the logits, but not where they are the labels as well."""
    rng = np.random.default_rng(6)
    p = ops.exp(input("x", (7, 40)))  # a value of the arena, last read by the loss
    loss, _, grad = ops.cross_entropy_sum(p, p)
    data = {"x": rng.uniform(-1, 1, (7, 40)).astype(np.float32)}
    got, want = compute([loss, grad], backend, isa, **data), compute([loss, grad], "numpy", None, **data)
    near(got[0], want[0], 4e-6)
    near(got[1], want[1], 4e-6)


# ---- layers that are less than their names ------------------------------------------------------------------


@everywhere
def test_dropout_really_drops(backend, isa):
    x = input("x", (200, 50))
    y = ops.dropout(x, 0.25, stream=3)
    (g,) = gradients(ops.sum(ops.mul(y, x)), [x])  # 2 * keep / (1 - rate) * x: one mask forward and backward
    ones = np.ones(x.shape, np.float32)
    out, slope = compute([y, g], backend, isa, x=ones, seed=7, step=3)
    dropped = out == 0
    assert abs(dropped.mean() - 0.25) < 0.02
    near(out[~dropped], np.full((~dropped).sum(), 1 / 0.75))
    assert np.array_equal(slope == 0, dropped)
    again, other_step, other_seed = (
        compute([y], backend, isa, x=ones, seed=s, step=t)[0] for s, t in ((7, 3), (7, 4), (8, 3))
    )
    assert np.array_equal(again, out)
    assert 0.3 < np.mean((other_step == 0) != dropped) < 0.45 and 0.3 < np.mean((other_seed == 0) != dropped) < 0.45


@everywhere
def test_dropout_of_micro_batches_is_that_of_the_batch(backend, isa):
    x, part = input("x", (12, 7)), input("x", (4, 7))
    ones = np.ones((12, 7), np.float32)
    (whole,) = compute([ops.dropout(x, 0.5, stream=1)], backend, isa, x=ones, seed=1, step=2)
    pieces = [
        compute([ops.dropout(part, 0.5, stream=1)], backend, isa, x=ones[:4], seed=1, step=2, row=r)[0]
        for r in (0, 4, 8)
    ]
    assert np.array_equal(whole, np.concatenate(pieces))


def test_dropouts_without_a_stream_do_not_share_masks():
    x = input("x", (64, 64))
    h = x
    for _ in range(3):
        h = ops.dropout(h, 0.5)
    two = [ops.dropout(x, 0.5) for x in (x, h)]
    streams = {n.attrs["stream"] for n in reachable([h, *two]) if n.op.name == "dropout"}
    assert len(streams) == 5


@everywhere
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5, 5)])
def test_batch_norm_backward_has_the_terms_of_mean_and_variance(shape, backend, isa):
    """The gradient is at right angles to 1 and to x in every channel, and agrees with the chain rule in full."""
    rng = np.random.default_rng(5)
    data = {
        "x": rng.normal(1, 2, shape),
        "w": rng.uniform(0.5, 2, 3),
        "b": rng.normal(size=3),
        "r": rng.normal(size=shape),
    }
    x, w, b, r = (input(k, v.shape) for k, v in data.items())
    axes = tuple(i for i in range(len(shape)) if i != 1)
    y, mean, var = ops.batch_norm(x, w, b)
    fused = gradients(ops.sum(ops.mul(y, r)), [x, w, b])

    wide = (3, *(1,) * (len(shape) - 2))
    centred = x - ops.mean(x, axes, keepdims=True)
    unit = centred / ops.sqrt(ops.mean(ops.sqr(centred), axes, keepdims=True) + 1e-5)
    plain = unit * w.reshape(wide) + b.reshape(wide)
    by_chain_rule = gradients(ops.sum(ops.mul(plain, r)), [x, w, b])

    got = compute([y, mean, var, *fused, plain, *by_chain_rule], backend, isa, **data)
    near(got[0], got[6], 4e-6)
    near(got[1], data["x"].mean(axes))
    near(got[2], data["x"].var(axes), 4e-6)
    for a, c in zip(got[3:6], got[7:], strict=True):
        near(a, c, 1e-5)
    dx = got[3].astype(np.float64)
    assert np.all(np.abs(dx.sum(axes)) < 1e-4)
    assert np.all(np.abs((dx * data["x"]).sum(axes)) < 1e-3)
