"""linear_cross_entropy: cross entropy of x w^T without the logits, against float64, row by row and range by range."""

import numpy as np
import pytest

from tests.core.harness import isas, run

rng = np.random.default_rng(0)
SHAPES = [  # rows, features, classes: around the blocks of 264 rows and 384 classes; d around a product's depth
    (1, 1, 1), (3, 5, 2), (263, 7, 383), (264, 16, 384), (265, 9, 385), (300, 24, 2000), (5, 1024, 30),
    (4, 1300, 40), (600, 3, 1200),
]  # fmt: skip


def some(shape, scale=1.0):
    return (rng.normal(size=shape) * scale).astype(np.float32)


def reference(x, w, ids, weights=None):
    x, w = x.astype(np.float64), w.astype(np.float64)
    row = (np.ones(len(x)) if weights is None else weights.astype(np.float64)) * (ids != -100)
    used = row != 0
    z = x[used] @ w.T
    z -= z.max(1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(1, keepdims=True)
    at = np.arange(len(p)), ids[used]
    losses = -np.log(p[at])
    p[at] -= 1
    p *= row[used, None]
    dx = np.zeros_like(x)
    dx[used] = p @ w
    return (row[used] * losses).sum(), row.sum(), dx, p.T @ x[used]


def loss(x, w, ids, weights=None, **options):
    out = ["f32()", "f32()", ("f32", x.shape), ("f32", w.shape)]
    return run("linear_cross_entropy", [x, w, ids, weights], out, sig="f32_i32_f32", **options)


def close(got, want, room):
    np.testing.assert_allclose(got, want, rtol=0, atol=room * (np.abs(want).max(initial=0) + 1e-30))


def labels_for(n, v):
    ids = rng.integers(0, v, n).astype(np.int32)
    ids[: n // 2][rng.random(n // 2) < 0.5] = -100
    return ids


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(isa, shape):
    n, d, v = shape
    x, w, ids = some((n, d)), some((v, d), 3 / np.sqrt(d)), labels_for(n, v)
    weights = rng.random(n).astype(np.float32)
    weights[::5] = 0
    for given in (None, weights):
        got = loss(x, w, ids, given, isa=isa)
        for one, want in zip(got, reference(x, w, ids, given), strict=True):
            close(one, want, 3e-6)
        off = (ids == -100) | (given == 0 if given is not None else False)
        assert np.all(got[2][off] == 0)
        for threads in (2, 3, 8):
            again = loss(x, w, ids, given, isa=isa, threads=threads)
            assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True)), threads
        for unwanted in ([2], [3], [2, 3]):
            part = loss(x, w, ids, given, isa=isa, unwanted=unwanted)
            assert all(p is None or np.array_equal(p, q) for p, q in zip(part, got, strict=True)), unwanted


