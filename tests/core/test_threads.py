"""The pool: same bits for any number of threads, sleeping and waking, forking."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradloom import _core
from tests.core.harness import ARG, arg
from tests.core.test_simd import COMPILER
from tests.core.test_vm import Tape, in_child, vec

N = 1 << 19


@pytest.fixture
def four_cores() -> Iterator[None]:
    _core.set_cores(4)
    yield
    _core.set_cores(0)


def wide() -> Tape:
    """Several parts, one part, two phases: a = exp(x), b = a * x, norm of b, c = b + norm."""
    t = Tape()
    t.arena.ensure(4 * 4 * N + 65536)
    x = t.arena.view()[: 4 * N].view(np.float32)
    x[:] = np.random.default_rng(0).standard_normal(N)
    at = 4 * 4 * N
    t.add("exp", [vec(0, 0, N), vec(0, 4 * N, N, write=True)])
    t.add("mul", [vec(0, 4 * N, N), vec(0, 0, N), vec(0, 8 * N, N, write=True)])
    t.add("relu", [vec(1, 0, 4), vec(1, 16, 4, write=True)])
    args = [arg("f32", (), 1, 4), arg("f32", (), 1, 4), vec(0, 8 * N, N), arg("f32", (), 1, 32, write=True)]
    parts, _, workspace = _core.kernel_plan(t.isa, "guard", "f32", np.array(args, ARG), np.zeros(0, np.int64))
    parts = np.array([*parts] + [0] * (4 - len(parts)))
    t.add("guard", [*args, arg("u8", (workspace,), 0, at, write=True)], phases=2, parts=parts)
    t.add("add", [vec(0, 8 * N, N), arg("f32", (), 1, 32), vec(0, 12 * N, N, write=True)])
    return t


@pytest.mark.parametrize("isa", _core.isas())
def test_same_bits(isa: str, four_cores: None) -> None:
    results = []
    for threads in (1, 2, 3, 4, 1, 4, 2):
        t = wide()
        t.isa = isa
        p = t.program()
        assert p.run(3, threads=threads)[:2] == (3, 0)
        results.append(t.arena.view()[4 * N : 16 * N].copy())
    assert all(np.array_equal(r, results[0]) for r in results)
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    b = np.exp(x) * x
    norm = np.sqrt(np.sum(b.astype(np.float64) ** 2))
    assert np.allclose(results[0][8 * N :].view(np.float32), b + norm, rtol=1e-5)


def test_threads_are_limited_and_reused(four_cores: None) -> None:
    t = wide()
    p = t.program()
    most = max(3, _core.pool_threads())  # other tests may have pretended more cores
    p.run(2, threads=64)
    assert _core.pool_threads() == most
    for threads in (2, 4, 3, 2, 4):
        p.run(2, threads=threads)
    assert _core.pool_threads() == most


def test_single_parts_wake_nobody() -> None:
    if os.name != "posix":
        pytest.skip("needs fork")

    def child() -> int:
        t = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
        t.program().run(10, threads=2)
        return 0 if _core.pool_threads() == 0 else 1

    assert in_child(child) == 0


def test_after_sleeping(four_cores: None) -> None:
    t = wide()
    p = t.program()
    p.run(1, threads=4)
    expected = t.arena.view()[12 * N : 16 * N].copy()
    for pause in (0.0, 0.0001, 0.001, 0.05):
        t.arena.view()[4 * N : 16 * N] = 0
        time.sleep(pause)
        p.run(1, threads=4)
        assert np.array_equal(t.arena.view()[12 * N : 16 * N], expected)


def test_sleepers_use_no_time() -> None:
    t = wide()
    t.program().run(1, threads=2)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


def test_runs_of_several_python_threads(four_cores: None) -> None:
    lists = [wide() for _ in range(3)]
    programs = [t.program() for t in lists]
    errors: list[BaseException] = []

    def work(p: _core.Program, threads: int) -> None:
        try:
            for _ in range(5):
                assert p.run(2, threads=threads)[:2] == (2, 0)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(p, 2 + i)) for i, p in enumerate(programs)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    assert not errors
    results = [t.arena.view()[12 * N : 16 * N] for t in lists]
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@contextlib.contextmanager
def endless_run(threads: int) -> Iterator[None]:
    """Meanwhile a run of so many threads is under way in another thread."""
    t = wide()
    p = t.program()
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(p.run(1 << 40, threads=threads)[1]))
    thread.start()
    seen = t.arena.view()[12 * N : 16 * N].view(np.float32)
    while not seen[-1]:  # the last that a step writes
        time.sleep(0.001)
    try:
        yield
    finally:
        assert thread.is_alive()
        p.stop()
        thread.join()
        assert done == [5], "stopped because it was asked to"


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_teams_exist_side_by_side(taken: int, four_cores: None) -> None:
    t = wide()
    p = t.program()
    p.run(2, threads=4)
    expected = t.arena.view()[12 * N : 16 * N].copy()
    with endless_run(taken):
        for threads in (1, 2, 3, 4, 2):
            t.arena.view()[4 * N : 16 * N] = 0
            finished: list[object] = []
            run = threading.Thread(target=lambda n=threads, to=finished: to.append(p.run(1, threads=n)))
            run.start()
            run.join(60)
            assert finished, "a team waits for another one to end"
            assert np.array_equal(t.arena.view()[12 * N : 16 * N], expected)


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_teams_together_have_no_more_threads_than_cores() -> None:
    def child() -> int:
        _core.set_cores(4)
        programs = [wide().program() for _ in range(2)]
        with endless_run(2):
            first = _core.pool_threads()
            programs[0].run(2, threads=4)  # two are left
            second = _core.pool_threads()
            with endless_run(2):
                programs[1].run(2, threads=3)  # one is left
                third = _core.pool_threads()
        programs[0].run(2, threads=2)  # both pools are free and ready
        programs[0].run(2, threads=4)  # nobody else: all of them, in the pool that has most
        found = (first, second, third, _core.pool_threads())
        return 0 if found == (1, 2, 2, 4) else 16 + sum(found)

    assert in_child(child) == 0


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
def test_no_helper_sleeps_through_its_call(tmp_path: Path) -> None:
    """A helper that slept again while a call went out was never called again: teams of another width never began."""
    source = Path(__file__).resolve().parent.parent / "csrc" / "threads_check.cpp"
    program = tmp_path / "threads_check"
    built = subprocess.run([COMPILER, "-std=c++20", "-O2", "-pthread", source, "-o", program], capture_output=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, "20000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork(four_cores: None) -> None:
    t = wide()
    p = t.program()
    p.run(1, threads=3)
    expected = t.arena.view()[12 * N : 16 * N].copy()

    def child() -> int:
        if _core.pool_threads() != 0:
            return 4
        p.run(2, threads=3)
        return 0 if np.array_equal(t.arena.view()[12 * N : 16 * N], expected) else 5

    assert in_child(child) == 0
    with endless_run(2):  # also while another team is at work
        assert in_child(child) == 0
    p.run(1, threads=3)  # and the parent's pool works on
    assert np.array_equal(t.arena.view()[12 * N : 16 * N], expected)
