"""The communicator of threads: replicas of one process, which add up one another's arrays where they lie."""

from __future__ import annotations

import threading
import time
from typing import Any, NoReturn

import numpy as np

from ..base.errors import SettingError, ShapeError, TrainError
from ..base.training_options import TIMEOUT
from .communicator import Communicator, LocalSum, Reduction, checked_timeout, described, shard


def threads(size: int, timeout: float = TIMEOUT) -> list[Communicator]:
    """Communicators of `size` replicas in this process: one for each thread, to be used by that thread alone."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise SettingError(setting="size", seen=size, need="a whole number of at least 1")
    meeting = _Meeting(size, checked_timeout(timeout))
    return [ThreadRank(meeting, rank) for rank in range(size)]


class ThreadRank(Communicator):
    """One replica among several in one process."""

    kind = "replica"

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        super().__init__(rank, meeting.size, meeting.timeout)
        self._meeting = meeting

    def reduction(self, elements: int, ordered: bool = True) -> Reduction:
        sums = self._meeting.share(self.rank, f"reduction({elements}, ordered={ordered})", _Sums)
        return _SharedSum(self, elements, ordered, sums[0])

    def gather(self, value: Any) -> list[Any]:
        return self._meeting.share(self.rank, "gather", lambda: value)

    def broadcast(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            raise ShapeError(f"broadcast: an array with strides {array.strides}; need a C-contiguous one")
        call = f"broadcast({array.dtype}{list(array.shape)})"
        root = self._meeting.share(self.rank, call, lambda: array)[0]
        if self.rank:
            np.copyto(array, root)
        self._meeting.meet(self.rank, "the end of broadcast")

    def fail(self, error: BaseException) -> None:
        self._meeting.fail(self.rank, described(error))

    def _end(self, rank: int, what: str) -> NoReturn:
        self._meeting.end(rank, what)

    def close(self) -> None:
        self._meeting.leave(self.rank)


class _Meeting:
    """Where the threads of one group wait for one another."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self._bell = threading.Condition()
        self._round = 0
        self._calls: list[str | None] = [None] * size  # the call of each rank in this round
        self._threads: list[threading.Thread | None] = [None] * size
        self._left = [False] * size
        self._given: list[Any] = [None] * size
        self._failure: tuple[int, str] | None = None

    def fail(self, rank: int, reason: str) -> None:
        with self._bell:
            self._note(rank, f"failed with {reason}")

    def end(self, rank: int, what: str) -> NoReturn:
        with self._bell:
            self._note(rank, what)
            self._raise_failure()
        raise AssertionError

    def leave(self, rank: int) -> None:
        with self._bell:
            self._left[rank] = True
            self._bell.notify_all()

    def share(self, rank: int, call: str, make: Any) -> list[Any]:
        """The values that all ranks made, in the order of ranks."""
        self._given[rank] = make()
        self.meet(rank, call)
        given = list(self._given)
        self.meet(rank, "the end of " + call)
        self._given[rank] = None
        return given

    def meet(self, rank: int, call: str) -> None:
        """Wait until all ranks have come with the same call."""
        with self._bell:
            self._raise_failure()
            self._threads[rank] = threading.current_thread()
            for other, theirs in enumerate(self._calls):
                if theirs is not None and theirs != call:
                    (_, first), (late, odd) = sorted([(rank, call), (other, theirs)])
                    self._note(late, f"came to {odd} while another is in {first}")
                    self._raise_failure()
            self._calls[rank] = call
            if None not in self._calls:
                self._calls = [None] * self.size
                self._round += 1
                self._bell.notify_all()
            else:
                self._wait()

    def _wait(self) -> None:
        here = self._round
        nap = min(self.timeout / 8, 0.25)
        life, last = time.process_time(), time.monotonic()
        while True:
            self._bell.wait(nap)
            if self._round != here:
                return
            gone = self._first(lambda r: self._left[r] or ((t := self._threads[r]) is not None and not t.is_alive()))
            if gone is not None:
                self._note(gone, "ended while the others wait for it")
            self._raise_failure()
            work, now = time.process_time(), time.monotonic()
            if work - life > 0.05 * (now - last):  # threads that wait, and displays, use less
                life, last = work, now
            elif now - last > self.timeout:
                self._note(self._first(lambda r: True) or 0, f"gave no sign of life for {self.timeout:g} s")

    def _first(self, holds: Any) -> int | None:
        """The first rank that has not come to this round and for which `holds(rank)`."""
        return next((r for r in range(self.size) if self._calls[r] is None and holds(r)), None)

    def _note(self, rank: int, what: str) -> None:
        if self._failure is None:
            self._failure = (rank, what)
        self._bell.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            rank, what = self._failure
            raise TrainError(f"replica {rank} {what}; all {self.size} replicas end")


class _Sums:
    """The arrays that the replicas of one sum share."""

    total: np.ndarray
    mine: list[np.ndarray | None]


class _SharedSum(Reduction):
    """Each thread adds its own stretch of everybody's arrays, where they lie, to a total that all read."""

    def __init__(self, rank: ThreadRank, elements: int, ordered: bool, sums: _Sums) -> None:
        super().__init__(elements, ordered)
        self._rank = rank
        self._sums = sums
        self._local = None if ordered else LocalSum(elements)
        self._out = np.empty(self.elements, np.float32)
        if rank.rank == 0:
            sums.total = np.empty(self.elements, np.float32)
            sums.mine = [None] * rank.size
        rank._meeting.meet(rank.rank, "reduction")

    @property
    def bytes(self) -> int:
        shared = self.elements * 4 if self._rank.rank == 0 else 0
        return self._out.nbytes + shared + (0 if self._local is None else self._local.bytes)

    def add(self, mine: np.ndarray | None) -> None:
        if self._local is not None:
            self._local.add(mine)
        else:
            self._round(mine)

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        if self._local is not None:
            self._round(self._local.finish() if self._local.has_terms else None)
        out = self._out if out is None else self.checked_flat(out, "out")
        if self.has_terms:
            np.copyto(out, self._sums.total)  # nobody writes there before all have come to the next add
        else:
            out.fill(0)
        self.has_terms = False
        return out

    def _round(self, mine: np.ndarray | None) -> None:
        rank, sums = self._rank, self._sums
        sums.mine[rank.rank] = None if mine is None else self.checked_flat(mine, "the contribution")
        rank._meeting.meet(rank.rank, "add")
        begin, end = shard(self.elements, rank.rank, rank.size)
        total = sums.total[begin:end]
        for theirs in sums.mine:
            if theirs is not None:
                if self.has_terms:
                    np.add(total, theirs[begin:end], out=total)
                else:
                    np.copyto(total, theirs[begin:end])
                self.has_terms = True
        rank._meeting.meet(rank.rank, "the end of add")
