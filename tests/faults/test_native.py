"""Allocations of the core that fail, one after the other: a typed error, nothing kept, and the next call works.

Needs a core that was built with GRADLOOM_FAULTS, and the library preloaded: tests/faults.sh.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import _core
from gradloom.base.errors import BackendError
from gradloom.files import open_gguf
from tests.core.test_threads import N, wide
from tests.core.test_vm import Tape, in_child, vec
from tests.faults.harness import MODES
from tests.llm.random_models import write

library = ctypes.CDLL(None)
pytestmark = pytest.mark.skipif(
    not (_core.FAULTS and hasattr(library, "faults_arm")), reason="needs tests/faults.sh: a core and a library for it"
)
NOWHERE = b"/nowhere"  # no file lies there: only allocations are counted


@pytest.fixture
def four_cores() -> Iterator[None]:
    _core.set_cores(4)
    yield
    _core.set_cores(0)


def armed(work: Callable[[], Any], at: int, mode: str = "once", folder: bytes = NOWHERE, log: int = -1) -> Any:
    library.faults_arm(folder, at, MODES.index(mode), log)
    try:
        return work()
    finally:
        library.faults_arm(b"", 0, 0, -1)


def calls(work: Callable[[], Any], at: int = 0, mode: str = "once", folder: bytes = NOWHERE) -> list[str]:
    """The calls that are counted, those that fail with " !"."""
    reading, writing = os.pipe()
    try:
        armed(work, at, mode, folder, writing)
    finally:
        os.close(writing)
        with open(reading) as file:
            found = file.read().splitlines()
    return found


def product(size: int) -> Callable[..., Any]:
    """2 x, added up; so many instructions that the core's lists of them are counted as allocations."""
    x = gl.input("x", (size, 8))
    y = x * 2.0
    for _ in range(30):
        y = gl.ops.abs(y)
    return gl.compile([y.sum()])


@pytest.mark.parametrize("mode", ["once", "dead"])
def test_a_second_program_that_cannot_be_compiled(mode: str) -> None:
    """Every allocation of it in turn, that of the larger arena too: a BackendError; the first one runs, the second one
    is compiled at the next try."""

    def child() -> int:
        first = product(4)
        ones = np.ones((4, 8), np.float32)
        assert first(x=ones)[0] == 64
        size = 100_000
        found = calls(lambda: in_child(lambda: product(size) and 0))
        assert {call.split()[0] for call in found} == {"arena", "new"}, found
        for at in range(1, len(found) + 1):
            size += 100_000  # so that the arena has to grow each time
            with pytest.raises(BackendError, match="compile: the system gives no more memory; need"):
                armed(lambda n=size: product(n), at, mode)
            assert first(x=ones)[0] == 64
            assert product(size)(x=np.ones((size, 8), np.float32))[0] == 16 * size
        return 0

    assert in_child(child) == 0


def test_an_arena_that_cannot_grow_again_before_a_run() -> None:
    run = product(4)
    ones = np.ones((4, 8), np.float32)
    arena = run.arena
    with pytest.raises(MemoryError):
        arena.ensure(1 << 60)
    assert arena.bytes == 0
    with pytest.raises(BackendError, match="run: the system gives no more memory; need"):
        armed(lambda: run(x=ones), 1)
    assert run(x=ones)[0] == 64 and arena.bytes > 0


def test_scratch_that_cannot_grow(four_cores: None) -> None:
    """For four threads, when there was some for two: the next run of two has what it needs."""
    rng = np.random.default_rng(0)
    x, w = gl.input("x", (300, 200)), gl.input("w", (200, 700))
    feeds = {"x": rng.normal(size=(300, 200)).astype("f4"), "w": rng.normal(size=(200, 700)).astype("f4")}
    run = gl.compile([x @ w], threads=2)
    assert run.plan.bytecode.scratch_bytes
    wanted = run(**feeds)[0]

    wide().program().run(1, threads=4)  # so that the helpers are there

    def wider() -> Any:
        return run._native.run(1, threads=4)

    with pytest.raises(MemoryError):
        armed(wider, 1)
    assert np.array_equal(run(**feeds)[0], wanted)
    assert wider()[:2] == (1, 0)


@pytest.mark.parametrize("mode", ["once", "dead"])
def test_teams_for_which_there_are_no_threads_or_no_memory(mode: str) -> None:
    """A run goes on with the threads that it gets, to the same bits; nothing is taken for good."""

    def child() -> int:
        _core.set_cores(4)
        t = wide()
        t.segments[3] = ("scratch", 0)
        p = t.program()
        p.run(1, threads=1)
        expected = t.arena.view()[12 * N : 16 * N].copy()

        def fails(at: int) -> int:
            found: list[str] = []

            def team() -> int:
                found.extend(calls(lambda: p.run(2, threads=4), at, mode))
                assert any(call.endswith("!") for call in found), found
                assert np.array_equal(t.arena.view()[12 * N : 16 * N], expected)
                p.run(2, threads=4)
                assert _core.pool_threads() == 3, "the team is whole again"
                assert np.array_equal(t.arena.view()[12 * N : 16 * N], expected)
                return 0

            return in_child(team)

        found = calls(lambda: in_child(lambda: 0 * len(p.run(1, threads=4))))
        assert [call.split()[0] for call in found].count("thread") == 3, found
        assert [fails(at) for at in range(1, len(found) + 1)] == [0] * len(found)
        return 0

    assert in_child(child) == 0


@pytest.mark.usefixtures("nothing_left")
def test_a_model_that_cannot_be_mapped(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    folder = os.fsencode(tmp_path)
    found = calls(lambda: open_gguf(path), folder=folder)
    assert [call.split()[0] for call in found] == ["open", "mmap"]
    before = len(os.listdir("/proc/self/fd"))
    limit = "too many open files; raise the limit of open files (`ulimit -n`)"
    for at, reason in ((1, limit), (2, "cannot be mapped (cannot allocate memory)")):
        with pytest.raises(gl.FileError) as raised:
            armed(lambda: open_gguf(path), at, folder=folder)
        assert str(raised.value).lower() == f"{path}: {reason}".lower()
        del raised  # holds what was made so far
        assert len(os.listdir("/proc/self/fd")) == before, "a file stays open"
    assert open_gguf(path).tensors


def test_tapes_that_cannot_be_made() -> None:
    """Each allocation of a long tape, the reading of its kernels too."""
    t = Tape()
    for _ in range(200):
        t.add("add", [vec(1), vec(1), vec(0, 64, write=True)])
    t.kernels *= 40
    found = calls(t.program)
    assert found
    for at in range(1, len(found) + 1):
        with pytest.raises(MemoryError):
            armed(t.program, at)
    assert t.program().run(1)[:2] == (1, 0)
