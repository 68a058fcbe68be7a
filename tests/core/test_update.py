"""The update kernels against their formulas in float64: many tensors in one instruction, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradloom import _core
from tests.core.harness import isas, run

GROUPS = [
    [()], [(1,)], [(7,), (33, 5)], [(4, 32), (32,), (32, 3), (3,)], [(65, 67), (1,), (401, 301), (0,), (17,)],
    [(16,), (15,), (1000,), (70000,)],
]  # fmt: skip


def scalar(v: float) -> np.ndarray:
    return np.array(v, np.float32)


def update(
    name: str, scalars: list[float], groups: list[list[np.ndarray | None]], outputs: list[int], **options: Any
) -> list[np.ndarray | None]:
    """Run with every output in the storage of the input that it updates: member outputs[i] of its group."""
    size = len(groups[0])
    inputs: list[np.ndarray | None] = [scalar(v) for v in scalars]
    specs: list[Any] = []
    alias = {}
    for k, group in enumerate(groups):
        inputs += group
        for i in outputs:
            member = group[i]
            if member is None:
                specs.append(None)
            else:
                alias[len(specs)] = len(scalars) + k * size + i
                specs.append(("f32", member.shape))
    return run(name, inputs, specs, alias=alias, **options)


def draw(rng: np.random.Generator, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.asarray(rng.uniform(low, high, shape), np.float32)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("with_m", [True, False])
def test_sgd(with_m: bool, isa: str) -> None:
    rng = np.random.default_rng(1)
    for i, shapes in enumerate(GROUPS):
        groups = [[draw(rng, s), draw(rng, s), draw(rng, s) if with_m else None] for s in shapes]
        lr, mom, wd, weight = (float(np.float32(v)) for v in (0.1, 0.9, 0.01 * (i % 2), 1.0 + i))
        out = update("sgd", [lr, mom, wd, weight], groups, [0, 2], isa=isa)
        again = update("sgd", [lr, mom, wd, weight], groups, [0, 2], isa=isa, threads=2)
        for k, (w, g, m) in enumerate(groups):
            step = g.astype(np.float64) / weight + (mom * m.astype(np.float64) if m is not None else 0)
            assert np.allclose(out[2 * k], w * (1 - lr * wd) - lr * step, rtol=1e-6, atol=2e-7)
            assert np.array_equal(out[2 * k], again[2 * k])
            if m is not None:
                assert np.allclose(out[2 * k + 1], step, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("isa", isas())
def test_sgd_is_exact_where_it_can_be(isa: str) -> None:
    w, g = np.zeros(5, np.float32), np.full(5, 6, np.float32)
    out = update("sgd", [1.0, 0.0, 0.0, 6.0], [[w, g, None]], [0, 2], isa=isa)
    assert (out[0] == -1).all()
    out = update("sgd", [1.0, 0.0, 0.0, 0.0], [[w, g * 0, None]], [0, 2], isa=isa)  # a step without rows
    assert (out[0] == 0).all()


@pytest.mark.parametrize("isa", isas())
def test_adamw(isa: str) -> None:
    rng = np.random.default_rng(2)
    for i, shapes in enumerate(GROUPS):
        groups = [[draw(rng, s), draw(rng, s), draw(rng, s), draw(rng, s, 0.01, 2.0)] for s in shapes]
        scalars = [float(np.float32(v)) for v in (1e-2, 0.9, 0.999, 1e-8, 0.1 * (i % 2), 1 + 3 * i, 1 + i)]
        lr, b1, b2, eps, wd, t, weight = scalars
        out = update("adamw", scalars, groups, [0, 2, 3], isa=isa)
        again = update("adamw", scalars, groups, [0, 2, 3], isa=isa, threads=2)
        for k, (w, g, m, v) in enumerate(x for x in groups):
            slope = g.astype(np.float64) / weight
            m1, v1 = b1 * m + (1 - b1) * slope, b2 * v + (1 - b2) * slope**2
            w1 = w * (1 - lr * wd) - lr * (m1 / (1 - b1**t)) / (np.sqrt(v1 / (1 - b2**t)) + eps)
            for got, exact in zip(out[3 * k : 3 * k + 3], (w1, m1, v1), strict=True):
                assert np.allclose(got, exact, rtol=2e-6, atol=2e-7)
            assert all(np.array_equal(a, b) for a, b in zip(out, again, strict=True))


@pytest.mark.parametrize("isa", isas())
def test_accumulate_and_zero(isa: str) -> None:
    rng = np.random.default_rng(3)
    for shapes in GROUPS:
        groups = [[draw(rng, s), draw(rng, s)] for s in shapes]
        for keep in (0.0, 1.0):
            for threads in (1, 2):
                out = update("accumulate", [keep], groups, [0], isa=isa, threads=threads)
                for got, (acc, g) in zip(out, groups, strict=True):
                    assert np.array_equal(got, acc + g if keep else g)
        out = update("zero", [], [[a] for a, _ in groups], [0], isa=isa)
        assert all((got == 0).all() for got in out)


@pytest.mark.parametrize("isa", isas())
def test_guard(isa: str) -> None:
    rng = np.random.default_rng(4)
    for shapes in GROUPS:
        gs = [draw(rng, s) for s in shapes]
        exact = np.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in gs)) / 3
        (norm,) = run("guard", [scalar(1.5), scalar(3), *gs], ["f32()"], isa=isa)
        (again,) = run("guard", [scalar(1.5), scalar(3), *gs], ["f32()"], isa=isa, threads=2)
        assert np.isclose(norm, exact, rtol=1e-6) and norm == again
    for where, bad in (("loss", np.nan), ("loss", np.inf), ("g", np.nan), ("g", -np.inf), ("g", 1e30)):
        for shape in ((7,), (100000,)):
            g = draw(rng, shape)
            loss = scalar(1.0)
            if where == "loss":
                loss = scalar(bad)
            else:
                g[-1] = bad
            _, result, _ = run("guard", [loss, scalar(1), g], ["f32()"], isa=isa, full=True)
            assert _core.STOP_NAMES[result[1]] == "guard" and result[0] == 0
            assert result[3] == (0 if where == "loss" else 1)
