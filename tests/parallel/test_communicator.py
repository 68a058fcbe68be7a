"""Communicators without processes: order of sums, agreement, and waits that end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import parallel as comm
from tests.refused import refused

Body = Callable[[comm.Communicator], Any]


def on_threads(size: int, body: Body, timeout: float = 30.0) -> list[Any]:
    """What `body` returns, or the error that it raises, on each of `size` ranks."""
    results: list[Any] = [None] * size

    def run(rank: comm.Communicator) -> None:
        try:
            results[rank.rank] = body(rank)
        except Exception as error:
            results[rank.rank] = error

    workers = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in comm.threads(size, timeout)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    return results


def parts(count: int, elements: int) -> list[np.ndarray]:
    """Numbers of very different size: any other order of additions gives other bits."""
    rng = np.random.default_rng(count * 1000 + elements)
    return [
        (rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 6, elements)).astype(np.float32) for _ in range(count)
    ]


def folded(gs: list[np.ndarray]) -> np.ndarray:
    total = gs[0].copy()
    for g in gs[1:]:
        total = total + g
    return total


def summed(rank: comm.Communicator, gs: list[np.ndarray], ordered: bool, steps: int = 2) -> list[np.ndarray]:
    reduction = rank.reduction(gs[0].size, ordered)
    out = []
    for step in range(steps):
        rounds = -(-len(gs) // rank.size)
        for i in range(rounds):
            j = i * rank.size + rank.rank
            reduction.add(gs[j] * np.float32(step + 1) if j < len(gs) else None)
        out.append(reduction.finish().copy())
    return out


@pytest.mark.parametrize("elements", [0, 1, 5, 16, 17, 1000, 100_001])
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_same_bits_for_any_number_of_ranks(elements: int, count: int) -> None:
    gs = parts(count, elements)
    for size in (1, 2, 3, 4):
        for result in on_threads(size, lambda rank: summed(rank, gs, True)):
            for step, total in enumerate(result):
                np.testing.assert_array_equal(total, folded([g * np.float32(step + 1) for g in gs]))
    for total in summed(comm.communicator(None), gs, True):
        assert total.dtype == np.float32


def test_the_numbers_of_these_tests_show_the_order() -> None:
    gs = parts(7, 1000)
    assert not np.array_equal(folded(gs), folded(gs[::-1]))
    assert not np.array_equal(folded(gs), folded(gs[:4]) + folded(gs[4:]))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_unordered_sums_are_equal_on_all_ranks_and_near(size: int) -> None:
    gs = parts(7, 1000)
    results = on_threads(size, lambda rank: summed(rank, gs, False)[0])
    exact = np.sum([g.astype(np.float64) for g in gs], 0)
    size_of_terms = np.sum([np.abs(g) for g in gs], 0)
    for total in results:
        np.testing.assert_array_equal(total, results[0])
        assert np.max(np.abs(total - exact) / size_of_terms) < 1e-6


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_sum_without_terms_is_zero_and_minus_zero_stays(size: int, ordered: bool) -> None:
    def body(rank: comm.Communicator) -> tuple[np.ndarray, np.ndarray]:
        reduction = rank.reduction(40, ordered)
        reduction.add(np.full(40, np.nan, np.float32))
        reduction.finish()
        reduction.add(None)
        nothing = reduction.finish().copy()
        reduction.add(np.full(40, -0.0, np.float32) if rank.rank == size - 1 else None)
        out = np.ones(40, np.float32)
        assert reduction.finish(out) is out
        return nothing, out

    for nothing, last in on_threads(size, body):
        assert not nothing.any() and not np.signbit(nothing).any()
        assert np.signbit(last).all() and not last.any()


def test_what_is_given_is_free_again_after_add() -> None:
    def body(rank: comm.Communicator) -> np.ndarray:
        reduction = rank.reduction(3000)
        mine = np.empty(3000, np.float32)
        for i in range(50):
            mine.fill(i + rank.rank)
            reduction.add(mine)
            mine.fill(np.nan)
        return reduction.finish()

    for total in on_threads(3, body):
        assert (total == sum(3 * i + 3 for i in range(50))).all()


def test_wrong_arrays_are_refused() -> None:
    reduction = comm.communicator().reduction(4)
    for bad in (np.zeros(4), np.zeros(3, np.float32), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]):
        with pytest.raises(gl.ShapeError, match=r"need a contiguous float32\[4\]"):
            reduction.add(bad)
    reduction.add(np.ones(4, np.float32))
    with pytest.raises(gl.ShapeError, match="out is float64"):
        reduction.finish(np.zeros(4))


def test_gather_and_broadcast() -> None:
    def body(rank: comm.Communicator) -> tuple[list[Any], np.ndarray]:
        array = np.arange(6, dtype=np.int32).reshape(2, 3) * (1 if rank.is_root else -1)
        rank.broadcast(array)
        return rank.gather({"rank": rank.rank}), array

    for size in (1, 2, 3):
        for seen, array in on_threads(size, body):
            assert seen == [{"rank": r} for r in range(size)]
            np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])


def messages(results: list[Any]) -> list[str]:
    assert all(isinstance(r, gl.TrainError) for r in results), results
    assert all("\n" not in str(r) for r in results)
    return [str(r) for r in results]


def test_check_names_the_first_that_differs() -> None:
    results = on_threads(3, lambda rank: rank.check("the data", comm.checksum(np.arange(3) + (rank.rank == 2))))
    for text in messages(results):
        assert text.startswith("replica 2 differs from replica 0 in the data: ") and text.endswith("all 3 replicas end")
    assert on_threads(3, lambda rank: rank.check("the data", 7)) == [None] * 3


def test_an_error_is_carried_to_wherever_the_others_wait() -> None:
    def body(rank: comm.Communicator) -> None:
        reduction = rank.reduction(10)
        rank.gather(None)
        if rank.rank == 1:
            rank.fail(ValueError("row 3 is bad\nand more"))
            return
        reduction.add(np.ones(10, np.float32))

    started = time.monotonic()
    first, second, third = on_threads(3, body)
    assert second is None
    for text in messages([first, third]):
        assert text == "replica 1 failed with ValueError: row 3 is bad; all 3 replicas end"
    assert time.monotonic() - started < 5


def test_a_broken_group_stays_broken() -> None:
    def body(rank: comm.Communicator) -> str:
        if rank.rank == 1:
            rank.fail(KeyboardInterrupt())
            return ""
        for _ in range(2):
            with pytest.raises(gl.TrainError, match=r"replica 1 failed with interrupted \(Ctrl-C\)"):
                rank.gather(None)
        return "seen"

    assert on_threads(2, body) == ["seen", ""]


def test_one_that_ends_is_named_at_once() -> None:
    def body(rank: comm.Communicator) -> None:
        rank.gather(None)
        if rank.rank != 1:
            rank.gather(None)

    started = time.monotonic()
    first, _, third = on_threads(3, body)
    for text in messages([first, third]):
        assert text == "replica 1 ended while the others wait for it; all 3 replicas end"
    assert time.monotonic() - started < 5


def test_one_that_closes_is_named() -> None:
    def body(rank: comm.Communicator) -> None:
        if rank.rank == 1:
            rank.close()
            time.sleep(2)
        else:
            rank.gather(None)

    assert "replica 1 ended" in messages(on_threads(2, body)[:1])[0]


@pytest.mark.slow
def test_one_that_hangs_is_named_within_the_timeout() -> None:
    def body(rank: comm.Communicator) -> None:
        rank.gather(None)
        if rank.rank == 2:
            time.sleep(4)
        rank.gather(None)

    started = time.monotonic()
    results = on_threads(3, body, timeout=1.0)
    for text in messages(results):
        assert text == "replica 2 gave no sign of life for 1 s; all 3 replicas end"
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_work_is_a_sign_of_life() -> None:
    def body(rank: comm.Communicator) -> str:
        if rank.rank == 1:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                np.sort(np.random.default_rng(0).standard_normal(100_000))
        rank.gather(None)
        return "well"

    assert on_threads(2, body, timeout=0.4) == ["well"] * 2


def test_different_calls_are_named() -> None:
    def body(rank: comm.Communicator) -> None:
        rank.gather(None) if rank.rank == 1 else rank.reduction(4)

    for text in messages(on_threads(2, body)):
        assert text == "replica 1 came to gather while another is in reduction(4, ordered=True); all 2 replicas end"


def test_the_driver_is_chosen_by_name() -> None:
    alone = comm.communicator("none")
    assert (alone.rank, alone.size, alone.is_root) == (0, 1, True)
    assert comm.communicator(alone) is alone
    alone.gather(None)
    alone.check("x", 1)
    alone.fail(ValueError("mine"))
    with refused("parallel", "gpu", need="None, 'none', 'mpi'"):
        comm.communicator("gpu")
    for bad in (0, -1.0, float("inf"), float("nan"), "60", True):
        with pytest.raises(gl.SettingError, match="timeout="):
            comm.communicator(None, timeout=bad)
    for bad in (0, True, 1.5):
        with pytest.raises(gl.SettingError, match="size=.*: must be"):
            comm.threads(bad)


def test_checksums_see_kind_shape_and_bytes() -> None:
    zero = np.zeros(4, np.float32)
    variants: list[tuple] = [(zero,), (zero.reshape(2, 2),), (zero.astype(np.float64),), (-zero,), (zero, zero), ()]
    variants += [(b"a", b"b"), (b"ab",), ("ab",), ("a", "b"), (1,), ("1",), (1.0,)]
    sums = [comm.checksum(*v) for v in variants]
    assert len(set(sums)) == len(sums)
    assert comm.checksum(np.arange(6).reshape(2, 3).T) == comm.checksum(np.arange(6).reshape(2, 3).T.copy())
    assert comm.checksum(np.float32(1) * np.ones(())) != comm.checksum(np.zeros(()))


def test_launched_reads_what_launchers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert comm.launched() == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert comm.launched() == 3
