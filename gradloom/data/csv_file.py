"""CSV files as columns of text: separator and header found out, every row of one length."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np

from ..base.errors import DataError, FileError
from .unpacked import most_unpacked, too_much

MOST_COLUMNS = 1 << 16
MISSING = (b"", b"na", b"n/a", b"nan", b"null", b"none", b"?")  # cells of a number column that hold no number
SEPARATORS = ",;\t"
_BLOCK_ROWS, _BLOCK_CELLS, _BLOCK_BYTES = 16384, 1 << 20, 1 << 23  # turned into arrays at a time, at most
_LONGEST_LINE = 1 << 24  # bytes
_SAMPLE, _SAMPLE_ROWS = 1 << 16, 20  # characters and rows that show the separator, at most
_MEMORY = 20  # bytes of memory that reading a byte may take
_KEPT = 4096  # different cells of a column, of bytes objects, that are held once for all rows


@dataclass
class CsvColumns:
    """A CSV file: the cells of each column, in UTF-8 (see as_column), and the line on which each row ends."""

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
        number = int(name) if name.lstrip("-").isdecimal() and len(name) < 10 else 0
        if 1 <= number <= len(names) or -len(names) <= number <= -1:
            return number - 1 if number > 0 else len(names) + number
        raise DataError(f"{path}: no column {name!r:.60}; it has no header, need a column number 1..{len(names)}")
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.0)
    nearest = next(n for n in names if n.lower() == near[0]) if near else names[-1]
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise DataError(f"{path}: no column {name!r:.60}; the nearest is {nearest!r:.60} (columns: {shown})")


def read_csv(path: str | os.PathLike[str], expect: tuple[str, ...] = (), header: bool | None = None) -> CsvColumns:
    """Read a .csv or .csv.gz file.

    expect: names of which one in the first line makes that line a header; header: True or False when it is known.
    """
    with _open(path) as watched:
        text = io.TextIOWrapper(io.BufferedReader(watched, 1 << 16), encoding="utf-8-sig", newline="")
        try:
            separator = _separator(text.read(_SAMPLE))
            text.seek(0)
            return _read(path, _rows(path, text, separator), watched, separator, expect, header)
        except UnicodeDecodeError as error:
            raise FileError(
                f"{path}: is not UTF-8 text (byte {error.object[error.start]:#04x}); save it as UTF-8"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path}: is truncated or damaged ({error}); fetch it again") from None
        except OSError as error:
            raise FileError(f"{path}: {(error.strerror or str(error)).lower()}") from None


class _Watched(io.RawIOBase):
    """The bytes of a file, which are refused as soon as they cannot be those of a table: NUL, a line that does not end,
    more than `most` bytes."""

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO, size: int, most: int | None) -> None:
        self._path, self._file, self._size, self._most = path, file, size, most
        self.seen = self._line = 0  # bytes so far: of all, of the line that they are in

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        self.seen = self._line = self._file.seek(offset, whence)
        return self.seen

    def readinto(self, buffer: Any) -> int:
        chunk = self._file.read(len(buffer))
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise FileError(
                f"{self._path}: byte {self.seen + nul} is NUL, as in UTF-16 or in no text at all; save it as UTF-8 text"
            )
        self.seen += len(chunk)
        if self._most is not None and self.seen > self._most:
            raise too_much(self._path, self._size, self._most)
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self._line = len(chunk) - end - 1 if end >= 0 else self._line + len(chunk)
        if self._line > _LONGEST_LINE:
            raise FileError(f"{self._path}: has a line of more than {_LONGEST_LINE:,} bytes; need shorter ones")
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: str | os.PathLike[str]) -> _Watched:
    try:
        size = os.stat(path).st_size
        if size == 0:
            raise FileError(f"{path}: is empty (0 bytes); need a CSV file")
        if str(path).lower().endswith(".gz"):
            return _Watched(path, cast(BinaryIO, gzip.open(path)), size, most_unpacked(size, _MEMORY))
        return _Watched(path, cast(BinaryIO, open(path, "rb", buffering=0)), size, None)
    except OSError as error:
        raise FileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None


def _separator(sample: str) -> str:
    """The separator that cuts the first rows into the most cells, all alike where that is possible.

    sample: the first _SAMPLE characters of the file; a row that their end cuts off counts only where it is the first.
    """
    cut = len(sample) == _SAMPLE

    def score(separator: str) -> tuple[bool, bool, int]:
        lines = io.StringIO(sample, newline="")
        counts: list[int] = []
        sound = True
        try:
            for row in csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True):
                if cut and lines.tell() == len(sample):
                    break
                if not _is_blank(row):
                    counts.append(len(row))
                if len(counts) == _SAMPLE_ROWS:
                    break
        except csv.Error:
            sound = cut and lines.tell() == len(sample)
        if cut and not counts:
            lines.seek(0)
            counts = [max(map(len, csv.reader(lines, delimiter=separator, skipinitialspace=True)))]
        alike = len(set(counts)) == 1 and counts[0] > 1
        return alike and sound, alike, max(counts, default=0)

    return max(SEPARATORS, key=score)


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _rows(path: object, text: io.TextIOBase, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank."""
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
    first = 1  # line of the row
    try:
        for row in reader:
            first = reader.line_num + 1
            if not _is_blank(row):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise DataError(f"{path} line {first}: {_fault(error, first, reader.line_num)}") from None


