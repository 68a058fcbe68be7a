"""What is no regular file in the folder of a run, and checkpoints whose manifests are gone: refused before a step."""

from __future__ import annotations

import csv
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.runs.folder import RunFolder, read_run, runs_in
from gradloom.runs.log_files import CsvFile, Lines, read_metrics
from tests import processes
from tests.runs.test_run_folder import content, trained, value_in

FILES = ("run.json", "settings.toml", "metrics.jsonl", "metrics.csv", "samples.jsonl", "teacher.npy", "failed.capsule")
INSIDE = ("checkpoints/step-000003.json", "checkpoints/step-000003.safetensors", "checkpoints/step-000009.json")
FOLDERS = ("checkpoints", "tensorboard", ".gradloom.new", ".gradloom.clear", ".gradloom.move")
OTHER = 65534  # a user
LINE = {"kind": "train", "step": 2, "epoch": 1, "time": 1.0, "seconds": 1.0, "loss": 2.0}  # of metrics.jsonl


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/null")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def circular(path: Path) -> None:
    path.symlink_to(path.name)


def elsewhere(path: Path) -> None:
    """To a file or a folder of the same name, which could be used."""
    away = path.parents[1 if path.parent.name == "a" else 2] / "away" / path.name
    away.parent.mkdir()
    away.mkdir() if path.name in FOLDERS else away.write_text("theirs")
    path.symlink_to(away)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a path of at most 108 bytes


ODD: dict[Callable[[Path], None], str] = {
    pipe: "a named pipe", folder: "a folder", device: "a symbolic link", dangling: "a symbolic link",
    circular: "a symbolic link", elsewhere: "a symbolic link", a_socket: "a socket",
}  # fmt: skip


def put(make: Callable[[Path], None], path: Path) -> None:
    """Something else in the place of a file or folder, or beside those that are there."""
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}-before"))
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)


def fit(run: Path, **options: object) -> None:
    """Must end before the first step."""
    net = nn.Linear(2, 1)
    x = np.zeros((4, 2), np.float32)

    def step(progress: object) -> None:
        raise AssertionError("it has trained")

    gl.fit(net, (x, x[:, :1]), loss="mse", progress=False, on_train_batch=step, run=run, **options)  # type: ignore[arg-type]


HOWS: list[dict[str, bool]] = [{}, {"resume": True}, {"overwrite": True}]
CASES = [
    (name, make) for name in (*FILES, *INSIDE, *FOLDERS) for make in ODD if make is not folder or name not in FOLDERS
]


@pytest.mark.parametrize("name, make", CASES, ids=lambda value: getattr(value, "__name__", value))
def test_is_refused_before_a_step(tmp_path, monkeypatch, name, make):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "a", 1, "interrupted")
    put(make, tmp_path / "a" / name)
    before = content(tmp_path)
    what = f"is {ODD[make]}, where a {'folder' if name in FOLDERS else 'file'} of the run has to be; need it removed"
    for how in HOWS:
        with pytest.raises(gl.FileError) as caught:
            fit(tmp_path / "a", **how)
        assert str(caught.value) == f"{tmp_path / 'a' / name}: {what}, or another place"
    assert content(tmp_path) == before and os.path.lexists(tmp_path / "a" / name)
    os.unlink(tmp_path / "a" / name) if make is not folder else os.rmdir(tmp_path / "a" / name)
    assert runs_in(tmp_path) or name == "run.json"


@pytest.mark.parametrize("name", [*FILES[:3], *INSIDE[:2]])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_files_that_may_not_be_read(name):
    script = (
        "import gradloom as gl, os, sys\nfrom gradloom.runs.folder import RunFolder, runs_in\n"
        f"os.setuid({OTHER})\n"
        "for how in ({}, {'resume': True}, {'overwrite': True}):\n"
        "    try: RunFolder('a', 'fit', **how)\n"
        "    except gl.FileError as error: print(error)\n"
    )
    with tempfile.TemporaryDirectory() as made:  # pytest's is root's alone
        path = Path(made, "a", name)
        trained(Path(made, "a"), 1, "interrupted")
        path.touch()
        for one in [Path(made), *Path(made).rglob("*")]:
            os.chown(one, OTHER, OTHER)
        path.chmod(0)
        job = processes.start([sys.executable, "-c", script], cwd=made)
        out, err = job.communicate(timeout=60)
    wanted = f"a/{name}: cannot be read: permission denied; need the right to, or another place"
    assert (job.returncode, out.splitlines(), err) == (0, [wanted] * 3, "")


def test_the_folder_of_a_run_may_be_a_link(tmp_path):
    trained(tmp_path / "a", 1, "interrupted")
    (tmp_path / "b").symlink_to("a")
    assert trained(tmp_path / "b", 1, resume=True) == []
    assert value_in(tmp_path / "a") == [1, 6] and (tmp_path / "b").is_symlink()


