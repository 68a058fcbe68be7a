"""Commands whose n-th call to the system fails: what they must leave behind, for every n.

    python -m tests.faults.harness fit once 17     one of them, with all that it says and leaves

A command runs over good outputs of an earlier run ("old"); undisturbed it leaves "new". Whatever fails, the outputs are
afterwards all old, all new, or all as the error says that they were saved; nothing else lies there; and either the exit
code is 0 and they are new, or there is one line of error.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests import processes
from tests.llm.random_models import write

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "faults.cpp"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
MODES = ("once", "short", "full", "dead", "kill")  # the numbers of faults.cpp
MATTERS = {"short": "write", "full": "open|mkdir|write|copy|ftruncate|fallocate|link|symlink"}  # calls; else all
LIMIT = 60  # seconds in which a command must have ended
# of result.json: what changes from run to run, and the scores of the test rows, which are added when they are measured
CHANGING = re.compile("seconds|rows_per_second|peak_bytes|planned_bytes|test_|baseline|warnings|history")

TUNE = ["finetune", "m.gguf", "t.txt", "--context", 16, "--batch-size", 2, "--steps", 2, "--threads", 2]
LORA = [*TUNE, "--rank", 2]
SAVED = re.compile("the weights before the failed step are in|the weights before it are in|its end .* was not saved")
COMMIT, OURS = ".gradloom.commit", ".gradloom."  # names that files/commit.py and files/lock.py give
COMMANDS: dict[str, list[Any]] = {  # the last two words make the old outputs and the new ones differ
    "fit": ["fit", "t.csv", "--epochs", 2, "--hidden", 4, "--threads", 2, "--out", "out", "--seed"],
    "lora": [*LORA, "--out", "a.gguf", "--seed"],
    "peft": [*TUNE, "--out", "adapter", "--rank"],
    "full": [*TUNE, "--method", "full", "--targets", "attn_q", "--out", "tuned.gguf", "--seed"],
    "merge": ["merge", "m.gguf", "given.gguf", "--out", "merged.gguf", "--type"],
    "quantize": ["quantize", "m.gguf", "--out", "quantized.gguf", "--type"],
}
OLD_NEW = {"merge": ("f16", "f32"), "quantize": ("f16", "q8_0")}  # else seeds, or ranks, 1 and 2
CONVERSIONS = ("merge", "quantize")  # without a run, a program and its arena
OF_A_RUN = re.compile(
    r"\.run/|run\.json|metrics\.jsonl|plans\.json|settings\.toml|checkpoints/|\.gradloom\.(new|clear|move)"
)
BESIDE = re.compile(
    "the training continues|the digest of .* is not recorded|was not saved|an error followed|was not: |"
    "cannot be (written|removed)"
)
Files = dict[str, tuple[int, bytes]]  # name in the folder -> (mode, content)


def library(folder: Path) -> Path:
    """The preloaded library, compiled."""
    path = folder / "faults.so"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *flags, "-o", str(path), str(SOURCE), "-ldl"], check=True, timeout=120)
    return path


def files(folder: Path) -> Files:
    """All files but those of a run's folder (test_checkpoints.py); what changes from run to run is taken out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not OF_A_RUN.search(str(path.relative_to(folder))):
            data = path.read_bytes()
            with contextlib.suppress(ValueError, KeyError, struct.error):  # half of one; under a temporary name, too
                if path.name.endswith("result.json"):
                    data = json.dumps({k: v for k, v in json.loads(data).items() if not CHANGING.match(k)}).encode()
                elif path.name.endswith("model.safetensors"):
                    data = _without_scores(data)
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode), data
    return found


def _without_scores(data: bytes) -> bytes:
    """A model's file without the scores in its description."""
    (size,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + size])
    texts = json.loads(head["__metadata__"]["gradloom"])
    told = json.loads(texts["gradloom.model"])
    told["metrics"] = {name: v for name, v in told["metrics"].items() if not CHANGING.match(name)}
    head["__metadata__"]["gradloom"] = json.dumps(texts | {"gradloom.model": json.dumps(told)})
    return json.dumps(head).encode() + data[8 + size :]


@dataclass
class Ended:
    """How a command ended: exit code (negative: the signal), stderr, the calls that were counted, the files."""

    code: int
    err: str
    calls: list[str]
    files: Files = field(repr=False)


