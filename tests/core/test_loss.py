"""cross_entropy_sum and correct, against float64."""

import numpy as np
import pytest

from tests.core.harness import isas, run

rng = np.random.default_rng(0)
INDEX = 2  # Stop::index
SHAPES = [
    (1, 1), (1, 3), (0, 4), (32, 3), (33, 3), (500, 10), (7, 16), (19, 17), (5, 33), (40, 1000), (3, 9001),
    (3000, 10), (37, 2), (50, 4), (21, 5), (7, 1),
]  # fmt: skip


def some(shape, scale=3.0):
    return (rng.normal(size=shape) * scale).astype(np.float32)


def reference(x, labels, weights=None):
    """loss, weight, gradient in float64, from ids or label rows."""
    x = x.astype(np.float64)
    w = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    if labels.dtype == np.int32:
        w = w * (labels != -100)
        rows = np.zeros_like(x)
        rows[np.arange(len(x)), np.where(labels == -100, 0, labels)] = 1
    else:
        rows = labels.astype(np.float64)
    z = x - x.max(-1, keepdims=True, initial=-np.inf)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    if labels.dtype == np.int32:
        losses = -log_p[np.arange(len(x)), np.where(labels == -100, 0, labels)]
    else:
        losses = -np.where(rows == 0, 0, rows * log_p).sum(-1)
    grad = w[:, None] * (rows.sum(-1, keepdims=True) * np.exp(log_p) - rows)
    return (losses * w).sum(), w.sum(), grad


def loss(x, labels, weights=None, **options):
    sig = "f32_i32_f32" if labels.dtype == np.int32 else "f32"
    out = ["f32()", "f32()", ("f32", x.shape)]
    return run("cross_entropy_sum", [x, labels, weights], out, sig=sig, **options)


def correct(x, labels, weights=None, **options):
    sig = "f32_i32_f32" if labels.dtype == np.int32 else "f32"
    return float(run("correct", [x, labels, weights], ["f32()"], sig=sig, **options)[0])


def cases(n, c):
    ids = rng.integers(0, c, n).astype(np.int32)
    some_ignored = np.where(rng.random(n) < 0.3, np.int32(-100), ids)
    rows = rng.random((n, c)).astype(np.float32) * (rng.random((n, 1)) < 0.8)  # of any sum, some of them 0
    weights = rng.random(n).astype(np.float32)
    weights[::5] = 0
    return [(ids, None), (some_ignored, None), (some_ignored, weights), (rows, None), (rows, weights)]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(isa, shape):
    x = some(shape)
    for labels, weights in cases(*shape):
        got = loss(x, labels, weights, isa=isa)
        total, weight, grad = reference(x, labels, weights)
        np.testing.assert_allclose(got[0], total, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got[1], weight, rtol=3e-7)
        size = 1 if labels.dtype == np.int32 else max(1, labels.sum(-1).max(initial=0))
        np.testing.assert_allclose(got[2], grad, rtol=2e-6, atol=3e-7 * size)
        for options in ({"threads": 2}, {"alias": {2: 0}}):
            again = loss(x, labels, weights, isa=isa, **options)
            assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True)), options
        without = loss(x, labels, weights, isa=isa, unwanted=[2])
        assert without[0] == got[0] and without[1] == got[1]
        if labels.dtype == np.int32:  # exactly 0, not a small number
            off = labels == -100
            assert np.all(got[2][off] == 0)
        if weights is not None:
            assert np.all(got[2][weights == 0] == 0)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("classes", [3, 16, 17, 100])
