"""Rows of tables as dicts with the keys of .jsonl lines: CSV, Parquet and Arrow files, and tables in memory.

Files are read a few rows at a time. A null of Arrow is an absent key, in nested values too: Arrow adds the fields that
other rows have.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import DataError, FileError
from ..base.extras import optional
from ..data.reading.cell_rules import UTF_8
from ..data.reading.text_bytes import by_mark
from .data_files import PARQUET
from .json_rows import BadRow, FileRows, Row, RowReader, in_memory, not_of_encoding
from .sample_lines import keys_of

_ROWS = 256  # converted at once
_SEPARATORS = (",", ";", "\t", "|")
_CELL = 1 << 27  # bytes of a cell, at most
_BLOCK = 1 << 20  # bytes
_NO_VALUES = ("NAType", "NaTType")  # types of pandas


# ---- CSV -------------------------------------------------------------------------------------------------------------


class CsvRows(RowReader):
    """The lines of a .csv or .tsv (.gz) below its header; all cells are texts.

    encoding: its name, by default UTF-8; a byte order mark takes precedence. Raises DataError for bytes that are not of
    it, a header without names, and malformed quotes.
    """

    has_cells = True

    def __init__(self, path: str, encoding: str | None = None) -> None:
        super().__init__(path, "line")
        self.encoding = encoding

    def __iter__(self) -> Iterator[Row]:
        path, encoding = self.name, self.encoding or UTF_8
        try:
            with opened(path) as file:
                mark, encoding = by_mark(file.peek(4), encoding)
                file.read(len(mark))
                with io.TextIOWrapper(file, encoding, newline="") as text:
                    yield from self._rows(text)
        except UnicodeDecodeError as error:
            raise not_of_encoding(path, _first_bad_byte(path, encoding), encoding, error.reason) from None
        except UnicodeError as error:  # UTF-16 without the mark of its order
            raise not_of_encoding(path, 0, encoding, str(error)) from None
        except (EOFError, zlib.error):
            raise FileError(f"{path}: is truncated or damaged; fetch it again") from None

    def _rows(self, text: io.TextIOWrapper) -> Iterator[Row]:
        first = text.readline()
        separator = max(_SEPARATORS, key=first.count)
        csv.field_size_limit(_CELL)
        lines = csv.reader(itertools.chain([first], text), delimiter=separator, strict=True)
        try:
            header = [name.strip() for name in next(lines, [])]
            if not header or "" in header or len(set(header)) < len(header):
                raise DataError(
                    f"{self.name}: the first line is {first.rstrip()[:60]!r}; need different names of columns"
                )
            for cells in lines:
                if len(cells) == len(header):
                    yield lines.line_num, dict(zip(header, cells, strict=True))
                elif cells:
                    seen = f"{len(cells)} cells and the header {len(header)}"
                    yield lines.line_num, BadRow(f"has {seen} ({keys_of(dict.fromkeys(header))})")
        except csv.Error as error:
            raise DataError(f"{self.name}:{lines.line_num}: is no CSV ({error})") from None


def opened(path: str) -> Any:
    """A binary file, of a .gz the unpacked one."""
    return gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb")


def _first_bad_byte(path: str, encoding: str) -> int:
    """The place of the first byte that is not of the encoding."""
    at = held = 0
    decoder = codecs.getincrementaldecoder(encoding)()
    with opened(path) as file:
        while True:
            data = file.read(_BLOCK)
            held = len(decoder.getstate()[0])
            try:
                decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                return at - held + error.start
            at += len(data)
            if not data:
                return at


def number_in(cell: Any) -> Any:
    """The number or truth value that the text of a cell is; None for an empty cell, another text as it is."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip().lower()
    if "_" in text:  # which float would ignore
        return cell
    if text in ("", "true", "false"):
        return text == "true" if text else None
    try:
        number = float(text)
    except ValueError:
        return cell
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


# ---- Parquet and Arrow -----------------------------------------------------------------------------------------------


