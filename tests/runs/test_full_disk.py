"""A disk that is full, or files that may not grow: the training goes on, and what could not be written is said."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.runs.folder import RunFolder, read_run
from tests.processes import environment

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


@pytest.fixture
def disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True, check=False
        ).returncode
    except FileNotFoundError:
        made = 1
    if made:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "fill", "wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)


class At(gl.train.Callback):
    """Calls a function before a step of the training."""

    stateless = True

    def __init__(self, step=None, call=None):
        self.step, self.call = step, call

    def on_batch(self, batch):
        if batch.step == self.step:
            self.call()


def fit(folder, at=None, **options):
    net = gl.nn.Sequential(gl.nn.Linear(4, 4)).init(1)
    options = {"epochs": 4, "batch_size": 16, "val_split": 0.25, "log_every": "2steps", "progress": False} | options
    history = gl.fit(net, (X, X), loss="mse", run=folder, callbacks=[at or At()], **options)
    return net[0].weight.numpy(), len(history)


def is_whole(found):
    """All epochs were made, and the weights are those of a run without a folder."""
    weights, epochs = found
    assert epochs == 4 and np.array_equal(weights, fit(None, log_every=None)[0])


def test_a_disk_that_is_full_from_the_start(disk, capfd, monkeypatch):
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)  # which writes to stderr, too
    fill(disk)
    is_whole(fit(disk / "run"))
    said = capfd.readouterr().err.splitlines()
    assert sum("a line cannot be written" in line for line in said) == 1
    assert sum("was not saved, there is none before it" in line for line in said) == 1
    assert said[-1] == (
        f"gradloom: {disk / 'run'}: the training is done, its end (step 12) was not saved; it has no checkpoint"
    )
    assert read_run(disk / "run") is None


def test_a_disk_that_is_full_when_the_run_is_resumed(disk, tmp_path, capfd):
    def stop():
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fit(disk / "run", At(8, stop), checkpoint_every="3steps")
    fill(disk)
    is_whole(fit(disk / "run", resume=True, checkpoint_every="3steps"))
    said = capfd.readouterr().err.splitlines()
    newest = (
        f"gradloom: {disk / 'run'}: the training is done, its end (step 12) was not saved; its newest checkpoint is "
    )
    assert newest + "that of step 6" in said
    (disk / "fill").unlink()
    is_whole(fit(disk / "run", resume=True, checkpoint_every="3steps"))
    assert read_run(disk / "run")["state"] == "finished"


def test_a_disk_that_fills_while_a_run_trains_and_has_room_later(disk, capfd):
    at = At(5, lambda: fill(disk))
    is_whole(fit(disk / "run", at, checkpoint_every="2steps"))
    assert "step 12) was not saved; its newest checkpoint is that of step " in capfd.readouterr().err
    (disk / "fill").unlink()
    with pytest.raises(gl.FileError, match="holds a run that has not finished"):  # its checkpoints are not lost
        fit(disk / "run")
    is_whole(fit(disk / "run", resume=True))
    assert read_run(disk / "run")["state"] == "finished" and "error" not in read_run(disk / "run")


def test_an_older_run_stays_when_nothing_of_the_new_one_can_be_saved(disk, capfd):
    fit(disk / "run", seed=3)
    before = read_run(disk / "run")
    fill(disk)
    is_whole(fit(disk / "run"))
    assert "was not saved; it has no checkpoint" in capfd.readouterr().err
    assert read_run(disk / "run") == before and list((disk / "run" / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("bytes", [0, 100, 400])
def test_files_that_may_not_grow(tmp_path, bytes):
    """RLIMIT_FSIZE from before the first step: neither run.json nor a line, or one without the other."""
    code = f"""
        import resource
        from pathlib import Path
        from tests.runs.test_full_disk import At, fit, is_whole
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, resource.RLIM_INFINITY))
        is_whole(fit(Path({str(tmp_path)!r}) / "run", At(1, limit), checkpoint_every="2steps", log=("csv",)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "its end (step 12) was not saved; it has no checkpoint" in done.stderr
    run = read_run(tmp_path / "run")
    assert run is None or run["state"] != "finished"


def test_a_run_whose_last_checkpoint_cannot_be_written_records_the_file(tmp_path, monkeypatch):
    def full(path, *_, **__):
        raise gl.FileError(f"{path / 'step.safetensors'}: cannot be written: no space left on device")

    monkeypatch.setattr("gradloom.runs.checkpoint.write_checkpoint", full)
    is_whole(fit(tmp_path / "run"))
    about = read_run(tmp_path / "run")
    what = "FileError: the checkpoint of step 12 was not saved, there is none before it"
    file = tmp_path / "run" / "checkpoints" / "step.safetensors"
    assert about["state"] == "failed"
    assert about["error"] == f"{what}: {file}: cannot be written: no space left on device"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_run_whose_result_cannot_be_saved(tmp_path, is_lost):
    """It is marked as failed; an older run that it has not replaced stays as it is."""
    with RunFolder(tmp_path / "run", "loop") as older:
        older.checkpoints.save(1, {"a.b": 1}, {})
    before = read_run(tmp_path / "run")
    with RunFolder(tmp_path / "run", "loop") as folder:
        if is_lost:
            folder.checkpoints.save(2, {"a.b": 1}, {"digest": 0}, digests=lambda: 1 / 0)
        else:
            folder.checkpoints.save(2, {"a.b": 1}, {})
    assert (folder.failure is not None) == is_lost
    folder.fail(gl.FileError("model: cannot be written"))
    about = read_run(tmp_path / "run")
    if is_lost:
        assert about == before
    else:
        assert (about["state"], about["step"]) == ("failed", 2)
        assert about["error"] == "FileError: model: cannot be written"
        folder.fail(gl.FileError("another"))
        assert read_run(tmp_path / "run")["error"] == about["error"]


def test_a_checkpoint_counts_where_only_run_json_cannot_be_written(tmp_path, capfd, monkeypatch):
    folder = RunFolder(tmp_path / "run", "loop")

    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "_write", full)
    folder.checkpoints.save(4, {"a.b": 1}, {})
    folder.checkpoints.wait()
    monkeypatch.undo()
    folder.end("finished")
    said = capfd.readouterr().err
    assert "run.json cannot be written" in said and "was not saved" not in said
    assert RunFolder(tmp_path / "run", "loop", resume=True).resumed.step == 4
