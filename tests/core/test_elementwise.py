"""Elementwise kernels against NumPy in float64: accuracy in units of the last place, special values, layouts."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tests.core.harness import isas, run

f32 = np.float32
INF, NAN = np.inf, np.nan
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, 3.4028235e38,
     -3.4028235e38, INF, -INF, NAN, 88.72, 88.73, -87.3, -103.9, -104.5, 1e-8, -1e-8, 1e-4, 16777216.0, 0.70710677,
     1.4142135],
    f32,
)  # fmt: skip


def wide(rng: np.random.Generator, n: int = 20000) -> np.ndarray:
    """Numbers of every size and both signs, special values, and bit patterns at random."""
    sizes = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-40, 20, n))
    near = rng.uniform(-20, 20, n)
    bits = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(f32)
    return np.concatenate([SPECIAL, sizes.astype(f32), near.astype(f32), bits])


def ulps(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance of y from the float64 value in units in the last place of float32; inf and NaN must agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(f32)
        unit = np.spacing(np.minimum(np.abs(rounded), f32(3.4e38))).astype(np.float64)
        away = np.abs(y.astype(np.float64) - exact) / unit
    away[np.isnan(exact)] = np.where(np.isnan(y[np.isnan(exact)]), 0, INF)
    whole = np.isinf(rounded)
    away[whole] = np.where((y[whole] == rounded[whole]) | (np.abs(y[whole]) >= 3.4028235e38), 0, INF)
    return away


erf64 = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid64(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


EXACT = {  # op: (attrs, reference in float64, most units in the last place)
    "neg": ([], lambda x: -x, 0),
    "abs": ([], np.abs, 0),
    "sgn": ([], np.sign, 0),
    "step": ([], lambda x: (x > 0).astype(np.float64), 0),
    "sqr": ([], lambda x: x * x, 0.51),
    "sqrt": ([], np.sqrt, 0.51),
    "exp": ([], np.exp, 1.5),
    "expm1": ([], np.expm1, 2),
    "log": ([], np.log, 1.5),
    "log1p": ([], np.log1p, 2),
    "erf": ([], erf64, 2.5),
    "floor": ([], np.floor, 0),
    "ceil": ([], np.ceil, 0),
    "round": ([], np.rint, 0),
    "trunc": ([], np.trunc, 0),
    "sin": ([], np.sin, 2),
    "cos": ([], np.cos, 2),
    "relu": ([], lambda x: np.maximum(x, 0), 0),
    "leaky_relu": ([0.25], lambda x: np.where(x > 0, x, 0.25 * x), 0.51),
    "elu": ([1.5], lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))), 3),
    "sigmoid": ([], sigmoid64, 2.5),
    "tanh": ([], np.tanh, 2.5),
    "softplus": ([], lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 3),
    "clamp": ([-1.5, 0.75], lambda x: np.clip(x, -1.5, 0.75), 0),
    "silu": ([], lambda x: x * sigmoid64(x), 4),
}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", EXACT)
def test_accuracy(name: str, isa: str) -> None:
    attrs, reference, most = EXACT[name]
    x = wide(np.random.default_rng(1))
    if name == "silu":
        x = x[~(x < -87)]  # below, the sigmoid is denormal
    (y,) = run(name, [x], [("f32", x.shape)], attrs, isa=isa)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    away = ulps(y, exact)
    worst = int(np.argmax(away))
    assert away[worst] <= most + 0.01, f"{name}({x[worst]!r}) = {y[worst]!r}, exact {exact[worst]!r}"
    zero = (exact == 0) & ~np.isnan(y)  # the sign of zero
    if name != "elu":  # its reference takes the minimum with +0
        assert np.array_equal(np.signbit(y[zero & (y == 0)]), np.signbit(exact[zero & (y == 0)]))


@pytest.mark.parametrize("isa", isas())
def test_gelu(isa: str) -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-12, 12, 20001), [0, 1e-6, 100, -100, 1e30, -1e30, NAN]]).astype(f32)
    d = x.astype(np.float64)
    cdf = 0.5 * (1 + erf64(d / math.sqrt(2)))
    density = np.exp(-d * d / 2) / math.sqrt(2 * math.pi)
    with np.errstate(all="ignore"):
        u = math.sqrt(2 / math.pi) * (d + 0.044715 * d**3)
        t = np.tanh(u)
        slope = 0.5 * (1 + t) + 0.5 * d * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * d * d)
    g = rng.standard_normal(x.shape).astype(f32)
    g[-7:] = 1
    for name, got, exact in (
        ("gelu", run("gelu", [x], [("f32", x.shape)], isa=isa)[0], d * cdf),
        ("gelu_tanh", run("gelu_tanh", [x], [("f32", x.shape)], isa=isa)[0], 0.5 * d * (1 + t)),
        ("gelu_back", run("gelu_back", [g, x], [("f32", x.shape)], isa=isa)[0], g * (cdf + d * density)),
        ("gelu_tanh_back", run("gelu_tanh_back", [g, x], [("f32", x.shape)], isa=isa)[0], g * slope),
    ):
        fine = np.isfinite(exact) & (np.abs(d) < 1e10)
        assert np.allclose(got[fine], exact[fine], rtol=1e-6, atol=1e-6), name
        assert np.isnan(got[-1]) and np.isfinite(got[:-3]).all(), name


BACK = {  # dx = g * slope: (attrs, reference)
    "relu_back": ([], lambda g, y: np.where(y > 0, g, 0)),
    "leaky_relu_back": ([0.1], lambda g, x: np.where(x > 0, g, 0.1 * g)),
    "elu_back": ([1.5], lambda g, x: np.where(x > 0, g, g * 1.5 * np.exp(np.minimum(x, 0)))),
    "sigmoid_back": ([], lambda g, y: g * (y * (1 - y))),
    "tanh_back": ([], lambda g, y: g * (1 - y * y)),
    "silu_back": ([], lambda g, x: g * (sigmoid64(x) * (1 + x * (1 - sigmoid64(x))))),
    "clamp_back": ([-0.5, 0.5], lambda g, x: np.where((x >= -0.5) & (x <= 0.5), g, 0)),
}
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum,
    "minimum": np.minimum,
}  # fmt: skip
SHAPES = [  # x, y
    ((), ()), ((1,), (1,)), ((5,), ()), ((), (7,)), ((16,), (16,)), ((33, 65), (33, 65)), ((33, 65), (65,)),
    ((33, 10), (10,)), ((10,), (33, 10)), ((700, 3), (3,)), ((700, 3), (700, 1)), ((33, 65), (33, 1)),
    ((1, 65), (33, 1)), ((2, 3, 4, 5), (3, 1, 5)), ((2, 1, 4), (3, 1)), ((0, 4), (4,)), ((9, 300), (1, 300)),
    ((2, 2, 2, 2, 2, 3), (2, 1, 2, 1, 3)), ((130, 129), (129,)), ((130, 128), (128,)), ((300000,), (300000,)),
    ((3000, 100), (100,)), ((3000, 100), (3000, 1)), ((300000,), ()),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", [*BINARY, *BACK])
def test_two_inputs(name: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    attrs, reference = BACK.get(name, ([], BINARY.get(name)))
    for sx, sy in SHAPES:
        if name in BACK and sx != sy:
            continue
        x = np.asarray(rng.standard_normal(sx), f32)
        y = np.asarray(rng.standard_normal(sy), f32)
        shape = np.broadcast_shapes(sx, sy)
        exact = reference(x.astype(np.float64), y.astype(np.float64))
        (z,) = run(name, [x, y], [("f32", shape)], attrs, isa=isa)
        assert np.allclose(z, exact, rtol=1e-6, atol=1e-7), (sx, sy)
        for threads in (1, 2):
            (again,) = run(name, [x, y], [("f32", shape)], attrs, isa=isa, threads=threads)
            assert np.array_equal(again, z)
        for i, s in enumerate((sx, sy)):
            if s == shape:
                (placed,) = run(name, [x, y], [("f32", shape)], attrs, isa=isa, alias={0: i})
                assert np.array_equal(placed, z), (sx, sy, i)
        if sx == sy:
            (twice,) = run(name, [x, x], [("f32", shape)], attrs, isa=isa)
            (placed,) = run(name, [x, x], [("f32", shape)], attrs, isa=isa, alias={0: 0})
            assert np.array_equal(placed, twice, equal_nan=True)


@pytest.mark.parametrize("isa", isas())
def test_strided(isa: str) -> None:
    rng = np.random.default_rng(4)
    base = rng.standard_normal((40, 6, 50)).astype(f32)
    views = [
        base.transpose(2, 0, 1), base[::2, :, ::3], base[:, :, 5:37], base[3:, ::2], base.transpose(0, 2, 1),
        np.broadcast_to(base[:, :1], (40, 7, 50)), np.broadcast_to(base[:1, :, :1], (4, 6, 9)), base[5:6],
        base[:, 2:3, ::50],
    ]  # fmt: skip
    for v in views:
        other = rng.standard_normal(v.shape).astype(f32)
        assert np.array_equal(run("relu", [v], [("f32", v.shape)], isa=isa)[0], np.maximum(v, 0))
        assert np.array_equal(run("add", [v, other], [("f32", v.shape)], isa=isa)[0], v + other)
        assert np.array_equal(run("sub", [other, v], [("f32", v.shape)], isa=isa, alias={0: 0})[0], other - v)
        assert np.array_equal(run("mul", [v, v], [("f32", v.shape)], isa=isa)[0], v * v)
        assert np.array_equal(run("less", [v, other], [("u8", v.shape)], isa=isa)[0], (v < other).astype(np.uint8))
        cond = rng.integers(0, 3, v.shape).astype(np.uint8)
        (z,) = run("where", [cond, v, other], [("f32", v.shape)], isa=isa, alias={0: 2})
        assert np.array_equal(z, np.where(cond, v, other))
        assert np.array_equal(run("cast", [v], [("i32", v.shape)], [7], isa=isa)[0], v.astype(np.int32))


@pytest.mark.parametrize("isa", isas())
def test_nan_goes_through(isa: str) -> None:
    x = np.array([NAN, 1, NAN, 2, INF, -INF, 0.0, -0.0, 3], f32)
    y = np.array([1, NAN, NAN, 2, NAN, INF, -0.0, 0.0, 4], f32)
    for name, reference in BINARY.items():
        with np.errstate(all="ignore"):
            exact = reference(x, y)
        assert np.array_equal(run(name, [x, y], ["f32(9)"], isa=isa)[0], exact, equal_nan=True), name
    for name in ("relu", "sqr", "sgn", "tanh", "sigmoid", "softplus", "exp", "log", "silu", "gelu"):
        assert np.isnan(run(name, [x], ["f32(9)"], isa=isa)[0][[0, 2]]).all(), name
    assert np.isnan(run("clamp", [x], ["f32(9)"], [-1.0, 1.0], isa=isa)[0][[0, 2]]).all()
    for name, reference in (("equal", np.equal), ("less", np.less), ("greater", np.greater)):
        assert np.array_equal(run(name, [x, y], ["u8(9)"], isa=isa)[0], reference(x, y).astype(np.uint8)), name


@pytest.mark.parametrize("isa", isas())
def test_pow(isa: str) -> None:
    rng = np.random.default_rng(5)
    edge = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1e30, -1e30, 1e-40, INF, -INF, NAN, 16777217, 5], f32)
    a, b = (v.ravel() for v in np.meshgrid(edge, edge))
    x = np.concatenate([a, np.exp2(rng.uniform(-126, 127, 20000)).astype(f32), rng.uniform(-3, 3, 5000).astype(f32)])
    y = np.concatenate([b, rng.uniform(-3, 3, 20000).astype(f32), rng.integers(-9, 9, 5000).astype(f32)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        special = np.power(a, b)
    (z,) = run("pow", [x, y], [("f32", x.shape)], isa=isa)
    away = ulps(z, exact)
    worst = int(np.argmax(away))
    assert away[worst] <= 0.6, (x[worst], y[worst], z[worst], exact[worst])
    whole = ~np.isfinite(special) | (special == 0)
    assert np.array_equal(z[: len(a)][whole], special[whole], equal_nan=True)
    assert np.array_equal(np.signbit(z[: len(a)][special == 0]), np.signbit(special[special == 0]))


@pytest.mark.parametrize("isa", isas())
def test_scale(isa: str) -> None:
    x = np.random.default_rng(6).standard_normal(1001).astype(f32)
    exact = x.astype(np.float64) * -1.75 + 0.5
    assert np.allclose(run("scale", [x], ["f32(1001)"], [-1.75, 0.5], isa=isa)[0], exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("isa", isas())
def test_where_broadcasts(isa: str) -> None:
    rng = np.random.default_rng(7)
    for c, a, b in [((), (), ()), ((5, 33), (5, 33), (5, 33)), ((5, 1), (5, 33), ()), ((33,), (), (5, 33)),
                    ((3, 1, 4), (2, 1), (4,)), ((70000,), (70000,), ()), ((200, 1000), (1000,), (200, 1))]:  # fmt: skip
        cond = rng.integers(0, 2, c).astype(np.uint8)
        x, y = np.asarray(rng.standard_normal(a), f32), np.asarray(rng.standard_normal(b), f32)
        exact = np.where(cond, x, y)
        for threads in (1, 2):
            (z,) = run("where", [cond, x, y], [("f32", exact.shape)], isa=isa, threads=threads)
            assert np.array_equal(z, exact), (c, a, b)
    ids = rng.integers(-2, 3, (5, 33)).astype(np.int32)
    (z,) = run("equal", [ids, ids[:, :1].copy()], ["u8(5,33)"], isa=isa)
    assert np.array_equal(z, (ids == ids[:, :1]).astype(np.uint8))


CASTS = [
    ("u8", "f32"), ("i8", "f32"), ("i32", "f32"), ("i64", "f32"), ("f64", "f32"), ("f16", "f32"), ("f32", "f16"),
    ("bf16", "f32"), ("f32", "bf16"), ("f32", "i32"), ("i64", "i32"), ("u8", "i32"),
]  # fmt: skip
KIND = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "i64": np.int64, "f64": np.float64, "f16": np.float16,
        "f32": np.float32, "bf16": ml_dtypes.bfloat16}  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("source", "target"), CASTS)
def test_cast(source: str, target: str, isa: str) -> None:
    rng = np.random.default_rng(8)
    for shape in ((), (1,), (17,), (5, 33), (70001,)):
        if source in ("f16", "bf16"):
            x = rng.integers(0, 65536, shape).astype(np.uint16).view(KIND[source])
        elif source in ("f32", "f64"):
            x = (rng.standard_normal(shape) * np.exp2(rng.uniform(-30, 17, shape))).astype(KIND[source])
        else:
            info = np.iinfo(KIND[source])
            low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
            x = rng.integers(low, high, shape, dtype=np.int64).astype(KIND[source])
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            exact = x.astype(KIND[target])
        (y,) = run("cast", [x], [(target, shape)], [1], isa=isa)
        same = y.view(np.uint8) == np.asarray(exact).view(np.uint8) if shape else y == exact
        if target in ("f32", "f16", "bf16"):
            with np.errstate(all="ignore"):
                same = (y == exact) | (np.isnan(y.astype(f32)) & np.isnan(np.asarray(exact).astype(f32)))
        assert np.all(same), shape


@pytest.mark.parametrize("isa", isas())
def test_every_length(isa: str) -> None:
    rng = np.random.default_rng(9)
    for n in range(70):
        x = rng.standard_normal(n).astype(f32)
        (y,) = run("sqr", [x], [("f32", (n,))], isa=isa)
        assert np.array_equal(y, x * x)
        wide_x = rng.standard_normal((3, n)).astype(f32)
        (y,) = run("add", [wide_x, x], [("f32", (3, n))], isa=isa)
        assert np.array_equal(y, wide_x + x)
