"""Commands under limits of this process (RLIMIT_AS, RLIMIT_DATA): success, or exit code 2 and one line; never a
traceback, an abort of a library or a signal."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.base.memory import CORE_BYTES, START_BYTES, memory
from gradloom.base.settings import core_count
from tests import processes

LIMITS = {"RLIMIT_AS": resource.RLIMIT_AS, "RLIMIT_DATA": resource.RLIMIT_DATA}
MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space hold on Linux")


def floor(name: str) -> int:
    """The least limit under which commands run."""
    return START_BYTES[name] + core_count() * CORE_BYTES


def limited(name: str, limit: int, *arguments: Any) -> tuple[int, list[str]]:
    """(exit code, lines of stderr) of a command under a limit."""
    done = subprocess.run(
        [sys.executable, "-m", "gradloom", *map(str, arguments)],
        env=processes.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(LIMITS[name], (limit, limit)),
    )  # fmt: skip
    return done.returncode, done.stderr.strip().splitlines()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a:.6f},{b:.6f},{a + 2 * b:.6f}" for a, b in rows]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.slow
def test_limits_that_are_too_small_are_refused_before_a_library_ends_the_process(table: Path, name: str) -> None:
    model = write_random(table / "m.gguf", "llama", "f32", **SHAPES["tiny"])
    for arguments in (("fit", table / "t.csv", "--out", table / "out"), ("generate", model, "-p", "a"), ("doctor",)):
        for limit in (60 * MIB, 150 * MIB):
            code, lines = limited(name, limit, *arguments)
            assert code == 2 and len(lines) == 1 and lines[0].startswith("gradloom: memory: ") and name in lines[0]
    assert not (table / "out").exists()


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.slow
def test_the_least_limit_suffices_for_small_work(table: Path, name: str) -> None:
    model = write_random(table / "m.gguf", "llama", "f32", **SHAPES["tiny"])
    fit = ("fit", table / "t.csv", "--epochs", 1, "--out", table / "out")
    for arguments in (
        fit,
        ("predict", table / "out", table / "t.csv"),
        ("generate", model, "-p", "a"),
        ("info", model),
    ):
        code, lines = limited(name, floor(name), *arguments)
        assert code == 0 and not any("not saved" in line for line in lines), lines


@pytest.mark.slow
def test_a_tokenizer_without_memory_is_one_line(tmp_path: Path) -> None:
    """Its library ends the process where an allocation fails."""
    model = write_random(tmp_path / "m.gguf", "llama", "f32", **SHAPES["tiny"])
    (tmp_path / "t.txt").write_text("the cat sat on the mat. " * 60_000)
    code, lines = limited("RLIMIT_AS", floor("RLIMIT_AS"), "evaluate", model, tmp_path / "t.txt")
    assert code == 2 and "tokenizer" in lines[-1] and "RLIMIT_AS" in lines[-1]


def test_available_memory_is_the_least_of_all_limits(tmp_path: Path) -> None:
    page = resource.getpagesize()
    files = {
        "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n",
        "proc/self/statm": f"{100 * MIB // page} 900 800 1 0 {30 * MIB // page} 0\n",
    }

    def available(address: str, data: str) -> tuple[int, int]:
        rows = [("Max data size", data), ("Max stack size", "8388608"), ("Max address space", address)]
        text = "".join(f"{name:<26}{soft:<21}{'unlimited':<21}bytes     \n" for name, soft in rows)
        for path, content in (files | {"proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\n" + text}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        there = memory(str(tmp_path))
        assert there is not None
        return there.total, there.available

    assert available("unlimited", "unlimited") == (8000000 * 1024, 6000000 * 1024)
    assert available(str(500 * MIB), "unlimited") == (500 * MIB, 400 * MIB)
    assert available(str(500 * MIB), str(300 * MIB)) == (300 * MIB, 270 * MIB)
    assert available(str(50 * MIB), "unlimited") == (50 * MIB, 0)
