"""The last blocks of a language model on a GPU, the others on the CPU: beside the CPU alone."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.llm.generate import complete
from gradloom.llm.plan import plan
from gradloom.optim import SGD
from tests.cli.command import run as command
from tests.gpu.adapter import own_device
from tests.llm.random_models import packed
from tests.noise import assert_noise
from tests.refused import refused

SIZES = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 300, "std": 0.1}


class Losses(gl.train.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def on_batch(self, batch: Any) -> None:
        self.all.append(batch.loss)


def tuned(path: Path, method: str, steps: int = 20, **where: Any) -> tuple[Any, list[float]]:
    """(the run of plain SGD, its losses)."""
    heard = Losses()
    adapter = gl.llm.LoRA(rank=4, seed=1) if method == "lora" else None
    more = {} if method == "lora" else {"train_dtype": "f32"}
    run = gl.llm.finetune(
        str(path), packed(rows=3, length=14, vocab=SIZES["vocab"]), adapter, method=method, batch_size=3,
        micro_batch_size=2, steps=steps, val_split=0, optimizer=SGD(lr=0.1), callbacks=[heard], progress=False, **more,
        **where,
    )  # fmt: skip
    return run, heard.all


CASES = [
    ("f32", "lora", {"gpu_layers": 1}),
    ("q4_0", "lora", {"gpu_layers": 3}),
    ("f32", "full", {"gpu_layers": "auto", "gpu_memory": "1GiB"}),
    ("q4_0", "full", {"gpu_layers": 2}),
]


@pytest.mark.parametrize(("kind", "method", "where"), CASES)
def test_twenty_losses_are_those_of_the_cpu(tmp_path: Path, kind: str, method: str, where: dict[str, Any]) -> None:
    """And the buffers on the GPU are those that were planned."""
    path = write_random(tmp_path / "model.gguf", kind=kind, **SIZES)
    _, here = tuned(path, method, device="cpu")
    with own_device() as device:
        run, there = tuned(path, method, **where)
        promised = run.memory().on_device
        assert promised is not None and device.bytes == promised.lasting
        assert device.peak_bytes <= promised.total
    assert len(here) == 20 and there != here, "sums in another order have other bits: who computed this?"
    assert_noise(f"losses of {where}", np.array(there), np.array(here), np.array(here), longest=96)
    assert run.layers.count == (3 if where["gpu_layers"] == "auto" else where["gpu_layers"])


def test_no_layer_on_the_gpu_has_the_bits_of_the_cpu(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    alone = tuned(path, "lora", 3, device="cpu")[1]
    for where in ({"gpu_layers": 0}, {"gpu_layers": 0, "device": "cpu"}, {"gpu_layers": 2, "device": "cpu"}):
        run, losses = tuned(path, "lora", 3, **where)
        assert losses == alone and run.layers is None, where


Asks = dict[str, Callable[..., Any]]


@pytest.fixture
def asks(tmp_path: Path) -> Asks:
    """What takes gpu_layers, on a model of 3 blocks: each gives what tells of its layers."""
    path = str(write_random(tmp_path / "model.gguf", kind="f32", **SIZES))
    rows = packed(rows=3, length=14, vocab=SIZES["vocab"])
    how = {"batch_size": 1, "steps": 1, "val_split": 0, "progress": False}
    return {
        "plan": lambda **where: plan(path, context=14, batch_size=1, **where),
        "finetune": lambda **where: gl.llm.finetune(path, rows, **how, **where),
        "evaluate": lambda **where: gl.llm.evaluate(path, rows, **where),
        "generate": lambda **where: complete(gl.llm.load(path), "a", max_tokens=1, **where),
    }


def test_what_differs_from_what_was_asked_for_is_said(asks: Asks, capfd: pytest.CaptureFixture[str]) -> None:
    for who, ask in asks.items():
        for where, said, count in (
            ({"gpu_layers": 99}, "gpu_layers=99: the model has 3 blocks, and all of them are on gpu", 3),
            ({"gpu_layers": 2}, "", 2),
            ({"gpu_layers": "auto", "gpu_memory": "2k"}, r"no block fits into gpu_memory, 2.00 KiB: the .* KiB", 0),
            ({"gpu_layers": 2, "device": "cpu"}, "device='cpu' leaves no block for a GPU, of gpu_layers=2", 0),
            ({"gpu_layers": "auto", "device": "cpu"}, "device='cpu' .* for a GPU, of gpu_layers='auto'", 0),
            ({"gpu_layers": 0}, "", 0),
            ({"gpu_layers": 0, "device": "cpu"}, "", 0),
        ):  # fmt: skip
            capfd.readouterr()
            layers = ask(**where).layers
            heard = capfd.readouterr().err
            assert (0 if layers is None else layers.count) == count, (who, where)
            assert re.fullmatch(f"{who}: {said}\n" if said else "", heard), (who, where, heard)


def test_auto_keeps_to_its_budget_and_takes_as_many_as_fit(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    how = {"context": 14, "batch_size": 2, "micro_batch_size": 1, "threads": 1}
    needs = []
    for count in (1, 2, 3):
        planned = plan(str(path), gl.llm.LoRA(rank=4), gpu_layers=count, gpu_memory=1 << 40, **how)
        assert planned.on_device is not None and planned.layers is not None and planned.layers.head
        needs.append(planned.on_device.total)
    assert needs == sorted(set(needs))
    counts = []
    for budget in (1000, needs[0], needs[1] - 1, needs[1], needs[2] - 1, needs[2]):
        planned = plan(str(path), gl.llm.LoRA(rank=4), gpu_layers="auto", gpu_memory=budget, **how)
        counts.append(0 if planned.layers is None else planned.layers.count)
        assert planned.on_device is None or planned.on_device.total <= budget
    assert counts[0] == 0 and counts[1] >= 1 and counts[3] >= 2 and counts[-1] == 3 and counts == sorted(counts)
    with pytest.raises(gl.GradloomError, match="2 of 3 blocks take .* on gpu, and gpu_memory allows 1000 B; use fewer"):
        plan(str(path), gl.llm.LoRA(rank=4), gpu_layers=2, gpu_memory=1000, **how)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"gpu_layers": "auto"}, "gpu_layers='auto' requires gpu_memory"),
        ({"gpu_layers": -1}, "gpu_layers=-1: must be a number of blocks, or 'auto'"),
        ({"gpu_layers": True}, "gpu_layers=True: must be"),
        ({"gpu_layers": "2"}, "gpu_layers='2': must be"),
        ({"gpu_layers": 1, "gpu_memory": "much"}, "gpu_memory='much': must be bytes, or a text such as"),
        ({"gpu_memory": "1GiB"}, "gpu_memory='1GiB' requires gpu_layers"),
        ({"gpu_layers": 1, "device": "null"}, "device='null'; use .*'gpu:1'"),
        ({"gpu_layers": 1, "devices": ("gpu", "cpu")}, "gpu_layers and devices are mutually exclusive"),
        ({"gpu_layers": 1, "device": "cpu", "gpu_memory": "0"}, "gpu_memory='0': must be"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, where: dict[str, Any], message: str) -> None:
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    for ask in (
        lambda: plan(str(path), **where),
        lambda: gl.llm.generate(str(path), "a", **where),
        lambda: gl.llm.finetune(str(path), packed(rows=3, length=14, vocab=SIZES["vocab"]), **where),
    ):
        with pytest.raises(gl.GradloomError, match=message):
            ask()


def test_evaluation_and_generation_are_those_of_the_cpu(tmp_path: Path) -> None:
    model = gl.llm.load(write_random(tmp_path / "model.gguf", kind="q8_0", **SIZES))
    data = packed(rows=3, length=14, vocab=SIZES["vocab"])
    here = gl.llm.evaluate(model, data, device="cpu")
    there = gl.llm.evaluate(model, data, gpu_layers=2)
    assert there.nll != here.nll and there.layers is not None and there.layers.count == 2
    assert_noise("loss", there.nll, here.nll, here.nll, longest=96)
    how = gl.llm.Sampling(temperature=0)
    ours = complete(model, "the sea", max_tokens=8, how=how, device="cpu")
    split = complete(model, "the sea", max_tokens=8, how=how, gpu_layers="auto", gpu_memory="1GiB")
    assert split.tokens == ours.tokens and split.layers is not None and split.layers.head


@pytest.mark.parametrize("first", ["gpu", "cpu"])
def test_finetune_evaluate_and_generate_take_devices(tmp_path: Path, first: str) -> None:
    """Nothing is said of a model's nodes: the first device computes, with its own bits."""
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)
    devices = ("gpu", "cpu") if first == "gpu" else ["cpu", "gpu"]
    losses, nlls, texts = [], [], []
    for where in ({"device": first}, {"devices": devices}):
        run, heard = tuned(path, "lora", 3, **where)
        losses.append(heard)
        assert run.memory().device == first and (run.memory().on_device is None) == (first == "cpu")
        data = packed(rows=3, length=14, vocab=SIZES["vocab"])
        nlls.append(gl.llm.evaluate(str(path), data, run.adapter, **where).nll)
        how = {"max_tokens": 8, "temperature": 0.5, "seed": 3}
        texts.append(gl.llm.generate(str(path), ["the sea", "a boat"], run.adapter, **how, **where))
    assert losses[0] == losses[1] and nlls[0] == nlls[1] and texts[0] == texts[1]


