"""memory= inside a control group whose limit is little more: the kernel ends no run; "auto" keeps to the limit.

The pages of libraries that other processes have read are theirs, so a run has less in the group than in memory. Its
page tables and clean pages of the files that it reads come in addition: SLACK.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.random_gguf import write_random
from tests.processes import environment
from tests.run.test_budget import ENV, least_of

MIB = 1 << 20
SLACK = 8 * MIB
SHAPE = {"layers": 12, "width": 128, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 1024}
FIT = ("fit", "t.csv", "--epochs", "2", "--batch-size", "9000", "--micro-batch-size", "9000", "--val-split", "0.1")
FIT += ("--hidden", ",".join(["128"] * 24), "--ensemble", "1", "--dropout", "0", "--overwrite", "--out", "fitted")
FINETUNE = ("finetune", "model.gguf", "text.txt", "--steps", "2", "--batch-size", "8", "--micro-batch-size", "8")
FINETUNE += ("--context", "256", "--val-split", "0", "--overwrite", "--out", "tuned.gguf")


class Group:
    """A control group below that of this process, with a limit of memory. SettingError of the system: OSError."""

    def __init__(self, limit: int) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        first = next((path for _, names, path in lines if "memory" in names.split(",")), None)
        if first is not None:
            top, name, self.failed = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"
        else:
            first = next(path for _, names, path in lines if not names)
            top, name, self.failed = Path("/sys/fs/cgroup"), "memory.max", "memory.events"
        self.folder = top / first.lstrip("/") / f"gradloom-test-{os.getpid()}"
        self.folder.mkdir()
        try:
            (self.folder / name).write_text(str(limit))
        except OSError:
            self.folder.rmdir()
            raise

    def run(self, folder: Path, *command: str) -> dict[str, Any]:
        """The JSON object of a command in the group, or its error."""

        def enter() -> None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(
            [sys.executable, "-m", "gradloom", *command, "--json"], cwd=folder, capture_output=True, text=True,
            env=environment() | ENV, preexec_fn=enter,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr}
        return found | {"code": done.returncode, "ended": self.ended()}

    def ended(self) -> int:
        """Processes that the kernel has ended here."""
        counts = dict(line.split() for line in (self.folder / self.failed).read_text().splitlines())
        return int(counts["oom_kill"])


@contextlib.contextmanager
def group(limit: int) -> Iterator[Group]:
    try:
        made = Group(limit)
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group with a limit of memory: {error!r}")
    try:
        yield made
    finally:
        made.folder.rmdir()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    write_random(folder / "model.gguf", kind="q8_0", **SHAPE)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 600)
    x = np.random.default_rng(0).standard_normal((12000, 8)).round(3)
    rows = [",".join(map(str, [*row, "yes" if row[0] + row[1] > 0 else "no"])) for row in x]
    (folder / "t.csv").write_text("\n".join([",".join("abcdefghy"), *rows]))
    return folder


def run(folder: Path, *command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "gradloom", *command, "--json"], cwd=folder, capture_output=True, text=True,
        env=environment() | ENV,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr}


@pytest.mark.slow
@pytest.mark.parametrize("command", [FIT, FINETUNE], ids=["fit", "finetune"])
def test_a_run_in_a_group_of_little_more_than_its_budget(files: Path, command: tuple[str, ...]) -> None:
    with group(1 << 40):
        pass  # skips first where it is not permitted
    whole, refused = run(files, *command), run(files, *command, "--memory", "48MiB")
    least = least_of(refused["error"])
    assert least < whole["peak_bytes"]
    budget = least + (whole["peak_bytes"] - least) // 4
    with group(budget + SLACK) as made:
        small = made.run(files, *command, "--memory", str(budget))
    assert small["code"] == 0 and small["ended"] == 0, small
    assert small["peak_bytes"] <= budget and small["planned_bytes"] < whole["planned_bytes"]
    with group(budget + SLACK) as made:
        auto = made.run(files, *command, "--memory", "auto")
    assert auto["code"] == 0 and auto["ended"] == 0, auto
    assert auto["peak_bytes"] < whole["peak_bytes"] and auto["planned_bytes"] < whole["planned_bytes"]
