"""The convolution and pooling kernels against plain float64 loops over window positions."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from tests.core.harness import isas, run

ISAS = isas()


def out_size(size: int, k: int, s: int, p: int, d: int = 1) -> int:
    return (size + 2 * p - (k - 1) * d - 1) // s + 1


def padded(x: np.ndarray, p: tuple[int, int], value: float = 0.0) -> np.ndarray:
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])), constant_values=value)


def window(x: np.ndarray, ky: int, kx: int, s: tuple[int, int], d: tuple[int, int], oh: int, ow: int) -> np.ndarray:
    """The element of each window at (ky, kx): a view of the padded x."""
    y, c = ky * d[0], kx * d[1]
    return x[:, :, y : y + (oh - 1) * s[0] + 1 : s[0], c : c + (ow - 1) * s[1] + 1 : s[1]]


class Case:
    """One convolution: its operands, drawn by a seed, and the float64 results."""

    def __init__(self, n, c, h, w, o, k, s=(1, 1), p=(0, 0), d=(1, 1), seed=0):
        rng = np.random.default_rng(seed)
        self.s, self.p, self.d, self.k = s, p, d, k
        oh, ow = out_size(h, k[0], s[0], p[0], d[0]), out_size(w, k[1], s[1], p[1], d[1])
        assert oh > 0 and ow > 0
        self.x = rng.standard_normal((n, c, h, w)).astype(np.float32)
        self.w = rng.standard_normal((o, c, *k)).astype(np.float32)
        self.b = rng.standard_normal(o).astype(np.float32)
        self.g = rng.standard_normal((n, o, oh, ow)).astype(np.float32)
        xp, dxp = padded(self.x, p), padded(np.zeros_like(self.x), p)
        self.y = np.zeros(self.g.shape)
        self.dw = np.zeros(self.w.shape)
        w64, g64 = self.w.astype(np.float64), self.g.astype(np.float64)
        for ky, kx in itertools.product(range(k[0]), range(k[1])):
            v = window(xp, ky, kx, s, d, oh, ow)
            self.y += np.einsum("nchw,oc->nohw", v, w64[:, :, ky, kx])
            self.dw[:, :, ky, kx] = np.einsum("nohw,nchw->oc", g64, v)
            window(dxp, ky, kx, s, d, oh, ow)[:] += np.einsum("nohw,oc->nchw", g64, w64[:, :, ky, kx])
        self.dx = dxp[:, :, p[0] : p[0] + h, p[1] : p[1] + w]

    def forward(self, bias=False, relu=False, **options):
        attrs = [list(self.s), list(self.p), list(self.d), int(relu)]
        return run("conv2d", [self.x, self.w, self.b if bias else None], [("f32", self.y.shape)], attrs, **options)[0]

    def back_input(self, **options):
        h, w = self.x.shape[2:]
        attrs = [h, w, list(self.s), list(self.p), list(self.d)]
        return run("conv2d_back_input", [self.g, self.w], [("f32", self.x.shape)], attrs, **options)[0]

    def back_weight(self, bias=True, **options):
        """dw, then db, in one row."""
        attrs = [list(self.k), list(self.s), list(self.p), list(self.d)]
        outputs = [("f32", self.w.shape), ("f32", self.b.shape) if bias else None]
        dw, db = run("conv2d_back_weight", [self.g, self.x], outputs, attrs, **options)
        return np.concatenate([dw.ravel(), db]) if bias else dw.ravel()

    def check(self, isa, **options):
        close(self.forward(isa=isa, **options), self.y)
        close(self.back_input(isa=isa, **options), self.dx)
        both = self.back_weight(isa=isa, **options)
        close(both[: self.dw.size], self.dw.ravel())
        close(both[self.dw.size :], self.g.sum((0, 2, 3), dtype=np.float64))
        assert np.array_equal(self.back_weight(bias=False, isa=isa, **options), both[: self.dw.size])


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.isfinite(got).all()
    scale = np.abs(want).max(initial=1e-30)
    assert np.abs(got - want).max() <= 1e-5 * scale, (np.abs(got - want).max(), scale)


CASES = [
    # n, c, h, w, o, kernel, stride, padding, dilation
    (3, 1, 28, 28, 8, (3, 3), (1, 1), (1, 1)),
    (3, 8, 14, 14, 16, (3, 3), (1, 1), (1, 1)),
    (2, 3, 9, 11, 5, (3, 3)),
    (2, 3, 9, 11, 7, (3, 3), (2, 2), (1, 1)),
    (2, 2, 12, 10, 3, (3, 2), (2, 3), (1, 0)),
    (1, 2, 17, 19, 6, (3, 3), (1, 1), (2, 2), (2, 2)),
    (2, 4, 13, 13, 9, (3, 3), (2, 1), (3, 2), (2, 3)),
    (2, 5, 7, 7, 4, (1, 1)),
    (2, 5, 8, 9, 4, (1, 1), (2, 2)),
    (1, 3, 8, 8, 2, (1, 1), (3, 3), (1, 1)),
    (2, 3, 5, 6, 11, (5, 6)),
    (2, 3, 6, 5, 10, (4, 2), (1, 1), (4, 3)),  # more padding than the kernel reaches
    (1, 2, 30, 33, 13, (5, 3), (3, 2), (2, 1)),
    (5, 3, 4, 4, 12, (3, 3), (1, 1), (1, 1)),
    (7, 2, 1, 1, 3, (1, 1)),
    (2, 1, 1, 40, 3, (1, 7), (1, 1), (0, 3)),
    (2, 1, 40, 1, 3, (7, 1), (2, 1), (3, 0)),
    (1, 4, 16, 16, 17, (4, 4), (4, 4)),
    (1, 1, 64, 64, 1, (11, 11), (4, 4), (2, 2)),
    (2, 64, 16, 16, 24, (3, 3), (1, 1), (1, 1)),
    (1, 3, 70, 90, 16, (7, 7), (2, 2), (3, 3)),  # few images: bands of rows
    (1, 48, 40, 61, 20, (3, 3), (1, 1), (1, 1)),  # bands that the cache asks for
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d_and_gradients(case, isa):
    Case(*case).check(isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(25))
def test_conv2d_random(seed, isa):
    rng = np.random.default_rng(1000 + seed)
    while True:
        k, s, d = (tuple(int(v) for v in rng.integers(1, top, 2)) for top in (5, 4, 4))
        p = tuple(int(v) for v in rng.integers(0, 4, 2))
        h, w = (int(v) for v in rng.integers(1, 24, 2))
        if out_size(h, k[0], s[0], p[0], d[0]) > 0 and out_size(w, k[1], s[1], p[1], d[1]) > 0:
            break
    n, c, o = (int(v) for v in rng.integers(1, (9, 7, 21)))
    Case(n, c, h, w, o, k, s, p, d, seed).check(isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[13]], ids=str)
def test_bias_and_relu_are_the_separate_steps(case, isa):
    c = Case(*case)
    y = c.forward(isa=isa)
    with_bias = y + c.b[:, None, None]
    assert np.array_equal(c.forward(bias=True, isa=isa), with_bias)
    assert np.array_equal(c.forward(relu=True, isa=isa), np.maximum(y, 0))
    assert np.array_equal(c.forward(bias=True, relu=True, isa=isa), np.maximum(with_bias, 0))
    c.b[0] = np.nan
    assert np.isnan(c.forward(bias=True, relu=True, isa=isa)[:, 0]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_in_gives_nothing_or_zero(isa):
    for case in [(0, 2, 8, 8, 3, (3, 3)), (2, 0, 8, 8, 3, (3, 3)), (2, 2, 8, 8, 0, (3, 3))]:
        c = Case(*case)
        assert not c.forward(isa=isa).any()
        assert not c.back_input(isa=isa).any()
        assert not c.back_weight(bias=False, isa=isa).any()


@pytest.mark.parametrize("isa", ISAS)
def test_same_bits_for_any_threads(isa):
    for case in [(64, 8, 14, 14, 16, (3, 3), (1, 1), (1, 1)), (1, 8, 60, 60, 16, (3, 3), (2, 2), (1, 1))]:
        c = Case(*case)
        for step in (c.forward, c.back_input, c.back_weight):
            one = step(isa=isa)
            for threads in (2, 3):
                assert np.array_equal(one, step(isa=isa, threads=threads))


@pytest.mark.parametrize("isa", ISAS)
def test_long_sums(isa):
    """Thousands of terms: the error is that of short chains."""
    c = Case(2, 300, 5, 6, 9, (3, 3), (1, 1), (1, 1))
    for got, want in ((c.forward(isa=isa), c.y), (c.back_input(isa=isa), c.dx)):
        assert np.sqrt(((got - want) ** 2).mean()) < 3e-7 * np.sqrt((want**2).mean())


@pytest.mark.parametrize("isa", ISAS)
def test_many_images(isa):
    """Several parts, the fixed tree and blocks of images; an odd number of images."""
    Case(133, 1, 28, 28, 8, (3, 3), (1, 1), (1, 1)).check(isa)
    Case(67, 8, 14, 14, 16, (3, 3), (1, 1), (1, 1)).check(isa)
    Case(9, 32, 14, 14, 72, (3, 3), (1, 1), (1, 1)).check(isa)


# ---- pools ----------------------------------------------------------------------------------------------

POOLS = [
    # h, w, kernel, stride, padding
    (28, 28, (2, 2), (2, 2), (0, 0)),
    (14, 14, (2, 2), (2, 2), (0, 0)),
    (7, 9, (2, 2), (2, 2), (0, 0)),
    (67, 71, (2, 2), (2, 2), (0, 0)),
    (2, 3, (2, 2), (2, 2), (0, 0)),
    (9, 8, (3, 3), (2, 2), (1, 1)),
    (33, 35, (3, 3), (2, 2), (1, 1)),
    (20, 40, (3, 3), (1, 1), (1, 1)),
    (13, 11, (3, 2), (1, 3), (0, 1)),
    (6, 7, (5, 6), (1, 1), (2, 3)),
    (5, 5, (1, 1), (2, 2), (0, 0)),
    (19, 60, (4, 5), (3, 2), (2, 1)),
    (16, 16, (16, 16), (16, 16), (0, 0)),
    (1, 50, (1, 2), (1, 2), (0, 1)),
]  # fmt: skip


def pool_reference(x, k, s, p):
    """y, index, and the windows' elements (positions, N, C, OH, OW); NaN and the first of equals win."""
    oh, ow = out_size(x.shape[2], k[0], s[0], p[0]), out_size(x.shape[3], k[1], s[1], p[1])
    xp = padded(x, p, -np.inf)
    inside = padded(np.ones_like(x), p)
    y, at = np.full((*x.shape[:2], oh, ow), -np.inf), np.full((*x.shape[:2], oh, ow), -1)
    for ky, kx in itertools.product(range(k[0]), range(k[1])):
        v = window(xp, ky, kx, s, (1, 1), oh, ow)
        real = window(inside, ky, kx, s, (1, 1), oh, ow) > 0
        take = real & ((at < 0) | (v > y) | (np.isnan(v) & ~np.isnan(y)))
        y, at = np.where(take, v, y), np.where(take, ky * k[1] + kx, at)
    return y, np.maximum(at, 0)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_max_pool2d(pool, isa, special):
    h, w, k, s, p = pool
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, (3, 5, h, w)).astype(np.float32)  # many equal elements
    if special:
        x[rng.random(x.shape) < 0.2] = -np.inf
        x[rng.random(x.shape) < 0.1] = np.nan
    y, at = pool_reference(x, k, s, p)
    attrs = [list(k), list(s), list(p)]
    for threads in (1, 2):
        got, index = run("max_pool2d", [x], [("f32", y.shape), ("u8", y.shape)], attrs, isa=isa, threads=threads)
        np.testing.assert_array_equal(got, y)
        np.testing.assert_array_equal(index, at)
    alone = run("max_pool2d", [x], [("f32", y.shape), ("u8", y.shape)], attrs, isa=isa, unwanted=(1,))
    np.testing.assert_array_equal(alone[0], y)

    g = rng.standard_normal(y.shape).astype(np.float32)
    oy, ox = np.meshgrid(np.arange(y.shape[2]), np.arange(y.shape[3]), indexing="ij")
    iy, ix = oy * s[0] - p[0] + index // k[1], ox * s[1] - p[1] + index % k[1]
    ok = (iy >= 0) & (iy < h) & (ix >= 0) & (ix < w)
    n, c = np.indices(y.shape)[:2]
    dx = np.zeros(x.shape)
    np.add.at(dx, (n[ok], c[ok], iy[ok], ix[ok]), g[ok].astype(np.float64))
    (got,) = run("max_pool2d_back", [g, index], [("f32", x.shape)], [h, w, *attrs], isa=isa)
    np.testing.assert_allclose(got, dx, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [*CASES[:14], *CASES[17:]], ids=str)
