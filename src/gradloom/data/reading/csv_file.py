"""CSV files as columns: separator and header are detected, all rows have one length."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from ... import _cells
from ...base.errors import DataError, FileError
from ...base.reasons import reason_of, remedy_of
from .cell_rules import PLAIN, CellRules
from .cells import TEXT, Blocks, NumberCells, TextCells, composed, marks_of
from .columns import MOST_COLUMNS, Columns, Lines, names_of
from .csv_dialect import SEPARATORS, is_header_of_numbers, named_separator, separator_of
from .text_bytes import utf_8_pieces

_SAMPLE = 1 << 16  # bytes for the choice of the separator


def read_csv(
    path: str | os.PathLike[str],
    expect: Sequence[str] = (),
    header: bool | None = None,
    rules: CellRules = PLAIN,
) -> Columns:
    """Read a .csv or .csv.gz file.

    expect: names of which one in the first line makes that line a header; header: True or False when it is known. A
    column is numeric if every cell is a number or missing, and none has leading zeros (007) or more digits than f64
    keeps.
    """
    try:
        return _Reading(path, rules).read(tuple(expect), header)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path}: is truncated or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None


# ---- cells -----------------------------------------------------------------------------------------------------------


class _Reading:
    """A file that is read once, and again for columns whose first text is after the first piece."""

    def __init__(self, path: str | os.PathLike[str], rules: CellRules) -> None:
        self.path, self.commas, self.encoding = path, rules.commas, rules.encoding
        self.texts = set(map(composed, rules.texts))
        self.missing = list(rules.missing)
        self.text_mode = _cells.EXACT_TEXTS if rules.exact else _cells.TEXTS
        self.other: dict[
            int, bool
        ] = {}  # columns whose commas are not those of the separator: whether they are decimal
        self.has_comma = False
        self.separator = ","
        self.first: list[bytes] = []
        self.first_line = 0
        self.lines = Lines()
        self.cells: list[NumberCells | TextCells] = []

    def read(self, expect: tuple[str, ...], header: bool | None) -> Columns:
        modes = self._pass([])
        while any(mode != _cells.SKIP for mode in modes):
            modes = self._pass(modes)
        if self.separator != "," and self.has_comma:
            self._decide_commas()
        repeated, are_alone = (np.zeros(0, np.int64), False) if header is False else self._repeats_of_first()
        if header is None:
            header = self._is_header(expect) or (len(repeated) > 0 and (are_alone or self._is_above_numbers()))
        if header and len(repeated):
            self._refuse_repeats(repeated)
        while header and len(self.first) > 1 and self._is_nothing():  # lines that end with a separator
            self.first.pop()
            self.cells.pop()
        names = self._names() if header else [f"column {i + 1}" for i in range(len(self.first))]
        if not header:
            self._put_first()
        for i, decimal in self.other.items():
            cells = cast(TextCells, self.cells[i])
            self.cells[i] = read_cells([cells.texts[code] for code in cells.codes], comma=decimal, missing=self.missing)
        if not len(self.lines):
            raise DataError(f"{self.path}: holds a header and no rows; need at least 1 row")
        return Columns(str(self.path), names, self.cells, self.lines, header, self.separator)

    def _pass(self, modes: list[int]) -> list[int]:
        """Reads the columns of these modes, all where there are none; the modes of a further pass, SKIP but for columns
        that need another one."""
        first_pass = not modes
        pieces = utf_8_pieces(self.path, self.encoding)
        begun: list[tuple[bytes, bool]] = []  # until the first row is there
        splitter = None
        while splitter is None or splitter.first is None:
            begun.append(next(pieces))
            if splitter is None:
                separator, data = named_separator(begun[0][0])
                begun = [(data, begun[0][1])]
                if separator and separator not in SEPARATORS:
                    raise DataError(f"{self.path} line 1: sep={separator}: need a comma, a semicolon or a tab")
                if first_pass:
                    sample = data[:_SAMPLE].decode("utf-8", "ignore")
                    self.separator = separator or separator_of(sample, len(data) > _SAMPLE)
                splitter = _cells.Splitter(self.separator, self.missing)
            self._feed(splitter, *begun[-1])
            if begun[-1][1] and splitter.first is None:
                raise DataError(f"{self.path}: holds no rows; need at least a row of numbers")
        self.first_line, self.first = splitter.first
        width = len(self.first)
        if width > MOST_COLUMNS:
            raise DataError(f"{self.path} line {self.first_line}: {width:,} columns; need at most {MOST_COLUMNS:,}")
        if first_pass:
            self.other = self._other_commas()
            modes = [self._mode(i) for i in range(width)]
        splitter.begin(bytes(modes))
        again = self._again(splitter.columns, modes)
        if first_pass and any(again):  # texts among the first rows: from the beginning, while that is held
            modes = [other or mode for other, mode in zip(again, modes, strict=True)]
            splitter = _cells.Splitter(self.separator, self.missing)
            for piece in begun:
                splitter.feed(*piece)
            splitter.begin(bytes(modes))
        columns = splitter.columns
        parts = _Parts(modes, columns)
        lines = Lines()
        self._check(splitter)
        taken, following = parts.take(), None if begun[-1][1] else next(pieces)
        with ThreadPoolExecutor(1) as cutter:  # it begins no thread where a piece is the whole file
            while following is not None:  # one piece is cut while the one before is packed and the next one is read
                lines.add(splitter.take_lines())
                data, last = following
                self.has_comma = self.has_comma or b"," in data
                cut = cutter.submit(splitter.feed, data, last)
                try:
                    parts.pack(taken)
                    following = None if last else next(pieces)
                finally:  # report errors in the order of the rows
                    cut.result()
                    self._check(splitter)
                taken = parts.take()
        parts.pack(taken)
        lines.add(splitter.take_lines())
        self._keep(parts.made(), lines, first_pass)
        return self._again(columns, modes)

    def _mode(self, index: int) -> int:
        """The mode in which a column is first read."""
        if {composed(self.first[index].decode()), f"column {index + 1}"} & self.texts:
            return self.text_mode
        return _cells.TEXTS if index in self.other else _cells.NUMBERS

    def _other_commas(self) -> dict[int, bool]:
        """The columns for which `commas` differs from the rule of the separator, if cells may contain commas."""
        decimal = self.separator != ","
        found = [i for i in range(len(self.first)) if self._known(i) is (not decimal)]
        sign = b"," if decimal else b'"'
        there = bool(found) and any(sign in piece for piece, _ in utf_8_pieces(self.path, self.encoding))
        return dict.fromkeys(found, not decimal) if there else {}

    def _known(self, index: int) -> bool | None:
        """Whether commas of this column are decimal; None if not known."""
        return self.commas.get(composed(self.first[index].decode()), self.commas.get(f"column {index + 1}"))

    def _decide_commas(self) -> None:
        """Decide the meaning of commas in columns of numbers if the separator is not a comma. 1,5 is decimal; 1,234 is
        ambiguous: if all commas are, they are decimal, or separate thousands in a column with a currency sign."""
        before = list(self.cells)
        asked = [
            isinstance(cells, NumberCells) and not cells.grouped and self._known(i) is None
            for i, cells in enumerate(before)
        ]
        if not any(asked):
            return
        modes = self._pass([_cells.GROUPED_NUMBERS if ask else _cells.SKIP for ask in asked])
        for i, old in enumerate(before):
            new = self.cells[i]
            if not (asked[i] and isinstance(old, NumberCells) and isinstance(new, NumberCells)):
                continue
            self.cells[i] = old
            if modes[i] != _cells.SKIP:
                old.commas = "commas are decimal"
                continue
            was, now = old.values(), new.values()
            differ = (was != now) & ~np.isnan(was)
            if not differ.any():
                continue
            row = int(np.argmax(differ))
            if set(old.units) - {"", "%"}:
                self.cells[i] = new
                new.commas = f"commas cut thousands, because of the currency sign: {now[row]:.15g}, not {was[row]:.3f}"
            else:
                seen = f"{was[row]:.3f}, not {now[row]:.15g}"
                old.commas = f"3 digits follow each comma, which is taken as decimal: {seen}"

    def _keep(self, cells: list[NumberCells | TextCells | None], lines: Lines, first_pass: bool) -> None:
        if first_pass:
            self.lines = lines
            self.cells = [one or NumberCells() for one in cells]
        else:
            self.cells = [new or old for new, old in zip(cells, self.cells, strict=True)]

    def _again(self, columns: Sequence[_cells.Column], modes: Sequence[int]) -> list[int]:
        """For each column SKIP, or the mode for another pass."""
        made = []
        for i, (column, mode) in enumerate(zip(columns, modes, strict=True)):
            is_number = mode in (_cells.NUMBERS, _cells.GROUPED_NUMBERS)
            if is_number and (column.first_text >= 0 or column.first_code >= 0):
                made.append(_cells.TEXTS)
            else:
                is_mixed = is_number and column.is_mixed and self._known(i) is None
                made.append(_cells.GROUPED_NUMBERS if is_mixed else _cells.SKIP)
        return made

    def _feed(self, splitter: _cells.Splitter, piece: bytes, last: bool) -> None:
        self.has_comma = self.has_comma or b"," in piece
        splitter.feed(piece, last)
        self._check(splitter)

    def _check(self, splitter: _cells.Splitter) -> None:
        """DataError for malformed rows."""
        if splitter.fault is None:
            return
        kind, first, last, cells, ends_empty = splitter.fault
        fault = _cells.FAULTS[kind]
        if fault == "width":
            what = f"{cells} cell{'s' * (cells != 1)}, needs {len(self.first)} as in line {self.first_line}"
            need = "fix or remove that line"
            if self.first[0].startswith(b"#"):
                need = f"line {self.first_line} begins with '#': remove it if it is a comment"
            elif ends_empty and cells == len(self.first) + 1:
                need = f"that line ends with '{self.separator}', which begins one more cell: remove it there"
            raise DataError(f"{self.path} line {last}: {what}; {need}")
        what = {
            "open quote": "a quote in this row is not closed; close or remove it",
            "long cell": f"a cell of more than {_cells.LONGEST_CELL:,} characters, or a quote that is not closed;"
            " need shorter cells",
            "after quote": f"'{self.separator}' expected after '\"'{f' in line {last}' if last > first else ''};"
            " fix or remove that line",
        }[fault]
        raise DataError(f"{self.path} line {first}: {what}")

    def _is_nothing(self) -> bool:
        """Whether the last column has no name and no values."""
        cells = self.cells[-1]
        if self.first[-1]:
            return False
        if isinstance(cells, TextCells):
            return cells.texts == [b""]
        return not cells.marks and bool(np.isnan(cells.values()).all())

    def _names(self) -> list[str]:
        names = (cell.decode() or f"column {i + 1}" for i, cell in enumerate(self.first))
        return names_of(f"{self.path} line {self.first_line}", names)

    def _is_header(self, expect: tuple[str, ...]) -> bool:
        """True when the first line is no row: a name that is expected, texts above columns of numbers, or numbers that
        name columns."""
        first, cells = self.first, self.cells
        if {composed(cell.decode()) for cell in first} & set(map(composed, expect)):
            return True
        if cells[0].rows == 0:
            return len(set(first)) == len(first) and not any(_is_row(cell) for cell in first)
        if any(isinstance(_cells.read_cell(cell, self.separator != ","), float) for cell in first):
            return is_header_of_numbers(first, cells)
        if any(_has_numbers(column) for column in cells):
            return True
        # texts only: names are all different, and none of them occurs again below
        return len(set(first)) == len(first) and not any(
            isinstance(column, TextCells) and cell in column.texts for cell, column in zip(first, cells, strict=True)
        )

    def _repeats_of_first(self) -> tuple[np.ndarray, bool]:
        """(rows that repeat the first line, where that holds two texts or more; whether its first line is one of texts
        alone, which stand in no other row).

        Cells that are numbers or missing are not compared. Rows with another order of columns, case or blanks count
        where the texts stand in no other row."""
        names = {_spelling(cell): i for i, cell in enumerate(self.first) if not _is_row(cell)}
        columns = [(i, column) for i, column in enumerate(self.cells) if isinstance(column, TextCells)]
        found: dict[int, np.ndarray] = {}  # the index of the name in each cell of a column, -1 for none
        for k, (i, column) in enumerate(columns):
            if len(names) < 2 or len(found) + len(columns) - k < len(names):
                break
            index = np.array([names.get(_spelling(text), -1) for text in column.texts], np.int32)
            if (index >= 0).any():
                found[i] = index[column.codes]
        if len(names) < 2 or len(found) < len(names):
            return np.zeros(0, np.int64), False
        cells = np.stack(list(found.values()), axis=1)
        counts = (cells >= 0).sum(axis=1)
        rows = np.flatnonzero(counts == len(names))
        rows = rows[(np.diff(np.sort(cells[rows])[:, -len(names) :]) > 0).all(axis=1)]
        if len(rows) == (counts > 0).sum() and len(rows) < len(cells):
            is_text = [not isinstance(_cells.read_cell(cell, self.separator != ","), float) for cell in self.first]
            return rows, all(is_text) and len(rows) > 0
        return rows[[self._is_first(int(row)) for row in rows]] if len(rows) else rows, False

    def _is_first(self, row: int, same: Callable[[bytes], object] = lambda cell: composed(cell.decode())) -> bool:
        """Whether the texts of the first line are those of a row, by what `same` makes of them."""
        compared = [(cell, column) for cell, column in zip(self.first, self.cells, strict=True) if not _is_row(cell)]
        return all(
            isinstance(column, TextCells) and same(column.texts[column.codes[row]]) == same(cell)
            for cell, column in compared
        )

    def _refuse_repeats(self, rows: np.ndarray) -> None:
        """DataError for rows that repeat the column names, as _repeats_of_first finds them."""
        line, count = self.lines[rows[0]], len(rows)
        lines = f"the line{'s' * (count > 1)}"
        if self._is_first(int(rows[0]), _spelling):
            more = f", as {count - 1} more do" * (count > 1)
            seen = f"repeats the column names of line {self.first_line}{more}, as joined files do; remove {lines}"
        else:
            seen = f"holds the column names of line {self.first_line} in another order, as joined files do; move the"
            seen += f" columns below it into that order and remove {lines}"
        raise DataError(f"{self.path} line {line}: {seen}")

    def _is_above_numbers(self) -> bool:
        """Whether the cells of some column below are numbers, but for those that are names of the first line."""
        names = set(map(_spelling, self.first))
        for column in self.cells:
            if isinstance(column, TextCells):
                others = np.array([_spelling(text) not in names for text in column.texts])
                kinds = column.numbers[1][others]
                if (kinds == 0).any() and not (kinds == TEXT).any():
                    return True
        return False

    def _has_decimal_commas(self, column: NumberCells | TextCells) -> bool:
        return self.separator != "," and not (isinstance(column, NumberCells) and column.grouped)

    def _put_first(self) -> None:
        """The first line as a row."""
        again = [_cells.SKIP] * len(self.first)
        ones = []
        for i, (cell, column) in enumerate(zip(self.first, self.cells, strict=True)):
            mode = _cells.NUMBERS if isinstance(column, NumberCells) else self.text_mode
            ones.append(read_cells([cell], mode, self._has_decimal_commas(column), self.missing))
            if isinstance(column, NumberCells) and isinstance(ones[i], TextCells):
                again[i] = _cells.TEXTS
        if any(again):
            self._pass(again)
        for one, column in zip(ones, self.cells, strict=True):
            column.put_first(one)
        self.lines.put_first(self.first_line)


class _Parts:
    """The cells of the columns of a pass, in pieces."""

    def __init__(self, modes: Sequence[int], columns: Sequence[_cells.Column]) -> None:
        self.modes, self.columns = modes, columns
        self.numbers = [NumberCells() for _ in columns]
        self.codes = [Blocks() for _ in columns]

    def take(self) -> list[Any]:
        """The cells since the last call."""
        return [column.take() for column in self.columns]

    def pack(self, taken: Sequence[Any]) -> None:
        for part, numbers, codes in zip(taken, self.numbers, self.codes, strict=True):
            if isinstance(part, tuple):
                numbers.add(*part)
            elif part is not None:
                codes.add(part)

    def made(self) -> list[NumberCells | TextCells | None]:
        """The cells of each column; None where it was not read."""
        made: list[NumberCells | TextCells | None] = []
        for mode, column, numbers, codes in zip(self.modes, self.columns, self.numbers, self.codes, strict=True):
            if mode == _cells.SKIP:
                made.append(None)
            elif mode in (_cells.TEXTS, _cells.EXACT_TEXTS):
                made.append(TextCells(codes.joined(np.int32), column, mode == _cells.EXACT_TEXTS))
                codes.parts.clear()
            else:
                numbers.grouped = mode == _cells.GROUPED_NUMBERS
                numbers.commas = "commas cut thousands, as in 1,234,567" if numbers.grouped else ""
                made.append(with_facts(numbers, column))
        return made


def read_cells(
    cells: list[Any], mode: int = _cells.NUMBERS, comma: bool = False, missing: Sequence[str] = ()
) -> NumberCells | TextCells:
    """Parse cells (str or UTF-8) like those of a file. mode: NUMBERS (texts if some cell is not a number), TEXTS or
    EXACT_TEXTS; comma: commas are decimal; missing: words that are missing values."""
    if mode == _cells.NUMBERS:
        column = _cells.Column(_cells.NUMBERS, comma, list(missing))
        column.add(cells)
        part = column.take()
        if isinstance(part, tuple) and column.first_code < 0:
            numbers = NumberCells()
            numbers.add(*part)
            return with_facts(numbers, column)
    column = _cells.Column(max(mode, _cells.TEXTS), comma, list(missing))
    column.add(cells)
    codes = column.take()
    assert isinstance(codes, np.ndarray)
    return TextCells(codes, column, mode == _cells.EXACT_TEXTS)


def with_facts(numbers: NumberCells, column: _cells.Column) -> NumberCells:
    """The cells with the marks and units that the core has found."""
    numbers.marks = marks_of(column)
    numbers.units = {unit: seen for unit, seen in zip(_cells.UNITS, column.units, strict=True) if seen[0]}
    numbers.rows, numbers.in_brackets = column.rows, column.in_brackets
    return numbers


def _spelling(cell: bytes) -> str:
    """A name of a column without its case, the blanks at its ends and a byte order mark."""
    return composed(cell.decode()).strip("\ufeff \t\xa0").casefold()


def _is_row(cell: bytes) -> bool:
    """Whether the cell is a number or empty, so not a column name."""
    return not isinstance(_cells.read_cell(cell, True), bool)


def _has_numbers(cells: NumberCells | TextCells) -> bool:
    """Whether no cell is a text, and some cell is not missing."""
    if isinstance(cells, NumberCells):
        return bool(np.isfinite(cells.values()).any())
    kinds = cells.numbers[1]
    return not (kinds == TEXT).any() and bool((kinds == 0).any())
