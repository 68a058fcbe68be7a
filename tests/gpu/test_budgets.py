"""Memory budgets of a GPU, alone and beside the CPU: planned bytes are within them, and no bit changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradloom as gl
from examples.random_gguf import write_random
from gradloom import ops
from gradloom.base.errors import BudgetError, SettingError
from gradloom.graph.graph import reachable
from gradloom.graph.scope import on_device
from gradloom.graph.value import Value
from gradloom.llm.memory_plan import MemoryPlan
from gradloom.llm.plan import plan
from gradloom.plan.schedule import Schedule
from tests.cli.command import run as command
from tests.gpu.adapter import own_device
from tests.llm.random_models import packed
from tests.plan.devices import ended
from tests.plan.random_graphs import Made, build
from tests.plan.test_placements import computed
from tests.plan.test_properties import RECIPES, TRAIN, examples, same_bits

DEVICES = ("gpu", "cpu")
SIZES = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 300, "std": 0.1}
CONTEXT = 64
HOW = {"batch_size": 2, "micro_batch_size": 1, "threads": 1}


def stepping(layers: int = 8) -> Made:
    """A training step of an MLP whose second half is on the GPU."""
    rng = np.random.default_rng(0)
    weights = [gl.parameter(rng.standard_normal((16, 16)) / 3, f"w{i}") for i in range(layers)]
    h: Value = gl.input("x", (32, 16))
    for i, w in enumerate(weights):
        with on_device("gpu" if i >= layers // 2 else "cpu"):
            h = ops.tanh(h @ w)
    outputs, updates = ended(h, gl.input("labels", (32,), "i32"), weights)
    feeds = {"x": rng.standard_normal((32, 16)).astype("f4"), "labels": np.arange(32, dtype=np.int32) % 16, "lr": 0.1}
    return Made(outputs, updates, feeds, weights)


@pytest.mark.parametrize("where", [{"device": "gpu"}, {"devices": DEVICES}], ids=["alone", "beside the CPU"])
def test_a_step_within_budgets(where: dict[str, Any]) -> None:
    made = stepping()
    run = gl.compile(made.outputs, made.updates, **where)
    want, names = computed(made, run), DEVICES if "devices" in where else DEVICES[:1]
    most = peaks(run.plan)
    least = {}
    for name in names:
        with pytest.raises(BudgetError, match="at least") as caught:
            gl.compile(made.outputs, made.updates, memory={name: 1}, **where)
        least[name] = caught.value.least
    for share in (0.0, 0.5, 1.0):
        memory = {name: least[name] + int(share * (most[name] - least[name])) for name in names}
        run = gl.compile(made.outputs, made.updates, memory=memory, **where)
        assert all(peaks(run.plan)[name] <= memory[name] for name in names)
        assert same_bits(computed(made, run), want), memory
    assert all(least[name] < most[name] for name in names)


def peaks(made: Any) -> dict[str, int]:
    if isinstance(made, Schedule):
        return {name: part.plan.peak_bytes for name, part in made.parts.items()}
    return {"gpu": made.peak_bytes}


@examples(6)
@given(RECIPES, TRAIN, st.integers(0, 2**32), st.floats(0.3, 1.0))
def test_random_placements_within_budgets(recipe: list[int], train: int, seed: int, share: float) -> None:
    made, rng = build(recipe, train), random.Random(seed)
    for node in reachable([*made.outputs, *made.updates]):
        node.device = None if node.op.leaf else rng.choice([*DEVICES, None])
    run = gl.compile(made.outputs, made.updates, devices=DEVICES)
    if not isinstance(run.plan, Schedule):
        return
    want, memory = computed(made, run), {name: max(1, int(share * most)) for name, most in peaks(run.plan).items()}
    for _ in range(3):
        try:
            run = gl.compile(made.outputs, made.updates, devices=DEVICES, memory=memory)
        except BudgetError as error:
            name = next(name for name in memory if f"'{name}'" in str(error))
            memory[name] = error.least
    assert all(bytes <= memory[name] for name, bytes in peaks(run.plan).items())
    assert same_bits(computed(made, run), want), run.plan


# ---- fine-tuning ------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_random(tmp_path / "model.gguf", kind="f32", context=CONTEXT, **SIZES))


def planned(path: str, **where: Any) -> MemoryPlan:
    return plan(path, adapter(), context=CONTEXT, **HOW, **where)


def adapter() -> gl.llm.TrainedTensors:
    """Everything: the head, which is the embedding as well, stays on the CPU if only some blocks are on a GPU."""
    return gl.llm.TrainedTensors("all", "f32")


def least_of(path: str, **where: Any) -> int:
    """About the least gpu_memory, by the error."""
    with pytest.raises(SettingError) as caught:
        planned(path, gpu_memory=1, **where)
    assert caught.value.setting in ("gpu_memory", "gpu_layers")
    text = str(caught.value)
    number, unit = text.partition("take " if "take " in text else "at least about ")[2].split()[:2]
    return int(1.03 * float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit.strip(",;")])


def total(found: MemoryPlan) -> int:
    assert found.on_device is not None
    return found.on_device.total


@pytest.mark.parametrize("where", [{"device": "gpu"}, {"gpu_layers": 2}], ids=str)
def test_a_fine_tuning_within_gpu_memory(path: str, where: dict[str, Any]) -> None:
    """The bytes on the GPU are those of the plan, the losses those without a budget."""
    whole = planned(path, gpu_memory="1GiB", **where)
    least = least_of(path, **where)
    assert whole.recomputed == 0 and least < total(whole)
    wanted = tuned(path, **where)[1]
    budget = (2 * least + total(whole)) // 3
    found = planned(path, gpu_memory=budget, **where)
    assert total(found) <= budget and found.recomputed > 0 and found.recompute_overhead > 0
    named = dict(found.lines())["computed again"]
    assert ("on gpu" in named and "gpu's part" in named) == ("gpu_layers" in where), named
    with own_device() as device:
        run, losses = tuned(path, gpu_memory=budget, **where)
        promised = run.memory().on_device
        assert promised is not None and device.bytes == promised.lasting and device.peak_bytes <= budget
    assert losses == wanted


class Losses(gl.train.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def on_batch(self, batch: Any) -> None:
        self.all.append(batch.loss)


def tuned(path: str, **where: Any) -> tuple[Any, list[float]]:
    """(the run, its losses)."""
    heard = Losses()
    run = gl.llm.finetune(
        path, packed(rows=4, length=CONTEXT, vocab=SIZES["vocab"]), adapter(), steps=2, val_split=0,
        callbacks=[heard], progress=False, **HOW, **where,
    )  # fmt: skip
    return run, heard.all


def test_auto_takes_the_blocks_that_fit_with_recomputation(path: str) -> None:
    two, three = (least_of(path, gpu_layers=count) for count in (2, 3))
    alone = total(planned(path, gpu_layers=2, gpu_memory="1GiB"))
    budget = (two + min(alone, three)) // 2
    assert two < budget < alone, "two blocks fit with recomputation, and not without"
    found = planned(path, gpu_layers="auto", gpu_memory=budget)
    assert found.layers is not None and found.layers.count == 2 and found.recomputed > 0 and total(found) <= budget


def test_the_command_shows_what_is_computed_again(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    budget = least_of(path, device="gpu")
    words = ["plan", path, "--method", "full", "--train-dtype", "f32", "--context", CONTEXT, "--threads", 1]
    words += ["--batch-size", 2, "--micro-batch-size", 1]
    code, out, err = command(capsys, *words, "--device", "gpu", "--gpu-memory", budget, "--json")
    report = json.loads(out.splitlines()[-1])
    assert code == 0 and report["device_bytes"] <= budget and report["recomputed_bytes"] > 0
    assert "computed again" in err + out
    code, _, err = command(capsys, *words, "--device", "gpu", "--gpu-memory", "1K")
    assert code == 2 and "--gpu-memory 1K: must be at least about" in err
    code, _, err = command(capsys, *words, "--gpu-memory", "1G")
    assert code == 2 and "--gpu-memory 1G requires --gpu-layers or --device" in err


@pytest.mark.no_adapter
def test_gpu_memory_of_what_trains_nothing_requires_layers(path: str) -> None:
    for ask in (gl.llm.generate, gl.llm.evaluate):
        with pytest.raises(SettingError, match="gpu_memory='1GiB' requires gpu_layers$"):
            ask(path, "a", device="gpu", gpu_memory="1GiB")
