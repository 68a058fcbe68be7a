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
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from ..base import interrupts
from ..base.errors import SettingError, ShapeError, TrainError
from ..base.training_options import TIMEOUT

BUCKET_BYTES = 1 << 20  # what one message of a reduction holds


class Reduction(ABC):
    """A sum of f32[elements] over rounds and ranks, planned when made; one after another, as often as needed."""

    def __init__(self, elements: int, ordered: bool) -> None:
        if elements < 0:
            raise ShapeError(f"reduction of {elements} elements: need 0 or more")
        self.elements = int(elements)
        self.ordered = ordered
        self.has_terms = False  # whether a rank has added one since the sum began

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

    def checked_flat(self, array: np.ndarray, what: str) -> np.ndarray:
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
        self.last_word = ""  # why this rank's program ends, for others that wait for it

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
        """Notify all others that this rank cannot continue. Does not wait; others raise from the call they wait in."""

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
        """End the group because of one rank: every rank calls this, and raises."""

    @abstractmethod
    def close(self) -> None:
        """Free resources; a communicator that is never closed is closed when the program ends."""

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind} {self.rank} of {self.size})"


def launched(otherwise: int = 1) -> int:
    """How many processes a launcher such as mpiexec started together, this one counted; without one `otherwise`."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return otherwise


def launched_first() -> bool:
    """Whether a launcher numbered this process 0, or none started it."""
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


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
        raise SettingError(setting="timeout", seen=timeout, need="a finite number of seconds above 0")
    return float(timeout)


def described(error: BaseException) -> str:
    """An error of another rank in one line: kind and first line of its message."""
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted ({interrupts.SIGNALS[interrupts.number_of(error)]})"
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
    """The sum of what one rank adds, in the order of its rounds."""

    def __init__(self, elements: int, ordered: bool = True) -> None:
        super().__init__(elements, ordered)
        self._sum = np.empty(self.elements, np.float32)

    @property
    def bytes(self) -> int:
        return self._sum.nbytes

    def add(self, mine: np.ndarray | None) -> None:
        if mine is None:
            return
        mine = self.checked_flat(mine, "the contribution")
        if self.has_terms:
            np.add(self._sum, mine, out=self._sum)
        else:
            np.copyto(self._sum, mine)
        self.has_terms = True

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        if not self.has_terms:
            self._sum.fill(0)
        self.has_terms = False
        if out is None:
            return self._sum
        np.copyto(self.checked_flat(out, "out"), self._sum)
        return out
