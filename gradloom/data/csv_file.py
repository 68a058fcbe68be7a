"""CSV files as columns of text: separator and header found out, every row of one length."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..base.errors import DataError, FileError

MISSING = (b"", b"na", b"n/a", b"nan", b"null", b"none", b"?")  # cells of a number column that hold no number
SEPARATORS = ",;\t"
_BLOCK = 16384  # rows turned into arrays at a time


@dataclass
class CsvColumns:
    """A CSV file: one array of UTF-8 byte strings per column, and the line on which each row ends."""

    path: str
    names: list[str]
    columns: list[np.ndarray]
    lines: np.ndarray
    header: bool
    separator: str
    _numbers: dict[int, tuple[np.ndarray | None, np.ndarray]] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return len(self.lines)

    def find(self, name: str) -> int:
        """Index of a column by name (or by number, 1 for the first, where there is no header)."""
        return find_column(self.path, self.names, name, self.header)

    def numbers(self, index: int) -> tuple[np.ndarray | None, np.ndarray]:
        """parse_numbers of a column, done once."""
        if index not in self._numbers:
            self._numbers[index] = parse_numbers(self.columns[index], self.separator)
        return self._numbers[index]

    def keep(self, rows: np.ndarray) -> CsvColumns:
        """The same file with these rows only."""
        picked = [c[rows] for c in self.columns]
        return CsvColumns(self.path, self.names, picked, self.lines[rows], self.header, self.separator)


def find_column(path: str, names: list[str], name: str, header: bool) -> int:
    if name in names:
        return names.index(name)
    if not header:
        number = int(name) if name.lstrip("-").isdigit() else 0
        if 1 <= number <= len(names) or -len(names) <= number <= -1:
            return number - 1 if number > 0 else len(names) + number
        raise DataError(f"{path}: no column {name!r}; it has no header, need a column number 1..{len(names)}")
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.0)
    nearest = next(n for n in names if n.lower() == near[0]) if near else names[-1]
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise DataError(f"{path}: no column {name!r}; the nearest is {nearest!r} (columns: {shown})")


def read_csv(path: str | os.PathLike[str], expect: tuple[str, ...] = (), header: bool | None = None) -> CsvColumns:
    """Read a .csv or .csv.gz file.

    expect: names of which one in the first line makes that line a header; header: True or False when it is known.
    """
    text = _open(path)
    with text:
        try:
            start = text.read(1 << 16)
            whole = start.splitlines() if len(start) < 1 << 16 else start.splitlines()[:-1] or [start]
            sample = [line for line in whole[:20] if line.strip()]
            if not sample:
                raise DataError(f"{path}: holds no rows; need at least a row of numbers")
            separator = _separator(sample)
            text.seek(0)
            return _read(path, _rows(path, text, separator), separator, expect, header)
        except UnicodeDecodeError as error:
            raise FileError(
                f"{path}: is not UTF-8 text (byte {error.object[error.start]:#04x}); save it as UTF-8"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path}: is truncated or damaged ({error}); fetch it again") from None
        except OSError as error:
            raise FileError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _open(path: str | os.PathLike[str]) -> io.TextIOWrapper:
    try:
        if os.stat(path).st_size == 0:
            raise FileError(f"{path}: is empty (0 bytes); need a CSV file")
        if str(path).endswith(".gz"):
            return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
        return open(path, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise FileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None


def _separator(sample: list[str]) -> str:
    """The separator that cuts the first lines into the most cells, all alike where that is possible."""

    def score(separator: str) -> tuple[bool, int]:
        counts = [len(row) for row in csv.reader(sample, delimiter=separator)]
        return len(set(counts)) == 1 and counts[0] > 1, max(counts)

    return max(SEPARATORS, key=score)


def _rows(path: object, text: io.TextIOBase, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank."""
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num}: {error}; fix or remove that line") from None


def _read(
    path: str | os.PathLike[str],
    rows: Iterator[tuple[int, list[str]]],
    separator: str,
    expect: tuple[str, ...],
    header: bool | None,
) -> CsvColumns:
    first_line, first = next(rows)
    width = len(first)
    blocks: list[list[np.ndarray]] = []
    lines: list[int] = []
    block: list[list[str]] = []
    for line, row in rows:
        if len(row) != width:
            what = f"{len(row)} cell{'s' * (len(row) != 1)}, needs {width} as in line {first_line}"
            raise DataError(f"{path} line {line}: {what}; fix or remove that line")
        block.append(row)
        lines.append(line)
        if len(block) == _BLOCK:
            blocks.append(_encode(block))
            block = []
    if block:
        blocks.append(_encode(block))
    columns = [np.concatenate([b[i] for b in blocks]) if blocks else np.zeros(0, "S1") for i in range(width)]
    if header is None:
        header = _is_header(first, columns, expect)
    if header:
        names = [cell or f"column {i + 1}" for i, cell in enumerate(first)]
        double = next((n for n in names if names.count(n) > 1), None)
        if double is not None:
            raise DataError(f"{path} line {first_line}: two columns are called {double!r}; need different names")
    else:
        names = [f"column {i + 1}" for i in range(width)]
        columns = [np.concatenate([_encode([[cell]])[0], column]) for cell, column in zip(first, columns, strict=True)]
        lines.insert(0, first_line)
    if not lines:
        raise DataError(f"{path}: holds a header and no rows; need at least 1 row")
    return CsvColumns(str(path), names, columns, np.array(lines, np.int64), header, separator)


def _encode(rows: list[list[str]]) -> list[np.ndarray]:
    return [np.array([cell.encode() for cell in column]) for column in zip(*rows, strict=True)]


def _is_header(first: list[str], columns: list[np.ndarray], expect: tuple[str, ...]) -> bool:
    """True when the first line is no row: a name that is expected, or texts above columns of numbers."""
    if any(cell in expect for cell in first):
        return True
    if any(_is_number(cell) for cell in first) or len(columns[0]) == 0:
        return False
    if any(parse_numbers(column)[0] is not None for column in columns):
        return True
    # texts only: names are all different, and none of them occurs again below
    return len(set(first)) == len(first) and not any(
        c.encode() in set(col.tolist()) for c, col in zip(first, columns, strict=True)
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_missing(column: np.ndarray) -> np.ndarray:
    """Which cells hold no number and no text: empty, NA, nan, null, none, ?"""
    return np.isin(np.char.lower(column), np.array(MISSING)) if len(column) else np.zeros(0, bool)


def parse_numbers(column: np.ndarray, separator: str = ",") -> tuple[np.ndarray | None, np.ndarray]:
    """(f64 values with NaN for missing cells, or None when some cell is a text or every cell is missing; bad cells)."""
    missing = is_missing(column)
    cells = np.where(missing, np.array(b"nan"), column)
    for text in (cells, np.char.replace(cells, b",", b".")) if separator != "," else (cells,):
        try:
            values = text.astype(np.float64)
        except ValueError:
            continue
        return (None if missing.all() else values), np.zeros(len(column), bool)
    bad = np.array([not _is_number(cell.decode()) for cell in cells.tolist()], bool)
    return None, bad
