"""Checkpoints: written beside the training, complete at every moment, checked when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradloom as gl
from gradloom.files.checkpoint_files import manifests
from gradloom.runs.checkpoint import Checkpoints
from tests import processes

pytestmark = pytest.mark.cheap

KINDS = ["f4", "f8", "i4", "i8", "i2", "i1", "u1", "?", "f2", ml_dtypes.bfloat16, "u2", "u4", "u8", "c8", ">f4"]


def entries(n: int = 0) -> dict[str, Any]:
    """Some of everything that a state may hold."""
    rng = np.random.default_rng(n)
    arrays: dict[str, Any] = {
        f"model.{i}": (rng.normal(size=(3, 2)) * 9).astype(np.dtype(kind)) for i, kind in enumerate(KINDS)
    }
    arrays |= {"a.none": np.zeros((0, 3), np.float32), "a.scalar": np.array(2.5), "a.gap": np.arange(12)[::3]}
    arrays |= {"a.odd": np.zeros((2, 0), np.uint32), "a.odd scalar": np.array(7, np.uint64)}
    values = {
        "v.nan": math.nan, "v.inf": -math.inf, "v.zero": -0.0, "v.third": 1 / 3, "v.large": 1e300, "v.tiny": 5e-324,
        "v.whole": 2**127 + n, "v.none": None, "v.flag": True, "v.text": 'é"\n\ud800', "v.tuple": (1, (2.0, None)),
        "v.number": np.float32(0.1), "v.count": np.int64(3), "v.keys": {1: "a", ("b", 2): [3]}, "v.dollar": {"$x": 1},
        "v.nested": {"seen": [np.arange(3), {"best": np.ones((2, 2), np.uint32)}], "empty": {}},
    }  # fmt: skip
    return arrays | values


def same(one: Any, other: Any) -> bool:
    """The same types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def test_what_was_saved_comes_back_with_the_same_bits(tmp_path):
    with Checkpoints(tmp_path / "run") as made:
        made.save(120, entries(), {"versions": {"gradloom": "1"}, "loss": math.inf}, digests=lambda: {"data": "ab"})
        saved = made.latest()
    assert saved is not None and same(saved.entries, entries())
    assert saved.step == 120 and saved.about == {"versions": {"gradloom": "1"}, "loss": math.inf, "data": "ab"}
    assert sorted(os.listdir(tmp_path / "run")) == ["step-000120.json", "step-000120.safetensors"]
    assert all(array.flags.writeable for array in saved.entries.values() if isinstance(array, np.ndarray))


def test_no_arrays_and_no_checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "none")
    assert made.latest() is None and made.best() is None
    made.save(0, {"loop.done": 0}, {})
    saved = made.latest()
    assert saved is not None and saved.entries == {"loop.done": 0}


def test_the_newest_and_the_best_are_kept(tmp_path):
    with Checkpoints(tmp_path, keep=2) as made:
        for step in range(1, 8):
            made.save(step, {"x.a": np.array(step)}, {}, best=step in (2, 3))
    assert sorted(os.listdir(tmp_path)) == [
        f"step-{step:06d}.{kind}" for step in (3, 6, 7) for kind in ("json", "safetensors")
    ]
    again = Checkpoints(tmp_path, keep=1)
    latest, best = again.latest(), again.best()
    assert latest is not None and latest.step == 7 and best is not None and best.entries == {"x.a": np.array(3)}
    again.save(5, {"x.a": np.array(55)}, {})  # the newest is the one that was written last
    latest = again.latest()
    assert latest is not None and (latest.step, latest.entries) == (5, {"x.a": np.array(55)})
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"step-000003", "step-000005"}


