"""The reader of the rows of any data: of a file by the end of its name, or of samples in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..base.errors import DataError
from .data_files import ARROW, CSV, PARQUET, ROWS, TEXT, shards
from .json_rows import JsonRows, RowReader
from .table_rows import ArrowRows, CsvRows, MemoryRows


def reader_of(source: Any, encoding: str | None = None) -> RowReader:
    """The rows of a path, or of a list of dicts or a table in memory. encoding: of a .csv.

    Raises OSError for a file that cannot be read, DataError for an empty one, for a name of another kind, and for an
    encoding of a file that is none of text; BackendError where pyarrow is required.
    """
    if not isinstance(source, (str, os.PathLike)):
        if encoding is not None:
            raise DataError("data: is in memory; {encoding} requires a .csv or .txt", encoding=encoding)
        return MemoryRows(source)
    path = os.fspath(source)
    files = shards(path)
    name = files[0].lower()  # of a shard
    if not name.endswith(ROWS):
        need = " ".join((*TEXT, *ROWS))
        raise DataError(f"{path}: the name ends in {Path(name).suffix or 'nothing'}; possible are {need}")
    for file in files:
        need_file(file)
    if name.endswith(CSV):
        return CsvRows(path, encoding)
    if encoding is not None:
        raise DataError(f"{path}: has no encoding of its own; {{encoding}} requires a .csv or .txt", encoding=encoding)
    if name.endswith((*PARQUET, *ARROW)):
        return ArrowRows(path, files)
    return JsonRows(path)


def need_file(path: str) -> None:
    """Raise OSError for a file that cannot be read or is a folder, DataError for an empty one."""
    size = os.stat(path).st_size
    if Path(path).is_dir():
        raise IsADirectoryError(21, "is a directory")
    if size == 0:
        raise DataError(f"{path}: the file is empty; need a text, or a sample per line")
