"""Where a node is made: the scope that is open, and the user's line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_scope: ContextVar[str] = ContextVar("gradloom_scope", default="")
_shown: dict[str, str] = {}  # file of a frame -> its name in messages, "" in the package and other installed ones


def user_location() -> str:
    """file:line of the innermost frame outside the package and other installed ones: where the user asked for this."""
    frame = sys._getframe(1)
    while True:
        path = frame.f_code.co_filename
        name = _shown.get(path)
        if name is None:
            # contextlib lies between a function and its decorator
            ours = path.startswith(_PACKAGE) or "site-packages" in path or path == contextlib.__file__
            name = _shown[path] = "" if ours else os.path.basename(path)
        if name or frame.f_back is None:
            return f"{name or os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back


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
