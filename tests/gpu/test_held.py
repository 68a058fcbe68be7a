"""The bytes that a plan promises on a device are those of the buffers that the run has made there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.base.settings import switches
from gradloom.llm.finetune import Run
from gradloom.llm.plan import plan
from gradloom.run.backend import device_bytes
from tests.cli.command import run as command
from tests.gpu.adapter import SMALL, own_device
from tests.llm.random_models import packed

SIZES = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 300, "std": 0.1}
HOW = {"batch_size": 3, "micro_batch_size": 2, "threads": 1}


def adapter_of(method: str) -> Any:
    return gl.llm.LoRA(rank=4, seed=1) if method == "lora" else None


@pytest.mark.parametrize(
    ("kind", "method", "pieces"),
    [
        ("f32", "lora", None),
        ("q8_0", "lora", SMALL),
        ("q4_0", "lora", None),
        ("f32", "full", None),
        ("q4_0", "full", SMALL),
    ],
)
def test_a_fine_tuning_holds_what_its_plan_promised(tmp_path: Path, kind: str, method: str, pieces: int | None) -> None:
    """All buffers that are there after the run, and at its peak, by the byte."""
    path = write_random(tmp_path / "model.gguf", kind=kind, **SIZES)
    data = packed(rows=7, length=14, vocab=SIZES["vocab"])
    with own_device(pieces) as device:
        more = {"train_dtype": "f32"} if kind != "f32" and method == "full" else {}
        run = Run(
            str(path), data, adapter_of(method), method=method, val_split=0.2, steps=5, device="gpu",
            sample_prompt="a", sample_every="2steps", sample_tokens=2, **HOW, **more,
        )  # fmt: skip
        run.prepare()
        promised = run.memory().on_device
        assert promised is not None
        run.train(progress=False)
        assert device.bytes == promised.lasting, promised
        for parameter in run.adapter.parameters().values():
            parameter.numpy()
        assert device.bytes == promised.lasting, "a transfer left something behind"
        assert promised.lasting < device.peak_bytes <= promised.total


def test_more_steps_hold_no_more(tmp_path: Path) -> None:
    """Two steps and 150 of them: the same buffers."""
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    held = []
    for steps in (2, 70):
        with own_device() as device:
            data = packed(rows=4, length=6, vocab=SIZES["vocab"])
            gl.llm.finetune(
                str(path), data, adapter_of("lora"), device="gpu", batch_size=1, steps=steps, val_split=0,
                progress=False,
            )  # fmt: skip
            held.append(device.bytes)
    assert held[0] == held[1]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_is_planned_before_is_what_the_run_holds(tmp_path: Path, method: str) -> None:
    """llm.plan makes no buffer, and promises what finetune then makes, but for the rows of its data."""
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    with own_device() as device:
        planned = plan(str(path), adapter_of(method) or gl.llm.TrainedTensors("all"), device="gpu", context=14, **HOW)
        assert device.bytes == 0 and planned.on_device is not None and planned.device == "gpu"
        run = Run(
            str(path), packed(rows=4, length=14, vocab=SIZES["vocab"]), adapter_of(method), method=method,
            val_split=0.25, device="gpu", **HOW,
        )  # fmt: skip
        run.prepare()
        made = run.memory()
    assert made.on_device == planned.on_device
    assert planned.total < planned.weights + 3 * (planned.trained + planned.state) + planned.process + (1 << 10)


def test_fit_holds_what_its_programs_need() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((50, 9)).astype(np.float32), rng.integers(0, 3, 50)
    with own_device() as device:
        net = gl.nn.Sequential(gl.nn.Linear(9, 7), gl.nn.ReLU(), gl.nn.Linear(7, 3))
        trainer = gl.train.Trainer(net, optimizer=gl.optim.AdamW(lr=1e-2), device="gpu")
        source = trainer.source(gl.data.Dataset(*data))
        result = gl.train.Result()
        trainer.run_rows(source, 0, 50, result, batch_size=8)
        trainer.run_rows(source, 0, 50, result, batch_size=8, backward=False)
        promised = device_bytes("gpu", trainer.plans, switches())
        assert promised is not None and device.bytes == promised.lasting > 0
        assert device.peak_bytes <= promised.total


def test_the_command_plans_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_random(tmp_path / "model.gguf", kind="q8_0", **SIZES)
    with own_device() as device:
        code, out, _ = command(capsys, "plan", path, "--context", 14, "--device", "gpu", "--json")
        assert code == 0 and device.bytes == 0
    told = json.loads(out.splitlines()[-1])
    assert told["device"] == "gpu" and told["device_bytes"] == sum(told["on_device"].values()) > 0
    assert "\non gpu  " in out and "\nuploaded  " in out and "\nscratch  " not in out
    assert 0 < told["uploaded_bytes"] <= told["on_device"]["arrays_bytes"]
    code, out, _ = command(capsys, "plan", path, "--context", 14, "--json")
    assert code == 0 and "on_device" not in json.loads(out.splitlines()[-1])
    code, _, err = command(capsys, "plan", path, "--device", "gpu:99")
    assert code == 2 and "gpu:99: there is no such adapter" in err


def test_the_commands_tell_what_they_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text, rows = tmp_path / "model.gguf", tmp_path / "text.txt", tmp_path / "rows.csv"
    write_random(model, kind="f32", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    rows.write_text("a,b,y\n" + "".join(f"{i % 7},{i % 3},{'x' if i % 2 else 'z'}\n" for i in range(60)))
    sizes = ["--context", 16, "--steps", 2, "--batch-size", 2, "--val-split", 0]
    for words in (
        ["finetune", model, text, *sizes, "--out", tmp_path / "adapter.gguf"],
        ["fit", rows, "--epochs", 2, "--out", tmp_path / "fit"],
    ):
        with own_device() as device:
            code, out, err = command(capsys, *words, "--device", "gpu", "--json")
            told = json.loads(out.splitlines()[-1])
            assert code == 0 and 0 < device.bytes < device.peak_bytes <= told["device_bytes"], words
            assert "of its memory" in err
