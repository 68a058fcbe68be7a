"""Parquet files and Arrow tables as columns, typed by the same rules as CSV files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import DataError, FileError
from ...base.extras import optional
from .array_cells import named_cells
from .cell_rules import PLAIN, CellRules
from .cells import ArrayCells, NumberCells, RefusedCells, TextCells
from .columns import MOST_COLUMNS, Columns, names_of
from .unpacked import most_unpacked, too_much

_MEMORY = 8  # bytes of memory that a byte of the columns, unpacked, may take
_INDEX = re.compile(r"__index_level_\d+__")  # how pandas calls an index without a name


def is_parquet(path: object) -> bool:
    return str(path).lower().endswith(".parquet")


def is_arrow(data: object) -> bool:
    """Whether it is a table or a batch of pyarrow."""
    return hasattr(data, "schema") and hasattr(data, "to_pydict") and type(data).__module__.startswith("pyarrow")


def whole_table(data: Any) -> Any:
    """A batch of pyarrow as a table; anything else as it is."""
    if not is_arrow(data) or hasattr(data, "to_batches"):
        return data
    import pyarrow as arrow

    return arrow.Table.from_batches([data])


def has_arrow_texts(table: Any) -> bool:
    """Whether some column of a table or a batch of pyarrow holds something else than numbers and booleans."""
    from pyarrow import types

    return not all(types.is_integer(t) or types.is_floating(t) or types.is_boolean(t) for t in table.schema.types)


def read_parquet(
    path: Path,
    header: bool = True,
    rules: CellRules = PLAIN,
) -> Columns:
    """The columns of a .parquet file, read one after the other. header: whether its names are those of the columns of a
    model.

    An index that pandas wrote comes first, as in a CSV file; one without a name is left out. BackendError where pyarrow
    is missing; DataError for no rows, and for nested columns where they are used; FileError for a file that is damaged,
    or too large.
    """
    arrow = optional("pyarrow", f"{path}", "parquet")
    parquet = optional("pyarrow.parquet", f"{path}", "parquet")
    try:
        size = path.stat().st_size
        if size == 0:
            raise FileError(f"{path}: is empty (0 bytes); need a Parquet file")
        with parquet.ParquetFile(path) as file:
            facts, schema = file.metadata, file.schema_arrow
            unpacked = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
            most = most_unpacked(size, _MEMORY)
            if max(unpacked, 8 * facts.num_rows * len(schema.names)) > most:
                raise too_much(path, size, most)
            fields = _checked(str(path), schema, facts.num_rows)
            return _columns(str(path), facts.num_rows, fields, lambda name: file.read([name]).column(0), rules, header)
    except arrow.ArrowException as error:
        what = " ".join(str(error).split())
        raise FileError(f"{path}: is damaged or no Parquet file ({what:.160}); write it again") from None
    except OSError as error:
        what = " ".join((error.strerror or str(error)).lower().split())
        raise FileError(f"{path}: {what:.160}") from None


def arrow_columns(table: Any, what: str, rules: CellRules = PLAIN, header: bool = True) -> Columns:
    """The columns of a table or a batch of pyarrow, as read_parquet reads them. Errors call it `what`."""
    fields = _checked(what, table.schema, table.num_rows)
    return _columns(what, table.num_rows, fields, table.column, rules, header)


def _columns(what: str, rows: int, fields: list[Any], column_of: Any, rules: CellRules, header: bool) -> Columns:
    names = names_of(what, (field.name for field in fields))
    cells = [
        _cells(column_of(field.name), what, name, rules)
        if _is_plain(field.type)
        else _refused(what, name, field.type, rows)
        for field, name in zip(fields, names, strict=True)
    ]
    return Columns(what, names, cells, None, header)


def _refused(what: str, name: str, kind: Any, rows: int) -> RefusedCells:
    need = "need numbers, texts, dates or booleans; leave it out (--drop)"
    return RefusedCells(rows, f"{what}: column {name!r:.60} holds {kind!s:.60}; {need}")


def _checked(what: str, schema: Any, rows: int) -> list[Any]:
    """The fields that are columns, in their order; DataError where they are not those of a table."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    fields = sorted((f for f in schema if not _INDEX.fullmatch(f.name)), key=lambda field: field.name not in index)
    if not fields or not rows:
        seen = "0 columns" if not fields else "0 rows"
        raise DataError(f"{what}: {seen}; need at least 1")
    if len(fields) > MOST_COLUMNS:
        raise DataError(f"{what}: {len(fields):,} columns; need at most {MOST_COLUMNS:,}")
    return fields


def _is_plain(kind: Any) -> bool:
    """Whether a cell of this type of Arrow is one number, text, date, time or boolean, or nothing."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind)
    return is_text or is_bytes or is_number or is_time or types.is_boolean(kind) or types.is_null(kind)


def _cells(column: Any, what: str, name: str, rules: CellRules) -> NumberCells | TextCells:
    """The cells of an Arrow array, [rows]: numbers unchanged, others as the texts of a CSV file."""
    import pyarrow as arrow
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_null(kind):
        return ArrayCells(np.full(len(column), np.nan))
    if types.is_integer(kind) and column.null_count:  # beyond 2**53 they are read as a file's cells are
        least_most = compute.min_max(column)
        if all(abs(least_most[end].as_py() or 0) <= 1 << 53 for end in ("min", "max")):
            column = column.cast(arrow.float64())
        else:
            return named_cells(what, name, np.array(column.to_pylist(), object), rules)
    elif types.is_decimal(kind):
        column = column.cast(arrow.string())
    elif types.is_timestamp(kind) and kind.tz is not None:  # as str() of a datetime: 2024-01-31 10:00:00+01:00
        column = column.cast(arrow.timestamp("us", kind.tz), safe=False)
        array = np.array([None if value is None else str(value) for value in column.to_pylist()], object)
        return named_cells(what, name, array, rules)
    elif types.is_date(kind):
        column = column.cast(arrow.date32())
    elif types.is_time(kind):
        column = column.cast(arrow.string())
    array = column.to_numpy() if isinstance(column, arrow.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return named_cells(what, name, array, rules)
