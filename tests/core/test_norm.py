"""layer_norm rms_norm batch_norm softmax log_softmax and their gradients, against float64."""

import numpy as np
import pytest

from tests.core.harness import isas, run

pytestmark = pytest.mark.cheap

rng = np.random.default_rng(0)
EPS = 1e-5
SHAPES = [
    (1,), (7,), (0, 5), (3, 0), (5, 1), (4, 3), (6, 10), (3, 16), (5, 33), (2, 3, 64), (9, 100), (33, 576), (2, 9001),
    (300, 700),
]  # fmt: skip


def some(shape, scale=1.0, shift=0.0):
    return (rng.normal(size=shape) * scale + shift).astype(np.float32)


def near(y, want, tolerance=2e-6):
    """Error against the largest value of the row: what is left of it after cancellation is not held against f32."""
    want = np.asarray(want)
    assert y.shape == want.shape
    size = np.abs(want).max(-1, keepdims=True, initial=1e-30) if want.ndim else abs(want)
    assert np.all(np.abs(y - want) <= tolerance * size), np.max(np.abs(y - want) / size)


def layer_norm(x, eps=EPS):
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def layer_norm_back(g, x, eps=EPS):
    g, h = g.astype(np.float64), layer_norm(x, eps)
    s = np.sqrt(x.astype(np.float64).var(-1, keepdims=True) + eps)
    return (g - g.mean(-1, keepdims=True) - h * (g * h).mean(-1, keepdims=True)) / s


def rms_norm(x, eps=EPS):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rms_norm_back(g, x, eps=EPS):
    x64, h = x.astype(np.float64), rms_norm(x, eps)
    s = np.sqrt((x64 * x64).mean(-1, keepdims=True) + eps)
    return (g - h * (g * h).mean(-1, keepdims=True)) / s


def softmax(x):
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_back(g, y):
    g, y = g.astype(np.float64), y.astype(np.float64)
    return y * (g - (g * y).sum(-1, keepdims=True))


def log_softmax(x):
    x = np.asarray(x, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_softmax_back(g, y):
    return g - np.exp(y.astype(np.float64)) * g.astype(np.float64).sum(-1, keepdims=True)


UNARY = {  # name -> (inputs of the kernel for x, attributes, reference)
    "layer_norm": ([], [EPS], layer_norm),
    "rms_norm": ([], [EPS], rms_norm),
    "softmax": ([None], [0.5], lambda x: softmax(x.astype(np.float64) * 0.5)),
    "log_softmax": ([], [], log_softmax),
}
BINARY = {
    "layer_norm_back": ([EPS], layer_norm_back),
    "rms_norm_back": ([EPS], rms_norm_back),
    "softmax_back": ([0.5], lambda g, y: 0.5 * softmax_back(g, y)),
    "log_softmax_back": ([], log_softmax_back),
}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(isa, name, shape):
    more, attrs, reference = UNARY[name]
    x = some(shape, 2.0, 0.5)
    (y,) = run(name, [x, *more], [("f32", shape)], attrs, isa=isa)
    if x.size:
        near(y, reference(x))
    for options in ({"threads": 2}, {"alias": {0: 0}}):
        (again,) = run(name, [x, *more], [("f32", shape)], attrs, isa=isa, **options)
        assert np.array_equal(y, again)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(isa, name, shape):
    attrs, reference = BINARY[name]
    g, x = some(shape), some(shape, 2.0, 0.5)
    if x.size and name.startswith("softmax"):
        x = softmax(x).astype(np.float32)
    elif x.size and name.startswith("log"):
        x = log_softmax(x).astype(np.float32)
    (dx,) = run(name, [g, x], [("f32", shape)], attrs, isa=isa)
    if x.size:
        want = reference(g, x)
        size = np.abs(want).max(initial=1e-6) + (np.abs(g).sum(-1, keepdims=True) if name.startswith("log") else 0)
        if name == "rms_norm_back":  # a row of one element: all of it cancels
            size = size + np.abs(g) / np.sqrt((x * x).mean(-1, keepdims=True))
        assert np.all(np.abs(dx - want) <= 3e-6 * size)
    for options in ({"threads": 2}, {"alias": {0: 0}}, {"alias": {0: 1}}):
        (again,) = run(name, [g, x], [("f32", shape)], attrs, isa=isa, **options)
        assert np.array_equal(dx, again), options
    (both,) = run(name, [x, x], [("f32", shape)], attrs, isa=isa)
    for alias in (0, 1):  # one value passed as both, and overwritten
        assert np.array_equal(both, run(name, [x, x], [("f32", shape)], attrs, isa=isa, alias={0: alias})[0])


def wide_rows(width):
    """Rows of one block: two whose squares f32 does not hold, between ordinary ones."""
    x = some((5, width), 2.0, 0.5)
    x[1] *= np.float32(3e18)
    x[3] *= np.float32(2e37)
    return x


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("width", [2, 33, 700])
def test_rows_whose_squares_overflow(isa, name, width):
    """They are normalised as others are, and change no bit of the rows beside them."""
    x, g = wide_rows(width), some((5, width))
    shape = ("f32", x.shape)
    (y,) = run(name, [x], [shape], [EPS], isa=isa)
    near(y, UNARY[name][2](x))
    (dx,) = run(f"{name}_back", [g, x], [shape], [EPS], isa=isa)
    want = BINARY[f"{name}_back"][1](g, x)
    spread = np.abs(g).max(-1, keepdims=True) / np.abs(x.astype("f8")).max(-1, keepdims=True)
    assert np.all(np.abs(dx - want) <= 1e-5 * spread + 1e-6 * np.abs(want) + 1e-44)
    for options in ({"threads": 2}, {"alias": {0: 0}}):
        assert np.array_equal(run(name, [x], [shape], [EPS], isa=isa, **options)[0], y)
        assert np.array_equal(run(f"{name}_back", [g, x], [shape], [EPS], isa=isa, **options)[0], dx)
    x[[1, 3]] = 1
    assert np.array_equal(run(name, [x], [shape], [EPS], isa=isa)[0][::2], y[::2])
    assert np.array_equal(run(f"{name}_back", [g, x], [shape], [EPS], isa=isa)[0][::2], dx[::2])


@pytest.mark.parametrize("isa", isas())
def test_rows_that_are_not_finite_stay_so(isa):
    for bad in (np.nan, np.inf):
        x, g = some((3, 20)), some((3, 20))
        x[1, 4] = bad
        for name in ("layer_norm", "rms_norm"):
            assert np.isnan(run(name, [x], [("f32", x.shape)], [EPS], isa=isa)[0][1, 4])
            dx = run(f"{name}_back", [g, x], [("f32", x.shape)], [EPS], isa=isa)[0]
            assert np.isnan(dx[1, 4]) and np.isfinite(dx[[0, 2]]).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 40)])
