"""No command and no `save` writes over a file that it reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gradloom import FileError
from gradloom.cli.main import main
from gradloom.llm import LoRA, TrainedTensors, load
from gradloom.llm.finetune import Run
from gradloom.llm.merge import merge
from tests.llm.random_models import write

ROUTES = ["itself", "dots", "symlink", "hardlink"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A model, its adapter as a file and as a folder, a text; a table and the model that was fitted to it."""
    folder = tmp_path_factory.mktemp("made")
    path = write(folder, "llama", chat=True, context=64)
    shutil.copy(path, folder / "m.gguf")
    model = load(folder / "m.gguf")
    adapter = LoRA(rank=2)
    adapter.bind(model)
    adapter.save(folder / "a.gguf")
    adapter.save(folder / "peft")
    (folder / "t.txt").write_text("once upon a time there was a little girl " * 60)
    rows = np.random.default_rng(0).normal(size=(40, 2))
    (folder / "w.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{'xy'[int(a > 0)]}\n" for a, b in rows))
    assert main(["fit", str(folder / "w.csv"), "--epochs", "1", "--out", str(folder / "fitted"), "--threads", "1"]) == 0
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    return tmp_path / "x"


def by(route: str, path: str) -> str:
    """Another name of the same file."""
    suffix = Path(path).suffix
    if route == "dots":
        folder = os.path.dirname(os.path.abspath(path))
        return os.path.join(os.path.dirname(path), "..", os.path.basename(folder), os.path.basename(path))
    if route == "symlink":
        os.symlink(os.path.abspath(path), f"link{suffix}")
        return f"link{suffix}"
    if route == "hardlink":
        os.link(path, f"other{suffix}")
        return f"other{suffix}"
    return path


TUNE = ["finetune", "m.gguf", "t.txt", "--context", "16", "--steps", "1", "--threads", "1"]
FULL = [*TUNE, "--method", "full", "--lr", "1e-3"]
COMMANDS = {
    "lora over the model": (TUNE, "--out", "m.gguf"),
    "full over the model": (FULL, "--out", "m.gguf"),
    "full over the adapter's model": ([*TUNE, "--lora", "a.gguf"], "--out", "m.gguf"),
    "merge over the adapter": (["merge", "m.gguf", "a.gguf"], "-o", "a.gguf"),
    "merge over the model": (["merge", "m.gguf", "a.gguf"], "-o", "m.gguf"),
    "merge over a folder's file": (["merge", "m.gguf", "peft"], "-o", "peft/adapter_model.safetensors"),
    "quantize over the model": (["quantize", "m.gguf"], "-o", "m.gguf"),
    "predict over the rows": (["predict", "fitted", "w.csv"], "--out", "w.csv"),
    "predict over the model": (["predict", "fitted/model.safetensors", "w.csv"], "--out", "fitted/model.safetensors"),
    "predict into the model's folder": (["predict", "fitted", "w.csv"], "--out", "fitted/model.safetensors"),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_refuses_to_write_over_its_input(place, capsys, case, route):
    command, option, target = COMMANDS[case]
    before = Path(target).read_bytes()
    given = by(route, target)
    assert main([*command, option, given]) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line]
    assert out == "" and len(said) == 1, err  # before any work is done
    assert said[0].startswith(f"gradloom: {given}: ") and "read" in said[0], err
    assert Path(target).read_bytes() == before


def test_the_full_default_does_not_replace_the_model(place, capsys):
    """`model.gguf` is what --method full writes when not told otherwise."""
    os.rename("m.gguf", "model.gguf")
    before = Path("model.gguf").read_bytes()
    assert main(["finetune", "model.gguf", *FULL[2:]]) == 2
    assert "model.gguf: " in capsys.readouterr()[1] and Path("model.gguf").read_bytes() == before


def test_finetune_does_not_replace_its_text(place, capsys):
    os.link("t.txt", "o.gguf")
    assert main([*TUNE, "--out", "o.gguf"]) == 2
    said = capsys.readouterr()[1]
    assert said == "gradloom: o.gguf: is the same file as t.txt, which is read; need another one to write\n"


def test_fit_does_not_write_over_its_rows(place, capsys):
    """The files of the folder that fit writes are asked for, too."""
    os.makedirs("out")
    os.link("w.csv", "out/result.json")
    before = Path("w.csv").read_bytes()
    assert main(["fit", "w.csv", "--epochs", "1", "--out", "out"]) == 2
    assert "result.json: " in capsys.readouterr()[1] and Path("out/result.json").read_bytes() == before


@pytest.mark.parametrize("route", ROUTES)
def test_python_refuses_it_too(place, route):
    model, given = load("m.gguf"), by(route, "m.gguf")
    before = Path("m.gguf").read_bytes()
    adapter, full = LoRA.load("a.gguf", model), TrainedTensors()
    full.bind(model)
    for save in (adapter.save, full.save, lambda path: merge("m.gguf", "a.gguf", path)):
        with pytest.raises(FileError, match=r"^\S+: .*m\.gguf.* read"):
            save(given)
    run = Run(model, "t.txt", adapter, context=16, steps=1, threads=1)
    os.link("t.txt", "t.gguf")
    for path in (given, "t.gguf"):
        with pytest.raises(FileError, match="read"):
            run.save(path)
    assert Path("m.gguf").read_bytes() == before


def test_a_folder_of_peft_does_not_replace_the_model(place):
    """adapter_model.safetensors that is another name of the GGUF model."""
    model = load("m.gguf")
    os.remove("peft/adapter_model.safetensors")
    os.link("m.gguf", "peft/adapter_model.safetensors")
    before = Path("m.gguf").read_bytes()
    with pytest.raises(FileError, match="read"):
        LoRA.load("a.gguf", model).save("peft")
    assert Path("peft/adapter_model.safetensors").read_bytes() == before


@pytest.mark.parametrize("adapter", ["a.gguf", "peft"])
def test_training_of_an_adapter_goes_on_in_place(place, adapter):
    """--lora A --out A: the one input that may be written over, whole or not at all."""
    assert main([*TUNE, "--lora", adapter, "--out", adapter]) == 0
    assert LoRA.load(adapter, load("m.gguf")).a
