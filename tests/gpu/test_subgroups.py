"""Trees over a workgroup with subgroups, where the adapter has them, and without: the same bits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradloom.base.dtypes import f32
from gradloom.gpu import device as devices
from gradloom.gpu.backend import Place, place_of
from gradloom.gpu.source import module
from gradloom.graph.opspec import REGISTRY
from tests.gpu.harness import default_place, run_node
from tests.ops.cases import node_of


@pytest.fixture
def places() -> list[Place]:
    """Without subgroups, and with those of the adapter."""
    if devices.SUBGROUPS not in devices.adapter(0).features:
        pytest.skip(f"{place_of(0).device.name} has no subgroups")
    found = [default_place(), place_of(0)]
    assert found[0].device.subgroup == 0 and found[1].device.subgroup >= 4
    return found


def rows_of(rng: np.random.Generator, width: int) -> np.ndarray:
    """Numbers of all sizes; rows with NaN, infinities, zeros of both signs."""
    x = (rng.normal(size=(8, width)) * 10.0 ** rng.integers(-8, 8, (8, width))).astype(np.float32)
    x[1, width // 3], x[2, width // 2], x[3, 0] = np.nan, np.inf, -np.inf
    x[4] = np.where(np.arange(width) % 2, 0.0, -0.0)
    x[5] = np.where(np.arange(width) % 3, -0.0, 0.0)
    return x


@pytest.mark.parametrize("width", [1, 7, 255, 256, 257, 1000])
def test_the_same_bits(places: list[Place], width: int) -> None:
    rng = np.random.default_rng(width)
    x = rows_of(rng, width)
    labels = rng.integers(0, width, 8).astype(np.int32)
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        *[(name, (x,), {"axes": (1,), "keepdims": False}) for name in ("sum", "mean", "max", "min")],
        ("softmax", (x, None), {"scale": 1.0}), ("rms_norm", (x,), {"eps": 1e-5}), ("layer_norm", (x,), {"eps": 1e-5}),
        ("cross_entropy_sum", (x, labels, None), {}),
    ]  # fmt: skip
    for name, inputs, attrs in cases:
        node = node_of(REGISTRY[name], inputs, attrs)
        plain, grouped = (run_node(node, inputs, place=place) for place in places)
        for a, b in zip(plain, grouped, strict=True):
            assert a.tobytes() == b.tobytes(), (name, width)


@pytest.mark.no_adapter
def test_a_kernel_has_the_one_or_the_other() -> None:
    texts = [module(("tree", "sums"), [(1,), (2,), (3,)], [f32] * 3, {}, 0, subgroup) for subgroup in (0, 8)]
    assert ["subgroupShuffleXor" in text for text in texts] == [False, True]
    assert "const APART = 0u;" in texts[0] and "const APART = 8u / 2u;" in texts[1]
    assert "subgroup_lane = near;" in texts[1]


@pytest.mark.no_adapter
def test_what_an_adapter_says_of_its_subgroups() -> None:
    """No more threads than trees use; none where it does not say how many, or has not the feature."""

    def made(features: list[str], **info: int) -> Any:
        return SimpleNamespace(features=features, info=info)

    has = [devices.SUBGROUPS]
    assert devices.subgroup_of(made(has, stackgroup_min_size=4)) == 4
    assert devices.subgroup_of(made(has, subgroup_min_size=64)) == devices.MOST_SUBGROUP == 32
    assert devices.subgroup_of(made([], subgroup_min_size=32)) == 0
    assert devices.subgroup_of(made(has)) == devices.subgroup_of(made(has, subgroup_min_size=12)) == 0
