"""The traces that read parameters: before an array is written, its pending readers are computed."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from typing import Any, Protocol

from ..base import locks
from ..graph.stored import Stored, call_before_writes


class Reader(Protocol):
    """Interface of a Trace that reads parameters."""

    def reader(self, stored: Container[Stored]) -> str | None:
        """The name of a parameter among these arrays that the trace reads."""

    def overtaken(self, stored: Container[Stored]) -> None:
        """Compute the pending readers of these arrays: they are about to be written."""


_live: dict[int, weakref.ref[Any]] = {}


def register(trace: Reader) -> None:
    """From now on the trace reads a parameter."""
    _live[id(trace)] = weakref.ref(trace)


def unregister(trace: Reader) -> None:
    _live.pop(id(trace), None)


def others(mine: Reader | None = None) -> list[Reader]:
    """The other traces that read parameters."""
    if len(_live) <= (mine is not None and id(mine) in _live):
        return []
    traces = [(k, reference()) for k, reference in list(_live.items())]
    for k, trace in traces:
        if trace is None:
            _live.pop(k, None)
    return [t for _, t in traces if t is not None and t is not mine]


def _awaited(stored: Iterable[Stored]) -> bool:
    """Whether a trace reads these arrays."""
    if not _live:
        return False
    listed = set(stored)
    return any(trace.reader(listed) is not None for trace in others())


def _before_write(stored: Iterable[Stored]) -> None:
    if _live:
        with locks.building:
            listed = set(stored)
            for trace in others():
                trace.overtaken(listed)


call_before_writes(_before_write, _awaited)
