"""Where a node is made: the scope that is open, and the user's line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_scope: ContextVar[str] = ContextVar("gradloom_scope", default="")
_shown: dict[str, str] = {}  # file of a frame -> its name in messages, "" in the package and other installed ones
_lines: dict[tuple[str, int], str] = {}  # file and line of a frame -> how messages call them
_located: ContextVar[tuple[FrameType | None, str]] = ContextVar("gradloom_located", default=(None, ""))


def user_location() -> str:
    """file:line of the innermost frame outside the package and other installed ones: where the user asked for this."""
    return _location(sys._getframe(1))


def _location(frame: FrameType) -> str:
    known, location = _located.get()
    while frame is not known:
        path = frame.f_code.co_filename
        name = _shown.get(path)
        if name is None:
            # contextlib lies between a function and its decorator
            ours = path.startswith(_PACKAGE) or "site-packages" in path or path == contextlib.__file__
            name = _shown[path] = "" if ours else os.path.basename(path)
        if name or frame.f_back is None:
            at = path, frame.f_lineno
            return _lines.get(at) or _lines.setdefault(at, f"{name or os.path.basename(path)}:{at[1]}")
        frame = frame.f_back
    return location


@contextmanager
def located() -> Iterator[None]:
    """Inside, the user's line of this call is known: nodes that the package makes look no further than to here for
    theirs."""
    frame = sys._getframe(2)
    token = _located.set((frame, _location(frame)))
    try:
        yield
    finally:
        _located.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Nodes made inside are called name.op; scopes nest with dots. Modules use it."""
    outer = enter_scope(name)
    try:
        yield
    finally:
        leave_scope(outer)


def enter_scope(name: str) -> Token[str]:
    """The scope of this name inside the current one; what it answers goes to leave_scope."""
    outer = _scope.get()
    return _scope.set(f"{outer}.{name}" if outer else name)


def leave_scope(outer: Token[str]) -> None:
    """Back to the scope that was current at enter_scope."""
    _scope.reset(outer)


def current_scope() -> str:
    return _scope.get()
