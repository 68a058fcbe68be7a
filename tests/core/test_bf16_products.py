"""matmul of bf16: orientations, sizes and dtypes against float64; the units against their twins, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from gradloom import _core
from gradloom.base.dtypes import dtype
from gradloom.ops.common import Quantised
from gradloom.ops.matmul import NARROW, narrow_operand
from tests.core.harness import isas, run

BF16 = ml_dtypes.bfloat16
ISAS = _core.isas()
WIDENING = [isa for isa in isas() if not _core.bf16_unit(isa)]
TWINS = [(isa, f"{isa}-twin") for isa in ISAS if _core.bf16_unit(isa)]
rng = np.random.default_rng(0)


def some(shape):
    return rng.normal(size=shape).astype(np.float32).astype(BF16)


def turned(shape):
    """The same shape with its last two axes swapped in memory."""
    return np.swapaxes(some((*shape[:-2], shape[-1], shape[-2])), -1, -2)


def gapped(shape):
    """Rows that lie an odd number of elements apart."""
    return some((*shape[:-1], shape[-1] + 3 + shape[-1] % 2))[..., 1 : 1 + shape[-1]]


def crossed(shape):
    return np.swapaxes(gapped((*shape[:-2], shape[-1], shape[-2])), -1, -2)


LAYOUTS = (some, turned, gapped, crossed)


def product(x, y, isa, **options):
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return run("matmul", [x, y], [("f32", shape)], isa=isa, **options)[0]


def rounded(y):
    """An operand as bf16 numbers, in float32."""
    numbers = y.numpy() if isinstance(y, Quantised) else y
    return numbers.astype(np.float32).astype(BF16).astype(np.float32)


def close(z, x, y):
    x, y = x.astype(np.float64), rounded(y).astype(np.float64)
    want, size = x @ y, np.abs(x) @ np.abs(y)
    assert z.shape == want.shape
    assert np.all(np.abs(z - want) <= 4e-7 * (1 + np.sqrt(x.shape[-1]) / 16) * size + 1e-30), (x.shape, y.shape)


SIZES = [
    (1, 1, 1), (1, 1, 9), (1, 17, 5), (2, 3, 4), (3, 32, 4), (32, 32, 4), (5, 16, 7), (6, 8, 3), (7, 31, 33),
    (12, 32, 64), (13, 33, 65), (25, 15, 100), (23, 100, 17), (100, 10, 90), (97, 49, 20), (1, 300, 40), (40, 1, 300),
    (150, 130, 70), (70, 90, 1030), (40, 700, 41), (30, 64, 2101), (1000, 3, 5), (16, 16, 31), (48, 33, 4200),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_orientations(isa, size):
    m, n, k = size
    for left in LAYOUTS:
        for right in LAYOUTS:
            x, y = left((m, k)), right((k, n))
            close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", *(kind.name for kind in NARROW if kind.name != "bf16")])
def test_what_is_not_bf16_is_rounded_to_it(isa, kind):
    """Bit for bit the product with the rounded matrix; blocks along k and along the columns; k also odd."""
    known = dtype(kind)
    n = known.block if known.is_quantised else 27
    shapes = [
        ((70, 2 * n), (2 * n, 45), True), ((19, 43), (43, 3 * n), False), ((1, n), (n, 7), True),
        ((2, 9, n), (2, n, 5), True), ((100, 4 * n), (4 * n, 130), True), ((60, 70), (70, 4 * n), False),
    ]  # fmt: skip
    for left, right, across in shapes:
        if known.is_quantised:
            y = narrow_operand(rng, known, right, across)
        else:
            y = (rng.normal(size=right) * 1.003).astype(np.float32)
            y[..., 0, 0] = 1.00390625  # between two numbers of bf16: to the even one
            y = (np.swapaxes(np.swapaxes(y, -1, -2).copy(), -1, -2) if across else y).astype(known.numpy)
        x = some(left)
        z = product(x, y, isa)
        close(z, x, y)
        assert z.tobytes() == product(x, rounded(y).astype(BF16), isa).tobytes()


@pytest.mark.parametrize("isa", WIDENING)
def test_without_a_unit_it_is_the_f32_product_of_the_rounded_numbers(isa):
    for m, n, k in SIZES:
        for left, right in ((some, turned), (turned, some)):
            x, y = left((m, k)), right((k, n))
            if m > 4 and n > 12:  # f32 has other forms for fewer columns, and the form for few rows is tested below
                assert product(x, y, isa).tobytes() == product(*(v.astype(np.float32) for v in (x, y)), isa).tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", *(kind.name for kind in NARROW)])
def test_a_few_rows_read_a_weight_as_f32_rows_do(isa, kind):
    """Bit for bit the dot products of the rounded numbers in f32, on units as well; whatever the threads."""
    known = dtype(kind)
    for m in (1, 2, 3, 4):
        for shape in ((m,), (1, m), (m, 1)):
            k = known.block * 3 if known.is_quantised else 107
            x = np.concatenate([some((*shape, k)), some((*shape, 3))], -1)[..., :k]
            if known.is_quantised:
                y = Quantised.draw(rng, known, (300, k), (1, 0))
            else:
                y = rng.normal(size=(300, k)).astype(np.float32).astype(known.numpy).T
            columns = np.ascontiguousarray(rounded(y).T).T
            want = product(x.astype(np.float32), columns, isa)
            close(want, x, y)
            for threads in (1, 2, 3):
                assert product(x, y, isa, threads=threads).tobytes() == want.tobytes()


def hard(kind, shape):
    """Numbers of bf16 that tell two arithmetics apart."""
    bits = rng.integers(0, 2**16, shape, np.uint16)
    exponent, fraction = bits >> 7 & 0xFF, bits & 0x807F
    if kind == "small":  # products and sums about the least normal number
        bits = fraction | (60 + exponent % 8) << 7
    elif kind == "denormal":
        bits = fraction | exponent % 2 * 64 << 7
    elif kind == "large":
        bits = fraction | (185 + exponent % 8) << 7
    elif kind == "special":
        bits = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 1, 0x8001, 0x3F80, 0xBF80, 0x7F7F], np.uint16)[bits % 10]
    return bits.view(BF16)


def same(a, b):
    """Bit for bit, but for what a NaN holds."""
    nan = np.isnan(a)
    return np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view("u4")[~nan], b.view("u4")[~nan])


@pytest.mark.skipif(not TWINS, reason="this processor has no unit for bf16")
@pytest.mark.parametrize("unit, twin", TWINS)
@pytest.mark.parametrize("kind", ["bits", "small", "denormal", "large", "special"])
def test_a_unit_and_its_twin_have_the_same_bits(unit, twin, kind):
    told = 0
    for m, n, k in [(13, 33, 1), (24, 32, 2), (50, 70, 3), (40, 64, 32), (31, 40, 33), (64, 64, 64), (33, 65, 700)]:
        x, y = hard(kind, (m, k)), hard(kind, (k, n))
        for a, b in ((x, y), (np.asfortranarray(x), y), (x, np.asfortranarray(y))):
            got = product(a, b, unit)
            told += int(np.isfinite(got).sum())
            assert same(got, product(a, b, twin))
    assert told > 100


@pytest.mark.skipif(not TWINS, reason="this processor has no unit for bf16")
@pytest.mark.parametrize("unit, twin", TWINS)
def test_a_unit_and_its_twin_have_the_same_bits_in_long_sums(unit, twin):
    for m, n, k in [(40, 50, 1000), (17, 90, 4500), (150, 130, 70)]:
        for left in LAYOUTS:
            x, y = left((m, k)), some((k, n))
            z = product(x, y, unit)
            assert z.tobytes() == product(x, y, twin).tobytes()
            scalar = product(x, y, "scalar")
            assert z.tobytes() != scalar.tobytes() and np.allclose(z, scalar, rtol=1e-3, atol=1e-3)


def by_definition(x, y, isa):
    """z as the unit computes it (csrc/simd), for numbers whose products and sums of two fit into 53 bits."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    k = -(-x.shape[1] // 32) * 32
    x, y = np.pad(x, ((0, 0), (0, k - x.shape[1]))), np.pad(y, ((0, k - y.shape[0]), (0, 0)))
    terms = x[:, :, None] * y[None]
    z = np.zeros((x.shape[0], y.shape[1]), np.float32)

    def add(sums, term):
        return (sums + term).astype(np.float32)

    for first in range(0, k, 32):
        if isa.startswith("amx"):
            even, odd = np.zeros_like(z), np.zeros_like(z)
            for i in range(first, first + 32, 2):
                even, odd = add(even, terms[:, i]), add(odd, terms[:, i + 1])
            z = z + (even + odd)
        else:
            for i in range(first, first + 32, 2):
                z = add(add(z, terms[:, i + 1]), terms[:, i])
    return z


