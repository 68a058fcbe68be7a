"""The bytes that a plan promises on a device are those of the buffers that the run has made there."""

from __future__ import annotations

import json
from dataclasses import replace
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


PLACES: list[dict[str, Any]] = [
    {"device": "gpu"},
    {"gpu_layers": 1},
    {"gpu_layers": "auto", "gpu_memory": "1500K"},
    {"devices": ("gpu", "cpu")},
]


@pytest.mark.parametrize("where", PLACES, ids=str)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_is_planned_before_is_what_the_run_holds(tmp_path: Path, method: str, where: dict[str, Any]) -> None:
    """llm.plan makes no buffer, and promises what finetune then makes: here and there, by the byte."""
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES | {"layers": 2})
    data = packed(rows=7, length=14, vocab=SIZES["vocab"])
    more: dict[str, Any] = {"val_split": 0.3, **where, **HOW}
    if method == "lora":
        more |= {"sample_prompt": "a", "sample_tokens": 2, "ema": 0.9}
    with own_device() as device:
        planned = plan(str(path), adapter_of(method), data, method=method, **more)
        assert device.bytes == 0 and planned.on_device is not None and planned.device == "gpu"
        some = plan(str(path), adapter_of(method), method=method, context=14, **more)
        assert some.on_device is not None and (
            some.layers != planned.layers or some.on_device.total >= planned.on_device.total - 14 * 12 * 7
        )
        run = Run(str(path), data, adapter_of(method), method=method, steps=2, **more)
        run.prepare()
        assert replace(run.memory(), available=planned.available) == planned
        assert (planned.layers is None) == ("gpu_layers" not in where)
        run.train(progress=False)
        assert device.bytes == planned.on_device.lasting and device.peak_bytes <= planned.on_device.total


@pytest.mark.parametrize("where", [[], ["--device", "gpu"], ["--gpu-layers", 1]], ids=str)
def test_the_commands_plan_and_finetune_tell_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: list[Any]
) -> None:
    path, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    write_random(path, kind="q4_0", **SIZES)
    text.write_text("the sea and the boat\n" * 60)
    words = [path, text, "--context", 16, "--val-split", 0.4, "--batch-size", 3, "--sample-prompt", "the", *where]
    told = []
    for command_words in (["plan", *words], ["finetune", *words, "--out", tmp_path / "a.gguf", "--steps", 1]):
        code, out, err = command(capsys, *command_words, "--json")
        assert code == 0, err
        told.append(json.loads(out.splitlines()[-1]))
    planned, promised = told[0]["peak_bytes"], told[1]["planned_total_bytes"]
    assert abs(promised - planned) < 32 << 20  # one process: what it holds before each command differs
    for name in ("device_bytes", "on_device", "transfers", "transferred_bytes", "gpu_layers", "gpu_head"):
        assert told[0].get(name) == told[1].get(name), name
    assert ("device_bytes" in told[0]) == bool(where)


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