def test_batch_norm_of_a_variance_that_f32_does_not_hold(isa, shape):
    """NaN, which the guard refuses; not the bias alone."""
    x, weight, bias = some(shape), some((3,)), some((3,))
    x[:, 1] *= np.float32(1e20)
    outputs = [("f32", shape), ("f32", (3,)), ("f32", (3,))]
    y, mean, var = run("batch_norm", [x, weight, bias], outputs, [EPS], isa=isa)
    assert np.isnan(y[:, 1]).all() and np.isinf(var[1]) and np.isfinite(y[:, ::2]).all()
    back = run("batch_norm_back", [some(shape), x, weight, mean, var], outputs, [EPS], isa=isa)
    assert np.isnan(back[0][:, 1]).all() and np.isnan(back[1][1]) and np.isfinite(back[0][:, ::2]).all()


@pytest.mark.parametrize("isa", isas())
def test_layer_norm_of_constant_rows(isa):
    """Their variance is 0, whatever the rounding of their sums: y is 0, and dx is g - mean(g) over sqrt(eps)."""
    for width in (3, 49, 98, 107, 161, 237, 249, 1000):
        for number in (0.1, -123.456, 1e10, 3.3e15, -7.77e17):
            x = np.full((3, width), number, np.float32)
            g = some(x.shape)
            (y,) = run("layer_norm", [x], [("f32", x.shape)], [EPS], isa=isa)
            (dx,) = run("layer_norm_back", [g, x], [("f32", x.shape)], [EPS], isa=isa)
            assert not y.any(), (width, number)
            near(dx, (g - g.mean(axis=1, keepdims=True, dtype=np.float64)) / np.sqrt(EPS))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("width", [64, 576, 5000])
def test_layer_norm_far_from_zero(isa, width):
    """Rows at 1e4 with a spread of 1: f32's own rounding of the inputs is in x already, no more may be added."""
    x = some((4, width), 1.0, 1e4)
    (y,) = run("layer_norm", [x], [("f32", x.shape)], [EPS], isa=isa)
    near(y, layer_norm(x), 1e-6)
    flat = np.full((2, width), 1234.567, np.float32)
    (y,) = run("layer_norm", [flat], [("f32", flat.shape)], [EPS], isa=isa)
    assert np.all(y == 0)


