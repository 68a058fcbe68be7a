"""gradloom runs lists what was trained, of this version and of older ones, complete at 60 columns."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gradloom.runs.folder import RunFolder
from tests.cli.command import run
from tests.cli.test_fit import flowers, one_thread  # noqa: F401


def older(folder: Path, when: float, **result: object) -> None:
    """What a version without run.json has left."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "result.json").write_text(json.dumps(result))
    os.utime(folder / "result.json", (when, when))


def listed(capsys, folder):
    code, out, err = run(capsys, "runs", folder, "--json")
    assert code == 0
    return json.loads(out.splitlines()[-1])["runs"], err


def test_what_fit_has_trained(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    assert run(capsys, "fit", data, "--epochs", 3, "--val-split", 0.2, "--out", tmp_path / "a" / "b")[0] == 0
    [found], _ = listed(capsys, tmp_path)
    result = json.loads((tmp_path / "a" / "b" / "result.json").read_text())
    assert (found["name"], found["kind"], found["state"]) == ("a/b", "fit", "finished")
    assert (found["steps"], found["epochs"], found["data"]) == (result["steps"], 3, data)
    assert found["settings"] == "settings.toml" and found["seconds"] >= 0
    for name in ("train_loss", "val_loss", "test_accuracy"):
        assert found["numbers"][name] == result[name]
    code, out, err = run(capsys, "runs", tmp_path)
    assert code == 0 and err == "" and "a/b  fit  20" in out and "finished" in out and "3 epochs" in out
    assert f"test_accuracy {result['test_accuracy']:.4g}" in out


def test_runs_of_all_states_by_time(capsys, tmp_path, monkeypatch):
    older(tmp_path / "old", 1e9, steps=9, epochs=3, seconds=61.5, interrupted=True, train_loss=0.5, test_loss=None)
    older(tmp_path / "older", 9e8, steps=1, epochs=1, ending="stopped: nan", train_loss=0.25)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "result.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    (tmp_path / "broken" / "result.json").write_bytes(b"\xff{" * 9)
    os.utime(tmp_path / "broken" / "result.json", (8e8, 8e8))
    folder = RunFolder(tmp_path / "new", "finetune")
    folder.note(step=120, epoch=2, latest={"loss": 0.125, "loss_unc": 0.5})
    folder.path("metrics.jsonl")
    running, _ = listed(capsys, tmp_path)
    folder.end("interrupted")
    found, _ = listed(capsys, tmp_path)
    assert [one["name"] for one in found] == ["broken", "older", "old", "new"]
    assert [one["state"] for one in found] == ["finished", "failed", "interrupted", "interrupted"]
    assert running[-1]["state"] == "running" and running[-1]["numbers"] == {"loss": 0.125}
    assert (found[2]["begun"], found[2]["seconds"]) == ("2001-09-09T01:46:40+00:00", 61.5)
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run(capsys, "runs", tmp_path)
    assert code == 0 and all(len(line) <= 60 for line in out.splitlines()), out
    for text in ("old  fit", "interrupted", "3 epochs, 9 steps", "62 s", "train_loss 0.5", "2 epochs, 120 steps"):
        assert text in out
    assert "test_loss" not in out


def test_a_result_of_the_run_before_is_not_told(capsys, tmp_path):
    older(tmp_path / "a", 1e9, steps=9, epochs=3, train_loss=0.5)
    folder = RunFolder(tmp_path / "a", "fit")
    folder.path("metrics.jsonl")
    assert listed(capsys, tmp_path)[0][0]["numbers"] == {}
    folder.end("failed")


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_name_of_any_length_and_kind(capsys, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    name = "x" * 100 + "\x1b[31m"
    older(tmp_path / name, 1e9, steps=3, epochs=1, train_loss=0.5)
    out = run(capsys, "runs", tmp_path)[1]
    assert "x" * 100 + r"\x1b[31m" in out and "train_loss 0.5" in out and "\x1b" not in out


def test_a_clock_that_was_set_back(capsys, tmp_path):
    folder = RunFolder(tmp_path / "a", "fit")
    folder.path("metrics.jsonl")
    folder.end("finished")
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    (tmp_path / "a" / "run.json").write_text(json.dumps(about | {"begun": "2999-01-01T00:00:00+00:00"}))
    [found], _ = listed(capsys, tmp_path)
    assert found["seconds"] is None and found["begun"].startswith("2999") and found["state"] == "finished"
    assert "2999-01-01" in run(capsys, "runs", tmp_path)[1]


def test_each_run_begins_one_line(capsys, tmp_path, monkeypatch):
    """Whatever its name and its files hold."""
    monkeypatch.setenv("COLUMNS", "200")
    names = ["a\nb", "c\rd", "e\x85f", "g\u2028h\u2029", "i\tj\x1b[1A", "k\u202el"]
    odd = {"steps": [1], "epochs": "1\n2", "seconds": 10**400, "train_loss": 10**400, "test_loss": "\n", "data": [1]}
    for i, name in enumerate(names):
        older(tmp_path / name, 1e9 + i, **(odd if i % 2 else {"steps": True, "epochs": -1, "seconds": float("inf")}))
    code, out, err = run(capsys, "runs", tmp_path)
    shown = [r"a\nb", r"c\rd", r"e\x85f", r"g\u2028h\u2029", r"i\tj\x1b[1A", r"k\u202el"]
    assert (code, err) == (0, "") and [line.partition("  ")[0] for line in out.splitlines()] == shown
    found, _ = listed(capsys, tmp_path)
    assert [one["name"] for one in found] == names and {one["seconds"] for one in found} == {None}


def test_nothing_there(capsys, tmp_path):
    assert run(capsys, "runs", tmp_path) == (0, "", f"{tmp_path}: no runs\n")
    code, out, err = run(capsys, "runs", tmp_path / "none")
    need = "no such folder; need one to look for runs in"
    assert (code, out, err) == (2, "", f"gradloom: {tmp_path / 'none'}: {need}\n")
    assert run(capsys, "runs", "")[0] == 2
