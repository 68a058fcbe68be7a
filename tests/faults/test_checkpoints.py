"""The n-th call to the system fails while checkpoints are written: the newest complete one stays readable, and the next
run goes on from it (tests/faults/training.py). With FAULTS=all every call fails in every way."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradloom.files.checkpoint_files import Saved, manifests, read_checkpoint
from gradloom.parallel.communicator import checksum
from gradloom.runs.folder import RunFolder
from tests.faults import training
from tests.faults.harness import COMPILER, MATTERS, MODES, Ended, Service

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or COMPILER is None, reason="needs Linux and a C++ compiler: a library to preload"
)
ALL = os.environ.get("FAULTS") == "all"
_SAID = (
    "was not saved", "an error followed", "cannot be removed", "cannot be written", "no checkpoint to resume",
    "is replaced at", "is used$", "no other one$",
)  # fmt: skip
SAID = re.compile(f"gradloom: .*({'|'.join(_SAID)})|.*: this run has finished")
STARTS = {"fresh": "resume", "interrupted": "resume", "finished": "overwrite", "fit": "resume"}  # how each run begins
SOME = {"fresh": "once", "interrupted": "once", "finished": "kill", "fit": "once"}  # the mode, but with FAULTS=all


Found = tuple[int, str]  # step and digest of a checkpoint


def found_in(saved: Saved) -> Found:
    return saved.step, checksum(*(value for name, value in saved.entries.items() if name.startswith("model.")))


def newest(folder: Path, kind: str) -> Found | None:
    """The newest checkpoint; nothing may be damaged."""
    told: list[str] = []
    run = RunFolder(folder, kind, resume=True, on_line=told.append)
    run.end("failed")
    if run.resumed is None:
        assert len(told) == 1 and "no checkpoint" in told[0], told
        return None
    assert told == []
    return found_in(run.resumed)


class Runs:
    """Runs of the loop over what is there, whose n-th call fails."""

    def __init__(self, there: str, place: Path) -> None:
        self.there, self.service = there, Service(place)
        self.kind = "fit" if there == "fit" else "loop"
        self.folder, self.kept = self.service.work / "run", place / "kept"
        if there == "interrupted":
            training.main([self.kind, str(self.kept), "2", "resume"], stop=2)
        elif there == "finished":
            training.main([self.kind, str(self.kept), "1", "resume"])
        self.right: dict[int, set[Found]] = {}  # of each seed: all that may be there
        for seed in (1, 2):
            training.main([self.kind, str(place / str(seed)), str(seed), "resume"], keep=99)
            listed, _ = manifests(place / str(seed) / "checkpoints")
            self.right[seed] = {found_in(read_checkpoint(one)) for one in listed}
            assert {step for step, _ in self.right[seed]} == set(range(1, training.STEPS + 1))
        self.restore()
        calm = self.run()
        assert calm.code == 0 and self.whole() == []
        self.calls = calm.calls

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.kept.exists():
            shutil.copytree(self.kept, self.folder)

    def run(self, at: int = 0, mode: str = "once") -> Ended:
        return self.service.run([self.kind, self.folder, 2, STARTS[self.there]], at, mode, "tests.faults.training")

    def whole(self) -> list[str]:
        """What is wrong after a run that ended well."""
        found = newest(self.folder, self.kind)
        wrong = [] if found in self.right[2] and found[0] == training.STEPS else [f"it ends with {found}"]
        ours = ("run.json", "checkpoints", "metrics.jsonl", "plans.json.gz")
        left = [n for n in os.listdir(self.folder) if n.startswith(".") or n not in ours]
        inside = os.listdir(self.folder / "checkpoints")
        more = [] if len(inside) in (4, 6) else [f"checkpoints: {sorted(inside)}"]  # two, and the best
        return wrong + ([f"left: {left}"] if left else []) + more

    def wrong(self, ended: Ended, mode: str) -> Iterator[str]:
        lines = ended.err.splitlines()
        if ended.code not in (0, 2, -signal.SIGKILL) or (ended.code < 0 and mode != "kill"):
            yield f"exit code {ended.code}: {lines[-3:]}"
        odd = [line for line in lines if not SAID.match(line)]
        if len(odd) > (ended.code == 2) or not all(line.startswith("gradloom: ") for line in odd):
            yield f"exit code {ended.code}, lines {odd}"
        found = newest(self.folder, self.kind)
        if found is None or found not in self.right[2]:
            is_old = (
                found in self.right[1] and found[0] == training.STEPS if self.there == "finished" else found is None
            )
            if self.there == "interrupted" or not is_old:
                yield f"the newest is {found}"
        elif self.there == "interrupted" and found[0] < 2:
            yield f"the newest is {found}, older than before"
        failed = ended.code or any("was not saved" in line for line in lines)
        if not failed and found is not None and (found[0] != training.STEPS or found not in self.right[2]):
            yield f"ended well with {found}"
        again = self.run()
        if again.code or not all(SAID.match(line) for line in again.err.splitlines()):
            yield f"the next run: exit code {again.code}, {again.err.splitlines()[-1:]}"
        else:
            yield from (f"the next run: {each}" for each in self.whole())

    def numbers(self) -> list[int]:
        """Of the calls that fail: all, or of equal ones in a row the first, up to the second checkpoint."""
        if ALL:
            return list(range(1, len(self.calls) + 1))
        words = [re.sub(r"\.part\.\w{8}|\d+", "", call) for call in self.calls]
        end = next(i for i, call in enumerate(self.calls) if "step-000004" in call or "step-000002" in call)
        return [i + 1 for i in range(min(end + 40, len(words))) if i == 0 or words[i] != words[i - 1]]


@pytest.mark.parametrize("there", STARTS)
@pytest.mark.slow
def test_whatever_fails_a_checkpoint_is_there(there: str, tmp_path: Path) -> None:
    runs = Runs(there, tmp_path)
    found: list[str] = []
    codes: dict[Any, int] = {}
    for mode, at in itertools.product(MODES if ALL else (SOME[there],), runs.numbers()):
        if re.match(MATTERS.get(mode, ""), runs.calls[at - 1]):
            runs.restore()
            ended = runs.run(at, mode)
            codes[mode, ended.code] = codes.get((mode, ended.code), 0) + 1
            found += [f"{mode} {at} ({runs.calls[at - 1]}): {wrong}" for wrong in runs.wrong(ended, mode)]
    print(f"{there}: {len(runs.calls)} calls, exit codes {codes}")
    assert not found, "\n".join([f"{len(found)} of {sum(codes.values())}", *found])
    assert codes.get(("kill", -signal.SIGKILL), 0) + codes.get(("once", 2), 0), "nothing failed"