def test_a_link_that_appears_while_a_run_lives(tmp_path):
    """Nothing is written through it: a checkpoint is not saved, a line not written, which is said."""
    away = tmp_path / "away"
    trained(away, 1, "interrupted")
    before, told = content(away), []
    run = RunFolder(tmp_path / "a", "fit", on_line=told.append)
    run.appended.append("metrics.jsonl")
    run.path("run.json")
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / "a" / name).unlink()
    for name in ("run.json", "metrics.jsonl", "checkpoints"):
        (tmp_path / "a" / name).symlink_to(away / name)
    run.checkpoints.save(7, {"model.w": np.ones(3)}, {})
    run.checkpoints.wait()
    with pytest.raises(gl.FileError, match=r"metrics\.jsonl: is a symbolic link"):
        Lines([]).add(run.path("metrics.jsonl").parent, LINE)
    run.end("finished")
    assert content(away) == before
    assert any("step 7 was not saved" in line and "checkpoints: is a symbolic link" in line for line in told), told
    assert any("run.json cannot be written" in line for line in told), told


def test_a_log_that_has_a_name_elsewhere_is_copied(tmp_path):
    """As `cp -al` makes it: lines go into the folder's file alone."""
    trained(tmp_path / "a", 1, "interrupted")
    (tmp_path / "theirs").write_bytes(b'{"loss": 1.0}\n')
    for name in ("metrics.jsonl", "metrics.csv"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
        os.link(tmp_path / "theirs", tmp_path / "a" / name)
    lines = Lines([CsvFile()])
    lines.size = 14
    lines.add(tmp_path / "a", LINE)
    lines.close()
    assert (tmp_path / "theirs").read_bytes() == b'{"loss": 1.0}\n'
    assert [line["loss"] for line in read_metrics(tmp_path / "a")] == [1.0, 2.0]
    with open(tmp_path / "a" / "metrics.csv", newline="") as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["1.0", "2.0"]


def test_nothing_waits_for_a_pipe(tmp_path):
    for name in ("metrics.jsonl", "run.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(gl.FileError, match="metrics.jsonl: is a named pipe; need the metrics of a run"):
        read_metrics(tmp_path)
    assert read_run(tmp_path) is None and runs_in(tmp_path) == []


# -- manifests that are gone -------------------------------------------------------------------------------------------


def without_manifests(run: Path, *steps: int) -> None:
    for step in steps:
        (run / "checkpoints" / f"step-{step:06d}.json").unlink()


@pytest.mark.parametrize("state", ["interrupted", "failed", "running", "finished"])
def test_checkpoints_without_manifests_are_not_given_up(tmp_path, state):
    """Refused, with and without resume; only a finished run is replaced unasked."""
    run = tmp_path / "a"
    trained(run, 1, "failed" if state == "running" else state)
    if state == "running":  # it was killed
        (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"state": state}))
    without_manifests(run, 1, 2, 3)
    before = content(run)
    says = (
        f"{run}: holds the arrays of a checkpoint (step 3) without its manifest, and no other checkpoint;"
        " need step-000003.json back, or --overwrite (overwrite=True) to start anew"
    )
    for how in [{"resume": True}] + [{}] * (state != "finished"):
        with pytest.raises(gl.FileError) as caught:
            fit(run, **how)
        assert str(caught.value) == says and content(run) == before
    assert trained(run, 2, overwrite=True)[0].endswith("replaced at the first checkpoint of this one")
    assert value_in(run) == [2, 3]


def test_an_overwrite_keeps_them_until_there_is_something_better(tmp_path):
    """Also where the run.json is gone, too."""
    run = tmp_path / "a"
    trained(run, 1, "interrupted")
    without_manifests(run, 1, 2, 3)
    (run / "run.json").unlink()
    before = content(run)
    with pytest.raises(gl.FileError, match="step 3. without its manifest"):
        fit(run, resume=True)
    RunFolder(run, "fit", overwrite=True).end("interrupted")
    assert content(run) == before


def test_the_newest_manifest_is_gone(tmp_path):
    """Said; the checkpoint before is used."""
    run = tmp_path / "a"
    trained(run, 1, "interrupted")
    without_manifests(run, 3)
    told = trained(run, 1, "interrupted", resume=True, steps=0)
    assert told == [f"{run}: the manifest of the checkpoint of step 3 is gone; that of step 2 is used"]
    assert trained(run, 1, resume=True, steps=3)[1:] == [] and value_in(run) == [1, 5]
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {f"step-00000{step}.{kind}" for step in (3, 4, 5) for kind in ("json", "safetensors")}


@pytest.mark.parametrize("marked", [False, True])
def test_a_first_checkpoint_that_was_cut_off_is_nothing(tmp_path, marked):
    """A kill between its two files: the run starts anew, which is said."""
    run = tmp_path / "a"
    trained(run, 1, "interrupted", steps=1)
    without_manifests(run, 1)
    if marked:
        about = json.loads((run / "run.json").read_text()) | {"state": "running", "step": 0}
        (run / "run.json").write_text(json.dumps(about))
    else:
        (run / "run.json").unlink()
    assert trained(run, 2, resume=True) == [f"{run}: there is no checkpoint to resume from; the run starts anew"]
    assert value_in(run) == [2, 3]
