"""What ranks settle among themselves: who writes, shares and threads, refusals, the same settings, stopping together.

`ranks` is a Communicator, or None for this process alone: the callers are the same with ranks and without.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from types import FrameType
from typing import Any

import numpy as np

from ..base import interrupts
from ..base.errors import GradloomError, TrainError
from ..base.interrupts import StopTraining
from ..base.settings import switches
from .communicator import Communicator, checksum

PIECES = 64  # of an array that is too large to be compared whole


@contextlib.contextmanager
def agreed(ranks: Communicator | None) -> Iterator[None]:
    """Work of each rank that all end together: where one raises a GradloomError, the others raise a TrainError with its
    message. Nothing inside may wait for other ranks."""
    try:
        yield
    except GradloomError as error:
        if ranks is not None:
            ranks.gather(TrainError.of(error).extended(f"{ranks.kind} {ranks.rank}: "))
        raise
    except BaseException as error:
        if ranks is not None:
            ranks.fail(error)
        raise
    if ranks is not None:
        for refused in ranks.gather(None):
            if refused is not None:
                raise copy(refused)  # threads share the gathered objects


def is_root(ranks: Communicator | None) -> bool:
    """The one that shows progress and writes files."""
    return ranks is None or ranks.is_root


def largest_of(ranks: Communicator | None, number: int) -> int:
    """The largest of the numbers that the ranks have."""
    return number if ranks is None else max(ranks.gather(number))


def share_of(batch_size: int, ranks: Communicator | None) -> int:
    """Rows of a micro-batch such that each rank gets one."""
    return -(-batch_size // (1 if ranks is None else ranks.size))


def threads_for(ranks: Communicator | None, asked: int | None) -> int | None:
    """Threads for each rank when not asked for: the cores that it may use, shared with the other ranks on them."""
    if ranks is None or ranks.size == 1:
        return asked
    cores = switches().threads
    allowed = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    here = (socket.gethostname(), allowed)
    beside = ranks.gather(here).count(here)  # called by all ranks: GRADLOOM_THREADS may be set on some only
    if asked is not None or os.environ.get("GRADLOOM_THREADS"):
        return asked
    return max(1, cores // beside)


def same_settings(ranks: Communicator | None, **settings: Any) -> None:
    """TrainError naming rank and setting where one differs."""
    if ranks is None:
        return
    first, *others = ranks.gather(settings)
    for rank, theirs in enumerate(others, 1):
        for name in first:
            if theirs.get(name) != first[name]:
                seen = f"{ranks.kind} {rank} has {name}={theirs.get(name)!r}, {ranks.kind} 0 has {first[name]!r}"
                raise TrainError(f"{seen}; need the same settings on all {ranks.size}")


def sampled(array: np.ndarray, limit: int) -> str:
    """A checksum of an array: whole up to `limit` bytes, beyond that of pieces that lie evenly in it."""
    if array.nbytes <= limit or not array.flags.c_contiguous:
        return checksum(array)
    flat, piece = array.reshape(-1), max(1, limit // PIECES // array.itemsize)
    starts = np.linspace(0, flat.size - piece, PIECES).astype(np.int64)
    return checksum(array.shape, array.dtype.str, *(flat[s : s + piece] for s in starts))


class Agreement:
    """Ranks that stop after the same step and compare their state. All call the same methods in the same order."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._stop: BaseException | None = None  # a request to stop that the other ranks do not know yet
        self._asked = 0.0  # when it came
        self._layers = 0  # of `together`
        self._compared: set[str] = set()

    @property
    def is_stopping(self) -> bool:
        """This rank was asked to stop, and `settle` has not notified the others yet."""
        return self._stop is not None

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Work of this rank alone: an error in it is reported to the others at once."""
        try:
            yield
        except BaseException as error:
            self.communicator.fail(error)
            raise

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, Ctrl-C (in a command SIGTERM and SIGHUP, too) stops all ranks after the same step, and a second one
        this rank at once."""
        old: interrupts.Handlers = {}
        if not self._layers and threading.current_thread() is threading.main_thread():
            old = interrupts.replace(self._interrupted)
        self._layers += 1
        try:
            yield
        finally:
            self._layers -= 1
            interrupts.restore(old)
            if not self._layers:
                self._stop = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not isinstance(self._stop, KeyboardInterrupt):
            self._stop, self._asked = interrupts.interrupt(number), time.monotonic()
        elif time.monotonic() - self._asked >= interrupts.SAME_SECONDS:
            error = interrupts.raised_at_once(number)
            self.communicator.fail(error)
            raise error

    def root(self, call: Callable[..., Any] | None, *arguments: Any) -> None:
        """Call it on rank 0 alone. A StopTraining from it, or Ctrl-C in it, waits for `settle`."""
        if call is None or not self.communicator.is_root:
            return
        with self.own():
            try:
                call(*arguments)
            except (KeyboardInterrupt, StopTraining) as stop:
                self._stop = stop

    def settle(self) -> None:
        """Raise on all ranks what one of them was asked to stop for."""
        asked, self._stop = self._stop, None
        stops = [stop for stop in self.communicator.gather(asked) if stop is not None]
        for kind in (KeyboardInterrupt, BaseException):
            for stop in stops:
                if isinstance(stop, kind):
                    raise stop

    def compare(self, what: str, of: Callable[..., Any], *arguments: Any) -> None:
        """TrainError naming a rank when the checksum of what `of` gives differs there."""
        with self.own():
            mine = checksum(of(*arguments))
        self.communicator.check(what, mine)

    def compare_once(self, what: str, key: Hashable, of: Callable[..., Any], *arguments: Any) -> None:
        """`compare`, for what cannot change any more."""
        name = f"{what} {key!r}"
        if name not in self._compared:
            self.compare(what, of, *arguments)
            self._compared.add(name)
