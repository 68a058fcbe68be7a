"""What products of bf16 round on their own way is what the CPU rounds: the two differ by f32 noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.dtypes import bf16


def _on_both(outputs: list[Any], feeds: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    cpu, gpu = (gl.compile(outputs, device=device)(**feeds) for device in ("cpu", "gpu"))
    return list(zip(cpu, gpu, strict=True))


def _near(cpu: np.ndarray, gpu: np.ndarray) -> None:
    """Rounding to bf16 is 4e-3 of a number; a few numbers on an edge may still round to different sides."""
    apart = np.linalg.norm(cpu - gpu) / np.linalg.norm(cpu)
    assert apart < 2e-5, apart


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_cross_entropy_rounds_its_slopes(wide: bool, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    n, d, v = 96, 48, 3000 if wide else 300
    x, w = rng.normal(size=(n, d)), rng.normal(size=(v, d))
    labels = rng.integers(0, v, n).astype(np.int32)
    labels[::7] = -100
    feeds = {"x": x.astype(np.float32), "w": w.astype(np.float32), "labels": labels}
    if weighted:
        feeds["weights"] = rng.uniform(0.1, 2, n).astype(np.float32)
    values = {k: gl.input(k, a.shape, a.dtype.name.replace("float", "f").replace("int", "i")) for k, a in feeds.items()}
    rounded = {k: ops.round_bf16(values[k]) for k in ("x", "w")}
    outputs = ops.linear_cross_entropy(rounded["x"], rounded["w"], values["labels"], values.get("weights"))
    for cpu, gpu in _on_both(list(outputs), feeds):
        _near(cpu, gpu)


@pytest.mark.parametrize("case", [(1, 70, 4, 2, 32, {}), (2, 130, 2, 2, 64, {"window": 50}), (1, 40, 2, 1, 300, {})])
def test_attention_rounds_its_weights(case: tuple[int, int, int, int, int, dict[str, Any]]) -> None:
    b, t, heads, groups, d, limits = case
    rng = np.random.default_rng(5)
    shapes = {"q": (b, t, heads, d), "k": (b, t, groups, d), "v": (b, t, groups, d), "g": (b, t, heads, d)}
    feeds = {k: (3 * rng.normal(size=s)).astype(np.float32) for k, s in shapes.items()}
    positions = np.broadcast_to(np.arange(t, dtype=np.int32), (b, t)).copy()
    q, k, v, g = (ops.round_bf16(gl.input(name, shape)) for name, shape in shapes.items())
    place = gl.input("positions", (b, t), "i32")
    more = {"scale": d**-0.5, "window": None, "softcap": None} | limits
    forward = ops.attention(q, k, v, place, cached=False, **more)
    feeds["positions"] = positions
    found = _on_both(list(forward), {name: array for name, array in feeds.items() if name != "g"})
    for cpu, gpu in found:
        _near(cpu, gpu)
    # The gradient is of the same y on both: one that rounds to another side is not its own doing.
    given = {"y": found[0][0], "lse": found[1][0]}
    y, lse = (gl.input(name, array.shape) for name, array in given.items())
    back = ops.attention_back(g, q, k, v, ops.round_bf16(y), lse, place, None, **more)
    for cpu, gpu in _on_both(list(back), feeds | given):
        _near(cpu, gpu)


def test_attention_of_a_token_rounds_a_cache_as_it_reads_it() -> None:
    rng = np.random.default_rng(6)
    q, cache = rng.normal(size=(3, 1, 4, 64)), rng.normal(size=(2, 3, 200, 2, 64))
    feeds = {"q": q.astype(np.float32), "k": cache[0].astype(np.float32), "v": cache[1].astype(np.float32)}
    feeds["positions"] = np.array([[199], [3], [70]], np.int32)
    values = {k: gl.input(k, a.shape, "i32" if k == "positions" else "f32") for k, a in feeds.items()}
    query = ops.round_bf16(values["q"])
    y, lse = ops.attention(query, values["k"], values["v"], values["positions"], scale=0.125, cached=True)
    assert query.dtype is bf16
    for cpu, gpu in _on_both([y, lse], feeds):
        _near(cpu, gpu)