class ArrowRows(RowReader):
    """The rows of Parquet or Arrow files (IPC files or streams; Feather), one file after the other, counted from 1.

    Raises BackendError where pyarrow is missing, FileError for files that are damaged.
    """

    def __init__(self, name: str, files: Sequence[str]) -> None:
        super().__init__(name, "row")
        self.files = files
        self._arrow = optional("pyarrow", name, "parquet")

    def __iter__(self) -> Iterator[Row]:
        number = 0
        for path in self.files:
            is_parquet = path.lower().endswith(PARQUET)
            try:
                for batch in self._parquet(path) if is_parquet else self._ipc(path):
                    for row in _of_batch(batch):
                        number += 1
                        yield number, row
            except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # also of a column's name
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                kind, what = "Parquet" if is_parquet else "Arrow", " ".join(str(error).split())
                text = f"{path}: is damaged or no {kind} file ({what:.160}); write it again"
                raise FileError(text) from None

    def _parquet(self, path: str) -> Iterator[Any]:
        parquet = optional("pyarrow.parquet", path, "parquet")
        with open(path, "rb") as file, parquet.ParquetFile(file) as opened:
            yield from opened.iter_batches(batch_size=_ROWS)

    def _ipc(self, path: str) -> Iterator[Any]:
        ipc = optional("pyarrow.ipc", path, "parquet")
        with open(path, "rb") as file:
            begin = file.read(6)
        if begin.startswith(b"FEA1"):
            raise FileError(f"{path}: is a Feather file of version 1; write it as version 2 or as Parquet")
        with self._arrow.memory_map(path) as file:
            if begin == b"ARROW1":
                reader = ipc.open_file(file)
                batches: Iterator[Any] = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = iter(ipc.open_stream(file))
            for batch in batches:
                batch.validate(full=True)
                yield from _slices(batch)


def _slices(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, _ROWS):
        yield batch.slice(start, _ROWS)


def _of_batch(batch: Any) -> Iterator[dict[str, Any] | BadRow]:
    """The rows of a batch of pyarrow. Dates and times are texts."""
    try:
        columns = [_plain(batch.column(i)) for i in range(batch.num_columns)]
    except (ValueError, OverflowError, TypeError) as error:
        if batch.num_rows != 1:
            for i in range(batch.num_rows):
                yield from _of_batch(batch.slice(i, 1))
        elif isinstance(error, UnicodeDecodeError):
            yield BadRow(f"byte {error.start} of a text is not UTF-8")
        else:
            yield BadRow(f"a value cannot be read ({' '.join(str(error).split()):.100})")
        return
    names = _different(batch.schema.names)
    for values in zip(*columns, strict=True):
        yield {name: _without_nulls(value) for name, value in zip(names, values, strict=True)}


def _different(names: Any) -> list[str]:
    """The names of columns. Raises DataError for two that are equal."""
    names = list(names)
    if len(set(names)) < len(names):
        name = next(one for one in names if names.count(one) > 1)
        raise DataError(f"data: two columns have the name {name!r:.60}; need different names of columns")
    return names


def _plain(column: Any) -> list[Any]:
    """The values of a column of pyarrow."""
    from pyarrow import string, types

    values: list[Any] = (column.cast(string()) if types.is_temporal(column.type) else column).to_pylist()
    return values


def _without_nulls(value: Any) -> Any:
    """The value without the keys of dicts in it that are null, but for the content of a message."""
    if isinstance(value, Mapping):
        there = ((key, one) for key, one in value.items() if one is not None or (key == "content" and "role" in value))
        return {key: _without_nulls(one) for key, one in there}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(one) for one in value]
    return value


# ---- tables in memory ------------------------------------------------------------------------------------------------


class MemoryRows(RowReader):
    """A list of dicts, or a table: of pyarrow, a DataFrame of pandas or polars, or a Dataset of Hugging Face."""

    def __init__(self, data: Any) -> None:
        if isinstance(data, FileRows):
            super().__init__(data.reader.name, data.reader.unit)
            self.may_skip = False  # each row of the file has its result
        else:
            super().__init__("data", "sample")
        self.data = data

    def where(self, number: int) -> str:
        return self.data.where(number) if isinstance(self.data, FileRows) else super().where(number)

    def __iter__(self) -> Iterator[Row]:
        return enumerate(self._each(), 1)

    def _each(self) -> Iterator[dict[str, Any] | BadRow]:
        data = self.data
        if hasattr(data, "to_pylist") and hasattr(data, "num_rows"):
            for part in _slices(data):
                yield from _of_batch(part)
        elif hasattr(data, "iter_slices") and hasattr(data, "to_dicts"):
            for part in data.iter_slices(_ROWS):
                yield from ({key: _without_nulls(one) for key, one in row.items()} for row in part.to_dicts())
        elif hasattr(data, "iloc") and hasattr(data, "columns"):
            _different(data.columns)
            for start in range(0, len(data), _ROWS):
                for row in data.iloc[start : start + _ROWS].to_dict("records"):
                    yield in_memory(_without_nulls(_of_pandas(row)))
        elif hasattr(data, "column_names"):
            yield from (_without_nulls(_of_pandas(row)) for row in data)
        else:
            yield from map(in_memory, data)


def _of_pandas(value: Any) -> Any:
    """The value with lists in place of arrays, and None in place of a missing value."""
    if isinstance(value, dict):
        return {key: _of_pandas(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_of_pandas(one) for one in value]
    is_missing = (isinstance(value, float) and value != value) or type(value).__name__ in _NO_VALUES
    return None if is_missing else value
