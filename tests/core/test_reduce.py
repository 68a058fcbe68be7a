"""sum mean max min argmax."""

import itertools

import numpy as np
import pytest

from tests.core.harness import isas, run

pytestmark = pytest.mark.cheap

rng = np.random.default_rng(0)
FOLDS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def fold(name, x, axes, keepdims=False, **options):
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    (y,) = run(name, [x], [("f32", shape)], [list(axes), keepdims], **options)
    return y


def reference(name, x, axes):
    """The fold in float64, and what its rounding scales with: the sum of the terms' sizes."""
    wide = x.astype(np.float64)
    size = None if name in ("max", "min") else np.abs(wide).sum(axis=axes)
    return FOLDS[name](wide, axis=axes), size


def check(name, x, axes, isa, known=None, **options):
    y = fold(name, x, axes, isa=isa, **options)
    want, size = known or reference(name, x, tuple(axes))
    if name in ("max", "min"):
        assert np.array_equal(y, want.astype(np.float32), equal_nan=True)
        return
    if name == "mean":
        size = size / max(1, x.size // max(1, want.size))
    assert np.all(np.abs(y - want) <= 3e-7 * size + 6e-8 * np.abs(want)), (name, x.shape, axes, isa)


def some(shape):
    return rng.normal(size=shape).astype(np.float32) + np.float32(0.25)


SHAPES = [
    (1,), (5,), (33,), (300,), (5000,), (3, 5), (32, 3), (17, 64), (65, 10), (200, 33), (4, 3, 7), (9, 8, 5, 6),
    (2, 3, 2, 3, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_set_of_axes(isa, name, shape):
    x = some(shape)
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            check(name, x, axes, isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", ["sum", "max"])
def test_views(isa, name):
    x = some((12, 9, 20))
    views = [
        x.T, x.transpose(1, 0, 2), x.transpose(2, 0, 1), x[::2], x[:, ::3], x[:, :, ::2], x[3:, 1:, 5:], x[:, :, 3:4],
        np.broadcast_to(x[:, :1], (12, 7, 20)), np.broadcast_to(x[:1, :, :1], (4, 9, 5)),
        np.broadcast_to(np.float32(3), (4, 5)), np.broadcast_to(x[0, 0, :5], (3, 2, 5)), x[:, None, :, None, :],
    ]  # fmt: skip
    for view in views:
        for count in range(1, view.ndim + 1):
            for axes in itertools.combinations(range(view.ndim), count):
                check(name, view, axes, isa)


LARGE = [
    ((500, 500), (0,)), ((500, 10), (0,)), ((500, 8, 28, 28), (0, 2, 3)), ((2000, 700), (0,)), ((2000, 700), (1,)),
    ((2000, 700), (0, 1)), ((1000003,), (0,)), ((3, 700001), (1,)), ((70001, 3), (0,)), ((9, 300, 1000), (0, 1)),
    ((40, 20000), (0,)), ((5, 60000), (0,)), ((3, 100000), (0,)), ((30, 40, 50, 60), (1, 3)), ((7, 100, 1031), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_in_parts(name, case):
    """Three views of the same numbers on every instruction set: their reference, most of the time, is one."""
    shape, axes = case
    x = some(shape)
    known = reference(name, x, axes)
    views = [(x, axes)]
    if x.ndim == 2:
        views += [(x.T, tuple(1 - a for a in axes)), (np.repeat(x, 2, 1)[:, ::2], axes)]
    for isa in isas():
        one, two = (fold(name, x, axes, isa=isa, threads=t) for t in (1, 2))
        assert np.array_equal(one, two), isa
        for view, over in views:
            check(name, view, over, isa, known)


@pytest.mark.parametrize("isa", isas())
def test_long_sums_do_not_drift(isa):
    """A million times 0.1: a plain f32 sum is off by one percent."""
    for shape, axes in [((1 << 20,), (0,)), ((1 << 18, 4), (0,)), ((1 << 14, 64), (0,)), ((4, 1 << 18), (1,))]:
        x = np.full(shape, 0.1, np.float32)
        want = np.float64(np.float32(0.1)) * (x.size // max(1, fold("sum", x, axes, isa=isa).size))
        np.testing.assert_allclose(fold("sum", x, axes, isa=isa), want, rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [(40,), (40, 40), (40, 3)])
def test_nan_and_inf(isa, shape):
    for value in (np.nan, np.inf, -np.inf):
        for at in (0, 7, 39):
            x = some(shape)
            x[at] = value
            for name, axes in itertools.product(FOLDS, [(0,), tuple(range(len(shape)))]):
                y = fold(name, x, axes, isa=isa)
                assert np.array_equal(np.isnan(y), np.isnan(FOLDS[name](x, axis=axes)))
                check(name, x, axes, isa) if name in ("max", "min") else None
    x = some(shape)
    x[0], x[1] = np.inf, 3e38
    assert np.all(np.isposinf(fold("sum", x, (0,), isa=isa)))
    x[:] = 3e38
    assert np.all(np.isposinf(fold("sum", x, (0,), isa=isa)))


@pytest.mark.parametrize("isa", isas())
def test_empty(isa):
    for shape, axes in [((0,), (0,)), ((3, 0), (1,)), ((0, 5), (0,)), ((0, 5), (1,)), ((0, 5), (0, 1))]:
        x = np.zeros(shape, np.float32)
        assert np.array_equal(fold("sum", x, axes, isa=isa), np.sum(x, axes))
        assert np.isnan(fold("mean", x, axes, isa=isa)).all()


def test_keepdims_keeps_the_numbers():
    x = some((4, 5, 6))
    assert np.array_equal(fold("sum", x, (1,), True), fold("sum", x, (1,))[:, None])


def argmax(x, axis, **options):
    (y,) = run("argmax", [x], [("i32", x.shape[:axis] + x.shape[axis + 1 :])], [axis], sig="f32_i32", **options)
    return y


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "shape", [(1,), (9,), (40,), (5000,), (500, 10), (33, 3), (3, 17), (20, 100), (4, 5, 6), (3, 1, 40), (70, 2000)]
)
def test_argmax(isa, shape):
    x = rng.integers(0, 7, shape).astype(np.float32)  # many ties: the first counts
    for axis in range(len(shape)):
        for view in (x, x.T, x[::2], x[..., ::2], np.broadcast_to(x[:1], x.shape)):
            assert np.array_equal(argmax(view, axis, isa=isa), np.argmax(view, axis)), (shape, axis)
        assert np.array_equal(argmax(x, axis, isa=isa, threads=2), np.argmax(x, axis))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [3, 10, 16, 17, 40, 100])
def test_argmax_of_nan_and_inf(isa, n):
    x = some((64, n))
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = np.inf
    x[5], x[6], x[7] = -np.inf, np.nan, np.inf
    assert np.array_equal(argmax(x, 1, isa=isa), np.argmax(x, 1))
    assert np.array_equal(argmax(x, 0, isa=isa), np.argmax(x, 0))