MASKS = [
    ((6, 10), (6, 10)), ((6, 10), (10,)), ((6, 10), (1, 10)), ((6, 10), (6, 1)), ((6, 10), ()), ((6, 10), (1, 1)),
    ((2, 3, 5, 33), (5, 33)), ((2, 3, 5, 33), (2, 1, 5, 33)), ((2, 3, 5, 33), (3, 1, 33)),
    ((2, 3, 5, 33), (2, 1, 1, 1)), ((5, 120, 120), (120, 120)),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("case", MASKS, ids=str)
def test_softmax_with_a_mask(isa, case):
    shape, mask_shape = case
    x, mask = some(shape, 3.0), some(mask_shape)
    if mask_shape and mask_shape[-1] > 1:
        mask[..., 1::3] = -np.inf
    want = softmax(x.astype(np.float64) * 0.3 + mask)

    def check(m, **options):
        (y,) = run("softmax", [x, m], [("f32", shape)], [0.3], isa=isa, **options)
        near(y, want)
        assert np.array_equal(y == 0, want == 0)
        return y

    y = check(mask)
    assert np.array_equal(y, check(mask, threads=2)) and np.array_equal(y, check(mask, alias={0: 0}))
    check(np.broadcast_to(mask, shape))
    check(np.repeat(mask, 2, -1)[..., ::2] if mask_shape else mask)
    check(np.asfortranarray(mask))


@pytest.mark.parametrize("isa", isas())
def test_softmax_edges(isa):
    inf = np.inf
    x = np.array(
        [[-inf] * 20, [inf] + [0] * 19, [np.nan] + [0] * 19, [-inf] * 19 + [3], [1e38, -1e38] * 10], np.float32
    )
    y, z = (
        run(n, [x, *m], [("f32", x.shape)], a, isa=isa)[0]
        for n, m, a in [("softmax", [None], [1.0]), ("log_softmax", [], [])]
    )
    with np.errstate(all="ignore"):
        for got, want in ((y, softmax(x)), (z, log_softmax(x))):
            assert np.array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- batch_norm ------------------------------------------------------------------------------------------

BATCHES = [
    (1, 1), (5, 3), (64, 10), (33, 16), (500, 37), (2000, 128), (2, 3, 5), (7, 5, 1), (4, 8, 3, 3), (3, 2, 4, 5, 6),
    (60, 8, 28, 28), (1, 4, 300, 300), (40, 33, 9, 9), (5, 0), (2, 3, 1, 1),
]  # fmt: skip


def channels(v, ndim):
    return v.astype(np.float64).reshape((1, -1) + (1,) * (ndim - 2))


def batch_norm(x, w, b, eps=EPS):
    axes = (0, *range(2, x.ndim))
    x = x.astype(np.float64)
    mean, var = x.mean(axes), x.var(axes)
    y = (x - channels(mean, x.ndim)) / np.sqrt(channels(var, x.ndim) + eps)
    return y * channels(w, x.ndim) + channels(b, x.ndim), mean, var


def batch_norm_back(g, x, w, mean, var, eps=EPS):
    axes = (0, *range(2, x.ndim))
    g, x, s = g.astype(np.float64), x.astype(np.float64), 1 / np.sqrt(channels(var, x.ndim) + eps)
    h = (x - channels(mean, x.ndim)) * s
    db, dw, n = g.sum(axes), (g * h).sum(axes), x.size / x.shape[1]
    return channels(w, x.ndim) * s * (g - channels(db, x.ndim) / n - h * channels(dw, x.ndim) / n), dw, db


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batch_norm(isa, shape):
    x, w, b = some(shape, 2.0, 3.0), some(shape[1:2]), some(shape[1:2])
    out = [("f32", shape), ("f32", shape[1:2]), ("f32", shape[1:2])]
    got = run("batch_norm", [x, w, b], out, [EPS], isa=isa)
    if x.size:
        y, mean, var = batch_norm(x, w, b)
        np.testing.assert_allclose(got[0], y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[1], mean, rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(got[2], var, rtol=2e-6, atol=1e-9)
    for options in ({"threads": 2}, {"alias": {0: 0}}):
        again = run("batch_norm", [x, w, b], out, [EPS], isa=isa, **options)
        assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True))

    g, mean, var = some(shape), got[1].copy(), got[2].copy()
    got = run("batch_norm_back", [g, x, w, mean, var], out, [EPS], isa=isa)
    if x.size:
        want = batch_norm_back(g, x, w, mean, var)
        n = x.size / shape[1]
        for p, q, size in zip(got, want, (np.abs(want[0]).max() + 1e-3, np.sqrt(n), np.sqrt(n)), strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-5, atol=3e-6 * (size + 1))
    for options in ({"threads": 2}, {"alias": {0: 0}}, {"alias": {0: 1}}):
        again = run("batch_norm_back", [g, x, w, mean, var], out, [EPS], isa=isa, **options)
        assert all(np.array_equal(p, q) for p, q in zip(got, again, strict=True)), options


@pytest.mark.parametrize("isa", isas())
def test_batch_norm_far_from_zero(isa):
    for shape in ((4000, 5), (20, 5, 14, 14)):
        x, one = some(shape, 1.0, 1e4), np.ones(5, np.float32)
        y, _mean, var = run("batch_norm", [x, one, one * 0], [("f32", shape), "f32(5)", "f32(5)"], [EPS], isa=isa)
        want = batch_norm(x, one, one * 0)
        np.testing.assert_allclose(y, want[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(var, want[2], rtol=1e-5)
