"""Live lines: redrawn in place at the bottom of a terminal, while printed lines appear above them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any
from unicodedata import east_asian_width

from .locks import Lock
from .terminal import controls, is_terminal

_COLUMNS = 80  # of a terminal that does not report its width


def can_redraw(stream: Any) -> bool:
    """Whether a stream is a terminal that moves its cursor."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


class Live:
    """Lines at the bottom of a terminal. From start to stop, sys.stdout and sys.stderr print above them if they are
    terminals; their incomplete lines wait for the line end.

    stream: of the terminal
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._controls = controls(stream)
        self._lines: list[str] = []
        self._replaced: dict[str, tuple[Any, _Above]] = {}
        self._lock = Lock()  # other threads print, too

    @property
    def columns(self) -> int:
        given = os.environ.get("COLUMNS", "")
        if given.isdecimal() and int(given):
            return int(given)
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or _COLUMNS
        except (AttributeError, OSError, ValueError):
            return _COLUMNS

    def start(self) -> None:
        if sys.platform == "win32":
            import colorama

            colorama.just_fix_windows_console()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                self._replaced[name] = stream, _Above(self, stream)
                setattr(sys, name, self._replaced[name][1])

    def stop(self) -> None:
        """Leave the lines as they are, and continue below them."""
        for name, (stream, above) in self._replaced.items():
            if getattr(sys, name) is above:
                setattr(sys, name, stream)
            above.end()
        with self._lock:
            if self._lines:
                self._write("\n")
                self._lines = []

    def show(self, lines: Iterable[str]) -> None:
        """Replace the lines, which have no control characters; longer ones than the terminal continue in the next."""
        with self._lock:
            erased = self._erased()
            self._lines = [*chain.from_iterable(_wrapped(line, self.columns) for line in lines)]
            self._write(erased + self._drawn())

    def print(self, text: str, stream: Any = None) -> None:
        """Print whole lines above. stream: another one of the same terminal."""
        with self._lock:
            self._write(self._erased())
            target = self._controls if stream is None else stream
            target.write(text)
            target.flush()
            self._write(self._drawn())

    def _drawn(self) -> str:
        return "\n".join(map(self.styled, self._lines))

    def styled(self, line: str) -> str:
        """The line with codes for colours."""
        return line

    def _erased(self) -> str:
        """The codes that erase the lines."""
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"\r{up}\x1b[J" if self._lines else ""

    def _write(self, text: str) -> None:
        if text:
            self._controls.write(text)
            self._controls.flush()


class _Above:
    """A stream of the terminal; whole lines of each thread are printed above the live ones."""

    def __init__(self, live: Live, stream: Any) -> None:
        self._live, self._stream = live, stream
        self._incomplete: dict[int, str] = {}  # thread -> its text after the last line end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        whole, end, self._incomplete[thread] = (self._incomplete.get(thread, "") + text).rpartition("\n")
        if end:
            self._live.print(whole + end, self._stream)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def end(self) -> None:
        for text in filter(None, self._incomplete.values()):
            self._live.print(f"{text}\n", self._stream)
        self._incomplete = {}


def _wrapped(line: str, columns: int) -> Iterator[str]:
    """The line in pieces of at most that many columns."""
    begin = width = 0
    for i, character in enumerate(line):
        cells = 2 if east_asian_width(character) in "WF" else 1
        if width + cells > columns and i > begin:
            yield line[begin:i]
            begin, width = i, 0
        width += cells
    yield line[begin:]
