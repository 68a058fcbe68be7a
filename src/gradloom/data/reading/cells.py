"""The cells of a column: numbers, or texts with a code for each different one."""

from __future__ import annotations

import mmap
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ... import _cells
from ...base.errors import DataError

MISSING, TEXT = 1, 2  # kinds of a text in the core; 0: a number
_MOST_DECIMALS = 9
_PART = 1 << 16  # elements of an array that are read at a time
_JOINED = 1 << 20  # bytes of pieces that become one block
_, LEADING_ZERO, ROUNDED = _cells.CODES


def composed(text: str) -> str:
    """The text in Unicode's form NFC: the same text, written with or without combining characters, is equal."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def read_exactly(text: bytes) -> float | bool | None:
    """The value of a cell, as _cells.read_cell; False for a number that float64 rounds."""
    return False if _cells.CODES[_cells.code_of(text)] == ROUNDED else _cells.read_cell(text, False)


def number_text(value: float) -> str:
    """A number as a class or a category: 3 for 3.0."""
    return str(int(value)) if float(value).is_integer() else str(float(value))


class Blocks:
    """Arrays, each with the decimals of its numbers; small ones of one dtype are joined.

    A joined block is a memory map of its own, which is unmapped when the block is dropped. Thousands of pieces would
    fragment the heap.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, int]] = []
        self._open, self._bytes = 0, 0  # parts[_open:] have one dtype and are not joined yet

    def add(self, array: np.ndarray, decimals: int = 0) -> None:
        if not len(array):
            return
        if self._bytes and not _alike(self.parts[-1], (array, decimals)):
            self._open, self._bytes = len(self.parts), 0
        self.parts.append((array, decimals))
        self._bytes += array.nbytes
        if self._bytes >= _JOINED:
            pieces = [one for one, _ in self.parts[self._open :]]
            joined = np.frombuffer(mmap.mmap(-1, self._bytes), array.dtype)
            self.parts[self._open :] = [(np.concatenate(pieces, out=joined), decimals)]
            self._open, self._bytes = len(self.parts), 0

    def put_first(self, array: np.ndarray, decimals: int) -> None:
        self.parts.insert(0, (array, decimals))
        self._open += 1

    def joined(self, kind: type[np.generic]) -> np.ndarray:
        """All parts, which have this dtype, as one array."""
        return np.concatenate([np.empty(0, kind), *(array for array, _ in self.parts)])


def _alike(one: tuple[np.ndarray, int], other: tuple[np.ndarray, int]) -> bool:
    return one[0].dtype == other[0].dtype and one[1] == other[1]


