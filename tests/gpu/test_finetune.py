"""Fine-tuning of small GGUF models on a device beside the CPU: the same losses to f32 noise."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.gpu.backend import place_of
from gradloom.llm.generate import complete
from gradloom.optim import SGD
from tests.cli.command import run
from tests.gpu.adapter import programs_on, small_bindings
from tests.llm.random_models import packed
from tests.noise import assert_noise
from tests.real_data import need

SIZES = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 300, "std": 0.1}
WIDE = SIZES | {"width": 256, "ffn": 256}  # blocks of 256 neighbours


class Losses(gl.train.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def on_batch(self, batch: Any) -> None:
        self.all.append(batch.loss)


def run_of(path: Path, method: str, device: str, lr: float, steps: int, callbacks: Any, **settings: Any) -> Any:
    """A run of plain SGD."""
    adapter = gl.llm.LoRA(rank=4, dropout=0.1, seed=1) if method == "lora" else None
    return gl.llm.finetune(
        str(path), packed(rows=3, length=14, vocab=SIZES["vocab"]), adapter, method=method, device=device,
        batch_size=3, micro_batch_size=2, steps=steps, val_split=0, optimizer=SGD(lr=lr), callbacks=callbacks,
        progress=False, **settings,
    )  # fmt: skip


def trained(path: Path, method: str, device: str, lr: float, steps: int = 20) -> tuple[Any, Any]:
    """(losses, what was trained)."""
    heard = Losses()
    run = run_of(path, method, device, lr, steps, [heard])
    return np.array(heard.all), {name: p.numpy() for name, p in run.adapter.parameters().items()}


@pytest.mark.parametrize(
    ("kind", "method", "lr"),
    [("f32", "lora", 0.3), ("q8_0", "lora", 0.3), ("q4_k", "lora", 0.03), ("f32", "full", 0.05)],
)
def test_twenty_losses_are_those_of_the_cpu(tmp_path: Path, kind: str, method: str, lr: float) -> None:
    sizes = WIDE if kind == "q4_k" else SIZES
    path = write_random(tmp_path / "model.gguf", kind=kind, **sizes)
    here, arrays = trained(path, method, "cpu", lr)
    there, arrays_there = trained(path, method, "gpu", lr)
    assert len(here) == 20 and here[-1] < here[0] - 0.01
    assert here.tolist() != there.tolist(), "sums in another order have other bits: who computed this?"
    assert_noise(f"losses of {method} on {kind}", there, here, here, longest=sizes["width"])
    for name, array in arrays.items():
        assert_noise(name, arrays_there[name], array, array, longest=20 * sizes["width"])


@pytest.mark.parametrize(("method", "lr"), [("lora", 0.05), ("full", 0.02)])
def test_twenty_losses_of_a_model_that_tells_stories(tmp_path: Path, method: str, lr: float) -> None:
    """stories260K on some lines of Shakespeare."""
    stories, text = need("gguf/stories260K.gguf"), tmp_path / "text.txt"
    text.write_text(need("text/tinyshakespeare.txt").read_text()[:1000])
    losses = []
    for device in ("cpu", "gpu"):
        heard = Losses()
        adapter = gl.llm.LoRA(rank=4, seed=1) if method == "lora" else None
        gl.llm.finetune(
            str(stories), str(text), adapter, method=method, steps=20, device=device, context=24, batch_size=1,
            val_split=0, optimizer=SGD(lr=lr), callbacks=[heard], progress=False,
        )  # fmt: skip
        losses.append(heard.all)
    here, there = losses
    assert len(there) == 20 and here != there
    assert_noise(f"losses of {method}", there, here, here, longest=172)


def test_two_runs_give_the_same_bits(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model.gguf", kind="q8_0", **SIZES)
    (losses, arrays), (again, arrays_again) = (trained(path, "lora", "gpu", 0.3, steps=3) for _ in range(2))
    assert losses.tolist() == again.tolist()
    assert all(arrays[name].tobytes() == arrays_again[name].tobytes() for name in arrays)


@pytest.mark.parametrize(("kind", "method", "lr"), [("q8_0", "lora", 0.3), ("f32", "full", 0.05)])
def test_memory_in_pieces_gives_the_same_bits(tmp_path: Path, kind: str, method: str, lr: float) -> None:
    path = write_random(tmp_path / "model.gguf", kind=kind, **SIZES)
    losses, arrays = trained(path, method, "gpu", lr, steps=2)
    with small_bindings() as device:
        losses_there, arrays_there = trained(path, method, "gpu", lr, steps=2)
        assert any(len(run.arena.memory.pieces) > 1 for run in programs_on(device))
    assert losses_there.tolist() == losses.tolist()
    assert all(arrays_there[name].tobytes() == arrays[name].tobytes() for name in arrays)


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Ctrl-C after the second of four steps, then resume=True: the bits of a run that was never stopped."""

    class Interrupt(gl.train.Callback):
        stateless = True

        def on_batch(self, batch: Any) -> None:
            if batch.step == 2 and not stops:
                stops.append(batch.step)
                signal.raise_signal(signal.SIGINT)

    path = write_random(tmp_path / "model.gguf", kind="q8_0", **SIZES)
    _, arrays = trained(path, "lora", "gpu", 0.3, steps=4)
    folder = tmp_path / "stopped"
    stops: list[int] = []
    first = run_of(path, "lora", "gpu", 0.3, steps=4, callbacks=[Interrupt()], run=folder)
    run = run_of(path, "lora", "gpu", 0.3, steps=4, callbacks=[Interrupt()], run=folder, resume=True)
    assert (first.interrupted, first.steps, run.steps) == (True, 2, 4)
    assert {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_a_run_whose_device_is_lost_goes_on_from_its_checkpoint_on_the_cpu(tmp_path: Path) -> None:
    """The driver takes the device away after the second of four steps, which a checkpoint has."""

    class Lose(gl.train.Callback):
        stateless = True

        def on_batch(self, batch: Any) -> None:
            if batch.step == 3 and not lost:
                lost.append(place_of(0).device)
                lost[0].raw.destroy()

    lost: list[Any] = []
    path, folder = write_random(tmp_path / "model.gguf", kind="q8_0", **SIZES), tmp_path / "run"
    with pytest.raises(gl.DeviceLost, match="was lost during .*; need a checkpoint to resume from"):
        run_of(path, "lora", "gpu", 0.3, 4, [Lose()], run=folder, checkpoint_every="1steps")
    assert list((folder / "checkpoints").glob("*.json")), "no checkpoint to go on from"
    last = run_of(path, "lora", "cpu", 0.3, 4, [Lose()], run=folder, resume=True, checkpoint_every="1steps")
    here, arrays = trained(path, "lora", "cpu", 0.3, steps=4)
    assert last.steps == 4 and len(here) == 4 and lost[0].lost
    for name, array in arrays.items():
        assert_noise(name, last.adapter.parameters()[name].numpy(), array, array, longest=20 * SIZES["width"])


def test_evaluation_and_generation_are_those_of_the_cpu(tmp_path: Path) -> None:
    """Losses of rows, and the likeliest tokens after a prompt, one token at a time at the cache."""
    path = write_random(tmp_path / "model.gguf", kind="q4_0", **SIZES)
    data = packed(rows=3, length=14, vocab=SIZES["vocab"])
    found = {}
    for device in ("cpu", "gpu"):
        model = gl.llm.load(path)
        how = gl.llm.Sampling(temperature=0)
        tokens = complete(model, "the sea", max_tokens=8, how=how, device=device).tokens
        found[device] = gl.llm.evaluate(model, data, device=device).nll, tokens
    assert_noise("loss", found["gpu"][0], found["cpu"][0], found["cpu"][0], longest=SIZES["width"])
    assert found["gpu"][1] == found["cpu"][1]


def test_the_commands_take_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """finetune, evaluate and generate on a GPU; an adapter that is not there is refused before anything is read."""
    path, text, out = (tmp_path / name for name in ("model.gguf", "text.txt", "adapter.gguf"))
    nowhere = ["--device", "gpu:99"]
    code, _, err = run(capsys, "finetune", path, text, *nowhere)
    assert code != 0 and "gpu:99: there is no such adapter" in err
    write_random(path, kind="q4_0", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    for command in (["evaluate", path, text], ["generate", path, "--prompt", "the"]):
        code, _, err = run(capsys, *command, *nowhere)
        assert code != 0 and "gpu:99: there is no such adapter" in err
    sizes = ["--context", 16, "--steps", 2, "--batch-size", 2, "--val-split", 0]
    code, _, err = run(capsys, "finetune", path, text, *sizes, "--out", out, "--device", "gpu")
    assert code == 0 and f"on gpu: {place_of(0).device.name}" in err
    (checkpoint,) = (tmp_path / "adapter.run" / "checkpoints").glob("*.json")
    assert '"backend":"gpu' in checkpoint.read_text()
    found = []
    for device in ("cpu", "gpu"):
        where = ["--lora", out, "--json", "--device", device]
        code, told, _ = run(capsys, "evaluate", path, text, "--context", 16, *where)
        loss = json.loads(told)["test_loss"]
        prompt = ["--prompt", "the", "--max-tokens", 4, "--temperature", 0]
        code_of_text, written, _ = run(capsys, "generate", path, *prompt, *where)
        assert code == code_of_text == 0
        found.append((loss, json.loads(written.splitlines()[-1])["text"]))
    assert_noise("loss", found[1][0], found[0][0], found[0][0], longest=SIZES["width"])
    assert found[0][1] == found[1][1]