def test_nothing_is_clamped(isa, classes):
    ids = np.arange(40, dtype=np.int32) % classes
    rows = np.eye(classes, dtype=np.float32)[ids]
    for bad in (np.nan, np.inf):
        for row in (0, 15, 39):
            x = some((40, classes))
            x[row, 1] = bad
            assert not np.isfinite(loss(x, ids, isa=isa)[0])
            assert not np.isfinite(loss(x, rows, isa=isa)[0])
            off = ids.copy()
            off[row] = -100  # an ignored row adds nothing, whatever it holds
            total, weight, grad = loss(x, off, isa=isa)
            assert np.isfinite(total) and weight == 39 and np.all(grad[row] == 0) and np.isfinite(grad).all()
    x = some((40, classes))
    x[3, ids[3]] = -np.inf
    assert loss(x, ids, isa=isa)[0] == np.inf and loss(x, rows, isa=isa)[0] == np.inf
    x = some((40, classes))
    x[3] = -np.inf
    assert np.isnan(loss(x, ids, isa=isa)[0])
    x = some((40, classes))
    x[3, (ids[3] + 1) % classes] = -np.inf  # a class that cannot be: probability 0, no loss
    np.testing.assert_allclose(loss(x, ids, isa=isa)[0], reference(x, ids)[0], rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("classes", [3, 10, 50])
def test_far_logits(isa, classes):
    """No overflow, and the loss of a row far away is the distance."""
    x = np.zeros((20, classes), np.float32)
    x[:, 0], x[:, 1] = 1e30, -1e30
    ids = np.zeros(20, np.int32)
    assert loss(x, ids, isa=isa)[0] == 0
    np.testing.assert_allclose(loss(x, ids + 1, isa=isa)[0], 20 * 2e30, rtol=1e-6)
    np.testing.assert_allclose(loss(some((20, classes)) * 0 + 88, ids, isa=isa)[0], 20 * np.log(classes), rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("classes", [3, 40])
@pytest.mark.parametrize("bad", [-1, -99, -101, 40, 2**31 - 1, -(2**31)])
def test_an_id_out_of_range_stops_the_run(isa, classes, bad):
    ids = np.zeros(50, np.int32)
    ids[20] = bad
    for name, out in (("cross_entropy_sum", ["f32()", "f32()", ("f32", (50, classes))]), ("correct", ["f32()"])):
        _, result, _ = run(name, [some((50, classes)), ids, None], out, sig="f32_i32_f32", isa=isa, full=True)
        assert (result[1], result[3], result[4]) == (INDEX, 20, bad)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0]], ids=str)
def test_correct(isa, shape):
    x = rng.integers(0, 4, shape).astype(np.float32)  # many ties: the first maximum counts
    x[rng.random(shape) < 0.02] = np.nan
    for labels, weights in cases(*shape):
        target = labels if labels.dtype == np.int32 else labels.argmax(-1)
        hit = (x.argmax(-1) == target) & (True if weights is None else weights != 0)
        for threads in (1, 2):
            assert correct(x, labels, weights, isa=isa, threads=threads) == hit.sum()


@pytest.mark.parametrize("isa", isas())
def test_more_axes_than_two(isa):
    x = some((4, 5, 7))
    ids = rng.integers(0, 7, (4, 5)).astype(np.int32)
    flat = loss(x.reshape(20, 7), ids.reshape(20), isa=isa)
    whole = loss(x, ids, isa=isa)
    assert whole[0] == flat[0] and np.array_equal(whole[2].reshape(20, 7), flat[2])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("classes", [3, 16, 17, 5000])
def test_rows_as_their_own_labels(isa, classes):
    """One value as logits and as labels, and the gradient in its place."""
    x = rng.random((40, classes)).astype(np.float32)
    got = run("cross_entropy_sum", [x, x, None], ["f32()", "f32()", ("f32", x.shape)], sig="f32", isa=isa)
    np.testing.assert_allclose(got[2], reference(x, x)[2], atol=3e-7 * x.sum(-1).max())
    for alias in (0, 1):
        options = {"sig": "f32", "isa": isa, "alias": {2: alias}}
        again = run("cross_entropy_sum", [x, x, None], ["f32()", "f32()", ("f32", x.shape)], **options)
        assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("classes", [4, 40])
def test_a_class_that_a_label_row_does_not_name_may_stand_at_minus_inf(isa, classes):
    x, rows = some((20, classes)), rng.random((20, classes)).astype(np.float32)
    x[:, 1], rows[:, 1] = -np.inf, 0
    total, _, grad = loss(x, rows, isa=isa)
    with np.errstate(invalid="ignore"):
        want = reference(x, rows)
    np.testing.assert_allclose(total, want[0], rtol=1e-6)
    assert np.all(grad[:, 1] == 0) and np.isfinite(grad).all()
