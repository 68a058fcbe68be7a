"""Long uploads to a device: who shows how far they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from .memory import show_bytes

LONG = 256 << 20  # bytes: shorter uploads are not shown

Listener = Callable[[str, int, int], None]  # where to, bytes that are there, of how many
_listener: ContextVar[Listener | None] = ContextVar("gradloom_uploads", default=None)


@contextlib.contextmanager
def shown_by(listener: Listener) -> Iterator[None]:
    """Inside, in this thread, the listener is notified of long uploads; the innermost of several listeners."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Upload:
    """Some arrays on their way. where: the device; total: their bytes."""

    def __init__(self, where: str, total: int) -> None:
        self.where, self.total, self.done = where, total, 0
        self._listener = _listener.get() if total > LONG else None

    def add(self, bytes: int) -> None:
        """Count bytes as uploaded."""
        self.done += bytes
        if self._listener is not None:
            self._listener(self.where, self.done, self.total)


def progress_text(where: str, done: int, total: int) -> str:
    """The line of an upload."""
    return f"uploading to {where}: {show_bytes(done)} of {show_bytes(total)}"
