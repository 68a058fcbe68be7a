"""Ranks that train one model together: who I am, sums that come out equal everywhere, and ends that name the culprit.

A rank is a process (MPI) or a thread (replicas of one process); without either there is one. All ranks call the same
functions in the same order, and each call waits for the others. Two rules hold for every driver:

- An ordered reduction folds the contributions one by one, ((g0 + g1) + g2) + ..., in the order of the global
  micro-batch j = round * size + rank. Addition of floats is not associative, so this order, and no tree of sums, is
  what makes the bits independent of the number of ranks.
- No wait is forever. A rank that fails, ends, makes another call than the others or gives no sign of life for
  `timeout` seconds ends the wait on all others with a TrainError that names it. After that the communicator is broken:
  every further call raises the same. Work is a sign of life, however long it takes.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from ..base.errors import SettingError, ShapeError, TrainError
from ..base.interrupts import Terminated

TIMEOUT = 60.0  # seconds
BUCKET_BYTES = 1 << 20  # what one message of a reduction holds


class Reduction(ABC):
    """A sum of f32[elements] over rounds and ranks, planned when made; one after another, as often as needed."""

    def __init__(self, elements: int, ordered: bool) -> None:
        if elements < 0:
            raise ShapeError(f"reduction of {elements} elements: need 0 or more")
        self.elements = int(elements)
        self.ordered = ordered
        self._anything = False  # has this sum a term yet

    @property
    @abstractmethod
    def bytes(self) -> int:
        """What its buffers hold on this rank."""

    @abstractmethod
    def add(self, mine: np.ndarray | None) -> None:
        """One round: this rank's f32[elements], or None where it has no micro-batch. `mine` is free again afterwards.

        In an ordered reduction every rank calls this once per round, and the call waits for the others.
        """

    @abstractmethod
    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        """The sum of all rounds, the same bits on all ranks; zeros if nobody had a term. The next add starts anew.

        `out`: f32[elements] to write to; without it an array that holds until the next add.
        """

    def _flat(self, array: np.ndarray, what: str) -> np.ndarray:
        if array.dtype != np.float32 or array.shape != (self.elements,) or not array.flags.c_contiguous:
            raise ShapeError(
                f"reduction: {what} is {array.dtype}{list(array.shape)}; need a contiguous float32[{self.elements}]"
            )
        return array


class Communicator(ABC):
    """One rank among `size`. Base of the drivers; see the module for what all of them keep."""

    kind = "rank"  # what messages call a rank

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = checked_timeout(timeout)
        self.local_size = size  # how many of the ranks share this machine's cores

    @property
    def is_root(self) -> bool:
        """Rank 0: the one that writes files and shows progress."""
        return self.rank == 0

    @abstractmethod
    def reduction(self, elements: int, ordered: bool = True) -> Reduction:
        """A reduction of f32[elements]. ordered=False: local sums first, then one sum over ranks; f32 noise apart."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The values of ranks 0 .. size - 1, on every rank. Ranks of one process share the objects."""

    @abstractmethod
    def broadcast(self, array: np.ndarray) -> None:
        """Fill `array` (same shape and dtype on all ranks, C-contiguous) with rank 0's bytes, in place."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell all others that this rank cannot go on. Waits for nobody; others raise from whatever they wait in."""

    def agree(self, error: BaseException | None = None) -> None:
        """Wait until all ranks are here and well. With an error: tell the others and raise it, waiting for nobody.

        So a rank that fails calls `agree(error)` at once, wherever the others are: they raise TrainError.
        """
        if error is not None:
            self.fail(error)
            raise error
        self.gather(None)

    def check(self, what: str, checksum: object) -> None:
        """TrainError on all ranks, naming the first whose checksum (see `checksum`) differs from rank 0's."""
        seen = self.gather(str(checksum))
        for rank, other in enumerate(seen):
            if other != seen[0]:
                self._end(
                    rank,
                    f"differs from {self.kind} 0 in {what}: {other} against {seen[0]} "
                    "(all need the same script, settings and data)",
                )

    @abstractmethod
    def _end(self, rank: int, what: str) -> NoReturn:
        """Break the group, which all ranks find out together, because of one of them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the driver holds; a communicator that is never closed is closed when the program ends."""

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind} {self.rank} of {self.size})"


_joined: Communicator | None = None  # this process among those of mpiexec, from its first call on


def communicator(parallel: str | Communicator | None = None, timeout: float = TIMEOUT) -> Communicator:
    """None or "none": this process alone; "mpi": the ranks of mpiexec; a Communicator: itself."""
    global _joined
    if isinstance(parallel, Communicator):
        return parallel
    if parallel is None or parallel == "none":
        return Alone(timeout)
    if parallel == "mpi":
        if _joined is None:
            from .mpi import MpiRank

            _joined = MpiRank(timeout)
        _joined.timeout = checked_timeout(timeout)
        return _joined
    raise SettingError(f"parallel={parallel!r}: need None, 'none', 'mpi' or a Communicator")


