"""Models whose weights no memory holds are refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.base.memory import resident_peak

X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])


@pytest.mark.parametrize("size", [10**8, 10**12, 10**20, 10**30])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: nn.Linear(n, n),
        lambda n: nn.Sequential(nn.Linear(3, n), nn.Linear(n, n), nn.Linear(n, 3)),
        lambda n: nn.Embedding(10**4 * n, 10**4),
        lambda n: nn.Conv2d(n, n, 5),
    ],
    ids=["linear", "layers", "embedding", "conv"],
)
def test_weights_beyond_the_memory(make: Callable[[int], Any], size: int) -> None:
    before = resident_peak()
    for use in (lambda net: net.init(0), lambda net: gl.fit(net, (X, Y), progress=False), lambda net: net.state_dict()):
        with pytest.raises(gl.GradloomError, match=str(size)) as caught:
            use(make(size))
        assert "\n" not in str(caught.value)
    assert resident_peak() - before < 64 << 20


def test_what_is_given_is_not_counted() -> None:
    net = nn.Linear(3, 2)
    net.load_state_dict({"weight": np.ones((2, 3)), "bias": np.zeros(2)})
    assert net.ensure_init() is None and net.weight.numpy().sum() == 6
