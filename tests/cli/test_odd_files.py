"""Pipes, folders and broken links in the place of files that commands read: one line, no waiting, nothing written."""

from __future__ import annotations

import os
import sys

import pytest

from tests import processes
from tests.cli.command import run
from tests.cli.test_fit import ENV, flowers
from tests.runs.test_odd_files import circular, dangling, folder, pipe, put


def fitted(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    assert run(capsys, "fit", data, "--epochs", 1, "--out", tmp_path / "a")[0] == 0
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, says",
    [
        (("fit", "t.csv", "--config", "x.toml"), "x.toml: is {}; need a settings file (TOML)"),
        (("finetune", "m.gguf", "t.txt", "--config", "x.toml"), "x.toml: is {}; need a settings file (TOML)"),
        (("rerun", "x.toml"), "x.toml: is {}; need a settings file (TOML)"),
        (("rerun", "a"), "a/settings.toml: is {}; need a settings file (TOML)"),
        (("fit", "--out", "a", "--resume"), "a/settings.toml: is {}; need a settings file (TOML)"),
        (("fit", "t.csv", "--out", "a"), "a/settings.toml: is {}, where a file of the run has to be; need it removed"),
    ],
)  # fmt: skip
def test_settings_that_are_no_file(tmp_path, monkeypatch, capsys, command, says):
    """In a process of its own, which would wait for the pipe."""
    fitted(capsys, tmp_path)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("x.toml")
    put(pipe, tmp_path / "a" / "settings.toml")
    before = sorted(tmp_path.rglob("*"))
    job = processes.start([sys.executable, "-m", "gradloom", *command], env=ENV)
    out, err = job.communicate(timeout=60)
    line = [one for one in err.splitlines() if one.startswith("gradloom: ")]
    assert (job.returncode, out) == (2, "") and line[-1].startswith("gradloom: " + says.format("a named pipe")), err
    assert len(line) == 1 and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("make", [folder, dangling, circular], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["run.json", "settings.toml", "metrics.jsonl", "checkpoints/step-000001.json"])
def test_the_folder_of_a_run(tmp_path, capsys, name, make):
    data = fitted(capsys, tmp_path)
    put(make, tmp_path / "a" / name)
    before = sorted(tmp_path.rglob("*"))
    for how in ((), ("--resume",), ("--overwrite",)):
        code, out, err = run(capsys, "fit", data, "--epochs", 1, "--out", tmp_path / "a", *how)
        last = err.splitlines()[-1]
        assert (code, out) == (2, "") and last.startswith(f"gradloom: {tmp_path / 'a' / name}: is a "), err
    assert sorted(tmp_path.rglob("*")) == before
    code, out, err = run(capsys, "runs", tmp_path)
    assert code == 0 and [line.split()[0] for line in out.splitlines() if line[0] != " "] == ["a"] and err == ""


@pytest.mark.parametrize("place", [".gradloom.clear", ".gradloom.move"])
def test_a_resume_has_the_settings_of_the_run_that_took_the_place(tmp_path, capsys, place):
    """A kill while a new run took the place of an older one: what goes on is the new one, with its own settings."""
    data = flowers(tmp_path / "t.csv")
    for seed, out in ((1, "a"), (2, "b")):
        assert run(capsys, "fit", data, "--epochs", 1, "--seed", seed, "--out", tmp_path / out)[0] == 0
    new = tmp_path / "a" / place
    new.mkdir()
    for name in ("run.json", "settings.toml", "metrics.jsonl", "checkpoints"):
        (tmp_path / "b" / name).rename(new / name)
    code, _, err = run(capsys, "fit", "--out", tmp_path / "a", "--resume")
    assert code == 0, err
    one, other = (tmp_path / out / "model.safetensors" for out in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_runs_among_odd_files(tmp_path, capsys):
    fitted(capsys, tmp_path)
    for i, make in enumerate((pipe, folder, dangling, circular)):
        for name in ("run.json", "result.json", "settings.toml", "model.safetensors"):
            (tmp_path / f"odd{i}").mkdir(exist_ok=True)
            make(tmp_path / f"odd{i}" / name)
    code, out, err = run(capsys, "runs", tmp_path)
    assert code == 0 and [line.split()[0] for line in out.splitlines() if line[0] != " "] == ["a"] and err == ""
