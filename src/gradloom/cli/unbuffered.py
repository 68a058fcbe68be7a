"""Standard output without a buffer (PYTHONUNBUFFERED=1): each write is whole, or an error."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def whole_writes(stream: TextIO) -> Iterator[TextIO]:
    """The stream, with a buffer if it has none (PYTHONUNBUFFERED=1): a write that a full disk cuts off is then an
    error. Without a buffer Python drops the rest."""
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(stream.buffer, io.RawIOBase):
        yield stream
        return
    buffer = io.BufferedWriter(stream.buffer)
    text = _Unbuffered(buffer, stream.encoding, stream.errors, newline="" if os.linesep == "\n" else None)
    try:
        yield text
    finally:
        with contextlib.suppress(OSError, ValueError):
            text.flush()
        with contextlib.suppress(OSError, ValueError):
            text.detach()
            buffer.detach()  # the file stays open


class _Unbuffered(io.TextIOWrapper):
    """A text stream that is flushed after each write."""

    def write(self, text: str) -> int:
        count = super().write(text)
        self.flush()
        return count