@pytest.mark.parametrize("isa", isas())
def test_rows_that_do_not_count_are_not_looked_at(isa):
    """NaN in them changes no bit; and the rows that count need not lie together."""
    n, d, v = 700, 11, 900
    x, w, ids = some((n, d)), some((v, d)), rng.integers(0, v, n).astype(np.int32)
    weights = np.where(rng.random(n) < 0.7, 0, rng.random(n)).astype(np.float32)
    ids[rng.random(n) < 0.2] = -100
    off = (ids == -100) | (weights == 0)
    got = loss(x, w, ids, weights, isa=isa)
    x[off] = np.nan
    again = loss(x, w, ids, weights, isa=isa, threads=2)
    assert np.isfinite(got[0]) and np.all(got[2][off] == 0) and 0 < np.count_nonzero(~off) < 264
    assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True))
    few = np.flatnonzero(~off)
    for one, want in zip(got, reference(x, w, ids, weights), strict=True):
        close(one, want, 3e-6)
    alone = loss(x[few], w, ids[few], weights[few], isa=isa)
    close(alone[2], got[2][few], 1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_of_rows_against_float64(isa, shape):
    """Also of rows that are nearly right, and of logits that are large."""
    n, d, v = shape
    ids = labels_for(n, v)
    off = ids == -100
    for scale in (1, 30):
        x, w = some((n, d), scale), some((v, d), 3 / np.sqrt(d))
        x[off] = np.nan
        out = [("f32", (n,))]
        (got,) = run("linear_cross_entropy_rows", [x, w, ids], out, sig="f32_i32_f32", isa=isa)
        z = x[~off].astype(np.float64) @ w.T.astype(np.float64)
        want = np.logaddexp.reduce(z, 1) - z[np.arange(len(z)), ids[~off]]
        np.testing.assert_allclose(got[~off], want, rtol=3e-6, atol=3e-6 * scale)
        assert not got[off].any()
        for threads in (2, 3, 8):
            again = run("linear_cross_entropy_rows", [x, w, ids], out, sig="f32_i32_f32", isa=isa, threads=threads)
            assert again[0].tobytes() == got.tobytes(), threads


@pytest.mark.parametrize("isa", isas())
def test_no_row_counts(isa):
    x, w = some((30, 4)), some((500, 4))
    for ids, weights in ((np.full(30, -100, np.int32), None), (np.zeros(30, np.int32), np.zeros(30, np.float32))):
        total, weight, dx, dw = loss(x, w, ids, weights, isa=isa)
        assert total == 0 and weight == 0 and not dx.any() and not dw.any()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_clamped(isa, bad):
    n, d, v = 40, 3, 1000
    ids = (np.arange(n, dtype=np.int32) * 37) % v
    for at in ((0, 1), (39, 2)):
        x, w = some((n, d)), np.abs(some((v, d))) + 0.1
        x[at] = bad
        assert not np.isfinite(loss(x, w, ids, isa=isa)[0])
    for row in (0, 500, 999):  # a class of logit NaN or +inf, in any range of the vocabulary
        x, w = np.abs(some((n, d))) + 0.1, some((v, d))
        w[row] = bad
        assert not np.isfinite(loss(x, w, ids, isa=isa)[0])
    x, w = np.abs(some((n, d))) + 0.1, some((v, d))
    w[ids[3]] = -np.inf  # the label of one row cannot be
    assert loss(x, w, ids, isa=isa)[0] == np.inf
    free = np.setdiff1d(np.arange(v), ids)[:2]
    w = some((v, d))
    w[free] = -np.inf  # classes that cannot be, and that no label names: no loss
    kept = np.delete(w, free, 0)
    moved = (ids - (ids[:, None] > free).sum(1)).astype(np.int32)
    np.testing.assert_allclose(loss(x, w, ids, isa=isa)[0], reference(x, kept, moved)[0], rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
def test_far_logits(isa):
    """No overflow whichever way the logits grow along the vocabulary; a sure label has loss and gradient near 0."""
    n, v = 20, 1600
    for slope in (1, -1):
        w = (np.linspace(-200, 200, v, dtype=np.float32) * slope)[:, None] * np.ones((1, 2), np.float32)
        x = np.full((n, 2), 0.5, np.float32)
        ids = rng.integers(0, v, n).astype(np.int32)
        for one, want in zip(loss(x, w, ids, isa=isa), reference(x, w, ids), strict=True):
            close(one, want, 3e-6)
    w = np.zeros((v, 2), np.float32)
    w[7] = 20
    x = np.ones((n, 2), np.float32)
    sure = loss(x, w, np.full(n, 7, np.int32), isa=isa)
    total = reference(x, w, np.full(n, 7, np.int32))[0]
    assert 0 < total < 1e-10
    np.testing.assert_allclose(sure[0], n * np.log1p((v - 1) * np.exp(-40.0)), rtol=1e-5)
    np.testing.assert_allclose(sure[2], -20 * (v - 1) * np.exp(-40.0) * np.ones((n, 2)), rtol=1e-5)
    w[7] = 1e30  # logits far beyond exp's range
    assert loss(x, w, np.full(n, 7, np.int32), isa=isa)[0] == 0
    np.testing.assert_allclose(loss(x, w, np.zeros(n, np.int32), isa=isa)[0], n * 2e30, rtol=1e-6)
