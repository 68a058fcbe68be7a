"""Queue: a device that runs its part of a program together with other devices, a range of instructions at a time."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np

Fetched = Callable[[], list[np.ndarray]]  # waits for u8 arrays; StepFailed where the device has failed
Interrupted = Callable[[], bool]  # whether a signal waits for the end of the run


class Failure(NamedTuple):
    """The place where a device stopped: reason, node, position and value there, as PlannedExecutable.failure takes
    them."""

    stop: int
    node: int
    at: int
    value: int


class StepFailed(Exception):
    """A device has stopped: no update of this step is applied on any. It never leaves run/scheduled.py."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Queue(abc.ABC):
    """Commands to one device, in order. An asynchronous device returns before a command is complete."""

    @abc.abstractmethod
    def bring(self) -> None:
        """Fetch stored arrays that other devices hold: before `arrays_locked`."""

    @abc.abstractmethod
    def held(self, fed: Collection[str]) -> contextlib.AbstractContextManager[None]:
        """Hold the device for a run, with the stored arrays and these inputs on it."""

    @abc.abstractmethod
    def begin(self, row: np.ndarray | None) -> None:
        """Begin a step. row: its settings, i64 [1, settings]."""

    @abc.abstractmethod
    def run(self, first: int, last: int, interrupted: Interrupted | None) -> None:
        """Run the instructions first .. last - 1. interrupted: where it returns True (a signal), the step may be
        abandoned. StepFailed where it was, and where the device knows that it has failed."""

    @abc.abstractmethod
    def fetch(self, what: Hashable, outputs: Sequence[int]) -> Fetched:
        """Begin to fetch outputs of the part as they are now. what: for whom; one fetch at a time for each. The arrays
        hold until the step ends."""

    @abc.abstractmethod
    def receive(self, key: str, data: np.ndarray) -> None:
        """The bytes of an input of the part (u8), for later instructions."""

    @abc.abstractmethod
    def settle(self) -> Failure | None:
        """Wait for all pending commands; return and clear a failure."""

    @abc.abstractmethod
    def count_writes(self) -> None:
        """The stored arrays that the part updates have been written, and their newest contents are here."""
