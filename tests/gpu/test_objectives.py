"""Objectives of fine-tuning on a GPU, and with the last block there: the losses of the CPU to f32 noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.llm.objectives import declared
from tests.gpu.test_finetune import SIZES
from tests.llm import head_rows
from tests.llm.preference_rows import pairs

HEADS = {
    "reward": head_rows.pairs, "classify": head_rows.classes, "regress": head_rows.numbers, "embed": head_rows.pairs
}  # fmt: skip


@pytest.mark.parametrize("where", [{"device": "gpu"}, {"gpu_layers": 1}], ids=str)
@pytest.mark.parametrize(
    "objective", [name for name, kind in declared().items() if kind.form.kind != "texts" and not kind.form.last]
)
def test_losses_are_those_of_the_cpu(tmp_path: Path, objective: str, where: dict[str, Any]) -> None:
    """Six steps on packed rows in two micro-batches; reference log-probabilities come from the same device."""
    path, form = write_random(tmp_path / "model.gguf", **SIZES | {"layers": 2}), declared()[objective].form
    rows = pairs(4, vocab=SIZES["vocab"], judged=form.kind == "judged", prompts=form.prompts)
    found = []
    for device in ({}, where):
        run = gl.llm.finetune(
            str(path), rows, gl.llm.LoRA(rank=4, seed=1), objective=objective, batch_size=4, micro_batch_size=2,
            epochs=6, lr=1e-2, val_split=0.0, progress=False, **device,
        )  # fmt: skip
        found.append(run.history.to_dict())
    here, there = (np.array(each["loss"]) for each in found)
    assert here[-1] < here[0] - 0.02
    np.testing.assert_allclose(there, here, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found[1]["rewards/chosen"], found[0]["rewards/chosen"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("where", [{"device": "gpu"}, {"gpu_layers": 1}], ids=str)
@pytest.mark.parametrize("objective", list(HEADS))
def test_heads_have_the_losses_of_the_cpu(tmp_path: Path, objective: str, where: dict[str, Any]) -> None:
    """Six steps in micro-batches, and predictions of each text there."""
    path = write_random(tmp_path / "model.gguf", **SIZES | {"layers": 2})
    rows = HEADS[objective](8)
    rows.tokens[:] %= SIZES["vocab"]
    found = []
    for device in ({}, where):
        run = gl.llm.finetune(
            str(path), rows, gl.llm.LoRA(rank=4, seed=1), objective=objective, batch_size=4, micro_batch_size=2,
            epochs=6, lr=1e-2, val_split=0.0, progress=False, **device,
        )  # fmt: skip
        found.append(np.array(run.history.to_dict()["loss"]))
    here, there = found
    assert here[-1] < here[0] - 0.02
    np.testing.assert_allclose(there, here, rtol=2e-4, atol=2e-5)
    texts = ["a b c", "the end"]
    devices: list[dict[str, str]] = [{}, {"device": "gpu"}]
    if objective == "embed":
        scores = [gl.llm.embed(str(path), texts, run.adapter, **device) for device in devices]
    else:
        scores = [gl.llm.predict(str(path), texts, run.adapter, **device).scores for device in devices]
    np.testing.assert_allclose(*scores, rtol=1e-3, atol=1e-4)