def test_a_truncated_one_pushes_none_out(tmp_path):
    """Whether its arrays or its manifest were cut: the newest whole ones are kept."""
    with Checkpoints(tmp_path, keep=2) as made:
        for step in (1, 2, 3):
            made.save(step, {"x.a": np.arange(step)}, {})
            made.wait()
            if step > 1:
                os.truncate(tmp_path / f"step-{step:06d}.{'json' if step == 3 else 'safetensors'}", 20)
        made.save(4, {"x.a": np.arange(4)}, {})
    steps = {name[:11] for name in os.listdir(tmp_path)}
    assert {"step-000001", "step-000004"} <= steps
    os.remove(tmp_path / "step-000004.json")
    left = Checkpoints(tmp_path, on_line=lambda _: None).latest()
    assert left is not None and left.step == 1


def test_a_step_may_be_saved_again(tmp_path):
    with Checkpoints(tmp_path, keep=1) as made:
        for n in range(4):
            made.save(9, {"x.a": np.full(3, n)}, {})
            saved = made.latest()
            assert saved is not None and saved.entries["x.a"].tolist() == [n] * 3
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("bad", [object(), {1, 2}, np.array([None]), b"a", 1 << 5000, Path("a"), [lambda: 0]])
def test_what_no_checkpoint_can_hold_is_named(tmp_path, bad):
    with Checkpoints(tmp_path) as made, pytest.raises(gl.DataError, match=r"checkpoint: mine\.thing/inside"):
        made.save(1, {"x.a": 1, "mine.thing": {"inside": bad}}, {})
    own: list[Any] = []
    own.append(own)
    with Checkpoints(tmp_path) as made, pytest.raises(gl.DataError, match="nested too deeply, or holds itself"):
        made.save(1, {"x.a": own}, {})
    assert os.listdir(tmp_path) == []


def test_values_are_those_of_the_moment(tmp_path):
    slow, made, history = Slow(), Checkpoints(tmp_path), [{"loss": 1.0}]
    made.save(1, {"loop.history": history}, {}, digests=slow)
    history[0]["loss"] = 2.0
    history.append({})
    slow.go.set()
    saved = made.latest()
    assert saved is not None and saved.entries == {"loop.history": [{"loss": 1.0}]}


# ---- damage ----------------------------------------------------------------------------------------------------------


def two(folder: Path) -> list[str]:
    """Checkpoints 1 and 2; returns what is told later."""
    with Checkpoints(folder) as made:
        made.save(1, entries(1), {})
        made.save(2, entries(2), {})
    return []


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "short":
        path.write_bytes(data[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data[len(data) // 2 if how == "bit" else -1] ^= 1  # at the end are the numbers of an array
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["gone", "short", "empty", "bit", "last bit", "pipe"])
@pytest.mark.parametrize("file", ["step-000002.json", "step-000002.safetensors"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, file, how):
    told = two(tmp_path)
    damaged(tmp_path / file, how)
    made = Checkpoints(tmp_path, on_line=told.append)
    saved = made.latest()
    assert saved is not None and saved.step == 1 and same(saved.entries, entries(1))
    if (file, how) != ("step-000002.json", "gone"):  # which is an unfinished one, and no news
        assert len(told) == 1 and "step-000002" in told[0] and "that of step 1 is used" in told[0]
    made.save(3, entries(3), {})
    saved = made.latest()
    assert saved is not None and saved.step == 3


def test_each_bit_of_a_manifest_counts(tmp_path):
    with Checkpoints(tmp_path) as made:
        made.save(1, {"x.a": 12.5, "x.b": [1, 2]}, {"seed": 3})
    path = tmp_path / "step-000001.json"
    data = path.read_bytes()
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        told: list[str] = []
        saved = Checkpoints(tmp_path, on_line=told.append).latest()
        assert (saved is None and len(told) == 1) or (
            saved is not None
            and (saved.step, saved.entries, saved.about) == (1, {"x.a": 12.5, "x.b": [1, 2]}, {"seed": 3})
        )


def forged(path: Path, **fields: Any) -> None:
    """The manifest with other fields, and a digest that is right."""
    body = json.loads(path.read_text())["checkpoint"] | fields
    compact = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"sha256": hashlib.sha256(compact.encode()).hexdigest(), "checkpoint": body}))


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2}, {"step": 4}, {"step": -1}, {"number": True}, {"best": 1}, {"more": 0}, {"entries": []},
        {"arrays": {"file": "../x.safetensors", "bytes": 1, "sha256": ""}},
        {"arrays": {"file": "/etc/passwd", "bytes": 1, "sha256": ""}},
        {"entries": {"x": {"$array": "nothing"}}}, {"entries": {"x": {"$object": 1}}},
        {"entries": {"x": {"$float": "1"}}},
        {"entries": {"x": {"$dict": [[[1], 2]]}}}, {"entries": {}}, {"entries": {"x": {"$array": "x.a", "dtype": "O"}}},
        {"entries": {"x": {"$array": "x.a", "dtype": "finfo"}}}, {"entries": {"x": {"$array": ["x.a"]}}},
        {"entries": {"x": {"$array": "x.a", "dtype": "f4,f4"}}}, {"entries": {"x": {"$array": "x.a", "dtype": "V0"}}},
    ],
)  # fmt: skip
def test_a_manifest_of_a_stranger_is_read_strictly(tmp_path, fields):
    told: list[str] = []
    with Checkpoints(tmp_path, on_line=told.append) as made:
        made.save(1, {"x.a": np.arange(3)}, {})
        made.wait()
        forged(tmp_path / "step-000001.json", **fields)
        assert made.latest() is None and len(told) == 1 and "step-000001" in told[0]


