"""The update kernels with moments in 8 bits against their formulas in float64: blocks, stacks, tiny and large numbers,
every instruction set, one and two threads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.core.harness import isas, run

CASES = [((1,), 1), ((255,), 1), ((256,), 1), ((257,), 1), ((3, 300), 3), ((2, 3, 85), 2), ((700, 301), 1)]


def numbers(signed: bool) -> np.ndarray:
    """The value of each code: 0, seven decades, 1, then the negative ones."""
    found = [0.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        found += list(10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2)
    return np.array([*found, 1.0, *(-x for x in found[1:] if signed)])


def decoded(codes: np.ndarray, scale: np.ndarray, signed: bool) -> np.ndarray:
    flat, made = codes.reshape(scale.shape[0], -1), np.zeros(codes.shape).reshape(scale.shape[0], -1)
    for row, block in np.ndindex(*scale.shape):
        part = slice(256 * block, 256 * block + 256)
        made[row, part] = numbers(signed)[flat[row, part]] * scale[row, block]
    return made.reshape(codes.shape)


def scales(x: np.ndarray, arrays: int) -> np.ndarray:
    flat = np.abs(x.reshape(arrays, -1))
    return np.stack([flat[:, at : at + 256].max(1) for at in range(0, flat.shape[1], 256)], 1)


def per_element(scale: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    each = math.prod(shape) // scale.shape[0]
    return np.repeat(scale, 256, 1)[:, :each].reshape(shape)


def close(codes: np.ndarray, scale: np.ndarray, exact: np.ndarray, arrays: int, signed: bool) -> None:
    """Codes of the nearest numbers, by scales that are the largest absolute values of the blocks."""
    want = scales(exact, arrays)
    assert np.allclose(scale, want, rtol=2e-6, atol=0)
    room = per_element(want, exact.shape)
    error = np.abs(decoded(codes, scale, signed) - exact)
    ratio = np.abs(exact) / np.where(room > 0, room, 1)
    grid = np.unique(np.abs(numbers(signed)))
    at = np.clip(np.searchsorted(grid, ratio), 1, len(grid) - 1)
    half = np.where(ratio < 1e-5, 1e-5, (grid[at] - grid[at - 1]) / 2 + 1e-6)
    if signed:  # -1 has no code
        half = np.where(ratio > grid[-2], grid[-1] - grid[-2] + 1e-6, half)
    assert (error <= half * room).all()


def states(rng: np.random.Generator, shape: tuple[int, ...], arrays: int, size: float = 1.0) -> list[np.ndarray]:
    blocks = -(-math.prod(shape) // arrays // 256)
    made: list[np.ndarray] = []
    for power in (1, 2):
        scale = (rng.uniform(0.1, 1, (arrays, blocks)) * size**power).astype(np.float32)
        made += [rng.integers(0, 256, shape, np.uint8), scale]
    return made


def draw(rng: np.random.Generator, shape: tuple[int, ...], size: float = 1.0) -> np.ndarray:
    return (rng.uniform(-1, 1, shape) * size).astype(np.float32)


def scalars(*values: float) -> list[np.ndarray]:
    return [np.array(v, np.float32) for v in values]


def adamw(inputs: list[np.ndarray], **options) -> list[np.ndarray]:
    specs = [(x.dtype.name.replace("uint", "u").replace("float", "f"), x.shape) for x in (inputs[7], *inputs[9:])]
    return run("adamw_8bit", inputs, specs, alias={0: 7, 1: 9, 2: 10, 3: 11, 4: 12}, **options)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_adamw_8bit(isa: str, size: float) -> None:
    rng = np.random.default_rng(1)
    for i, (shape, arrays) in enumerate(CASES):
        lr, b1, b2, eps, wd, t, weight = (float(np.float32(v)) for v in (1e-2, 0.9, 0.999, 1e-8, 0.1, 3 + i, 1 + i % 2))
        w, g, (m, ms, v, vs) = draw(rng, shape), draw(rng, shape, size), states(rng, shape, arrays, size)
        inputs = [*scalars(lr, b1, b2, eps, wd, t, weight), w, g, m, ms, v, vs]
        out = adamw(inputs, isa=isa)
        slope = g.astype(np.float64) / weight
        m1, v1 = b1 * decoded(m, ms, True) + (1 - b1) * slope, b2 * decoded(v, vs, False) + (1 - b2) * slope**2
        w1 = w * (1 - lr * wd) - lr * (m1 / (1 - b1**t)) / (np.sqrt(v1 / (1 - b2**t)) + eps)
        assert np.allclose(out[0], w1, rtol=1e-5, atol=1e-6)
        close(out[1], out[2], m1, arrays, True)
        close(out[3], out[4], v1, arrays, False)
        assert (out[3][v1 > 0] > 0).all()
        again = adamw(inputs, isa=isa, threads=2)
        assert all(np.array_equal(a, b) for a, b in zip(out, again, strict=True))


@pytest.mark.parametrize("isa", isas())
def test_lion_8bit(isa: str) -> None:
    rng = np.random.default_rng(2)
    for i, (shape, arrays) in enumerate(CASES):
        lr, b1, b2, wd, weight = (float(np.float32(v)) for v in (1e-3, 0.9, 0.99, 0.1, 1 + i % 2))
        w, g, (m, ms) = draw(rng, shape), draw(rng, shape), states(rng, shape, arrays)[:2]
        inputs = [*scalars(lr, b1, b2, wd, weight), w, g, m, ms]
        specs = [("f32", shape), ("u8", shape), ("f32", ms.shape)]
        out, again = (
            run("lion_8bit", inputs, specs, alias={0: 5, 1: 7, 2: 8}, isa=isa, threads=threads) for threads in (1, 2)
        )
        old, slope = decoded(m, ms, True), g.astype(np.float64) / weight
        way = b1 * old + (1 - b1) * slope
        clear = np.abs(way) > 1e-6
        assert np.allclose(out[0][clear], (w * (1 - lr * wd) - lr * np.sign(way))[clear], rtol=1e-6, atol=1e-7)
        close(out[1], out[2], b2 * old + (1 - b2) * slope, arrays, True)
        assert all(np.array_equal(a, b) for a, b in zip(out, again, strict=True))


@pytest.mark.parametrize("isa", isas())
def test_blocks_of_zeros_and_numbers_below_the_normal_ones(isa: str) -> None:
    shape = (600,)
    for size in (0.0, 1e-30):  # whose square is below the least float
        w, g = np.ones(shape, np.float32), np.full(shape, size, np.float32)
        zeros, scale = np.zeros(shape, np.uint8), np.zeros((1, 3), np.float32)
        inputs = [*scalars(1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0, 1.0), w, g, zeros, scale, zeros.copy(), scale.copy()]
        out = adamw(inputs, isa=isa)
        assert not out[3].any() and not out[4].any()
        assert np.allclose(out[2], 0.1 * size, rtol=1e-5, atol=0) and (out[1] == (128 if size else 0)).all()
        assert np.isfinite(out[0]).all() and np.allclose(out[0], 1)
