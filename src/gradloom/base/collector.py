"""Python's collector of reference cycles, paused while graphs are built and planned.

A node and its values refer to each other, so each collection visits all nodes of the graph that grows, and frees next
to nothing: a third of the time that 10 000 instructions take. A long pause leaves mostly a graph and its plan,
which stay: it joins the oldest generation unvisited, instead of being visited once in each generation.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 50_000  # objects that a long pause leaves
OLD = 1_000_000  # objects that joined the oldest generation unvisited and are worth a collection of it

_unvisited = 0  # objects that joined since the last such collection
_pausing: set[int] = set()  # threads inside `paused` that have to enable it again


@contextmanager
def paused() -> Iterator[None]:
    """Inside, no collection starts by itself, in any thread; where it was disabled before, it stays so."""
    me = threading.get_ident()
    if not gc.isenabled():
        yield
        return
    _pausing.add(me)
    gc.disable()
    try:
        yield
    finally:
        _pausing.discard(me)
        made = gc.get_count()[0]
        if made > LARGE:
            _join_oldest(made)
        gc.enable()


def _join_oldest(made: int) -> None:
    """Move all young objects to the oldest generation and count them: Python does not count them there."""
    global _unvisited
    if gc.get_freeze_count():  # objects that the caller froze must stay frozen
        gc.collect(1)
        return
    gc.freeze()
    gc.unfreeze()
    _unvisited += made
    if _unvisited > OLD:
        _unvisited = 0
        gc.collect()


def _after_fork_in_child() -> None:
    others = _pausing - {threading.get_ident()}
    if others:  # threads that do not exist in this process
        _pausing.difference_update(others)
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
