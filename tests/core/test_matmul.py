"""matmul matmul_act matmul_relu_back."""

import numpy as np
import pytest

from gradloom import _core
from tests.core.harness import arg, isas, run

rng = np.random.default_rng(0)
NAN = np.float32(np.nan)


def some(shape):
    return rng.normal(size=shape).astype(np.float32)


def turned(shape):
    """The same shape with its last two axes swapped in memory."""
    return np.swapaxes(some((*shape[:-2], shape[-1], shape[-2])), -1, -2)


def gapped(shape, axis=-2):
    """Rows (or columns) that lie further apart than they are long."""
    wide = list(shape)
    wide[axis] = 2 * wide[axis] + 3
    cut = [slice(None)] * len(shape)
    cut[axis] = slice(1, 1 + 2 * shape[axis], 2)
    return some(wide)[tuple(cut)]


def product(x, y, isa, **options):
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return run("matmul", [x, y], [("f32", shape)], isa=isa, **options)[0]


def close(z, x, y):
    want = x.astype(np.float64) @ y.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))
    assert z.shape == want.shape
    assert np.all(np.abs(z - want) <= 4e-7 * (1 + np.sqrt(x.shape[-1]) / 16) * size + 1e-30), (x.shape, y.shape)


SIZES = [
    (1, 1, 1), (1, 1, 9), (1, 17, 5), (2, 3, 4), (3, 32, 4), (32, 32, 4), (5, 16, 7), (6, 8, 3), (7, 31, 33),
    (12, 32, 64), (13, 33, 65), (25, 15, 100), (64, 64, 64), (23, 100, 17), (100, 10, 90), (11, 48, 30), (97, 49, 20),
    (1, 300, 40), (300, 1, 40), (40, 1, 300), (150, 130, 70), (70, 90, 1030), (800, 40, 30), (40, 700, 40),
    (30, 64, 2100), (1000, 3, 5), (130, 5, 2100), (65, 11, 40), (700, 12, 33), (640, 30, 1030),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_orientations(isa, size):
    m, n, k = size
    for x in (some((m, k)), turned((m, k))):
        for y in (some((k, n)), turned((k, n))):
            close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", isas())
def test_heights_and_widths(isa):
    for m in range(1, 28):
        for n in (1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 47, 50):
            x, y = (some((m, 6)), turned((m, 6)))[n % 2], (some((6, n)), turned((6, n)))[m % 2]
            close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_few_rows(isa, rows):
    """Dot products along k, the numbers of y lying side by side there; k may end anywhere in a vector."""
    for k in (31, 32, 33, 47, 48, 64, 95, 100, 129, 576):
        for n in (1, 2, 5, 63, 64, 65, 200):
            y = turned((k, n))
            apart = gapped((n, k)).T
            for x in (some((rows, k)), gapped((rows, k)), turned((rows, k)), np.broadcast_to(some((1, k)), (rows, k))):
                close(product(x, y, isa), x, y)
                close(product(x[:, None], apart, isa), x[:, None], apart)
    x, y = some((rows, 1000)), turned((1000, 900))
    want = product(x, y, isa)
    for threads in (2, 3):
        assert product(x, y, isa, threads=threads).tobytes() == want.tobytes()
    for i in range(rows):  # a row's bits do not depend on its neighbours
        assert product(x[i : i + 1], y, isa).tobytes() == want[i].tobytes() or rows > 4
    nans = y.copy(order="K")
    nans[5, 7] = np.nan
    assert np.array_equal(np.isnan(product(x, nans, isa)), np.isnan(x @ nans))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("size", [(5, 7, 9), (70, 50, 40), (200, 100, 300), (30, 40, 1100)], ids=str)
def test_views(isa, size):
    m, n, k = size
    y = some((k, n))
    for x in (gapped((m, k)), gapped((m, k), -1), gapped((k, m)).T, np.broadcast_to(some((1, k)), (m, k)),
              np.broadcast_to(some((m, 1)), (m, k)), np.broadcast_to(np.float32(2), (m, k))):  # fmt: skip
        close(product(x, y, isa), x, y)
        close(product(y.T, x.T, isa), y.T, x.T)
    x = some((m, k))
    for y in (gapped((k, n)), gapped((k, n), -1), gapped((n, k)).T, np.broadcast_to(some((1, n)), (k, n))):
        close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("columns", [512, 1024, 2048])
def test_crowded_strides(isa, columns):
    x, y, z = some((40, columns)), some((columns, columns))[:, :70], some((columns, 40))
    close(product(x, y, isa), x, y)
    close(product(z.T, y, isa), z.T, y)
    w = some((40, columns))[:, :50]
    v = some((40, 300))
    close(product(w.T, v, isa), w.T, v)


@pytest.mark.parametrize("isa", isas())
def test_batches(isa):
    for xs, ys in [
        ((2, 3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (4, 5, 2)), ((2, 1, 3, 5), (4, 5, 6)),
        ((3, 1, 7, 9), (1, 2, 9, 5)), ((2, 3, 2, 2, 5, 4), (2, 2, 4, 3)), ((1, 1, 5), (6, 5, 3)), ((6, 1, 5), (5, 3)),
        ((40, 12, 20), (40, 20, 30)), ((5, 90, 80), (5, 80, 70)), ((2, 3, 64, 40), (3, 40, 64)),
        ((30, 50, 60), (60, 20)),
        ((1, 4, 70, 70), (1, 4, 70, 70)), ((100, 1, 8), (100, 8, 1)), ((7, 90, 60), (7, 60, 3)),
        ((30, 40, 9), (30, 9, 2)),
    ]:  # fmt: skip
        for x in (some(xs), turned(xs), gapped(xs)):
            for y in (some(ys), turned(ys)):
                close(product(x, y, isa), x, y)
    x, y = some((50, 6, 30)).transpose(1, 0, 2), some((6, 30, 20))  # heads between rows
    close(product(x, y, isa), x, y)
    x = some((4, 5, 6, 7))[:, ::2]
    y = some((7, 3))
    close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", isas())
def test_empty(isa):
    for xs, ys in [((0, 3), (3, 4)), ((3, 4), (4, 0)), ((2, 0, 3), (2, 3, 4)), ((0, 2, 3), (3, 4))]:
        assert product(some(xs), some(ys), isa).size == 0
    assert np.array_equal(product(some((3, 0)), some((0, 5)), isa), np.zeros((3, 5), np.float32))
    (z,) = run("matmul_act", [some((3, 0)), some((0, 5)), np.arange(-2, 3).astype("f4")], ["f32(3,5)"], [1], isa=isa)
    assert np.array_equal(z, np.tile(np.maximum(np.arange(-2, 3), 0), (3, 1)))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "xs, ys",
    [((3, 4), (4, 5)), ((32, 4), (4, 32)), ((70, 90), (90, 61)), ((500, 64), (64, 10)), ((9, 1500), (1500, 40)),
     ((900, 20), (20, 48)), ((3, 40, 50), (3, 50, 60)), ((3, 40, 50), (50, 60)), ((1, 5), (5, 33)),
     ((3, 90, 50), (3, 50, 5)), ((100, 1100), (1100, 3)), ((1, 70), (70, 133)), ((4, 90), (90, 61))],
    ids=str,
)  # fmt: skip
def test_epilogues_are_the_same_bits(isa, xs, ys):
    for x in (some(xs), turned(xs)):
        for y in (some(ys), turned(ys)):
            z = product(x, y, isa)
            bias, spec = some(ys[-1:]), [("f32", z.shape)]
            gate = some(z.shape)
            gate.flat[::5] = 0
            gate.flat[1::7] = NAN
            for b in (None, bias):
                (want,) = run("add", [z, np.broadcast_to(b, z.shape)], spec, isa=isa) if b is not None else (z,)
                (got,) = run("matmul_act", [x, y, b], spec, [0], isa=isa)
                assert np.array_equal(got.view("u4"), want.view("u4"))
                (want,) = run("relu", [want], spec, isa=isa)
                (got,) = run("matmul_act", [x, y, b], spec, [1], isa=isa)
                assert np.array_equal(got.view("u4"), want.view("u4"))
            (want,) = run("relu_back", [z, gate], spec, isa=isa)
            (got,) = run("matmul_relu_back", [x, y, gate], spec, isa=isa)
            assert np.array_equal(got.view("u4"), want.view("u4"))


@pytest.mark.parametrize("isa", isas())
def test_special_values(isa):
    x, y = np.zeros((40, 20), np.float32), some((20, 50))
    x[3, 4], x[7, 5], x[30, 6] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        want = x @ y
    z = product(x, y, isa)
    assert np.array_equal(np.isnan(z), np.isnan(want)) and np.array_equal(np.isinf(z), np.isinf(want))
    (r,) = run("matmul_act", [x, y, None], ["f32(40,50)"], [1], isa=isa)
    assert np.isnan(r[3]).all() and (r[30] >= 0).all()
    minus = np.full((5, 3), -0.0, np.float32)
    one = np.ones((3, 33), np.float32)
    (r,) = run("matmul_act", [minus, one, np.full(33, -0.0, np.float32)], ["f32(5,33)"], [1], isa=isa)
    assert not np.signbit(r).any()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "size",
    [
        (64, 64, 64),
        (500, 300, 200),
        (33, 1000, 50),
        (1000, 20, 60),
        (200, 100, 1100),
        (900, 5, 300),
        (520, 64, 512),
        (300, 100, 1024),
        (700, 800, 1100),
    ],
    ids=str,
)
def test_same_bits_for_any_number_of_threads(isa, size):
    m, n, k = size
    before = _core.cores()
    _core.set_cores(8)  # eight threads run parts one by one, one runs all of them as one
    try:
        for x in (some((m, k)), turned((m, k))):
            for y in (some((k, n)), turned((k, n))):
                z = product(x, y, isa)
                for threads in (2, 3, 5, 8):
                    assert np.array_equal(z, product(x, y, isa, threads=threads))
        x, y = some((7, m // 4, k // 4)), turned((7, k // 4, n // 4))
        z = product(x, y, isa)
        assert np.array_equal(z, product(x, y, isa, threads=3))
    finally:
        _core.set_cores(0)
    assert _core.cores() == before


@pytest.mark.parametrize("isa", isas())
def test_few_columns_are_cut_into_even_parts(isa):
    """500 rows are not a whole number of strips: the last, short one is a part as the others are."""
    m, n, k = 500, 10, 500
    records = np.array([arg("f32", (m, k), strides=(1, m)), arg("f32", (k, n)), arg("f32", (m, n), write=True)])
    assert _core.kernel_plan(isa, "matmul", "f32", records, np.zeros(0, np.int64))[0] == (16,)


@pytest.mark.parametrize("isa", isas())
def test_random_shapes(isa):
    for _ in range(150):
        m, n, k = (int(v) for v in np.exp(rng.uniform(0, 5.3, 3)))
        x, y = (some, turned, gapped)[rng.integers(3)]((m, k)), (some, turned, gapped)[rng.integers(3)]((k, n))
        close(product(x, y, isa, threads=2), x, y)
