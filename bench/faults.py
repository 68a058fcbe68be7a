"""Share of injected faults that the tests find: short suite (`pytest --quick`) against full suite.

    python bench/faults.py [--log faults.jsonl] [--only TEXT] [--stage near] [--jobs 2]

Each fault changes one place of the package or of the core. The tests run until one fails: first the short suite of the
nearest files (`first`) and packages of tests (`near`), then the rest of the short suite (`rest`), then the full suite
of those packages (`full`). The log has a line for each fault and stage, and a second call with the same log continues.

Run it in a git worktree of its own without changes, with the core built in place: faults are written into its files,
which `git checkout` restores. A fault of the core is compiled in build-faults/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from common import HERE, table
from fault_list import FAULTS, Fault

ROOT = HERE.parent
PACKAGE = ROOT / "src" / "gradloom"
BUILD = ROOT / "build-faults"
STAGES = ("first", "near", "rest", "full")
SECONDS = 3600  # of one stage; a fault may make a loop endless


class Found(NamedTuple):
    test: str | None  # the first that failed; None: all passed
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--only", default="", help="faults whose place or text contains this")
    parser.add_argument("--stage", choices=STAGES, default="full", help="the last stage to run")
    parser.add_argument("--jobs", default="2", help="processes of pytest in the stages rest and full")
    args = parser.parse_args()
    for fault in FAULTS:
        count = (ROOT / fault.path).read_text().count(fault.old)
        if count != 1:
            sys.exit(f"{fault.path}: {fault.old!r} is there {count} times; must be there once")
    known = _read(args.log)
    for fault in FAULTS:
        if args.only not in f"{fault.path}: {fault.old}":
            continue
        left = [s for s in STAGES[: STAGES.index(args.stage) + 1] if s not in known.get(fault.name, {})]
        left = [stage for stage in left if stage != "first" or fault.first]
        if not left or any(found.test for found in known.get(fault.name, {}).values()):
            continue
        with Injected(fault) as injected:
            for stage in left:
                found = injected.build_error or _tests_of(fault, stage, args.jobs)
                known.setdefault(fault.name, {})[stage] = found
                with args.log.open("a") as log:
                    log.write(json.dumps({"fault": fault.name, "stage": stage, **found._asdict()}) + "\n")
                print(f"{fault.name}\n    {stage}: {found.test} ({found.seconds:.0f} s)", flush=True)
                if found.test:
                    break
    _print(known)


def _read(log: Path) -> dict[str, dict[str, Found]]:
    known: dict[str, dict[str, Found]] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        one = json.loads(line)
        known.setdefault(one["fault"], {})[one["stage"]] = Found(one["test"], one["seconds"])
    return known


class Injected:
    """Inside, the fault is in its file, and in the core where it belongs to it."""

    def __init__(self, fault: Fault) -> None:
        self.path, self.fault = ROOT / fault.path, fault
        self.is_native = fault.path.startswith("csrc/")
        self.build_error: Found | None = None

    def __enter__(self) -> Injected:
        self.path.write_text(self.path.read_text().replace(self.fault.old, self.fault.new))
        if self.is_native:
            self.kept = Path(tempfile.mkdtemp())
            for library in PACKAGE.glob("_c*.so"):
                shutil.copy2(library, self.kept)
            build_type = [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DGRADLOOM_INPLACE=ON",
                f"-DPython_EXECUTABLE={sys.executable}",
            ]
            began = time.perf_counter()
            for command in (
                ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *build_type],
                ["ninja", "-C", BUILD, "-j1"],
            ):
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    last = (done.stdout + done.stderr).strip().splitlines()[-1]
                    self.build_error = Found(f"the compiler: {last}", time.perf_counter() - began)
        return self

    def __exit__(self, *_: Any) -> None:
        subprocess.run(["git", "checkout", "-q", "--", self.fault.path], cwd=ROOT, check=True)
        if self.is_native:
            for library in self.kept.iterdir():
                shutil.move(library, PACKAGE / library.name)
            self.kept.rmdir()


def _tests_of(fault: Fault, stage: str, jobs: str) -> Found:
    if stage == "rest":
        return _run([*(f"--ignore={name}" for name in fault.packages), "--quick", "-n", jobs])
    if stage == "full":
        return _run([*fault.packages, "-n", jobs])
    return _run([*(fault.first if stage == "first" else fault.packages), "--quick", "-n0"])


def _run(arguments: Iterable[str]) -> Found:
    """Run pytest until the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired:
        return Found("no end", time.perf_counter() - began)
    text, seconds = done.stdout.decode(errors="replace"), time.perf_counter() - began
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.M)
    if done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):  # none: all need a package that is not installed
        return Found(None, seconds)
    return Found(failed[1] if failed else f"exit code {done.returncode}: {text.strip()[-200:]}", seconds)


def _print(known: dict[str, dict[str, Found]]) -> None:
    rows = []
    counts = dict.fromkeys((*STAGES, "none"), 0)
    for fault in FAULTS:
        stages = known.get(fault.name, {})
        hit = next(((stage, found.test) for stage, found in stages.items() if found.test), None)
        if hit is None and STAGES[-1] not in stages:
            continue
        stage, test = hit or ("none", "")
        counts[stage] += 1
        rows.append((fault.name[:90], stage, (test or "")[:80]))
    table(rows, ("fault", "found by", "test"))
    short = sum(counts[stage] for stage in STAGES[:-1])
    total = short + counts["full"]
    if total:
        share = f"{short / total:.1%} of those of the full one"
        print(f"{len(rows)} faults: short suite {short} ({share}), full suite {total}, neither {counts['none']}")


if __name__ == "__main__":
    main()
