"""Random programs, randomly placed on two devices: proved, and the same bits as on one."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradloom.run.executable import Executable
from tests.plan.devices import drawn, loaded
from tests.plan.random_graphs import Made, build
from tests.plan.test_properties import RECIPES, TRAIN, examples, run, same_bits

MANY = 1000 if os.environ.get("GRADLOOM_GPU_ALL") == "1" else 100  # set by `run_tests.sh --long`


def computed(made: Made, executable: Executable) -> list[np.ndarray]:
    """Outputs, and what the parameters hold afterwards; the parameters are put back."""
    before = [p.numpy() for p in made.parameters]
    known = {*executable.inputs, *executable.settings}
    try:
        found = executable(**{k: v for k, v in made.feeds.items() if k in known})
        return [*found, *[p.numpy() for p in made.parameters]]
    finally:
        for p, data in zip(made.parameters, before, strict=True):
            p.stored.write(data)


@examples(MANY)
@given(RECIPES, TRAIN, st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 1.0]), st.booleans())
@pytest.mark.slow
def test_random_placements_have_the_bits_of_one_device(
    recipe: list[int], train: int, seed: int, moved: float, checked: bool
) -> None:
    """moved: the part of the nodes whose device is drawn; `place` chooses that of the others."""
    made = build(recipe, train)
    options: dict[str, Any] = {"check": 2, "poison": True} if checked else {}
    executable = loaded(made.outputs, made.updates, drawn(random.Random(seed), moved), **options)
    _, right = run(made, threads=1)
    found = computed(made, executable)
    assert same_bits(computed(made, executable), found), "the second run"
    for i, value in enumerate(made.outputs):
        if value.node.op.guard:  # the norm of the gradients, which is the norm of each device's norms
            np.testing.assert_allclose(found[i], right[i], rtol=1e-6)
            found[i] = right[i]
    assert same_bits(found, right), executable.plan
