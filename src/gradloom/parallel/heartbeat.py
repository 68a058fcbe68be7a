"""Signs of life: messages of a rank about itself, and its state of the others."""

from __future__ import annotations

import time
from typing import NamedTuple


class Place(NamedTuple):
    """Where a rank is: how many calls it has made that wait for the others, and the last of them."""

    calls: int
    call: str


class RankState:
    """State of another rank, from its messages."""

    def __init__(self) -> None:
        self.signs = -1
        self.place = Place(0, "")
        self.waits = False
        self.gone = False  # its program has come to its end
        self.last_word = ""  # the reason, if it has sent one
        self.alive = self.since = time.monotonic()  # last sign of life; since when it has been where it is


class Pulse:
    """Counts signs of life of this process: its main thread computes, it reads or writes, or it waits for others."""

    def __init__(self, worker: int) -> None:
        self.signs = 0
        self._clock = time.pthread_getcpuclockid(worker) if hasattr(time, "pthread_getcpuclockid") else None
        self._last = self._now()

    def _now(self) -> tuple[float, float, float, int]:
        """(time, seconds of work of the main thread, of all others but this one, blocks read and written)"""
        whole = time.process_time() - time.thread_time()
        worker = whole if self._clock is None else time.clock_gettime(self._clock)
        try:
            import resource

            used = resource.getrusage(resource.RUSAGE_SELF)
            blocks = used.ru_inblock + used.ru_oublock
        except ImportError:
            blocks = 0
        return time.monotonic(), worker, whole, blocks

    def feel(self, waits: bool) -> None:
        now, last = self._now(), self._last
        wall, worker, whole = now[0] - last[0], now[1] - last[1], now[2] - last[2]
        # A display that refreshes itself is no sign of life; helpers at work are.
        if waits or worker > 0.005 * wall or whole > 0.2 * wall or now[3] != last[3]:
            self.signs += 1
        self._last = now