@pytest.mark.parametrize("isa", sorted(set(ISAS) - set(isas())))
def test_units_and_twins_compute_what_is_said_of_them(isa):
    for m, n, k in [(5, 7, 2), (20, 40, 32), (33, 31, 70), (17, 50, 500)]:
        x = (rng.integers(-255, 256, (m, k)) * 2.0 ** rng.integers(-4, 5, (m, k))).astype(BF16)
        y = (rng.integers(-255, 256, (k, n)) * 2.0 ** rng.integers(-4, 5, (k, n))).astype(BF16)
        want = by_definition(x, y, isa)
        assert product(x, y, isa).tobytes() == want.tobytes()
        assert k < 70 or want.tobytes() != (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32).tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "size", [(64, 64, 64), (300, 300, 200), (33, 1000, 50), (1000, 20, 60), (200, 100, 2300), (520, 64, 512)], ids=str
)
def test_same_bits_for_any_number_of_threads(isa, size):
    m, n, k = size
    before = _core.cores()
    _core.set_cores(5)
    try:
        for x, y in ((some((m, k)), some((k, n))), (turned((m, k)), turned((k, n))), (some((m, k)), turned((k, n)))):
            z = product(x, y, isa)
            for threads in (2, 3, 5):
                assert z.tobytes() == product(x, y, isa, threads=threads).tobytes()
        x, y = some((7, m // 4, k // 4)), turned((7, k // 4, n // 4))
        assert product(x, y, isa).tobytes() == product(x, y, isa, threads=3).tobytes()
    finally:
        _core.set_cores(0)
    assert _core.cores() == before


@pytest.mark.parametrize("isa", ISAS)
def test_a_rows_bits_do_not_depend_on_the_others(isa):
    """As training in micro-batches needs it."""
    x, y = some((90, 300)), turned((300, 70))
    z = product(x, y, isa)
    for first, last in ((0, 45), (45, 90), (13, 60)):
        assert z[first:last].tobytes() == product(x[first:last], y, isa).tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_batches(isa):
    for xs, ys in [
        ((2, 3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (4, 5, 2)), ((2, 1, 3, 5), (4, 5, 6)),
        ((3, 1, 7, 9), (1, 2, 9, 5)), ((6, 1, 5), (5, 3)), ((40, 12, 20), (40, 20, 30)), ((5, 90, 80), (5, 80, 70)),
        ((30, 50, 60), (60, 20)), ((100, 1, 8), (100, 8, 1)), ((7, 9, 1), (1, 40)),
    ]:  # fmt: skip
        for left in LAYOUTS:
            for right in (some, turned):
                x, y = left(xs), right(ys)
                close(product(x, y, isa, threads=2), x, y)
    x, y = some((50, 6, 30)).transpose(1, 0, 2), some((6, 30, 20))  # heads between rows
    close(product(x, y, isa), x, y)


@pytest.mark.parametrize("isa", ISAS)
def test_empty(isa):
    for xs, ys in [((0, 3), (3, 4)), ((3, 4), (4, 0)), ((2, 0, 3), (2, 3, 4))]:
        assert product(some(xs), some(ys), isa).size == 0
    assert np.array_equal(product(some((3, 0)), some((0, 5)), isa), np.zeros((3, 5), np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "xs, ys", [((3, 4), (4, 5)), ((70, 91), (91, 61)), ((9, 3000), (3000, 40)), ((3, 40, 50), (50, 60))]
)
def test_epilogues_are_the_same_bits(isa, xs, ys):
    for x in (some(xs), turned(xs)):
        for y in (some(ys), turned(ys), some(ys).astype(np.float32)):
            z = product(x, y, isa)
            bias, gate, spec = (
                rng.normal(size=ys[-1:]).astype("f4"),
                rng.normal(size=z.shape).astype("f4"),
                [("f32", z.shape)],
            )
            gate.flat[::5] = 0
            (want,) = run("add", [z, np.broadcast_to(bias, z.shape)], spec, isa=isa)
            (got,) = run("matmul_act", [x, y, bias], spec, [0], isa=isa)
            assert got.tobytes() == want.tobytes()
            (want,) = run("relu", [want], spec, isa=isa)
            (got,) = run("matmul_act", [x, y, bias], spec, [1], isa=isa)
            assert got.tobytes() == want.tobytes()
            (want,) = run("relu_back", [z, gate], spec, isa=isa)
            (got,) = run("matmul_relu_back", [x, y, gate], spec, isa=isa)
            assert got.tobytes() == want.tobytes()


def test_all_else_is_taken_from_the_instruction_set_below():
    """So that an f32 program has the same bits there."""
    for isa in set(ISAS) - set(isas()):
        own = {row for row in _core.kernels(isa, own=True) if not row[0].startswith("limit_")}
        assert own and all(signature.startswith("bf16_") for _, signature in own)
        assert _core.kernels(isa) == _core.kernels("avx512")
    assert [isa for isa in ISAS if isa.endswith("-twin")] == ISAS[len(ISAS) - len([i for i in ISAS if "-twin" in i]) :]
    assert not any(_core.bf16_unit(isa) for isa in (*isas(), *(isa for isa in ISAS if isa.endswith("-twin"))))