class Service:
    """Runs commands in a folder, each in a child of a process that has imported everything (tests/faults/server.py)."""

    def __init__(self, folder: Path) -> None:
        self.work, self.place = folder / "work", folder / "place"
        for made in (self.work, self.place):
            made.mkdir()
        so = library(folder)
        env = processes.environment(LD_PRELOAD=str(so), OPENBLAS_NUM_THREADS="1")
        self.server = processes.start(
            [sys.executable, "-m", "tests.faults.server", so], env=env, cwd=self.work, stdin=subprocess.PIPE,
            stderr=None,
        )  # fmt: skip

    def run(self, command: list[Any], at: int = 0, mode: str = "once", module: str = "gradloom.cli.main") -> Ended:
        words = [str(word) for word in command]
        asked = {"module": module, "arguments": words, "folder": str(self.work), "at": at, "mode": MODES.index(mode)}
        assert self.server.stdin is not None and self.server.stdout is not None
        print(json.dumps(asked | {"place": str(self.place), "limit": LIMIT}), file=self.server.stdin, flush=True)
        code = int(self.server.stdout.readline())
        err, log = ((self.place / name).read_text(errors="replace") for name in ("err", "log"))
        return Ended(code, err, log.splitlines(), files(self.work))


class Case:
    """One command over its old outputs; see the top of this file."""

    def __init__(self, name: str, service: Service) -> None:
        self.service = service
        work = service.work
        rng = np.random.default_rng(0)
        write(work, "llama", context=64, layers=1, vocab=280).rename(work / "m.gguf")
        (work / "t.txt").write_text(" ".join(rng.choice(["once", "upon", "a time", "there", "was"], 200)))
        rows = [f"{x:.3f},{y:.3f},{'ab'[i % 2]}" for i, (x, y) in enumerate(rng.normal(size=(40, 2)))]
        (work / "t.csv").write_text("\n".join(rows) + "\n")
        if name == "merge":
            self.undisturbed([*LORA, "--out", "given.gguf"])
        old, new = OLD_NEW.get(name, (1, 2))
        self.command = [*COMMANDS[name], new]
        self.anew = (
            [] if name in CONVERSIONS else ["--overwrite"]
        )  # a run that has not finished is replaced by that alone
        self.inputs = files(work)
        self.fresh = self.undisturbed(self.command)  # into an empty place
        self._clear()
        self.old = self.undisturbed([*COMMANDS[name], old]).files
        self.made = {name: file for name, file in self.old.items() if name not in self.inputs}
        self.kept = work.parent / "kept"
        shutil.copytree(work, self.kept)
        self.calm = self.undisturbed(self.command)
        self.new = self.calm.files
        assert self.new == self.fresh.files != self.old and self.new.keys() == self.old.keys() > self.inputs.keys()
        self.said = {_shape(line) for line in self.calm.err.splitlines()}
        self.codes: Counter[tuple[str, int]] = Counter()  # (mode, exit code) -> times

    def undisturbed(self, command: list[Any]) -> Ended:
        ended = self.service.run(command)
        assert ended.code == 0, ended.err
        return ended

    def _clear(self) -> None:
        """Only the inputs are left."""
        for path in self.service.work.iterdir():
            if path.name not in self.inputs:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def restore(self, outputs: bool) -> None:
        self._clear()
        if outputs:
            shutil.copytree(self.kept, self.service.work, dirs_exist_ok=True)

    def numbers(self, short: bool = False, outputs: bool = True) -> list[int]:
        """Of the calls that may fail; short: of equal calls in a row the first and the last, without those for the
        folder of a run, which test_checkpoints.py makes fail."""
        calls = self.calm.calls if outputs else self.fresh.calls
        if not short:
            return list(range(1, len(calls) + 1))
        own = [n for n in range(1, len(calls) + 1) if not OF_A_RUN.search(calls[n - 1])]
        groups = itertools.groupby(own, lambda n: _shape(calls[n - 1]))
        return sorted({n for _, group in groups for n in _ends(list(group))})

    def disturbed(self, at: int, mode: str, outputs: bool = True) -> tuple[Ended, list[str]]:
        """The command whose call `at` fails, and what is wrong with how it ended. outputs: over the old ones."""
        self.restore(outputs)
        ended = self.service.run(self.command, at, mode)
        wrong = list(self._wrong(ended, mode, self.old if outputs else self.inputs))
        if ended.files not in (self.old, self.inputs, self.new):  # from these it was seen to work
            again = self.service.run([*self.command, *self.anew])
            if again.code or again.files != self.new:
                left = "as they should be" if again.files == self.new else _difference(again.files, self.new)
                wrong.append(f"the next run: exit code {again.code}, files {left}, {again.err.splitlines()[-1:]}")
        return ended, wrong

    def faults(
        self, modes: Iterable[str], over: Iterable[bool], short: bool = False
    ) -> Iterator[tuple[str, int, str, list[str]]]:
        """(mode, n, the call, what is wrong) for all calls that may fail. over: outputs as in `disturbed`."""
        for outputs in over:
            calls = (self.calm if outputs else self.fresh).calls
            for mode, at in itertools.product(modes, self.numbers(short, outputs)):
                if not re.match(MATTERS.get(mode, ""), calls[at - 1]):
                    continue  # the same as the next one that matters
                ended, wrong = self.disturbed(at, mode, outputs)
                self.codes[mode, ended.code] += 1
                yield mode if outputs else f"{mode}-fresh", at, calls[at - 1], wrong

    def _wrong(self, ended: Ended, mode: str, old: Files) -> Iterator[str]:
        found = _settled(ended.files)
        if mode == "kill":  # who is killed removes nothing: the next run does
            found = {name: file for name, file in found.items() if not Path(name).name.startswith(OURS)}
        state = "old" if found == old else "new" if found == self.new else _difference(found, old)
        if SAVED.search(ended.err) and found.keys() == self.new.keys() and not found.items() & self.made.items():
            state = "saved"  # what there was when the run could not go on; a third content, of all outputs
        if state not in ("old", "new", "saved"):
            yield f"files: {state}"
        if ended.code < 0:
            if (ended.code, mode) != (-signal.SIGKILL, "kill"):
                yield f"ended by signal {-ended.code}"
            return
        if ended.code == 0 and state != "new":
            yield f"exit code 0, and the files are {state}"
        errors = [line for line in ended.err.splitlines() if _shape(line) not in self.said]
        wanted = ended.code != 0
        # what could not be written beside the training is said, and it goes on; the last line is that of the exit code
        errors = [line for i, line in enumerate(errors) if i >= len(errors) - wanted or not BESIDE.search(line)]
        if len(errors) != wanted or not all(line.startswith("gradloom: ") for line in errors):
            yield f"exit code {ended.code}, lines of error: {errors}"
        if ended.code not in (0, 2):
            yield f"exit code {ended.code}"
        if mode == "short" and ended.code:
            yield "a short write is no failure"


