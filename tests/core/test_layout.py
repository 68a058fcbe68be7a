"""copy, concat and pad against NumPy, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.core.harness import NUMPY as KIND
from tests.core.harness import isas, run


def padded(
    x: np.ndarray, before: Sequence[int], after: Sequence[int], interior: Sequence[int], value: float
) -> np.ndarray:
    shape = [b + (n + (n - 1) * i if n else 0) + a for n, b, a, i in zip(x.shape, before, after, interior, strict=True)]
    y = np.full(shape, value, x.dtype)
    window = tuple(
        slice(b, b + ((n - 1) * (i + 1) + 1 if n else 0), i + 1)
        for n, b, i in zip(x.shape, before, interior, strict=True)
    )
    y[window] = x
    return y


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["f32", "i32", "u8", "i64"])
def test_copy(dtype: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 100, (37, 6, 51)).astype(KIND[dtype])
    big = rng.integers(0, 100, (700, 300)).astype(KIND[dtype])
    views = [
        base, base.T, base.transpose(1, 2, 0), base.transpose(0, 2, 1), base.transpose(2, 0, 1), base[::3, 1:5, ::2],
        base[:, 0, :].T, np.broadcast_to(base[:, :, :1], base.shape), np.broadcast_to(base[:1], base.shape),
        base[5:6, :, 7], base[2, 3, 4], base[:0], big, big.T, big[::2].T, big[:, 3:].T,
        big.reshape(7, 100, 300).transpose(2, 0, 1),
        big.reshape(70, 10, 20, 15).transpose(0, 2, 1, 3),
    ]  # fmt: skip
    for v in views:
        for threads in (1, 2):
            (y,) = run("copy", [v], [(dtype, v.shape)], isa=isa, threads=threads)
            assert np.array_equal(y, v), (v.shape, v.strides)


@pytest.mark.parametrize("isa", isas())
def test_concat(isa: str) -> None:
    rng = np.random.default_rng(2)
    f = lambda *s: rng.standard_normal(s).astype(np.float32)  # noqa: E731
    cases = [
        (0, [f(3), f(1), f(5)]), (0, [f(2, 7), f(3, 7)]), (1, [f(3, 4), f(3, 1), f(3, 9)]), (0, [f(4, 5)]),
        (1, [f(2, 3, 5), f(2, 1, 5)]), (2, [f(2, 3, 1), f(2, 3, 1), f(2, 3, 2)]), (1, [f(301, 400), f(301, 351)]),
        (1, [f(40, 30).T, f(30, 7), f(30, 8)[:, ::2]]), (0, [f(3, 4), f(0, 4), np.broadcast_to(f(1, 4), (2, 4))]),
        (0, [f(4, 100), f(4, 100)[::2]]),
    ]  # fmt: skip
    for axis, parts in cases:
        exact = np.concatenate(parts, axis)
        for threads in (1, 2):
            (y,) = run("concat", parts, [("f32", exact.shape)], [axis], isa=isa, threads=threads)
            assert np.array_equal(y, exact)


@pytest.mark.parametrize("isa", isas())
def test_pad(isa: str) -> None:
    rng = np.random.default_rng(3)
    f = lambda *s: rng.standard_normal(s).astype(np.float32)  # noqa: E731
    cases = [
        (f(5), (2,), (3,), (0,), 0.0), (f(4, 5), (1, 0), (0, 2), (0, 0), 1.5), (f(4, 5), (0, 1), (0, 0), (1, 2), 0.0),
        (f(2, 3, 4), (0, 1, 2), (1, 0, 3), (2, 0, 1), -1.0), (f(1, 1), (0, 0), (0, 0), (3, 3), 0.0),
        (f(300, 400), (1, 2), (3, 4), (0, 0), 0.5), (f(200, 150), (0, 0), (1, 1), (1, 1), 0.0),
        (f(30, 40).T, (1, 0), (0, 2), (0, 1), 3.0), (f(0, 3), (2, 0), (1, 1), (0, 0), 7.0), (f(), (), (), (), 0.0),
        (f(400, 300).T, (1, 1), (0, 0), (0, 0), 0.0),
    ]  # fmt: skip
    for x, before, after, interior, value in cases:
        exact = padded(x, before, after, interior, value)
        for threads in (1, 2):
            (y,) = run("pad", [x], [("f32", exact.shape)], [before, after, interior, value], isa=isa, threads=threads)
            assert np.array_equal(y, exact)