def ranks_of(
    who: str, parallel: str | Communicator | None, timeout: float, exchange: str = "ordered"
) -> Communicator | None:
    """The communicator that `who` was asked to split its batches over, None for this process alone; SettingError for
    settings of several processes without them."""
    if parallel is not None:
        return communicator(parallel, timeout)
    if exchange != "ordered" or timeout != TIMEOUT:
        raise SettingError(f"{who}: exchange and timeout are of several processes; need parallel='mpi' with them")
    return None


def is_writer() -> bool:
    """Whether this process writes files: not if it trains together with others of mpiexec and is not rank 0."""
    return _joined is None or _joined.is_root


def launched(otherwise: int = 1) -> int:
    """How many processes a launcher such as mpiexec started together, this one counted; without one `otherwise`."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return otherwise


def checksum(*parts: Any) -> str:
    """16 hex digits of arrays (dtype, shape, bytes), bytes and texts; anything else counts as its repr."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        else:
            data = part if isinstance(part, bytes) else (part if isinstance(part, str) else repr(part)).encode()
            digest.update(f"{type(part).__name__}{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()


def checked_timeout(timeout: float) -> float:
    """`timeout` as a float; SettingError unless it is a positive, finite number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < float("inf"):
        raise SettingError(f"timeout={timeout!r}: need a positive number of seconds without a sign of life")
    return float(timeout)


def described(error: BaseException) -> str:
    """An error of another rank in one line: kind and first line of its message."""
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted ({'SIGTERM' if isinstance(error, Terminated) else 'Ctrl-C'})"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def shard(elements: int, rank: int, size: int) -> tuple[int, int]:
    """The stretch of f32[elements] that a rank adds up for all: equal pieces of whole cache lines, the last shorter."""
    each = -(-elements // (size * 16)) * 16
    return min(rank * each, elements), min((rank + 1) * each, elements)


class Alone(Communicator):
    """The driver of a single rank: nothing to wait for."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        super().__init__(0, 1, timeout)

    def reduction(self, elements: int, ordered: bool = True) -> Reduction:
        return LocalSum(elements, ordered)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, array: np.ndarray) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass

    def _end(self, rank: int, what: str) -> NoReturn:
        raise TrainError(f"rank {rank} {what}")

    def close(self) -> None:
        pass


class LocalSum(Reduction):
    """The sum of one rank's rounds, in their order."""

    def __init__(self, elements: int, ordered: bool = True) -> None:
        super().__init__(elements, ordered)
        self._sum = np.empty(self.elements, np.float32)

    @property
    def bytes(self) -> int:
        return self._sum.nbytes

    def add(self, mine: np.ndarray | None) -> None:
        if mine is None:
            return
        mine = self._flat(mine, "the contribution")
        if self._anything:
            np.add(self._sum, mine, out=self._sum)
        else:
            np.copyto(self._sum, mine)
        self._anything = True

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        if not self._anything:
            self._sum.fill(0)
        self._anything = False
        if out is None:
            return self._sum
        np.copyto(self._flat(out, "out"), self._sum)
        return out


def threads(size: int, timeout: float = TIMEOUT) -> list[Communicator]:
    """Communicators of `size` replicas in this process: one for each thread, to be used by that thread alone."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise SettingError(f"{size!r} replicas: need a whole number from 1")
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
        self._calls: list[str | None] = [None] * size  # what each rank of this round came for
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
        """What all ranks made, in the order of ranks."""
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
        """The first rank that this round lacks and for which something holds."""
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
    """What the ranks of one shared sum have in common."""

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
            self._round(self._local.finish() if self._local._anything else None)
        out = self._out if out is None else self._flat(out, "out")
        if self._anything:
            np.copyto(out, self._sums.total)  # nobody writes there before all have come to the next add
        else:
            out.fill(0)
        self._anything = False
        return out

    def _round(self, mine: np.ndarray | None) -> None:
        rank, sums = self._rank, self._sums
        sums.mine[rank.rank] = None if mine is None else self._flat(mine, "the contribution")
        rank._meeting.meet(rank.rank, "add")
        begin, end = shard(self.elements, rank.rank, rank.size)
        total = sums.total[begin:end]
        for theirs in sums.mine:
            if theirs is not None:
                if self._anything:
                    np.add(total, theirs[begin:end], out=total)
                else:
                    np.copyto(total, theirs[begin:end])
                self._anything = True
        rank._meeting.meet(rank.rank, "the end of add")