# ---- the writer ------------------------------------------------------------------------------------------------------


class Slow:
    """digests= that waits until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> dict[str, Any]:
        self.begun.set()
        assert self.go.wait(20)
        return {}


def test_the_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    slow, made = Slow(), Checkpoints(tmp_path)
    made.save(1, entries(), {}, digests=slow)
    assert slow.begun.wait(20)  # it is at it, and save has returned
    beside = threading.Thread(target=made.save, args=(2, entries(2), {}))
    beside.start()
    time.sleep(0.1)
    assert beside.is_alive() and not manifests(tmp_path)[0]  # the second one waits
    slow.go.set()
    beside.join(20)
    made.close()
    assert [one.step for one in manifests(tmp_path)[0]] == [2, 1]
    with pytest.raises(gl.TrainError, match="closed"):
        made.save(3, {}, {})


@pytest.mark.parametrize("on_error", ["warn", "stop"])
def test_a_folder_that_cannot_be_written_is_told_and_tried_again(tmp_path, on_error):
    told: list[str] = []
    made = Checkpoints(tmp_path / "run", on_error=on_error, on_line=told.append)
    made.save(1, entries(1), {})
    made.wait()
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run").write_text("in the way")
    made.save(2, entries(2), {})
    said = r"step 2 was not saved, the last one is that of step 1: .*run: "
    if on_error == "stop":
        with pytest.raises(gl.FileError, match=said):
            made.save(3, entries(3), {})
        assert told == []
    else:
        made.wait()
        assert len(told) == 1 and re.search(said, told[0])
    (tmp_path / "run").unlink()
    (tmp_path / "moved").rename(tmp_path / "run")
    made.save(4, entries(4), {})
    made.close()
    assert [one.step for one in manifests(tmp_path / "run")[0]] == [4, 1]


def limited(folder: str) -> None:
    """A process whose files may not grow beyond 20 kB: the checkpoint of step 2 does not fit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    with Checkpoints(folder) as made:
        for step, size in ((1, 10), (2, 50_000), (3, 20)):
            made.save(step, {"x.a": np.arange(size)}, {})


def python(code: str, **options: Any) -> Any:
    code = f"from tests.runs import test_checkpoint as t\n{code}"
    return processes.start([sys.executable, "-c", code], env=processes.environment(), **options)


def test_a_full_disk_costs_one_checkpoint_alone(tmp_path):
    process = python(f"t.limited({str(tmp_path)!r})")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(err.splitlines()) == 1 and "step 2 was not saved, the last one is that of step 1" in err
    assert "file too large" in err and "ulimit -f" in err
    assert len(os.listdir(tmp_path)) == 4  # no half of a file
    saved = Checkpoints(tmp_path).latest()
    assert saved is not None and saved.step == 3


