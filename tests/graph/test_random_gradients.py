"""A thousand random graphs; `python -m tests.graph.random_gradients --count 10000` takes ten thousand."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.graph.random_gradients import STEPS, compare

CHUNK = 50


@pytest.mark.oracle
@pytest.mark.parametrize("first", range(0, 1000, CHUNK))
def test_gradients_of_random_graphs_are_pytorchs(first: int) -> None:
    pytest.importorskip("torch")
    seen = Counter(name for seed in range(first, first + CHUNK) for name in compare(seed).split(": ")[1].split(", "))
    assert set(STEPS) <= set(seen), "some step was never drawn"
