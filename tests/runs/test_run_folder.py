"""The folder of a run: who may write there, what becomes of an older run, and what is left when a run is killed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.runs.folder import RunFolder, read_run, runs_in
from tests import processes


def trained(folder: Path, value: int, state: str = "finished", steps: int = 3, **options: Any) -> list[str]:
    """A run that saves a checkpoint at each step, and ends so; returns what was told."""
    told: list[str] = []
    run = RunFolder(folder, "fit", on_line=told.append, **options)
    first = 0 if run.resumed is None else run.resumed.step
    with open(run.path("metrics.jsonl"), "ab", buffering=0) as log:
        for step in range(first + 1, first + steps + 1):
            log.write(json.dumps({"step": step, "value": value}).encode() + b"\n")
            run.checkpoints.save(step, {"x.value": np.array([value, step])}, {})
            run.note(step=step, epoch=1, latest={"loss": 1 / step})
        run.end(state)
    return told


def value_in(folder: Path) -> list[int]:
    """The value and step of the newest checkpoint."""
    run = RunFolder(folder, "fit", resume=True)
    run.end("failed")
    assert run.resumed is not None
    return run.resumed.entries["x.value"].tolist()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_tells_what_it_is(tmp_path):
    assert trained(tmp_path / "a", 1) == []
    about = read_run(tmp_path / "a")
    assert about is not None
    assert (about["kind"], about["state"], about["step"], about["epoch"]) == ("fit", "finished", 3, 1)
    assert about["latest"] == {"loss": 1 / 3} and about["begun"] <= about["ended"]
    assert about["pid"] == os.getpid() and about["versions"]["gradloom"] == gl.__version__
    assert sorted(os.listdir(tmp_path / "a")) == ["checkpoints", "metrics.jsonl", "run.json"]


def test_a_resumed_run_remembers_what_was_noted_before(tmp_path):
    with RunFolder(tmp_path, "fit") as run:
        run.checkpoints.save(3, {"x.value": np.zeros(1)}, {})
        run.note(epoch=2, latest={"loss": 0.5}, best={"loss": 0.25, "epoch": 1})
        run.note_other(["NumPy 2 before, 3 now"])
        run.end("interrupted")
    before = read_run(tmp_path)
    with RunFolder(tmp_path, "fit", resume=True) as run:
        run.checkpoints.save(4, {"x.value": np.ones(1)}, {})
        run.end("interrupted")
    after = read_run(tmp_path)
    assert before is not None and before["best"] == {"loss": 0.25, "epoch": 1} and len(before["went_on"]) == 1
    assert after is not None and before.keys() == after.keys() and (before["step"], after["step"]) == (3, 4)
    assert {name for name in before if before[name] != after[name]} <= {"step", "ended"}


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("folder.write_inside", "run.json cannot be written: not enough memory"),
        ("folder.replace_old", "saved.* the older run in .*a was not replaced yet: not enough memory"),
        ("checkpoint.prune", "old checkpoints cannot be removed: not enough memory"),
    ],
)
def test_what_follows_a_checkpoint_is_named_where_memory_is_short(tmp_path, monkeypatch, where, line):
    trained(tmp_path / "a", 1)
    module, name = where.split(".")
    place = importlib.import_module(f"gradloom.runs.{module}")
    own, seen = getattr(place, name), []

    def fails_at_first(*given):
        seen.append(given)
        if len(seen) in ((2, 3, 4) if name == "write_inside" else (1,)):  # run.json is written before the first step
            raise MemoryError
        return own(*given)

    monkeypatch.setattr(place, name, fails_at_first)
    told = trained(tmp_path / "a", 2)
    assert any(re.search(line, one) for one in told) and not any("was not saved" in one for one in told), told
    assert value_in(tmp_path / "a") == [2, 3] and read_run(tmp_path / "a")["state"] == "finished"


def test_a_run_that_has_written_nothing_leaves_nothing(tmp_path):
    for state in ("finished", "interrupted", "failed"):
        RunFolder(tmp_path / "a", "fit").end(state)
        assert os.listdir(tmp_path) == []
    trained(tmp_path / "a", 1)
    before = content(tmp_path)
    RunFolder(tmp_path / "a", "fit").end("failed")
    assert content(tmp_path) == before


@pytest.mark.parametrize("state", ["interrupted", "failed", "running"])
def test_an_unfinished_run_is_not_replaced_unasked(tmp_path, state):
    trained(tmp_path / "a", 1, "failed" if state == "running" else state)
    if state == "running":  # it was killed
        about = json.loads((tmp_path / "a" / "run.json").read_text())
        (tmp_path / "a" / "run.json").write_text(json.dumps(about | {"state": state}))
    before = content(tmp_path)
    at = "at step 3" if state == "running" else f"{state} at step 3"
    with pytest.raises(
        gl.FileError, match=f"a: holds a run that has not finished .{at}.; need --resume .* --overwrite"
    ):
        RunFolder(tmp_path / "a", "fit")
    assert content(tmp_path) == before
    assert trained(tmp_path / "a", 2, overwrite=True)[0].endswith("replaced at the first checkpoint of this one")
    assert value_in(tmp_path / "a") == [2, 3]


def test_checkpoints_without_run_json_are_an_unfinished_run(tmp_path):
    trained(tmp_path / "a", 1)
    (tmp_path / "a" / "run.json").unlink()
    with pytest.raises(gl.FileError, match="not finished"):
        RunFolder(tmp_path / "a", "fit")
    assert value_in(tmp_path / "a") == [1, 3]


def test_a_finished_run_is_replaced_as_a_whole_at_the_first_checkpoint(tmp_path):
    folder = tmp_path / "a"
    trained(folder, 1, steps=5)
    (folder / "model.safetensors").write_bytes(b"old")
    (folder / "mine.txt").write_text("stays")
    (folder / "checkpoints" / "mine.txt").write_text("stays")
    old = content(folder)
    told: list[str] = []
    run = RunFolder(folder, "fit", on_line=told.append)
    assert told == [f"{folder}: the finished run in it is replaced at the first checkpoint of this one"]
    with open(run.path("metrics.jsonl"), "ab", buffering=0) as log:
        log.write(b"first\n")
        run.path("settings.toml").write_text("new")
        now = content(folder)
        assert {name: now[name] for name in old} == old
        run.checkpoints.save(1, {"x.value": np.array([2, 1])}, {})
        run.checkpoints.wait()
        log.write(b"second\n")  # to the file that was open
    assert run.path("settings.toml") == folder / "settings.toml"
    assert (folder / "metrics.jsonl").read_bytes() == b"first\nsecond\n"
    run.checkpoints.save(2, {"x.value": np.array([2, 2])}, {})
    run.end("finished")
    steps = [f"checkpoints/step-00000{n}.{kind}" for n in (1, 2) for kind in ("json", "safetensors")]
    mine = ["checkpoints/mine.txt", "mine.txt", "model.safetensors"]  # a command replaces the model itself
    assert sorted(content(folder)) == sorted([*steps, *mine, "metrics.jsonl", "run.json", "settings.toml"])
    assert value_in(folder) == [2, 2]


def test_resume_goes_on(tmp_path):
    trained(tmp_path / "a", 1, "interrupted")
    begun = read_run(tmp_path / "a")
    run = RunFolder(tmp_path / "a", "fit", resume=True)
    assert run.resumed is not None and run.resumed.entries["x.value"].tolist() == [1, 3]
    run.end("failed")  # refused, say: nothing has changed
    assert read_run(tmp_path / "a") == begun
    assert trained(tmp_path / "a", 1, resume=True) == []
    about = read_run(tmp_path / "a")
    assert about is not None and begun is not None
    assert (about["begun"], about["step"], about["state"]) == (begun["begun"], 6, "finished")


def test_a_resume_that_finds_nothing_left_to_do_ends_the_run(tmp_path):
    """Stopped after its last step: what a callback or a signal did, or a kill before run.json was written again."""
    for state in ("interrupted", "failed"):
        trained(tmp_path / state, 1, state)
        with RunFolder(tmp_path / state, "fit", resume=True) as run:
            assert run.resumed is not None and run.resumed.step == 3
        about = read_run(tmp_path / state)
        assert about is not None and (about["state"], about["step"], about["epoch"]) == ("finished", 3, 1)
        assert about["latest"] == {"loss": 1 / 3} and trained(tmp_path / state, 2) != []  # replaced, not refused


def test_a_run_that_is_refused_stays_what_it_was(tmp_path):
    trained(tmp_path / "a", 1, "interrupted")
    before = content(tmp_path / "a")
    with pytest.raises(ValueError), RunFolder(tmp_path / "a", "fit", resume=True):
        raise ValueError
    assert content(tmp_path / "a") == before


def test_a_folder_that_is_removed_while_its_run_lives_is_whole_again(tmp_path):
    with RunFolder(tmp_path / "a", "fit") as run:
        run.files["settings.toml"] = lambda: b"seed = 1\n"
        for step in (1, 2):
            run.checkpoints.save(step, {"x": np.array([step])}, {})
            run.checkpoints.wait()
            names = {path.name for path in (tmp_path / "a").iterdir()}
            assert names >= {"checkpoints", "run.json", "settings.toml"}
            if step == 1:
                shutil.rmtree(tmp_path / "a")
    about = read_run(tmp_path / "a")
    assert about is not None and (about["state"], about["step"]) == ("finished", 2)


def test_resume_without_a_checkpoint_starts_anew_and_says_so(tmp_path):
    assert trained(tmp_path / "a", 1, resume=True) == [
        f"{tmp_path / 'a'}: there is no checkpoint to resume from; the run starts anew"
    ]
    assert value_in(tmp_path / "a") == [1, 3]


def test_checkpoints_that_cannot_be_read_are_not_replaced_unasked(tmp_path):
    trained(tmp_path / "a", 1, "interrupted")
    for name in os.listdir(tmp_path / "a" / "checkpoints"):
        (tmp_path / "a" / "checkpoints" / name).write_bytes(b"")
    with pytest.raises(gl.FileError, match="holds checkpoints, and none of them can be read; need .*--overwrite"):
        RunFolder(tmp_path / "a", "fit", resume=True)
    with pytest.raises(gl.FileError, match="not finished .interrupted at step 3"):
        RunFolder(tmp_path / "a", "fit")
    trained(tmp_path / "a", 2, overwrite=True)
    assert value_in(tmp_path / "a") == [2, 3]


def test_what_a_killed_run_has_left_is_removed(tmp_path):
    trained(tmp_path / "a", 1)
    left = tmp_path / "a" / "checkpoints" / "step-000001.safetensors", tmp_path / "a" / "checkpoints" / "mine"
    (tmp_path / "a" / "checkpoints" / "step-000001.json").unlink()
    part = tmp_path / "a" / "checkpoints" / ".gradloom.part.abcdefgh.step-000009.json"
    left[1].write_text("")
    part.write_text("")
    assert left[0].exists()
    assert value_in(tmp_path / "a") == [1, 3]
    assert [path.exists() for path in (*left, part)] == [False, True, False]


def test_what_cannot_be(tmp_path):
    trained(tmp_path / "a", 1, "interrupted")
    with pytest.raises(gl.FileError, match="holds a run of fit; need a run of finetune to resume"):
        RunFolder(tmp_path / "a", "finetune", resume=True)
    with pytest.raises(gl.SettingError, match="resume and overwrite are mutually exclusive"):
        RunFolder(tmp_path / "a", "fit", resume=True, overwrite=True)
    with pytest.raises(gl.SettingError, match="kind='fat'"):
        RunFolder(tmp_path / "a", "fat")
    (tmp_path / "file").write_text("")
    with pytest.raises(gl.FileError, match="is no folder"):
        RunFolder(tmp_path / "file", "fit")
    run = RunFolder(tmp_path / "b", "fit")
    with pytest.raises(gl.FileError, match="another run of this process"):
        RunFolder(tmp_path / "b", "fit")
    with pytest.raises(gl.SettingError, match="name='mine.txt': must be one of "):
        run.path("mine.txt")
    with pytest.raises(gl.SettingError, match="state"):
        run.end("running")
    run.end("failed")


def test_a_folder_of_other_files_is_no_run(tmp_path):
    (tmp_path / "mine.txt").write_text("a")
    (tmp_path / "model.safetensors").write_text("b")
    assert trained(tmp_path, 1) == [] and read_run(tmp_path) is not None
    assert (tmp_path / "mine.txt").read_text() == "a" and (tmp_path / "model.safetensors").read_text() == "b"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "kind": "fit"}', "\ud800", "{" * 99999])
def test_a_damaged_run_json_is_none(tmp_path, text):
    trained(tmp_path, 1)
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogatepass"))
    assert read_run(tmp_path) is None and runs_in(tmp_path) == []
    with pytest.raises(gl.FileError, match="not finished"):
        RunFolder(tmp_path, "fit")


# ---- kills -----------------------------------------------------------------------------------------------------------


def killed_while_replacing(folder: str, at: int) -> None:
    """A new run over an old one, killed at the `at`-th change of the folder from its first checkpoint on."""
    calls = 0

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            if str(folder) in str(args[0]):
                calls += 1
                if calls == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    run = RunFolder(folder, "fit", overwrite=True)
    run.path("settings.toml").write_text("new")
    for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(name))
    run.checkpoints.save(1, {"x.value": np.array([2, 1])}, {})
    run.end("interrupted")


def test_a_kill_at_each_moment_of_a_replacement_leaves_one_of_both_runs(tmp_path):
    folder = tmp_path / "a"
    seen = []
    for at in range(1, 100):
        run = RunFolder(folder, "fit", overwrite=True)
        run.checkpoints.save(9, {"x.value": np.array([1, 9])}, {})
        run.end("finished")
        (folder / "settings.toml").write_text("old")
        child = os.fork()
        if child == 0:
            try:
                killed_while_replacing(str(folder), at)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        run = RunFolder(folder, "fit", resume=True)
        assert run.resumed is not None
        value = run.resumed.entries["x.value"].tolist()
        seen.append(value)
        assert value in ([1, 9], [2, 1])
        assert (folder / "settings.toml").read_text() == {1: "old", 2: "new"}[value[0]]
        run.end("failed")
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert seen == sorted(seen) and 3 < len(seen) < 90 and seen[0] != seen[-1]


def test_runs_below_a_folder(tmp_path):
    trained(tmp_path / "x" / "one", 1)
    trained(tmp_path / "two", 1, "interrupted")
    (tmp_path / "loop").symlink_to(tmp_path)
    code = (
        "from gradloom.runs.folder import RunFolder\nimport time\n"
        f"run = RunFolder({str(tmp_path / 'live')!r}, 'loop')\n"
        "run.path('run.json')\nprint('on', flush=True)\ntime.sleep(60)"
    )
    process = processes.start([sys.executable, "-c", code], env=processes.environment())
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    states = {str(path.relative_to(tmp_path)): about["state"] for path, about in runs_in(tmp_path)}
    assert states == {"x/one": "finished", "two": "interrupted", "live": "running"}
    with pytest.raises(gl.FileError, match=f"another run .process {process.pid}. is writing there"):
        RunFolder(tmp_path / "live", "fit")
    processes.end(process)
    assert {path.name: about["state"] for path, about in runs_in(tmp_path)}["live"] == "interrupted"
    assert runs_in(tmp_path / "nothing") == [] and [p.name for p, _ in runs_in(tmp_path / "two")] == ["two"]
    RunFolder(tmp_path / "live", "fit").end("failed")  # it has saved nothing: no obstacle