def _shape(line: str) -> str:
    """A line without its numbers and the names of temporary files."""
    return re.sub(r"\.[^/ ]*\.part|\.tmp\w+|\.gradloom\.part\.\w+", "PART", re.sub(r"[0-9.]+( [kMG])?", "0", line))


def _settled(found: Files) -> Files:
    """The files as readers see them: a change that is committed and not carried out yet counts as made."""
    settled = dict(found)
    for name in found:
        if Path(name).name == COMMIT:
            folder = Path(name).parent
            with contextlib.suppress(ValueError):  # half of one: it stays, and is a fault
                moves = json.loads(found[name][1])
                del settled[name]
                for target, move in moves.items():
                    if str(folder / move["part"]) in settled:
                        settled[str(folder / target)] = settled.pop(str(folder / move["part"]))
    return settled


def _ends(group: list[int]) -> set[int]:
    return {group[0], group[-1]}


def _difference(found: Files, old: Files) -> str:
    names = [name for name in {**found, **old} if found.get(name) != old.get(name)]
    return "neither old nor new; other than old are " + ", ".join(
        f"{name} ({'new name' if name not in old else 'gone' if name not in found else 'changed'})" for name in names
    )


if __name__ == "__main__":
    import tempfile

    try:
        with tempfile.TemporaryDirectory() as made:
            case = Case(sys.argv[1], Service(Path(made)))
            mode, _, fresh = sys.argv[2].partition("-")
            ended, wrong = case.disturbed(int(sys.argv[3]), mode, not fresh)
            print(ended.err, *ended.calls, *wrong, f"exit code {ended.code}", sep="\n")
    finally:
        processes.end_all()
