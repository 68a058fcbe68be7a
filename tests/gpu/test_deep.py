"""Thirty layers with LoRA on a device beside the CPU: losses, and every gradient of the first step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.llm.deep_case import TOKENS, DeepCase
from tests.llm.given_lora import GivenLora
from tests.noise import assert_all_noise, assert_noise

STEPS = 20 if os.environ.get("GRADLOOM_GPU_ALL") == "1" else 2  # set by `run_tests.sh --long`
GOLDEN = Path(__file__).parents[1] / "golden" / "deep_losses.json"  # in float64


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> DeepCase:
    return DeepCase(tmp_path_factory.mktemp("deep"), "deep")


def test_every_gradient_of_the_first_step(case: DeepCase) -> None:
    arrays = case.arrays(b_std=0.05)
    (loss, here), (loss_there, there) = (
        GivenLora(case.path, arrays, backend=device).gradients(*case.batch) for device in ("cpu", "gpu")
    )
    assert len(there) == 30 * 4 * 2 and all(np.abs(g).max() > 1e-6 for g in there.values())
    assert any(there[name].tobytes() != here[name].tobytes() for name in here), "who computed this?"
    assert_noise("loss", loss_there, loss, loss, TOKENS)
    assert_all_noise(there, here, here, 30 * TOKENS)


def test_losses(case: DeepCase) -> None:
    """Of plain SGD: as near to those of float64 as the CPU's."""
    right = json.loads(GOLDEN.read_text())[:STEPS]
    here, there = (case.ours(STEPS, backend=device)[0] for device in ("cpu", "gpu"))
    assert_noise("losses", there, here, right, TOKENS)
    assert there[-1] < there[0] - 0.1
