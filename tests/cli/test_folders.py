"""Commands on a Hugging Face folder as base model."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradloom.base.errors import FileError
from gradloom.cli.main import main
from gradloom.files import claim, load_arrays, open_gguf
from gradloom.llm import LoRA, load
from gradloom.llm.input_digest import digest
from tests.llm.other_program import use
from tests.llm.random_folders import HEADS, KV_HEADS, write_folder

TRAINING = ["--steps", "3", "--context", "32", "--batch-size", "4"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(the folder of a model, a text)."""
    root = tmp_path_factory.mktemp("folders")
    (root / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    return str(write_folder(root / "model", 2)), str(root / "text.txt")


def test_info_plan_evaluate_generate(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    model, text = places
    assert main(["info", model, "--json"]) == 0
    out = capsys.readouterr().out
    assert "Hugging Face folder" in out
    facts = json.loads(out[out.index("\n{") :])
    assert (facts["architecture"], facts["layers"], facts["heads"], facts["supported"]) == ("llama", 2, HEADS, True)
    assert main(["plan", model, text, "--context", "32"]) == 0
    assert main(["evaluate", model, text, "--context", "32"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["generate", model, "--prompt", "The", "--max-tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("The")


def test_info_names_a_tokenizer_that_is_not_supported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_folder(tmp_path / "model")
    path = model / "tokenizer.json"

    def shown() -> tuple[str, str | None]:
        assert main(["info", str(model), "--json"]) == 0
        out = capsys.readouterr().out
        return out, json.loads(out[out.index("\n{") :])["tokenizer_problem"]

    out, problem = shown()
    assert problem is None and "not supported" not in out
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | {"model": given["model"] | {"type": "Unigram"}}))
    out, problem = shown()
    assert problem == f"{path}: model.type is 'Unigram', which is not supported; need BPE"
    assert f"the tokenizer is not supported: {problem}" in out
    path.unlink()
    assert "has no tokenizer.json" in (shown()[1] or "")


def test_an_adapter_is_equal_in_both_forms(places: tuple[str, str], tmp_path: Path, capsys: object) -> None:
    """GGUF files of llama permute rows of q and k; PEFT's folder names the base by its path."""
    model, text = places
    for out in ("peft", "a.gguf"):
        assert main(["finetune", model, text, "--out", str(tmp_path / out), *TRAINING]) == 0
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == os.path.abspath(model)
    arrays = load_arrays(tmp_path / "peft" / "adapter_model.safetensors")[0]
    written = open_gguf(tmp_path / "a.gguf")
    for short, heads in (("q", HEADS), ("k", KV_HEADS), ("v", 0)):
        ours = arrays[f"base_model.model.model.layers.1.self_attn.{short}_proj.lora_B.weight"]
        assert np.abs(ours).max() > 0
        if heads:
            ours = ours.reshape(heads, 2, -1, ours.shape[1]).swapaxes(1, 2).reshape(ours.shape)
        np.testing.assert_array_equal(written.array(f"blk.1.attn_{short}.weight.lora_b"), ours)
    base = load(model)
    loaded = [LoRA.load(tmp_path / out, base) for out in ("peft", "a.gguf")]
    for name, b in loaded[0].b.items():
        np.testing.assert_array_equal(b.stored.read(), loaded[1].b[name].stored.read())


def test_a_run_is_resumed(places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = places
    run = ["finetune", model, text, "--out", str(tmp_path / "a"), "--run", str(tmp_path / "run"), *TRAINING]
    assert main([*run, "--checkpoint-every", "1step"]) == 0
    assert main(["finetune", "--resume", "--out", str(tmp_path / "a"), "--run", str(tmp_path / "run")]) == 0
    assert digest(model) in (tmp_path / "run" / "settings.toml").read_text()


def test_the_digest_is_of_all_files_that_are_read(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", 2)
    before = digest(model)
    (model / "README.md").write_text("notes")
    assert digest(model) == before
    (model / "generation_config.json").write_text("{}")
    assert digest(model) != before


def test_full_training_writes_a_gguf_file(places: tuple[str, str], tmp_path: Path, capsys: object) -> None:
    model, text = places
    out = str(tmp_path / "full.gguf")
    assert main(["finetune", model, text, "--out", out, "--method", "full", *TRAINING]) == 0
    assert main(["evaluate", out, text, "--context", "32"]) == 0


def test_a_folder_that_no_gguf_file_holds_is_refused_before_training(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = write_folder(tmp_path / "model", form="own"), tmp_path / "full.gguf"
    capsys.readouterr()
    words = ["finetune", str(model), places[1], "--out", str(out), *TRAINING]
    assert main([*words, "--method", "full"]) != 0
    err = capsys.readouterr().err
    assert "GGUF" in err and "steps of" not in err and err.count("\n") == 1 and not out.exists(), err
    assert main([*words[:4], str(tmp_path / "adapter"), *TRAINING]) == 0


def test_merging_into_a_folder_and_a_file(places: tuple[str, str], tmp_path: Path, capsys: object) -> None:
    model, text = places
    adapter = str(tmp_path / "adapter")
    assert main(["finetune", model, text, "--out", adapter, *TRAINING]) == 0
    arrays = []
    for out in (str(tmp_path / "merged"), str(tmp_path / "merged.gguf")):
        assert main(["merge", model, adapter, "--out", out]) == 0
        arrays.append(load(out).file.array("blk.1.attn_v.weight"))
    np.testing.assert_array_equal(*arrays)
    assert not np.array_equal(arrays[0], load(model).file.array("blk.1.attn_v.weight"))
    assert main(["merge", model, adapter, "--out", model]) == 2


@pytest.mark.slow
def test_compare_and_verify_and_chat(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = places
    use(monkeypatch)  # in place of llama.cpp
    assert main(["compare", model, text, "--with", "llama.cpp"]) == 2
    need = f"gradloom: {model}: is a folder, and llama.cpp reads GGUF files; need one, such as merge writes"
    assert capsys.readouterr().err.endswith(f"{need}, or --with transformers\n")
    assert main(["verify", model, text, "--context", "16"]) == 0
    assert "all agree" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert main(["chat", model, "-n", "3"]) == 0
    assert len(capsys.readouterr().out) > 1


def test_an_adapter_is_not_written_into_the_model(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    model, text = places
    before = sorted(os.listdir(model))
    assert main(["finetune", model, text, *TRAINING, "--out", f"{model}/."]) == 2
    assert "must be another folder than the model's" in capsys.readouterr().err and sorted(os.listdir(model)) == before


@pytest.mark.slow
def test_a_folder_may_have_dots_in_its_name(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of models have version numbers; endings of other files stay errors."""
    model, text = places
    adapter = str(tmp_path / "Qwen2.5-0.5B-lora")
    assert main(["finetune", model, text, "--out", adapter, *TRAINING, "--checkpoint-every", "1step"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["Qwen2.5-0.5B-lora", "Qwen2.5-0.5B-lora.run"]
    assert main(["finetune", "--resume", "--out", adapter]) == 0
    assert main(["rerun", f"{adapter}.run"]) == 0
    assert (tmp_path / "Qwen2.5-0.5B-lora-again" / "adapter_config.json").exists()
    for out in ("Llama-3.2-1B-merged", "merged.v2", "merged."):
        assert main(["merge", model, adapter, "-o", str(tmp_path / out)]) == 0
        assert (tmp_path / out / "config.json").exists()
        assert main(["info", str(tmp_path / out)]) == 0
    capsys.readouterr()
    before = sorted(os.listdir(tmp_path))
    for ending in ("safetensors", "bin", "GGUF", "gguff", "json", "tar.gz", "run"):
        assert main(["merge", model, adapter, "-o", str(tmp_path / f"out.{ending}")]) == 2
        assert "is written as FILE.gguf" in capsys.readouterr().err
        assert main(["finetune", model, text, "--out", str(tmp_path / f"out.{ending}"), *TRAINING]) == 2
        assert "must be FILE.gguf (for llama.cpp) or a folder (for PEFT)" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before


KILLED = """
import os, signal, sys
left, replace = int(sys.argv[1]), os.replace
def counted(*names):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*names)
os.replace = counted
from gradloom.cli.main import main
main(sys.argv[2:])
"""


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def trained(places: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """(model, adapter, merged folder)"""
    model, text = places
    root = tmp_path_factory.mktemp("trained")
    assert main(["finetune", model, text, "--out", str(root / "adapter"), *TRAINING]) == 0
    assert main(["merge", model, str(root / "adapter"), "-o", str(root / "merged")]) == 0
    return model, str(root / "adapter"), root / "merged"


@pytest.mark.slow
@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_killed_merge_into_a_folder_is_repeated(
    trained: tuple[str, str, Path], tmp_path: Path, capsys: object, moves: int
) -> None:
    """Killed before the change is committed, before its files are moved, and when one is: no file of it stays."""
    model, adapter, merged = trained
    other, out = tmp_path / "model", tmp_path / "merged"
    shutil.copytree(model, other)
    (other / "special_tokens_map.json").write_text("{}")
    words = ["merge", str(other), adapter, "-o", str(out)]
    done = subprocess.run([sys.executable, "-c", KILLED, str(moves), *words], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = os.listdir(out)
    assert ".gradloom.lock" in names and (".gradloom.commit" in names) == (moves > 0)
    assert sum(not name.startswith(".") for name in names) == max(moves - 1, 0)
    assert main(["merge", model, adapter, "-o", str(out)]) == 0
    assert bytes_in(out) == bytes_in(merged)


def test_folders_that_a_merge_does_not_fill(
    trained: tuple[str, str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, adapter, merged = trained
    out = tmp_path / "out"
    out.mkdir()
    assert main(["merge", model, adapter, "-o", f"{out}/"]) == 0
    assert bytes_in(out) == bytes_in(merged)
    capsys.readouterr()
    for path in (out, Path(model)):
        before = bytes_in(path)
        assert main(["merge", model, adapter, "-o", str(path)]) == 2
        need = "need a new folder or an empty one: choose another name, or remove it first"
        assert capsys.readouterr().err == f"gradloom: {path}: is a folder with files ({min(before)}); {need}\n"
        assert bytes_in(path) == before
    (tmp_path / "file").write_text("notes")
    assert main(["merge", model, adapter, "-o", str(tmp_path / "file")]) == 2
    assert "is a file; need the name of a new folder" in capsys.readouterr().err
    assert main(["merge", model, adapter, "-o", str(tmp_path / "none" / "out")]) == 2
    assert "none does not exist" in capsys.readouterr().err and sorted(os.listdir(tmp_path)) == ["file", "out"]
    part = out / ".gradloom.part.abcdefgh.config.json"
    for path in out.iterdir():
        path.unlink()
    part.write_text("left")
    bad = str(tmp_path / "no-adapter")
    assert main(["merge", model, bad, "-o", str(out)]) != 0 and part.exists()
    with claim(out, is_folder=True):
        capsys.readouterr()
        assert main(["merge", model, adapter, "-o", str(out)]) == 2
        assert "another run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_an_adapter_is_not_written_into_a_folder_of_another_model(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Neither by the command nor by LoRA.save; other files are no obstacle."""
    model, text = places
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "model.gguf").write_text("another")
    (tmp_path / name).write_text("{}")
    before = bytes_in(tmp_path)
    need = f"{tmp_path}: contains {name}: it is the folder of a model; need another one for the adapter"
    assert main(["finetune", model, text, *TRAINING, "--out", str(tmp_path), "--run", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"gradloom: {need}\n"
    loaded = load(model)
    adapter = LoRA(rank=2)
    adapter.bind(loaded)
    with pytest.raises(FileError, match=re.escape(need)):
        adapter.save(tmp_path)
    assert bytes_in(tmp_path) == before
    (tmp_path / name).unlink()
    for _ in range(2):
        adapter.save(tmp_path)


def test_quantising_a_folder(places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = places
    out = str(tmp_path / "q.gguf")
    assert main(["quantize", model, "--out", out, "--type", "q8_0"]) == 0
    kinds = {tensor.kind for tensor in load(out).file.tensors.values()}
    assert "q8_0" in kinds or "f16" in kinds, kinds
    assert main(["evaluate", out, text, "--context", "32"]) == 0
    assert main(["quantize", model, "--out", model]) == 2
    assert main(["quantize", model, "--out", str(tmp_path / "folder")]) == 2


@pytest.mark.parametrize("command", ["info", "evaluate", "generate", "merge"])
def test_folders_that_are_no_model(
    trained: tuple[str, str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    model, adapter, _ = trained
    snapshots = tmp_path / "models--a--b" / "snapshots"
    (tmp_path / "models--a--b" / "refs").mkdir(parents=True)
    for number in (1, 2):
        shutil.copytree(model, snapshots / f"{number}abc0123")
    root = snapshots.parent
    more = {"info": [], "evaluate": ["text.txt"], "generate": ["--prompt", "a"], "merge": [adapter, "-o", "m.gguf"]}

    def refused(folder: Path | str, message: str) -> None:
        capsys.readouterr()
        assert main([command, str(folder), *more[command]]) != 0
        assert message in capsys.readouterr().err

    it = "has no config.json, but an adapter_config.json: it is an adapter of PEFT, not a model"
    refused(adapter, f"{adapter}: {it}; need its model, and this folder as --lora (LoRA.load)")
    run = f"{adapter}.run"
    refused(run, f"{run}: has no config.json, but a run.json: it is the folder of a run, not a model; need")
    cache = f"{root}: is an entry of the Hugging Face cache; need the folder in it: {snapshots}"
    refused(root, f"{cache}/1abc0123 or {snapshots}/2abc0123")
    (root / "refs" / "main").write_text("2abc0123\n")
    refused(root, f"{cache}/2abc0123\n")
    (root / "refs" / "main").write_text("../../x")
    refused(snapshots, f"{cache.replace(str(root), str(snapshots), 1)}/1abc0123 or {snapshots}/2abc0123")
    assert main(["info", str(snapshots / "1abc0123")]) == 0