def _fault(error: csv.Error, first: int, last: int) -> str:
    """What is wrong with the row that begins in line `first`, seen in line `last`."""
    if "unexpected end" in str(error):
        return "a quote in this row is not closed; close or remove it"
    if "field limit" in str(error):
        most = csv.field_size_limit()
        return f"a cell of more than {most:,} characters, or a quote that is not closed; need shorter cells"
    return f"{error}{f' in line {last}' if last > first else ''}; fix or remove that line"


def _read(
    path: str | os.PathLike[str],
    rows: Iterator[tuple[int, list[str]]],
    watched: _Watched,
    separator: str,
    expect: tuple[str, ...],
    header: bool | None,
) -> CsvColumns:
    first_line, first = next(rows, (0, []))
    if not first:
        raise DataError(f"{path}: holds no rows; need at least a row of numbers")
    width = len(first)
    if width > MOST_COLUMNS:
        raise DataError(f"{path} line {first_line}: {width:,} columns; need at most {MOST_COLUMNS:,}")
    at_most = min(_BLOCK_ROWS, _BLOCK_CELLS // width)
    parts: list[list[np.ndarray]] = [[] for _ in first]
    kept: list[dict[bytes, bytes]] = [{} for _ in first]
    lines = [np.zeros(0, np.int64)]
    block: list[list[str]] = []
    ends: list[int] = []
    begun = watched.seen

    def encode() -> None:
        for cells, column, known in zip(zip(*block, strict=True), parts, kept, strict=True):
            column.append(as_column("\0".join(cells).encode().split(b"\0"), known))  # there is no NUL in the text
        lines.append(np.array(ends, np.int64))
        block.clear()
        ends.clear()

    for line, row in rows:
        if len(row) != width:
            what = f"{len(row)} cell{'s' * (len(row) != 1)}, needs {width} as in line {first_line}"
            raise DataError(f"{path} line {line}: {what}; fix or remove that line")
        block.append(row)
        ends.append(line)
        if len(block) == at_most or watched.seen - begun > _BLOCK_BYTES:
            encode()
            begun = watched.seen
    if block:
        encode()
    columns = []
    for column, known in zip(parts, kept, strict=True):
        columns.append(_join(column, known))
        column.clear()
    if header is None:
        header = _is_header(first, columns, expect)
    if header:
        names = [cell or f"column {i + 1}" for i, cell in enumerate(first)]
        counts = Counter(names)
        double = next((n for n in names if counts[n] > 1), None)
        if double is not None:
            raise DataError(f"{path} line {first_line}: two columns are called {double!r:.60}; need different names")
    else:
        names = [f"column {i + 1}" for i in range(width)]
        for i, cell in enumerate(first):
            columns[i] = _join([as_column([cell.encode()], kept[i]), columns[i]], kept[i])
        lines[0] = np.array([first_line], np.int64)
    ended = np.concatenate(lines)
    if not len(ended):
        raise DataError(f"{path}: holds a header and no rows; need at least 1 row")
    return CsvColumns(str(path), names, columns, ended, header, separator)


def as_column(cells: list[bytes], known: dict[bytes, bytes] | None = None) -> np.ndarray:
    """Cells as an array of fixed width; of bytes objects where a few long cells would make that far larger than they
    are. known: objects to use again for equal cells."""
    widest = max(map(len, cells), default=0)
    if _fits(widest, len(cells), lambda: sum(map(len, cells))):
        return np.array(cells, f"S{max(widest, 1)}")
    return _objects(cells, {} if known is None else known)


def _fits(widest: int, count: int, total: Callable[[], int]) -> bool:
    """Whether cells of one width take little more memory than the cells are long."""
    return widest <= 4 or widest * count <= 4 * count + 2 * total()


def _objects(cells: list[bytes], known: dict[bytes, bytes]) -> np.ndarray:
    made = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        same = known.get(cell)
        if same is None:
            same = cell
            if len(known) < _KEPT:
                known[cell] = cell
        made[i] = same
    return made


def _join(parts: list[np.ndarray], known: dict[bytes, bytes]) -> np.ndarray:
    """The cells of several arrays as one (see as_column)."""
    if not parts:
        return np.zeros(0, "S1")
    count = sum(map(len, parts))
    if all(part.dtype.kind == "S" for part in parts):
        widest = max(part.dtype.itemsize for part in parts)
        if _fits(widest, count, lambda: sum(int(np.char.str_len(part).sum()) for part in parts)):
            return np.concatenate(parts)
    return np.concatenate([part if part.dtype == object else _objects(part.tolist(), known) for part in parts])


def _is_header(first: list[str], columns: list[np.ndarray], expect: tuple[str, ...]) -> bool:
    """True when the first line is no row: a name that is expected, or texts above columns of numbers."""
    if any(cell in expect for cell in first):
        return True
    if any(number(cell.encode()) is not None for cell in first) or len(columns[0]) == 0:
        return False
    if any(parse_numbers(column)[0] is not None for column in columns):
        return True
    # texts only: names are all different, and none of them occurs again below
    return len(set(first)) == len(first) and not any(
        (column == cell.encode()).any() for cell, column in zip(first, columns, strict=True)
    )


def number(cell: bytes) -> float | None:
    """The number that a cell is; None for a text. Python reads 1_0 as 10: here it is a text, as it is in a table."""
    try:
        return None if b"_" in cell else float(cell)
    except ValueError:
        return None


def is_missing(column: np.ndarray) -> np.ndarray:
    """Which cells hold no number and no text: empty, NA, nan, null, none, ?"""
    if column.dtype == object:
        return np.fromiter((len(cell) <= 4 and cell.lower() in MISSING for cell in column), bool, len(column))
    return np.isin(np.char.lower(column), np.array(MISSING)) if len(column) else np.zeros(0, bool)


def parse_numbers(column: np.ndarray, separator: str = ",") -> tuple[np.ndarray | None, np.ndarray]:
    """(f64 values with NaN for missing cells, or None when some cell is a text or every cell is missing; bad cells)."""
    missing = is_missing(column)
    cells = np.where(missing, b"nan", column)
    for text in (cells, _with_points(cells)) if separator != "," else (cells,):
        try:
            values = text.astype(np.float64)
        except ValueError:
            continue
        if _has_underscore(text):
            break
        return (None if missing.all() else values), np.zeros(len(column), bool)
    bad = np.zeros(len(column), bool)
    for start in range(0, len(column), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        bad[part] = [number(cell) is None for cell in cells[part].tolist()]
    return None, bad


def _has_underscore(cells: np.ndarray) -> bool:
    if cells.dtype == object:
        return any(b"_" in cell for cell in cells)
    return bool((np.ascontiguousarray(cells).view(np.uint8) == ord("_")).any()) if cells.size else False


def _with_points(cells: np.ndarray) -> np.ndarray:
    """Decimal commas as points."""
    if cells.dtype == object:
        return _objects([cell.replace(b",", b".") for cell in cells], {})
    return np.char.replace(cells, b",", b".")
