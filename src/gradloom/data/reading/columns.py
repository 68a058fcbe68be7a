"""A table as named columns of cells, whichever reader made it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...base.errors import DataError
from .cells import LEADING_ZERO, MISSING, ROUNDED, TEXT, NumberCells, TextCells, composed, number_text

MOST_COLUMNS = 1 << 16


def names_of(where: str, given: Iterable[str]) -> list[str]:
    """Column names in Unicode NFC, stripped; DataError for a duplicate."""
    written = [name.strip() for name in given]
    names = [composed(name) for name in written]
    counts = Counter(names)
    double = next((name for name in names if counts[name] > 1), None)
    if double is not None:
        forms = len({old for old, name in zip(written, names, strict=True) if name == double})
        how = ", in different Unicode forms" * (forms > 1)
        raise DataError(f"{where}: two columns are called {double!r:.60}{how}; need different names")
    return names


class Lines:
    """lines[row]: the line on which each row ends, stored as runs of rows on consecutive lines."""

    def __init__(self) -> None:
        self._rows = 0
        self._last = -1  # the line of the last row
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # (the first row of each run, its line)

    def add(self, lines: np.ndarray) -> None:
        """Append the lines of further rows, i64."""
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
        """Insert a row before the others."""
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


@dataclass
class Columns:
    """A table: the cells of each column, and of a file the line on which each row ends."""

    path: str
    names: list[str]
    cells: Sequence[NumberCells | TextCells]
    lines: Lines | None
    header: bool = True
    separator: str = ","
    is_named: bool = True  # its columns are found by their names, not by their order
    picked: np.ndarray | None = field(default=None, repr=False)  # the selected rows; None: all

    @property
    def rows(self) -> int:
        return self.cells[0].rows if self.picked is None else len(self.picked)

    def find(self, name: str) -> int:
        """Index of a column by name (or by number, 1 for the first, where there is no header)."""
        return find_column(self.path, self.names, name, self.header)

    def keep(self, rows: np.ndarray) -> Columns:
        """The table with only these rows."""
        return replace(self, picked=rows if self.picked is None else self.picked[rows])

    def where(self, row: int) -> str:
        """A row in messages: the file and its line."""
        row = row if self.picked is None else int(self.picked[row])
        return f"{self.path} row {row}" if self.lines is None else f"{self.path} line {self.lines[row]}"

    def numbers(self, index: int) -> np.ndarray | None:
        """The column as numbers, f64 [rows], NaN where a cell is missing; None where some cell is a text."""
        cells = self.cells[index]
        if isinstance(cells, NumberCells):
            return self._of(cells.values())
        values, kinds = cells.numbers
        codes = self._of(cells.codes)
        return None if (kinds[codes] == TEXT).any() else values[codes]

    def first_text(self, index: int) -> tuple[int, str]:
        """(row, cell) of the first text in a column that is not numeric."""
        cells = self.cells[index]
        assert isinstance(cells, TextCells)
        codes = self._of(cells.codes)
        row = int(np.argmax(cells.numbers[1][codes] == TEXT))
        return row, cells.texts[codes[row]].decode("utf-8", "replace")

    def texts(self, index: int) -> tuple[np.ndarray, list[bytes]]:
        """(codes [rows], the text of each code) of any column; numbers as 3 for 3.0."""
        cells = self.cells[index]
        if isinstance(cells, TextCells):
            return self._of(cells.codes), cells.texts
        different, codes = np.unique(self._of(cells.values()), return_inverse=True)
        return codes.reshape(-1), [b"" if np.isnan(v) else number_text(v).encode() for v in different]

    def missing(self, index: int) -> np.ndarray:
        """Which cells are empty or hold a mark such as NA, bool [rows]."""
        cells = self.cells[index]
        if isinstance(cells, NumberCells):
            return np.isnan(self._of(cells.values()))
        return cells.numbers[1][self._of(cells.codes)] == MISSING

    def is_empty(self, index: int) -> bool:
        """Whether all cells are missing."""
        cells = self.cells[index]
        if isinstance(cells, NumberCells) and self.picked is None and cells.has_number():
            return False
        return bool(self.missing(index).all())

    def merges(self, index: int) -> bool:
        """Whether float64 rounds distinct cells of a column to one number."""
        cells = self.cells[index]
        rounded = cells.codes_with(ROUNDED) if isinstance(cells, TextCells) else []
        return isinstance(cells, TextCells) and len(np.unique(cells.numbers[0][rounded])) < len(rounded)

    def has_leading_zeros(self, index: int) -> bool:
        """Whether some cells of a column are whole numbers such as 007."""
        cells = self.cells[index]
        return isinstance(cells, TextCells) and bool(cells.codes_with(LEADING_ZERO))

    def marks(self, index: int) -> dict[str, int]:
        """Texts of missing cells that are not empty, with their counts over all rows."""
        cells = self.cells[index]
        if isinstance(cells, NumberCells):
            return cells.marks
        counts = np.bincount(cells.codes, minlength=len(cells.texts))
        found = np.flatnonzero(cells.numbers[1] == MISSING)
        return cells.marks | {cells.texts[i].decode(): int(counts[i]) for i in found if cells.texts[i]}

    def _of(self, values: np.ndarray) -> np.ndarray:
        return values if self.picked is None else values[self.picked]


def find_column(path: str, names: list[str], name: str, header: bool) -> int:
    name = composed(name)
    if name in names:
        return names.index(name)
    if not header:
        number = int(name) if name.lstrip("-").isdecimal() and len(name) < 10 else 0
        if 1 <= number <= len(names) or -len(names) <= number <= -1:
            return number - 1 if number > 0 else len(names) + number
        raise DataError(f"{path}: no column {name!r:.60}; it has no header, need a column number 1..{len(names)}")
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.0)
    nearest = next(n for n in names if n.lower() == near[0]) if near else names[-1]
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise DataError(f"{path}: no column {name!r:.60}; the nearest is {nearest!r:.60} (columns: {shown})")
