"""--precision of the commands: kept with the run, repeated and resumed with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradloom.files.toml_file import parse_toml
from gradloom.run.machine import bf16_units
from tests.cli.command import run
from tests.cli.test_fit import flowers, one_thread  # noqa: F401
from tests.llm.random_models import write


def fitted(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = run(capsys, "fit", *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def test_a_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result, the settings, a repeated run and predictions."""
    monkeypatch.chdir(tmp_path)
    flowers(tmp_path / "t.csv")
    plain = fitted(capsys, "t.csv", "--epochs", 3, "--out", "plain")
    rounded = fitted(capsys, "t.csv", "--epochs", 3, "--out", "rounded", "--precision", "bf16")
    assert (plain["precision"], rounded["precision"]) == ("f32", "bf16")
    assert 0 < abs(plain["train_loss"] - rounded["train_loss"]) < 0.02 * plain["train_loss"]
    assert parse_toml(tmp_path / "rounded" / "settings.toml")["precision"] == "bf16"
    code, _, err = run(capsys, "rerun", "rounded", "--out", "again")
    assert code == 0 and "not promised" not in err
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "rounded", "again")]
    assert models[0] != models[1] == models[2]
    found = []
    for words in ((), ("--precision", "f32"), ("--precision", "bf16")):
        code, out, _ = run(capsys, "predict", "rounded", "t.csv", *words)
        assert code == 0
        found.append(out)
    assert found[0] == found[1] != found[2]
    for command in (("fit",), ("predict", "rounded")):
        code, _, err = run(capsys, *command, "t.csv", "--precision", "half")
        assert code == 2 and "half" in err


def test_the_environment_decides_what_is_not_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flowers(tmp_path / "t.csv")
    monkeypatch.setenv("GRADLOOM_PRECISION", "bf16")
    assert fitted(capsys, "t.csv", "--epochs", 1, "--out", "a")["precision"] == "bf16"
    assert parse_toml(tmp_path / "a" / "settings.toml")["precision"] == "bf16"
    assert fitted(capsys, "t.csv", "--epochs", 1, "--out", "b", "--precision", "f32")["precision"] == "f32"
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    monkeypatch.delenv("GRADLOOM_PRECISION")
    for name, model in zip("ab", models, strict=True):  # what the test rows measure is saved with it
        code, _, err = run(capsys, "rerun", name)
        assert code == 0 and "not promised" not in err, err
        assert (tmp_path / f"{name}-again" / "model.safetensors").read_bytes() == model


@pytest.mark.slow
def test_a_finetune_goes_on_in_its_precision_or_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    write(tmp_path, "llama", chat=True, context=128).rename(tmp_path / "m.gguf")
    (tmp_path / "t.txt").write_text("once upon a time there was a girl who played with her dog " * 40)
    words = ("finetune", "m.gguf", "t.txt", "--context", 32, "--out", "o.gguf", "--steps", 6)
    code, out, err = run(capsys, *words, "--precision", "bf16", "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["precision"] == "bf16", err
    assert "products in bf16" in err
    hint = "this processor has units for it"
    assert hint not in err
    code, out, _ = run(capsys, *words, "--out", "p.gguf")
    assert code == 0 and (hint in out) == bool(bf16_units())
    resume = ("finetune", "--out", "o.gguf", "--resume", "--steps", 6)
    code, out, err = run(capsys, *resume, "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["precision"] == "bf16" and "not promised" not in err, err
    code, out, err = run(capsys, *resume, "--precision", "f32", "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["precision"] == "f32", err
    other = "precision is f32 and was bf16; flush is False and was True"
    assert f"{other}: the run continues, the same bits are not promised" in err