class NumberCells:
    """A column whose cells are all numbers or missing.

    Numbers with few digits are stored as integers of 1, 2 or 4 bytes over a power of ten; the quotient is the exact
    double.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.grouped = False  # commas cut thousands, in a file where commas may be decimal
        self.in_brackets = 0  # numbers such as (1234.50), which are negative
        self.commas = ""  # a note on how commas were read
        self.marks: dict[str, int] = {}  # texts of missing cells that are not empty, with their counts
        self.units: dict[str, tuple[int, int]] = {}  # "" or a unit: (count of numbers, first row)
        self.blocks = Blocks()  # of whole numbers with decimals, or of numbers with decimals -1

    def add(self, values: np.ndarray, decimals: int = -1) -> None:
        """Append f64 values, NaN where one is missing. decimals: the maximum number of decimals, -1 if unknown."""
        self.rows += len(values)
        if len(values):
            self.blocks.add(*_packed(values, decimals))

    def put_first(self, one: NumberCells | TextCells) -> None:
        """Insert the row of another column of numbers before the others."""
        assert isinstance(one, NumberCells)
        self.rows += 1
        self.blocks.put_first(one.values(), -1)
        self.units = {unit: (count, first + 1) for unit, (count, first) in self.units.items()}
        for unit in one.units:
            self.units[unit] = (self.units.get(unit, (0, 0))[0] + 1, 0)
        self.in_brackets += one.in_brackets
        self.marks = _added(self.marks, one.marks)

    def has_number(self) -> bool:
        """Whether the first block contains a number."""
        if not self.blocks.parts:
            return False
        block, decimals = self.blocks.parts[0]
        return not np.isnan(block).all() if decimals < 0 else bool((block != np.iinfo(block.dtype).min).any())

    def values(self) -> np.ndarray:
        """f64 [rows], NaN where a cell is missing."""
        made = np.empty(self.rows)
        at = 0
        for part in self.parts():
            made[at : at + len(part)] = part
            at += len(part)
        return made

    def parts(self) -> Iterator[np.ndarray]:
        """values(), in pieces."""
        for block, decimals in self.blocks.parts:
            if decimals < 0:
                yield block
                continue
            part = block / 10.0**decimals
            part[block == np.iinfo(block.dtype).min] = np.nan
            yield part


def _packed(values: np.ndarray, decimals: int) -> tuple[np.ndarray, int]:
    """(values as the narrowest integers that represent all of them, decimals); (values, -1) if there are none."""
    if not 0 <= decimals <= _MOST_DECIMALS:
        return values, -1
    scaled = np.rint(values * 10.0**decimals)
    empty = np.isnan(scaled)
    has_empty = bool(empty.any())
    if has_empty:
        scaled[empty] = 0
    least, most = scaled.min(), scaled.max()
    for kind in (np.int8, np.int16, np.int32):
        info = np.iinfo(kind)
        if info.min < least and most <= info.max:
            same = scaled / 10.0**decimals == values
            if not (same | empty if has_empty else same).all():
                break
            whole = scaled.astype(kind)
            if has_empty:
                whole[empty] = info.min
            return whole, decimals
    return values, -1


class ArrayCells(NumberCells):
    """A column of an array, which is not copied. missing: words that are missing values, if they are numbers."""

    def __init__(self, array: np.ndarray, missing: Sequence[str] = ()) -> None:
        super().__init__()
        for word in missing:
            number = _cells.read_cell(word, False)
            is_missing = array == number if isinstance(number, float) else np.zeros(0, bool)
            if is_missing.any():
                array = np.where(is_missing, np.nan, array)
                self.marks[word] = int(np.count_nonzero(is_missing))
        self.rows, self._array = len(array), array

    def values(self) -> np.ndarray:
        """f64 [rows], NaN where an element is missing."""
        return self._array.astype(np.float64)

    def parts(self) -> Iterator[np.ndarray]:
        for start in range(0, self.rows, _PART):
            yield self._array[start : start + _PART].astype(np.float64)


class RefusedCells(NumberCells):
    """A column that cannot be used: DataError with the reason where its cells are read."""

    def __init__(self, rows: int, why: str) -> None:
        super().__init__()
        self.rows, self._why = rows, why

    def has_number(self) -> bool:
        raise DataError(self._why)

    def values(self) -> np.ndarray:
        raise DataError(self._why)

    def parts(self) -> Iterator[np.ndarray]:
        raise DataError(self._why)


class TextCells:
    """A column of texts: i32 codes [rows], and the texts in the order of first occurrence. exact: texts are not
    normalised to Unicode NFC."""

    def __init__(self, codes: np.ndarray, read: _cells.Column, exact: bool = False) -> None:
        self.codes, self._read = codes, read
        self._composed: dict[bytes, int] | None = None  # each text with one of its codes in the core
        if not exact and not read.texts[0].isascii():
            self._compose()
        self.marks = marks_of(read)  # words that are declared missing, with their counts
        self._more: list[bytes] = []  # a text that only the first row has

    @property
    def rows(self) -> int:
        return len(self.codes)

    def _compose(self) -> None:
        written = texts_of(*self._read.texts)
        made = [composed(text.decode()).encode() for text in written]
        if made == written:
            return
        self._composed = {}
        for code, text in enumerate(made):
            self._composed.setdefault(text, code)
        place = {text: i for i, text in enumerate(self._composed)}
        self.codes = np.array([place[text] for text in made], np.int32)[self.codes]

    @cached_property
    def texts(self) -> list[bytes]:
        """The distinct texts, in UTF-8, by code."""
        known = texts_of(*self._read.texts) if self._composed is None else list(self._composed)
        return known + self._more

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """(value of each text, f64, NaN if it is not a number; MISSING, TEXT or 0 for a number)."""
        values, kinds = self._read.read_texts()
        if self._composed is not None:
            kept = list(self._composed.values())
            values, kinds = values[kept], kinds[kept]
        for text in self._more:
            value = _cells.read_cell(text, False)
            values = np.append(values, np.nan if value is None or value is False else value)
            kinds = np.append(kinds, np.uint8(MISSING if value is None else TEXT if value is False else 0))
        return values, kinds

    def codes_with(self, why: str) -> list[int]:
        """The codes of numbers that are codes for this reason of _cells.CODES."""
        return [code for code, text in enumerate(self.texts) if _cells.CODES[_cells.code_of(text)] == why]

    def put_first(self, one: NumberCells | TextCells) -> None:
        """Insert the row of another column of texts before the others."""
        assert isinstance(one, TextCells)
        text, self.marks = one.texts[0], _added(self.marks, one.marks)
        if text not in self.texts:
            self._more.append(text)
            self.__dict__.pop("texts", None)
            self.__dict__.pop("numbers", None)
        self.codes = np.concatenate([np.array([self.texts.index(text)], np.int32), self.codes])


def marks_of(column: _cells.Column) -> dict[str, int]:
    """Texts of the missing cells of a column of the core, with their counts."""
    marks, counts = column.marks
    return {text.decode(): n for text, n in zip(texts_of(*marks), counts.tolist(), strict=True)}


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return one | {mark: one.get(mark, 0) + count for mark, count in other.items()}


def texts_of(data: bytes, ends: np.ndarray) -> list[bytes]:
    """Split `data` at these ends."""
    made, begin = [], 0
    for end in ends.tolist():
        made.append(data[begin:end])
        begin = end
    return made
