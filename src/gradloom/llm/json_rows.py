"""Rows of JSON data: the lines of a .jsonl file, or the elements of a JSON array."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError
from ..data.reading.cell_rules import UTF_8
from ..data.reading.text_bytes import by_mark
from .data_files import JSON

_READ = 1 << 20  # bytes that are read at once
_BLANKS = re.compile(r"[ \t\n\r]*")
# methods and attributes of tables of pyarrow, polars, pandas and Hugging Face
_OF_TABLES = (("to_pylist", "num_rows"), ("to_dicts", "iter_slices"), ("iloc", "columns"), ("column_names", "features"))
JSON_NAMES = {list: "list", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}


class BadRow(Exception):
    """The reason why a row is not a sample."""


class Table(Protocol):
    """A table in memory: of pyarrow, a DataFrame of pandas or polars, or a Dataset of Hugging Face."""

    def __len__(self) -> int: ...


Source = str | os.PathLike[str] | Collection[Mapping[str, Any]] | Table  # samples: a path, or in memory
Row = tuple[int, "dict[str, Any] | BadRow"]  # number, from 1; the object


def is_samples(data: object) -> bool:
    """Samples in memory: a list, or another collection with a length, of dicts; or a Table."""
    if hasattr(data, "__len__") and any(all(hasattr(data, name) for name in names) for names in _OF_TABLES):
        return not isinstance(data, Mapping)
    plain = isinstance(data, Collection) and not isinstance(data, (str, bytes, Mapping, np.ndarray, os.PathLike))
    return plain and not hasattr(data, "tokens")


class RowReader:
    """Rows in order.

    name       for messages
    unit       "line", "row" (both named by their number in the file) or "sample"
    has_cells  all values are texts, also those of numbers
    may_skip   rows that are no sample may be left out (skip_bad_lines)
    """

    has_cells = False
    may_skip = True

    def __init__(self, name: str, unit: str) -> None:
        self.name, self.unit = name, unit

    def where(self, number: int) -> str:
        """The place of a row: PATH:3, or PATH: sample 3."""
        return f"{self.name}: sample {number}" if self.unit == "sample" else f"{self.name}:{number}"

    def __iter__(self) -> Iterator[Row]:
        raise NotImplementedError(f"{type(self).__name__}.__iter__")


class FileRows(list[dict[str, Any]]):
    """The rows of a file in memory; `reader` and `numbers` name the place of each."""

    def __init__(self, rows: Iterable[dict[str, Any]], reader: RowReader, numbers: list[int]) -> None:
        super().__init__(rows)
        self.reader, self.numbers = reader, numbers

    def where(self, number: int) -> str:
        """The place of row `number`, from 1, in the file."""
        return self.reader.where(self.numbers[number - 1])


class JsonRows(RowReader):
    """The rows of a .jsonl or .json file. A .json file is an array of objects, or has an object on each line; an array
    is read block by block, so memory is bounded by its largest element."""

    def __init__(self, path: str) -> None:
        is_array = Path(path).suffix.lower() in JSON and not _has_lines(path)
        super().__init__(path, "sample" if is_array else "line")

    def __iter__(self) -> Iterator[Row]:
        return _lines(self.name) if self.unit == "line" else _elements(self.name)


def in_memory(row: object) -> dict[str, Any] | BadRow:
    """A row of a list as a dict."""
    if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
        hint = "; a text is {'text': ...}" if isinstance(row, str) else ""
        return BadRow(f"is {what_is(row)}; need a dict with texts as keys{hint}")
    return dict(row)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(path: str) -> Iterator[Row]:
    with open(path, "rb") as file:
        for number, data in enumerate(file, 1):
            bare = (data.removeprefix(codecs.BOM_UTF8) if number == 1 else data).strip()
            if bare:
                yield number, _object(bare)


def _object(data: bytes) -> dict[str, Any] | BadRow:
    try:
        row = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return BadRow(f"byte {error.start} of the line is not UTF-8")
    except json.JSONDecodeError as error:
        if data.startswith(b"["):
            need = "need a line for each sample, an object with keys (an array of objects is a .json file)"
            return BadRow(f"begins a JSON list; {need}")
        return BadRow(f"not JSON: {error.msg} at character {error.pos}")
    except (ValueError, RecursionError) as error:
        return BadRow(_too_large(error))
    return row if isinstance(row, dict) else BadRow(f"{_kind(row)}; need a line for each sample, an object with keys")


def _too_large(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "holds lists or objects in more layers than can be read; need fewer"
    return "holds a whole number of thousands of digits; need a shorter one, or a text"


def _kind(value: object) -> str:
    return f"a JSON {JSON_NAMES[type(value)]}"


# ---- an array --------------------------------------------------------------------------------------------------------


def text_blocks(path: str, encoding: str | None = None, is_json: bool = False) -> Iterator[str]:
    """The text of a file, block by block. encoding: its name, by default UTF-8; a byte order mark takes precedence.
    Raises DataError for bytes that are not of it."""
    with open(path, "rb") as file:
        mark, found = by_mark(file.peek(4), encoding or UTF_8)
        decoder, at = codecs.getincrementaldecoder(found)(), len(file.read(len(mark)))
        while True:
            data = file.read(_READ)
            held = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise not_of_encoding(path, at - held + error.start, found, error.reason, is_json) from None
            except UnicodeError as error:  # UTF-16 without the mark of its order
                raise not_of_encoding(path, at, found, str(error)) from None
            yield text
            at += len(data)
            if not data:
                return


def not_of_encoding(path: str, at: int, encoding: str, why: str, is_json: bool = False) -> DataError:
    """The error for a byte that is not of the encoding. is_json: of a file that has no other than UTF-8."""
    seen = f"{path}: byte {at} is not {'UTF-8' if encoding == UTF_8 else encoding} ({why})"
    if is_json:
        return DataError(f"{seen}; need a text in UTF-8")
    return DataError(f"{seen}; {{encoding}} can name another encoding, such as cp1252", encoding=...)


def _has_lines(path: str) -> bool:
    """Whether a .json file has an object on each line. Raises DataError if it is not an array either."""
    first = _Text(text_blocks(path, is_json=True)).peek()
    if first not in ("[", "{"):
        raise DataError(f"{path}: begins with {first!r}; need a JSON array of objects, or an object on each line")
    return first == "{"


def _elements(path: str) -> Iterator[Row]:
    text, number = _Text(text_blocks(path, is_json=True)), 0
    text.peek()
    text.take()
    end = text.peek()
    while end != "]":
        number += 1
        try:
            value = text.value()
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: sample {number} is not JSON: {error.msg}; need an array of objects") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: sample {number} {_too_large(error)}") from None
        yield number, value if isinstance(value, dict) else BadRow(f"{_kind(value)}; need an object with keys")
        end = text.peek()
        if end == ",":
            text.take()
        elif end != "]":
            raise DataError(f"{path}: {end!r} after sample {number}; need a comma or the end of the array")
    text.take()
    if text.peek():
        raise DataError(f"{path}: text after the end of the array; need one JSON array")


class _Text:
    """A text that is read block by block, as JSON values."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks, self._text, self._at = iter(blocks), "", 0
        self._decoder = json.JSONDecoder()

    def _more(self) -> bool:
        """Double the buffered text at least; False at the end."""
        rest = self._text[self._at :]
        parts, size = [rest], 0
        for block in self._blocks:
            parts.append(block)
            size += len(block)
            if size > len(rest):
                break
        self._text, self._at = "".join(parts), 0
        return size > 0

    def peek(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            found = _BLANKS.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self) -> None:
        self._at += 1

    def value(self) -> Any:
        """The next value. Raises JSONDecodeError, ValueError or RecursionError."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            if end < len(self._text) or not self._more():  # a number at the end of a block may continue
                self._at = end
                return value
