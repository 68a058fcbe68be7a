"""Streams: which random numbers a node draws, fixed when the node is made and stored with it.

A stream is (scope, ordinal): the scope that the node is made in (its module's place in the model), and how many random
nodes the same build has made in this scope before it. So the same model gives the same streams each time it is built,
wherever its lines stand, and two nodes of one build never share a mask. A build is what `fresh_streams` encloses (a
trainer's program, a replica's), a recorded trace, or else all that a thread makes by hand.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .scope import current_scope

_counts: ContextVar[dict[str, int] | None] = ContextVar("gradloom_streams", default=None)


@contextmanager
def fresh_streams() -> Iterator[None]:
    """Begin a build: inside, the ordinals of all scopes count from 0."""
    token = _counts.set({})
    try:
        yield
    finally:
        _counts.reset(token)


def next_stream() -> int:
    """The stream of the next random node of this build in the scope that is open."""
    counts = _counts.get()
    if counts is None:  # made by hand
        counts = {}
        _counts.set(counts)
    return counted_stream(counts)


def counted_stream(counts: dict[str, int]) -> int:
    """The next stream of the scope that is open, by and in these counts: scope -> ordinal of the last node."""
    name = current_scope()
    ordinal = counts[name] = counts.get(name, -1) + 1
    return zlib.crc32(f"{name}|{ordinal}".encode())