def test_a_disk_that_is_full_costs_the_checkpoints_that_do_not_fit(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        told: list[str] = []
        with Checkpoints(disk / "run", keep=2, on_line=told.append) as made:
            for step in range(1, 9):
                made.save(step, {"x.a": np.full(10_000 if step != 4 else 60_000, step, np.float32)}, {})
                if step == 5:
                    made.wait()
                    (disk / "other").write_bytes(bytes(200_000))  # somebody else fills it
                if step == 7:
                    made.wait()
                    (disk / "other").unlink()
            saved = made.latest()
        assert saved is not None and saved.step == 8 and (saved.entries["x.a"] == 8).all()
        assert ["step 4" in told[0], "no space left on device" in told[0]] == [True, True] and len(told) == 3
        assert all("was not saved" in line and "free some space" in line for line in told)
        assert len(os.listdir(disk / "run")) == 4
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_interpreter_ends_when_the_writer_has_ended(tmp_path):
    code = f"t.Checkpoints({str(tmp_path)!r}).save(1, t.entries(), {{}}, digests=lambda: t.time.sleep(0.5) or {{}})"
    process = python(code)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 0
    saved = Checkpoints(tmp_path).latest()
    assert saved is not None and same(saved.entries, entries())


def test_a_forked_child_cannot_save_and_ends(tmp_path):
    slow, made = Slow(), Checkpoints(tmp_path)
    made.save(1, entries(), {}, digests=slow)
    assert slow.begun.wait(20)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made.wait()
            made.close()
            made.save(2, {}, {})
        except gl.TrainError as error:
            code = 7 if "forked" in str(error) else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    slow.go.set()
    made.close()
    assert [one.step for one in manifests(tmp_path)[0]] == [1]


# ---- kills -----------------------------------------------------------------------------------------------------------


def forever(folder: str) -> None:
    """Saves checkpoint after checkpoint, and tells each that is complete."""
    made = Checkpoints(folder, keep=2, on_saved=lambda path: print(path.name, flush=True))
    latest = made.latest()
    step = 0 if latest is None else latest.step
    while True:
        step += 1
        made.save(step, entries(step) | {"x.large": np.full(100_000, step)}, {"step": step}, best=step % 7 == 0)


def killed(folder: Path, rng: np.random.Generator) -> int:
    """A process that saves is killed at a drawn moment; returns the step of the newest checkpoint, which is read."""
    process = python(f"t.forever({str(folder)!r})")
    process.stdout.readline()
    time.sleep(rng.uniform(0, 0.2))
    os.kill(process.pid, signal.SIGKILL)
    told = [int(line[5:11]) for line in process.stdout.read().split()]
    processes.end(process)
    lines: list[str] = []
    saved = Checkpoints(folder, on_line=lines.append).latest()
    assert saved is not None and lines == [] and saved.step >= max(told, default=0)
    assert same(saved.entries, entries(saved.step) | {"x.large": np.full(100_000, saved.step)})
    return saved.step


@pytest.mark.slow
def test_a_killed_writer_leaves_a_checkpoint_that_is_complete(tmp_path):
    rng = np.random.default_rng(0)
    steps = [killed(tmp_path, rng) for _ in range(12)]
    assert steps == sorted(steps)
    with Checkpoints(tmp_path, keep=2) as made:  # what was left is removed
        made.save(steps[-1] + 1, {"x.a": 1}, {})
    assert len(os.listdir(tmp_path)) <= 6


def test_a_checkpoint_without_memory_has_a_reason(tmp_path: Path) -> None:
    def fails(*_: object) -> Any:
        raise MemoryError

    with Checkpoints(tmp_path / "a", on_error="stop") as made:
        made.save(3, {}, {}, digests=fails)
        with pytest.raises(gl.TrainError, match="step 3 was not saved.* not enough memory$"):
            made.wait()
    with Checkpoints(tmp_path / "b", on_error="stop", on_saved=fails) as made:
        made.save(3, {}, {})
        with pytest.raises(gl.TrainError, match="step 3 was saved.* not enough memory$"):
            made.wait()
