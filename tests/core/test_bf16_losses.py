"""linear_cross_entropy of bf16 rows: against its definition in float64; the units against their twins, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from gradloom import _core
from gradloom.base.dtypes import dtype
from gradloom.ops.common import Quantised
from gradloom.ops.matmul import narrow_operand
from tests.core.harness import isas, run

BF16 = ml_dtypes.bfloat16
ISAS = _core.isas()
UNITS = sorted(set(ISAS) - set(isas()))
TWINS = [(isa, f"{isa}-twin") for isa in ISAS if _core.bf16_unit(isa)]
SHAPES = [  # rows, features, classes: around the blocks of 264 rows and 384 classes, odd numbers, several blocks of d
    (1, 1, 1), (3, 5, 2), (17, 33, 65), (263, 7, 383), (265, 9, 385), (130, 64, 1200), (40, 90, 2001), (5, 1300, 40),
    (7, 2100, 50),
]  # fmt: skip
rng = np.random.default_rng(0)


def some(shape, scale=1.0):
    return (rng.normal(size=shape) * scale).astype(np.float32)


def labels_for(n, v):
    ids = rng.integers(0, v, n).astype(np.int32)
    ids[: n // 2][rng.random(n // 2) < 0.5] = -100
    return ids


def rounded(x):
    return x.astype(BF16).astype(x.dtype)


def definition(x, w, ids, weights=None):
    """loss, weight, dx, dw in float64: of x, w and what they are multiplied by, rounded to bf16."""
    w = w.numpy() if isinstance(w, Quantised) else w
    x, w = x.astype(np.float64), rounded(w.astype(np.float32)).astype(np.float64)
    row = (np.ones(len(x)) if weights is None else weights.astype(np.float64)) * (ids != -100)
    used = row != 0
    z = x[used] @ w.T
    most = np.round(z.max(1, keepdims=True) / np.log(2)) * np.log(2)
    e = np.exp(z - most)
    total = e.sum(1, keepdims=True)
    at = np.arange(len(e)), ids[used]
    losses = np.log(total[:, 0]) + most[:, 0] - z[at]
    slope = e / total
    slope[at] -= 1
    slope *= row[used, None]
    of_x = rounded(e) / total * row[used, None]
    of_x[at] = slope[at]
    dx = np.zeros_like(x)
    dx[used] = of_x @ w
    return (row[used] * losses).sum(), row.sum(), dx, rounded(slope).T @ x[used]


def loss(x, w, ids, weights=None, **options):
    out = ["f32()", "f32()", ("f32", x.shape), ("f32", w.shape)]
    return run("linear_cross_entropy", [x, w, ids, weights], out, **options)


def close(got, want):
    """Few numbers lie so near the middle between two of bf16 that they are rounded to the other one."""
    want = np.asarray(want)
    error, size = np.abs(got - want), max(np.abs(want).max(initial=0), 1e-9)
    assert np.all(error <= 2.0**-8 * size), error.max() / size
    assert np.sqrt(np.mean(np.square(error))) <= 2e-5 * size, np.sqrt(np.mean(np.square(error))) / size


def same_bits(one, other):
    return all(p is None or p.tobytes() == q.tobytes() for p, q in zip(one, other, strict=True))


def test_units_have_kernels_of_their_own():
    for isa in UNITS:
        own = {op for op, _ in _core.kernels(isa, own=True)}
        assert {"linear_cross_entropy", "linear_cross_entropy_rows"} <= own


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64_on_rounded_operands(isa, shape):
    n, d, v = shape
    x, w, ids = some((n, d)).astype(BF16), some((v, d), 3 / np.sqrt(d)), labels_for(n, v)
    weights = rng.random(n).astype(np.float32)
    weights[::5] = 0
    for given, table in ((None, w), (weights, w.astype(BF16))):
        got = loss(x, table, ids, given, isa=isa)
        for one, want in zip(got, definition(x, table, ids, given), strict=True):
            close(one, want)
        for threads in (2, 3):
            assert same_bits(got, loss(x, table, ids, given, isa=isa, threads=threads)), threads
        for unwanted in ([2], [3], [2, 3]):
            assert same_bits(loss(x, table, ids, given, isa=isa, unwanted=unwanted), got), unwanted
        rows = run("linear_cross_entropy_rows", [x, table, ids], [("f32", (n,))], isa=isa)[0]
        counted = np.ones(n) if given is None else given.astype(np.float64)
        np.testing.assert_allclose((rows * counted).sum(), got[0], rtol=1e-5, atol=1e-6)


def test_what_w_and_x_are_multiplied_by_is_rounded():
    """Else the gradients would be nearer to those of slopes in f32."""
    x, w, ids = some((60, 8)).astype(BF16), some((300, 8)), labels_for(60, 300)
    got = loss(x, w, ids)
    z = x.astype(np.float64) @ rounded(w).astype(np.float64).T
    p = np.exp(z - z.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) - np.eye(300)[ids]
    p[ids == -100] = 0
    _, _, dx, dw = definition(x, w, ids)
    for one, exact, want in ((got[2], p @ rounded(w), dx), (got[3], p.T @ x.astype(np.float64), dw)):
        assert np.abs(one - want).mean() < 0.1 * np.abs(one - exact).mean()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_k"])
def test_a_weight_in_any_format_is_rounded_as_it_is_read(isa, kind):
    """Bit for bit the loss with the rounded matrix; rows of x with gaps between them, and turned."""
    known = dtype(kind)
    d = known.block * 2 if known.is_quantised else 50
    w = narrow_operand(rng, known, (390, d), False) if known.is_quantised else some((390, d)).astype(known.numpy)
    numbers = (w.numpy() if known.is_quantised else w).astype(np.float32)
    x, ids = some((33, d), 2 / np.sqrt(d)).astype(BF16), labels_for(33, 390)
    got = loss(x, w, ids, isa=isa)
    assert same_bits(got, loss(x, numbers.astype(BF16), ids, isa=isa))
    wide = np.zeros((33, d + 3), BF16)
    wide[:, 1 : 1 + d] = x
    for other in (wide[:, 1 : 1 + d], np.asfortranarray(x)):
        assert same_bits(got, loss(other, w, ids, isa=isa))


@pytest.mark.skipif(not TWINS, reason="this processor has no unit for bf16")
@pytest.mark.parametrize("unit, twin", TWINS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_unit_and_its_twin_have_the_same_bits(unit, twin, shape):
    n, d, v = shape
    x, w, ids = some((n, d)).astype(BF16), some((v, d)), labels_for(n, v)
    x[n // 3, : d // 2] *= BF16(1e-30)
    got = loss(x, w, ids, isa=unit)
    assert same_bits(got, loss(x, w, ids, isa=twin))
    if d * v > 2000:
        assert not same_bits(got, loss(x, w, ids, isa="scalar"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_and_stays_in_its_row(isa, bad):
    x, w, ids = some((40, 20)).astype(BF16), some((500, 20)), labels_for(40, 500)
    ids[[7, 30]] = 3
    got = loss(x, w, ids, isa=isa)
    x[7, 3] = bad
    again = loss(x, w, ids, isa=isa)
    assert not np.isfinite(again[0]) and not np.isfinite(again[2][7]).all() and not np.isfinite(again[3]).all()
    assert again[2][:7].tobytes() == got[2][:7].tobytes() and again[2][8:].tobytes() == got[2][8:].tobytes()


def test_large_logits_and_rows_that_are_nearly_right():
    for isa in ISAS:
        x, ids = some((50, 12), 20).astype(BF16), labels_for(50, 700)
        w = some((700, 12))
        for one, want in zip(loss(x, w, ids, isa=isa), definition(x, w, ids), strict=True):
            np.testing.assert_allclose(one, want, rtol=0, atol=2.0**-8 * np.abs(want).max())