def test_every_function_of_language_models_refuses_what_names_no_devices(asks: Asks) -> None:
    for who, ask in asks.items():
        for bad, seen in (({"gpu", "cpu"}, "must be a list or tuple of names"), (3, "devices=3: must be a list"),
                          ((), "devices is empty"), ((None,), "device=None: must be")):  # fmt: skip
            with pytest.raises(gl.SettingError) as caught:
                ask(devices=bad)
            assert seen in str(caught.value) and "\n" not in str(caught.value), who


def test_generate_by_name_takes_layers(tmp_path: Path) -> None:
    path = str(write_random(tmp_path / "model.gguf", kind="f32", **SIZES))
    how = {"max_tokens": 8, "temperature": 0}
    for where in ({"gpu_layers": 2}, {"gpu_layers": 2, "device": "gpu"}, {"gpu_layers": 9, "gpu_memory": "1G"}):
        told: list[str] = []
        text = gl.llm.generate(path, "the sea", stream=told.append, **how, **where)
        assert text == gl.llm.generate(path, "the sea", device="cpu", **how) == "".join(told), where


def test_the_commands_take_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text, out = (tmp_path / name for name in ("model.gguf", "text.txt", "adapter.gguf"))
    write_random(path, kind="q4_0", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    where = ["--gpu-layers", "auto", "--gpu-memory", "1GiB", "--json"]
    told = {}
    for name, words in {
        "plan": ["plan", path, "--context", 16],
        "finetune": ["finetune", path, text, "--context", 16, "--steps", 2, "--val-split", 0, "--out", out],
        "evaluate": ["evaluate", path, text, "--context", 16, "--lora", out],
        "generate": ["generate", path, "--prompt", "the", "-n", 2, "--lora", out],
    }.items():
        code, said, err = command(capsys, *words, *where)
        told[name] = json.loads(said.splitlines()[-1])
        assert code == 0 and "all 3 blocks and the head on gpu, the rest on the CPU" in said + err, name
        assert (told[name]["gpu_layers"], told[name]["gpu_head"]) == (3, True), name
    assert told["plan"]["transfers"] > 0 and told["plan"]["transferred_bytes"] > 0
    assert told["finetune"]["device_bytes"] > 0
    code, _, err = command(capsys, "plan", path, "--gpu-layers", "some")
    assert code == 2 and "--gpu-layers some: must be a number of blocks, or auto" in err
    code, _, err = command(capsys, "plan", path, "--gpu-layers", "auto")
    assert code == 2 and "--gpu-memory" in err and "4GiB" in err


@pytest.mark.no_adapter
def test_memory_that_is_not_usable_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text, out = (tmp_path / name for name in ("model.gguf", "text.txt", "adapter.gguf"))
    write_random(path, kind="f32", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    how = ["--context", 16, "--val-split", 0, "--batch-size", 2, "--steps", 2, "--out", out]
    code, _, err = command(capsys, "finetune", path, text, *how, "--stop-after", "0.001s")
    assert code == 0, err
    for module in ("finetune", "plan", "evaluate", "generate", "conversation"):
        monkeypatch.setattr(
            import_module(f"gradloom.llm.{module}"), "model_of", lambda *_: pytest.fail("the model is read")
        )
    monkeypatch.setattr("gradloom.llm.model.load", lambda *_: pytest.fail("the model is read"))
    for given in (["--gpu-layers", 1, "--gpu-memory", "much"], ["--gpu-memory", "1G"], ["--gpu-layers", "auto"]):
        for words in (
            ["finetune", path, text, *how, "--overwrite"],
            ["plan", path, text],
            ["evaluate", path, text],
            ["generate", path, "--prompt", "the"],
            ["chat", path],
        ):
            code, said, err = command(capsys, *words, *given)
            assert (
                code == 2
                and "--gpu-" in err
                and ("must" in err or "requires" in err)
                and err.count("\n") == 1
                and not said
            ), (words, err)
    asked: list[Callable[..., Any]] = [
        lambda **more: gl.llm.finetune(str(path), str(text), run=tmp_path / "adapter.run", overwrite=True, **more),
        lambda **more: plan(str(path), None, str(text), **more),
        lambda **more: gl.llm.evaluate(str(path), str(text), **more),
        lambda **more: gl.llm.generate(str(path), "the", **more),
        lambda **more: gl.llm.Conversation(str(path), **more),
    ]
    for ask in asked:
        with refused("gpu_memory", "much", need="bytes"):
            ask(gpu_layers=1, gpu_memory="much")
    assert "replaced" not in capsys.readouterr().err


def test_only_a_run_on_the_cpu_hears_of_its_units_for_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    write_random(path, kind="f32", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    monkeypatch.setattr("gradloom.run.machine.bf16_units", lambda: "AMX")
    how = ["--context", 16, "--val-split", 0, "--batch-size", 2, "--steps", 1, "--out", tmp_path / "adapter.gguf"]
    for where, hears in ((["--device", "gpu"], False), (["--gpu-layers", 1], True), ([], True)):
        code, out, err = command(capsys, "finetune", path, text, *how, *where)
        assert code == 0 and ("this processor has units for it" in out + err) == hears, (where, out, err)


def test_a_command_goes_on_on_the_cpu_alone_and_on_the_gpu_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--resume takes the settings of the run; what is said of devices now goes before them."""
    path, text, out = (tmp_path / name for name in ("model.gguf", "text.txt", "adapter.gguf"))
    write_random(path, kind="f32", **SIZES)
    text.write_text("the sea and the boat\n" * 40)
    how = ["--context", 16, "--val-split", 0, "--batch-size", 2, "--steps", 2, "--out", out]
    for words, said in (
        (["--gpu-layers", 2, "--device", "gpu", path, text, *how], "blocks 1-2 and the head on gpu"),
        (["--device", "cpu"], "device='cpu' leaves no block for a GPU, of gpu_layers=2\n"),
        (["--gpu-layers", 1], "block 2 and the head on gpu, the rest on the CPU"),
        (["--device", "cpu", "--gpu-layers", 0], "all blocks on the CPU"),
        (["--gpu-layers", 9], "all 3 blocks and the head on gpu, the rest on the CPU"),
    ):
        again = [] if path in words else ["--resume", "--out", out]
        code, _, err = command(capsys, "finetune", *words, *again)
        assert code == 0 and said in err, (words, err)
        assert ("the same bits are not promised" in err) == bool(again), (words, err)


def test_a_run_goes_on_with_the_same_bits_and_elsewhere_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_random(tmp_path / "model.gguf", kind="f32", **SIZES)

    def after(run: str, steps: int, **where: Any) -> dict[str, np.ndarray]:
        class Stop(gl.train.Callback):
            stateless = True

            def on_batch(self, batch: Any) -> None:
                if batch.step == steps:
                    signal.raise_signal(signal.SIGINT)

        made = gl.llm.finetune(
            str(path), packed(rows=4, length=14, vocab=SIZES["vocab"]), gl.llm.LoRA(rank=4, seed=1), batch_size=1,
            steps=4, val_split=0, callbacks=[Stop()], progress=False, run=tmp_path / run, resume=True,
            checkpoint_every="1steps", **where,
        )  # fmt: skip
        return {name: p.numpy() for name, p in made.adapter.parameters().items()}

    whole = after("whole", 9, gpu_layers=2)
    after("same", 2, gpu_layers=2)
    after("other", 2, gpu_layers=2)
    capfd.readouterr()
    same = after("same", 9, gpu_layers=2)
    assert "not promised" not in capfd.readouterr().err
    assert all(np.array_equal(same[name], array) for name, array in whole.items())
    other = after("other", 9, gpu_layers=0)
    assert "the same bits are not promised" in capfd.readouterr().err
    for name, array in whole.items():
        assert_noise(name, other[name], array, array, longest=20 * SIZES["width"])