def test_conv2d_max_pool_is_the_separate_steps(case, isa):
    c = Case(*case)
    c.x[c.x > 2.2] = np.nan  # here and there
    shape = (*c.y.shape[:2], c.y.shape[2] // 2, c.y.shape[3] // 2)
    outputs = [("f32", shape), ("u8", shape)]
    for bias, relu in itertools.product((False, True), (False, True)):
        y = c.forward(bias=bias, relu=relu, isa=isa)
        want = run("max_pool2d", [y], outputs, [[2, 2], [2, 2], [0, 0]], isa=isa)
        attrs = [list(c.s), list(c.p), list(c.d), int(relu)]
        for threads in (1, 2):
            got = run("conv2d_max_pool", [c.x, c.w, c.b if bias else None], outputs, attrs, isa=isa, threads=threads)
            assert got[0].tobytes() == want[0].tobytes()
            np.testing.assert_array_equal(got[1], want[1])


def as_bf16(x):
    return x.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [*CASES[:14], *CASES[17:]], ids=str)
def test_conv2d_pool_back_weight_is_the_separate_steps(case, isa):
    c = Case(*case)
    n, o, h, w = c.y.shape
    rng = np.random.default_rng(3)
    g, y = (rng.standard_normal((n, o, h // 2, w // 2)).astype(np.float32) for _ in range(2))
    g.flat[::17] = np.nan
    y.flat[::19] = np.float32(2.0**-134)  # 0 in bf16, unlike the next number
    y.flat[::23] = np.nextafter(np.float32(2.0**-134), np.float32(1))
    index = rng.integers(0, 4, g.shape).astype(np.uint8)
    outputs = [("f32", c.w.shape), ("f32", (o,))]
    how, halves = [list(c.s), list(c.p), list(c.d)], [[2, 2], [2, 2], [0, 0]]
    attrs = [list(c.w.shape[2:]), *how, h, w]
    for relu, narrow in itertools.product((False, True), ("", "g", "gx", "gy", "gxy")):  # these operands in bf16

        def given(name, array, narrow=narrow):
            return as_bf16(array) if name in narrow else array

        sign = as_bf16(y).astype(np.float32) if narrow else y
        picked = np.where(sign > 0, g, np.float32(0)) if relu else g
        (image,) = run("max_pool2d_back", [picked, index], [("f32", c.y.shape)], [h, w, *halves], isa=isa)
        inputs = [given("g", image), given("x", c.x)]
        want = run("conv2d_back_weight", inputs, outputs, [list(c.w.shape[2:]), *how], isa=isa)
        for threads in (1, 2):
            inputs = [given("g", g), index, given("x", c.x), given("y", y) if relu else None]
            got = run("conv2d_pool_back_weight", inputs, outputs, attrs, isa=isa, threads=threads)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [*CASES[:14], *CASES[17:]], ids=str)
def test_conv2d_pool_back_input_is_the_separate_steps(case, isa):
    c = Case(*case)
    n, o, h, w = c.y.shape
    rng = np.random.default_rng(4)
    g = rng.standard_normal((n, o, h // 2, w // 2)).astype(np.float32)
    g.flat[::17] = np.nan
    index = rng.integers(0, 4, g.shape).astype(np.uint8)
    outputs, how = [("f32", c.x.shape)], [*c.x.shape[2:], list(c.s), list(c.p), list(c.d)]
    halves = [[2, 2], [2, 2], [0, 0]]
    (image,) = run("max_pool2d_back", [g, index], [("f32", c.y.shape)], [h, w, *halves], isa=isa)
    for small, large, kernel in (
        (g, image, c.w),
        (as_bf16(g), as_bf16(image), c.w),
        (as_bf16(g), as_bf16(image), as_bf16(c.w)),
    ):
        want = run("conv2d_back_input", [large, kernel], outputs, how, isa=isa)
        for threads in (1, 2):
            got = run("conv2d_pool_back_input", [small, index, kernel], outputs, how, isa=isa, threads=threads)
            assert got[0].tobytes() == want[0].tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_relu_back_may_move_before_max_pool_back(isa):
    """relu_back(max_pool2d_back(g, index), h) = max_pool2d_back(relu_back(g, y), index), the same bits."""
    rng = np.random.default_rng(7)
    for h, w, k, s, p in POOLS:
        x = np.maximum(rng.standard_normal((2, 3, h, w)), 0).astype(np.float32)
        y, _ = pool_reference(x, k, s, p)
        attrs = [list(k), list(s), list(p)]
        y, index = run("max_pool2d", [x], [("f32", y.shape), ("u8", y.shape)], attrs, isa=isa)
        g = rng.standard_normal(y.shape).astype(np.float32)
        outputs = [("f32", x.shape)]
        (late,) = run("max_pool2d_back", [g, index], outputs, [h, w, *attrs], isa=isa)
        late = np.where(x > 0, late, np.float32(0))
        g = np.where(y > 0, g, np.float32(0))
        (early,) = run("max_pool2d_back", [g, index], outputs, [h, w, *attrs], isa=isa)
        assert late.tobytes() == early.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_avg_pool2d(pool, isa):
    h, w, k, s, p = pool
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 5, h, w)).astype(np.float32)
    oh, ow = out_size(h, k[0], s[0], p[0]), out_size(w, k[1], s[1], p[1])
    g = rng.standard_normal((3, 5, oh, ow)).astype(np.float32)
    xp, dxp, y = padded(x, p), padded(np.zeros_like(x), p), np.zeros(g.shape)
    for ky, kx in itertools.product(range(k[0]), range(k[1])):
        y += window(xp, ky, kx, s, (1, 1), oh, ow) / (k[0] * k[1])
        window(dxp, ky, kx, s, (1, 1), oh, ow)[:] += g.astype(np.float64) / (k[0] * k[1])
    attrs = [list(k), list(s), list(p)]
    (got,) = run("avg_pool2d", [x], [("f32", y.shape)], attrs, isa=isa)
    np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-6)
    (got,) = run("avg_pool2d_back", [g], [("f32", x.shape)], [h, w, *attrs], isa=isa)
    np.testing.assert_allclose(got, dxp[:, :, p[0] : p[0] + h, p[1] : p[1] + w], rtol=1e-5, atol=1e-6)
