"""Folders of runs whose entries are links, pipes, sockets, devices, folders: before a run begins, or while it lives.

    python -m tests.fuzz.run_folders --count 20000 --first 0

A case is its number. Everything that a run writes is written, and read again. Each step goes well or is refused by an
error of one line; nothing outside of the folder changes, nothing waits for a pipe.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import random
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradloom.base.errors import GradloomError
from gradloom.files.atomic import atomic_write, claim, together, write_inside
from gradloom.files.checkpoint_files import manifests
from gradloom.runs.checkpoint import Checkpoints
from gradloom.runs.files import finish_change
from gradloom.runs.folder import RunFolder, read_run, runs_in
from gradloom.runs.log_files import CsvFile, Lines, read_metrics

SECONDS = 20  # of a case
ROOM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where a sync costs nothing
KINDS = ("resume", "overwrite", "neither")
TOGETHER = ("model.safetensors", "result.json")
PART = ".gradloom.part.abcdefgh."
NAMES = [
    "run.json", "settings.toml", "metrics.jsonl", "metrics.csv", "samples.jsonl", "teacher.npy",
    "failed.capsule", "checkpoints",
    "tensorboard",
    "checkpoints/step-000001.json", "checkpoints/step-000001.safetensors", "checkpoints/step-000002.json",
    "checkpoints/step-000002.safetensors", "checkpoints/step-000002.1.safetensors", "checkpoints/step-000099.json",
    f"checkpoints/{PART}step-000003.json", "tensorboard/events.out.tfevents.1.a", *TOGETHER,
    ".gradloom.lock", ".gradloom.commit", ".gradloom.result.json.lock", f"{PART}run.json", f"{PART}result.json",
    *(f"{place}{rest}" for place in (".gradloom.new", ".gradloom.clear", ".gradloom.move")
      for rest in ("", "/run.json", "/checkpoints", "/checkpoints/step-000001.json", "/metrics.jsonl", "/tensorboard")),
]  # fmt: skip


def put(rng: random.Random, path: Path, outside: Path) -> str:
    """Something else in the place of an entry; in words what."""
    kinds: dict[str, Callable[[], object]] = {
        "link to a file": lambda: path.symlink_to(outside / rng.choice(("file", "run.json", "step.json"))),
        "link to a folder": lambda: path.symlink_to(outside / rng.choice(("folder", "run", "empty"))),
        "link to nothing": lambda: path.symlink_to(outside / "new" / "file"),
        "link to a new file": lambda: path.symlink_to(outside / "created"),
        "link to itself": lambda: path.symlink_to(path.name),
        "link to another entry": lambda: path.symlink_to(Path("..", rng.choice(NAMES))),
        "link upwards": lambda: path.symlink_to(rng.choice((".", "..", "../../outside"))),
        "link to a device": lambda: path.symlink_to(rng.choice(("/dev/null", "/dev/zero", "/dev/stdout"))),
        "hard link": lambda: os.link(outside / rng.choice(("file", "run.json", "log")), path),
        "pipe": lambda: os.mkfifo(path),
        "folder": lambda: (path.mkdir(), (path / "mine").write_text("mine")),
        "socket": lambda: _socket(path),
        "empty file": path.touch,
        "nothing": lambda: None,
    }  # fmt: skip
    if _is_inside(path.parent, outside):
        return "nothing"  # what was put there before leads outside
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    what = rng.choice(list(kinds))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds[what]()
    return what


def _is_inside(path: Path, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")  # a path of at most 108 bytes
        finally:
            os.close(here)


def snapshot(folder: Path) -> dict[str, Any]:
    """What there is in a folder, with modes and contents."""
    found: dict[str, Any] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            state = os.lstat(path)
            content = path.read_bytes() if stat.S_ISREG(state.st_mode) else None
            found[str(path.relative_to(folder))] = stat.S_IFMT(state.st_mode), stat.S_IMODE(state.st_mode), content
    return found


def make_run(folder: Path, state: str = "interrupted", seed: int = 1) -> None:
    """A small run, which has written all of its files."""
    run = RunFolder(folder, "fit", overwrite=True, on_line=lambda text: None)
    use(run, seed)
    run.end(state)
    write_together(folder, seed)


def use(run: RunFolder, seed: int) -> None:
    """All that writes into the folder of a run."""
    run.files["settings.toml"] = lambda: b"seed = 1\n"
    run.appended.append("metrics.jsonl")
    lines = Lines([CsvFile()])
    for step in (1, 2):
        run.checkpoints.save(step, {"model.w": np.full(3, seed)}, {"a": 1}, best=step == 1)
        run.checkpoints.wait()
        with contextlib.suppress(OSError):  # a training says it, and goes on
            lines.add(
                run.path("metrics.jsonl").parent,
                {"kind": "train", "step": step, "epoch": 1, "time": 1.0, "seconds": 1.0, "loss": 0.5},
            )
        write_inside(run.path("samples.jsonl"), b"{}\n")
    lines.close()


def write_together(folder: Path, seed: int) -> None:
    """Model and result, as `gradloom fit` writes them."""
    with claim(folder, True, TOGETHER), together(folder):
        for name in TOGETHER:
            with atomic_write(folder / name) as file:
                file.write(b"%d" % seed)


def read_all(folder: Path) -> None:
    """All that reads it. None of these raises, or a GradloomError."""
    read_run(folder), runs_in(folder)
    for read in (
        read_metrics,
        lambda f: manifests(f / "checkpoints"),
        lambda f: Checkpoints(f / "checkpoints", on_line=told).best(),
    ):
        with contextlib.suppress(GradloomError):
            read(folder)


def told(text: str) -> None:
    assert "\n" not in text and len(text) < 4000, text


class Bed:
    """A run to copy, and what lies outside of it."""

    def __init__(self, folder: Path) -> None:
        self.seed, self.place, self.outside = folder / "seed", folder / "case", folder / "case" / "outside"
        self.finished = folder / "finished"
        make_run(self.seed)
        make_run(self.finished, "finished")
        self.clean = folder / "clean"
        for path in (self.clean / "folder", self.clean / "empty"):
            path.mkdir(parents=True)
        shutil.copytree(self.seed, self.clean / "run")
        for name in ("file", "log", "folder/file", "folder/run.json"):
            (self.clean / name).write_text("theirs\n")
        shutil.copy(self.seed / "run.json", self.clean / "run.json")
        shutil.copy(self.seed / "checkpoints" / "step-000001.json", self.clean / "step.json")

    def restore(self, rng: random.Random) -> Path:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.clean, self.outside)
        run = self.place / "run"
        shutil.copytree(rng.choice((self.seed, self.seed, self.finished)), run)
        if rng.random() < 0.3:  # the folder of a run may be a link itself
            run.rename(self.place / "real")
            run.symlink_to("real")
        return run


def one(bed: Bed, number: int, said: collections.Counter[str]) -> None:
    rng = random.Random(number)
    run = bed.restore(rng)
    names = [rng.choice(NAMES) for _ in range(rng.choice((1, 1, 2, 4)))]
    is_late, kind = rng.random() < 0.4, rng.choice(KINDS)
    before = snapshot(bed.outside)

    def change() -> None:
        for name in names:
            said[put(rng, run / name, bed.outside)] += 1

    def guarded(what: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except GradloomError as error:
            told(str(error))
            said[f"{what}: refused"] += 1
            return False
        said[f"{what}: done"] += 1
        return True

    def train() -> None:
        how = {kind: True} if kind != "neither" else {}
        folder = RunFolder(run, "fit", on_line=told, on_error=rng.choice(("warn", "stop")), **how)
        try:
            if is_late:
                change()
            use(folder, 2)
        finally:
            folder.end(rng.choice(("finished", "interrupted")))

    if not is_late:
        change()
    read_all(run)
    guarded("finish_change", lambda: finish_change(run))
    guarded("train", train)
    guarded("together", lambda: write_together(run, 2))
    read_all(run)
    after = snapshot(bed.outside)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, f"{changed} outside of the folder, after {names}"


def run(first: int, count: int) -> collections.Counter[str]:
    """All cases of a range; AssertionError names the one that does not answer as it should."""
    said: collections.Counter[str] = collections.Counter()

    def late(*_: object) -> None:
        raise AssertionError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        with tempfile.TemporaryDirectory(dir=ROOM) as folder, contextlib.redirect_stderr(io.StringIO()):
            bed = Bed(Path(folder))
            for number in range(first, first + count):
                signal.alarm(SECONDS)
                try:
                    one(bed, number, said)
                except BaseException as error:
                    raise AssertionError(f"case {number}: {error!r}") from error
            signal.alarm(0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    print(dict(said))
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    run(asked.first, asked.count)
