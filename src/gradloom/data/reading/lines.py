"""Lines: where the rows of a file are, for messages."""

from __future__ import annotations

import numpy as np


class Lines:
    """The line on which each row ends, held as runs of rows whose lines follow one another: lines[row]."""

    def __init__(self) -> None:
        self._rows = 0
        self._last = -1  # the line of the last row
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # (the first row of each run, its line)

    def add(self, lines: np.ndarray) -> None:
        """The lines of the rows that follow, i64."""
        if not len(lines):
            return
        first = np.concatenate([[True], np.diff(lines) != 1])
        first[0] = not self._runs or lines[0] != self._last + 1
        starts = np.flatnonzero(first)
        if len(starts):
            self._runs.append((starts + self._rows, lines[starts]))
        self._rows += len(lines)
        self._last = int(lines[-1])

    def put_first(self, line: int) -> None:
        """One more row, in front of the others."""
        self._runs = [(np.zeros(1, np.int64), np.array([line])), *((rows + 1, lines) for rows, lines in self._runs)]
        self._rows += 1

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> int:
        if not -self._rows <= row < self._rows:
            raise IndexError(row)
        row += self._rows if row < 0 else 0
        part = np.searchsorted([rows[0] for rows, _ in self._runs], row, "right") - 1
        rows, lines = self._runs[part]
        run = np.searchsorted(rows, row, "right") - 1
        return int(lines[run] + row - rows[run])
