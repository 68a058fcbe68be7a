"""The deep case at reduced width: the plan changes no bit; the losses are PyTorch's, which the golden file keeps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.llm.deep_case import TOKENS, WAYS, DeepCase
from tests.llm.given_lora import GivenLora

GOLDEN = Path(__file__).parents[1] / "golden" / "deep_losses.json"  # of torch_model.py in float64
oracle = pytest.mark.oracle
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> DeepCase:
    return DeepCase(tmp_path_factory.mktemp("deep"), "deep")


@pytest.mark.slow
def test_twenty_steps_are_the_same_bits_however_they_are_planned(case: DeepCase) -> None:
    losses, arrays, plan = case.ours()
    print(f"planned peak {plan.peak_bytes} B, unshared {plan.unshared_bytes} B, lower bound {plan.lower_bound_bytes} B")
    assert len(plan.placement.inplace) > 60 and plan.peak_bytes < 0.6 * plan.unshared_bytes
    for way, options in WAYS.items():
        found, others, _ = case.ours(**options)
        assert found == losses, way
        assert all(a.tobytes() == others[k].tobytes() for k, a in arrays.items()), way
    right = json.loads(GOLDEN.read_text())
    assert np.abs(np.subtract(losses, right)).max() < 1e-5
    assert right[-1] < 0.5 * right[0]


@oracle
@needs_torch
@pytest.mark.slow
def test_the_losses_are_pytorchs(case: DeepCase) -> None:
    import torch

    from tests.noise import assert_noise

    torch.set_num_threads(1)
    single, double = (case.theirs(kind) for kind in (torch.float32, torch.float64))
    assert_noise("losses", case.ours()[0], single, double, TOKENS)
    assert np.allclose(double, json.loads(GOLDEN.read_text()), rtol=0, atol=1e-12)


@oracle
@needs_torch
@pytest.mark.parametrize("b_std", [0.0, 0.05])
def test_every_gradient_of_the_first_step(case: DeepCase, b_std: float) -> None:
    import torch

    from tests.llm.torch_lora import TorchLora
    from tests.noise import assert_all_noise, assert_noise

    torch.set_num_threads(1)
    arrays = case.arrays(b_std)
    loss, grads = GivenLora(case.path, arrays).gradients(*case.batch)
    (loss32, grads32), (loss64, grads64) = (
        TorchLora(case.path, arrays, kind).gradients(*case.batch) for kind in (torch.float32, torch.float64)
    )
    assert_noise("loss", loss, loss32, loss64, TOKENS)
    assert len(grads) == 30 * 4 * 2
    for name, grad in grads64.items():
        zero = not b_std and name.endswith("lora_a")
        assert zero == (not np.abs(grad).max() > 1e-6), f"{name}: a gradient of nothing proves nothing"
    assert_all_noise(grads, grads32, grads64, TOKENS)


@oracle
@needs_torch
def test_gradients_in_bf16_are_as_near_to_float64_as_those_of_autocast(case: DeepCase) -> None:
    ours, theirs = zip(*case.bf16_errors(steps=2), strict=True)
    # on AMX the medians differ by 5 %: both round the same operands, and their sums in other orders
    assert 1e-4 < np.median(ours) <= 1.1 * np.median(theirs) and max(ours) <= 1.5 * max(theirs)
