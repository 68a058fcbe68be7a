"""get_rows scatter_rows take_batch."""

import ml_dtypes
import numpy as np
import pytest

from gradloom import _core
from tests.core.harness import NAMES, arg, isas, run

pytestmark = pytest.mark.cheap

rng = np.random.default_rng(0)
INDEX = 2  # Stop::index


def some(*shape):
    return rng.normal(size=shape).astype(np.float32)


def ids_of(shape, rows):
    return rng.integers(0, rows, shape).astype(np.int32)


def get_rows(table, ids, **options):
    return run("get_rows", [table, ids], [("f32", ids.shape + table.shape[1:])], sig="f32_i32_f32", **options)[0]


def scatter_rows(g, ids, rows, **options):
    shape = (rows, *g.shape[ids.ndim :])
    return run("scatter_rows", [g, ids], [("f32", shape)], [rows], sig="f32_i32_f32", **options)[0]


TABLES = [
    ((1,), (1,)), ((5,), (7,)), ((3, 4), (9,)), ((10, 33), (4, 5)), ((7, 2, 9), (3, 2)), ((4, 0), (3,)),
    ((6, 5), (0,)), ((900, 300), (700,)),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("case", TABLES, ids=str)
def test_get_rows(isa, case):
    table, ids = some(*case[0]), ids_of(case[1], case[0][0])
    for threads in (1, 2):
        assert np.array_equal(get_rows(table, ids, isa=isa, threads=threads), table[ids])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "case", [*TABLES, ((3, 2000), (900,)), ((40000, 64), (50,)), ((2, 3), (5000,)), ((20, 100), (9000,))], ids=str
)
def test_scatter_rows(isa, case):
    (rows, *rest), shape = case
    ids = ids_of(shape, rows)
    g = some(*shape, *rest)
    want = np.zeros((rows, *rest))
    np.add.at(want, ids, g.astype(np.float64))
    y = scatter_rows(g, ids, rows, isa=isa)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-4)
    assert np.array_equal(y, scatter_rows(g, ids, rows, isa=isa, threads=2))
    in_order = np.zeros((rows, *rest), np.float32)
    np.add.at(in_order, ids, g)  # adds one by one, in the order of the ids: the same bits
    assert np.array_equal(y, in_order)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1, -(2**31)])
def test_an_id_out_of_range_stops_the_run(isa, bad):
    ids = np.array([0, 4, bad, 1], np.int32)
    for name, inputs, shape, attrs in [
        ("get_rows", [some(5, 3), ids], (4, 3), []),
        ("scatter_rows", [some(4, 3), ids], (5, 3), [5]),
    ]:
        _, result, _ = run(name, inputs, [("f32", shape)], attrs, isa=isa, sig="f32_i32_f32", full=True)
        assert (result[1], result[3], result[4]) == (INDEX, 2, bad)


def take(data, order, position, rows, to="f32", **options):
    names = [NAMES[data.dtype], "i64", to]
    sig = "_".join(n for i, n in enumerate(names) if i == 0 or n != names[i - 1])
    out = [(to, (rows, *data.shape[1:]))]
    return run("take_batch", [data, order, np.array(position, np.int64)], out, [rows], sig=sig, **options)


KINDS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.uint8, np.int8, np.int32, np.int64]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize("shape", [(9,), (9, 1), (40, 17), (30, 3, 5), (50, 784), (20, 9000), (6, 0)], ids=str)
def test_take_batch(isa, kind, shape):
    data = rng.integers(0, 128, shape).astype(kind) if np.dtype(kind).kind in "iu" else some(*shape).astype(kind)
    order = rng.permutation(shape[0]).astype(np.int64)
    for position, rows in [(0, shape[0]), (2, 3), (shape[0] - 1, 1), (1, 0)]:
        at = order[position : position + rows]
        for threads in (1, 2):
            (y,) = take(data, order, position, rows, isa=isa, threads=threads)
            assert np.array_equal(y, data[at].astype(np.float32))
            if np.dtype(kind).kind in "iu":
                (y,) = take(data, order, position, rows, "i32", isa=isa, threads=threads)
                assert np.array_equal(y, data[at].astype(np.int32))


def test_take_batch_takes_every_byte():
    data = np.arange(256, dtype=np.uint8).reshape(2, 128)
    order = np.array([1, 0])
    for isa in isas():
        assert np.array_equal(take(data, order, 0, 2, isa=isa)[0], data[order].astype(np.float32))
        signed = data.view(np.int8)
        assert np.array_equal(take(signed, order, 0, 2, isa=isa)[0], signed[order].astype(np.float32))


@pytest.mark.parametrize("isa", isas())
def test_a_batch_is_cut_into_even_parts(isa):
    """As many for each thread: five parts would leave one of two threads without work for a fifth of the time."""
    shapes = [("u8", (60_000, 784)), ("i64", (60_000,)), ("i64", ())]
    records = np.array([*(arg(kind, shape) for kind, shape in shapes), arg("f32", (500, 784), write=True)])
    assert _core.kernel_plan(isa, "take_batch", "u8_i64_f32", records, np.array([500]))[0] == (16,)


@pytest.mark.parametrize("isa", isas())
def test_take_batch_stops_where_it_cannot_go_on(isa):
    data, order = np.zeros((5, 2), np.uint8), np.array([0, 1, 7, -1])
    for position, rows, at, seen in [(0, 3, 2, 7), (3, 1, 0, -1), (3, 2, 0, -1), (4, 1, 0, 4), (-1, 2, 0, -1)]:
        _, result, _ = take(data, order, position, rows, isa=isa, full=True)
        assert (result[1], result[3], result[4]) == (INDEX, at, seen)
    wide = np.array([[1], [2**31], [3]])
    _, result, _ = take(wide, np.array([0, 1, 2]), 0, 3, "i32", isa=isa, full=True)
    assert (result[1], result[3], result[4]) == (INDEX, 1, 2**31)
