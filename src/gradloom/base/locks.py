"""The locks of this process, and their state in a forked child.

building   held to record eager ops, draw parameters, call user code that builds a graph for a replica,
           or import a part of the package (gl.fit, gl.nn, ...)
memory     held to read or write stored arrays or the arena that CPU programs share: from the copying of the
           inputs to the end of one native call (0.2 s at most, or one step), never while a listener is called

Both are reentrant. Who takes both takes `building` first; who holds `memory` takes no other lock but that of a GPU
(gpu/device.py: Gpu.lock), which comes last. fork waits until both are free, so that a child finds weights between two
steps and locks that nobody holds.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread  # noqa: F401  registers its locks before ours, see below
import contextlib
import logging  # noqa: F401  likewise
import os
import sys
import threading
from collections.abc import Iterator

from .errors import TrainError


class Lock(_thread.RLock):  # type: ignore[misc]
    """A reentrant lock that `with` always releases.

    From Python 3.14 on, a signal handler may run between `__enter__` and the block of `with`. When it raises, as for
    Ctrl-C, a lock of the module threading stays locked.
    """

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            depth = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > depth:
                    self.release()
                raise


building = Lock()
memory = Lock()


def has_memory() -> bool:
    """Whether this thread holds `memory`."""
    return memory._is_owned()  # type: ignore[attr-defined]


@contextlib.contextmanager
def user_code() -> Iterator[None]:
    """Inside, this thread is in a function of the user's that a program in progress has called."""
    me, outer = threading.get_ident(), threading.get_ident() in in_functions
    in_functions.add(me)
    try:
        yield
    finally:
        if not outer:
            in_functions.discard(me)


def refuse_in_user_code(what: str) -> None:
    """TrainError in a function that a program in progress has called: the program has the arena and the arrays."""
    if in_user_code():
        raise TrainError(
            f"{what} within a function of gl.op, which a program in progress has called; use NumPy there, and read "
            "tensors beforehand"
        )


def in_user_code() -> bool:
    """Whether this thread is in a function that a program in progress has called."""
    return bool(in_functions) and threading.get_ident() in in_functions


in_functions: set[int] = set()  # the threads that are in such a function


def _before_fork() -> None:
    if not has_memory():  # else a signal handler forks inside of a run, which cannot wait for `building`
        building.acquire()
        memory.acquire()
        _forking.append(threading.get_ident())


def _after_fork() -> None:
    if threading.get_ident() in _forking:
        _forking.remove(threading.get_ident())
        memory.release()
        building.release()


def _after_fork_in_child() -> None:
    _after_fork()
    if not building._is_owned():  # type: ignore[attr-defined]
        building._at_fork_reinit()  # type: ignore[attr-defined]


_forking: list[int] = []  # the threads that hold both locks for a fork

if hasattr(os, "register_at_fork"):
    # Python calls the last registered function first. Modules that hold a lock of their own across fork must come
    # earlier than this one: else fork holds theirs and waits for `building`, whose holder waits for them in an import.
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class Claim:
    """`with claim:` an object is used by this thread, for longer than a lock may be held; TrainError when another
    thread is using it. It may be claimed again by the thread that has it."""

    def __init__(self, what: str, need: str) -> None:
        """what: the object, for the message. need: the remedy, for the message."""
        self.what, self.need = what, need
        self._holder: dict[str, tuple[int, int]] = {}  # "by": (process, thread); setdefault is one atomic step
        self._depth = 0

    def __enter__(self) -> None:
        me = (os.getpid(), threading.get_ident())
        holder = self._holder.setdefault("by", me)
        if holder != me:
            if holder[0] == me[0]:
                raise TrainError(f"{self.what} is in use by another thread; need {self.need}")
            self._holder["by"], self._depth = me, 0  # the thread that had it is not in this forked process
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._holder.pop("by", None)

    def __reduce__(self) -> tuple[object, ...]:
        return Claim, (self.what, self.need)  # a copy is held by no thread
