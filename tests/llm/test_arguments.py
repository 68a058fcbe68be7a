"""What the functions of gl.llm take for a model, an adapter and data: objects, or the files that hold them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError, SettingError
from gradloom.llm import LoRA, TrainedTensors, load
from tests.llm.random_models import rows_of, write

TRAIN: dict[str, Any] = {"steps": 2, "batch_size": 2, "val_split": 0.0, "threads": 1, "progress": False, "lr": 1e-2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, an adapter for it as llama.cpp loads it, and as PEFT does."""
    folder = tmp_path_factory.mktemp("files")
    model = load(write(folder))
    adapter = LoRA(rank=2, seed=1)
    adapter.bind(model)
    for b in adapter.b.values():
        b.assign(np.full(b.shape, 0.02, np.float32))
    adapter.save(folder / "a.gguf")
    adapter.save(folder / "peft")
    return Path(model.path), folder / "a.gguf", folder / "peft"


# name -> what it makes of a model, an adapter and data, as something that can be compared
CALLS: dict[str, Any] = {
    "generate": lambda m, a, d: gl.llm.generate(m, [5, 6], adapter=a, max_tokens=4, temperature=0),
    "evaluate": lambda m, a, d: gl.llm.evaluate(m, d, a, threads=1).nll,
    "plan": lambda m, a, d: gl.llm.plan(m, a, context=16, batch_size=1).trained,
    "verify": lambda m, a, d: gl.llm.verify(m, d, a, reference=False, threads=1).loss,
    "finetune": lambda m, a, d: gl.llm.finetune(m, d, a, **TRAIN).report["train_loss"],
    "Run": lambda m, a, d: gl.llm.Run(m, d, a, steps=1, val_split=0.0).report["parameters_trained"],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_path_is_loaded(files: tuple[Path, Path, Path], name: str) -> None:
    path, gguf, peft = files
    model = load(path)
    found = []
    for m, a in ((model, LoRA.load(gguf, model)), (str(path), str(gguf)), (path, peft), (model, gguf)):
        found.append(CALLS[name](m, a, rows_of(2, 16)))
    assert found[1:] == found[:1] * 3
    assert name == "generate" or CALLS[name](path, None, rows_of(2, 16)) != found[0]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_model_and_no_adapter(files: tuple[Path, Path, Path], name: str) -> None:
    path, gguf, _ = files
    rows = rows_of(2, 16)
    for wrong in (None, 5, rows, LoRA()):
        with pytest.raises(
            SettingError, match=rf"^\w+: model is an? {type(wrong).__name__}; need a Model \(gl.llm.load"
        ):
            CALLS[name](wrong, None, rows)
    for wrong in (5, rows, load(path), LoRA):
        with pytest.raises(SettingError, match=r"^\w+: adapter is .*; need a LoRA, TrainedTensors, or the path of an"):
            CALLS[name](path, wrong, rows)
    if name not in ("generate", "plan"):
        for wrong in (None, 5, ["a text"], load(path)):
            with pytest.raises(DataError, match=r"^data: .*; need a (path|dict)"):
                CALLS[name](path, gguf, wrong)


def test_a_model_where_a_path_is_needed(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    path, gguf, _ = files
    model = load(path)
    for call, wrong in (
        (lambda: load(model), "load: model is a Model; must be the path of a GGUF file"),  # type: ignore[arg-type]
        (lambda: gl.llm.merge(model, gguf, tmp_path / "m.gguf"), "merge: model_path is a Model; must be a path"),
        (lambda: gl.llm.merge(path, LoRA(), tmp_path / "m.gguf"), "merge: adapter_path is a LoRA; must be a path"),
        (lambda: gl.llm.merge(path, gguf, None), "merge: out_path is a NoneType; must be a path"),
        (lambda: LoRA.load(LoRA(), model), "LoRA.load: path is a LoRA; must be a path"),
        (lambda: gl.llm.read_samples(path.with_suffix(".txt"), model), "read_samples: tokenizer is a Model; need"),
        (lambda: gl.llm.read_samples(model, model.tokenizer), "read_samples: path is a Model; must be a path"),
        (lambda: gl.llm.pack(rows_of(), 16), "pack: samples is a SimpleNamespace; need Samples (gl.llm.read_samples)"),
    ):
        with pytest.raises(SettingError, match="^" + re.escape(wrong)):
            call()
    assert LoRA.load(gguf, path).parameter_count == LoRA.load(gguf, model).parameter_count  # type: ignore[arg-type]
    assert not (tmp_path / "m.gguf").exists()


def test_a_trained_model_stands_in_place_of_an_adapter(files: tuple[Path, Path, Path]) -> None:
    """TrainedTensors go where an adapter goes; a file of them is a model."""
    path = files[0]
    assert CALLS["plan"](path, TrainedTensors("attn_q"), None) > 0
    with pytest.raises(gl.FileError, match=r"general\.type is 'model'|adapter"):
        CALLS["plan"](path, path, None)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [("special", True, '"special"'), ("loss_on", "all", '"train_on_all"'), ("out", "a.gguf", "run.save")],
)
def test_options_of_the_command_are_named(files: tuple[Path, Path, Path], name: str, value: Any, hint: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}.*{hint}"):
        gl.llm.finetune(files[0], rows_of(2, 16), **TRAIN, **{name: value})


def test_a_stop_text_is_a_text(files: tuple[Path, Path, Path]) -> None:
    stop: Any = 5
    with pytest.raises(SettingError, match="stop=5"):
        gl.llm.generate(files[0], [5, 6], max_tokens=2, stop=stop)
