"""How far long work of a command is, on stderr."""

from __future__ import annotations

import sys
import time

from ..base.terminal import controls, in_one_line
from ..base.uploads import progress_text
from .common import print_report, shows_reports

TERMINAL_SECONDS, LINE_SECONDS = 0.2, 10.0  # between two texts


def change_line(text: str) -> None:
    """Write a line of a terminal anew; an empty text clears it."""
    if shows_reports():
        print(f"\r{in_one_line(text)}\x1b[K", end="", file=controls(sys.stderr), flush=True)


class ProgressLine:
    """On a terminal one line that changes and goes in the end, elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._shown_at = time.perf_counter()

    def show(self, text: str, ended: bool = False) -> None:
        """ended: the work is done."""
        now = time.perf_counter()
        if self.terminal and ended:
            change_line("")
        elif now - self._shown_at >= (TERMINAL_SECONDS if self.terminal else LINE_SECONDS):
            self._shown_at = now
            (change_line if self.terminal else print_report)(text)


class Uploads:
    """Shows long uploads to devices, one after the other."""

    def __init__(self) -> None:
        self._line: ProgressLine | None = None

    def show(self, where: str, done: int, total: int) -> None:
        if self._line is None:
            self._line = ProgressLine()
        self._line.show(progress_text(where, done, total), done == total)
        if done == total:
            self._line = None
