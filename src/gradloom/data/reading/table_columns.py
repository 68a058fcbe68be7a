"""Tables that a program holds, as columns: a DataFrame of pandas or polars, a Table or a batch of pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.arrays import need_collected
from ...base.errors import DataError
from .array_cells import named_cells
from .cell_rules import PLAIN, CellRules
from .columns import Columns, names_of
from .parquet import arrow_columns, has_arrow_texts, is_arrow


def is_table(data: object, what: str = "rows") -> bool:
    """Whether it has named columns, as a DataFrame or a table of pyarrow has them; DTypeError, which calls it `what`,
    for a LazyFrame."""
    need_collected(what, data)
    return is_arrow(data) or (hasattr(data, "to_numpy") and hasattr(data, "columns"))


def has_texts(data: object) -> bool:
    """Whether it is a table with a column that is not of numbers."""
    if not is_table(data):
        return False
    if is_arrow(data):
        return has_arrow_texts(data)
    frame: Any = data
    return any(np.asarray(frame[name].to_numpy()).dtype.kind not in "fiub" for name in frame.columns)


def rows_of_table(data: Any, rows: np.ndarray) -> Any:
    """These rows of a table, as a table of its kind."""
    if is_arrow(data):
        return data.take(rows)
    return data.iloc[rows] if hasattr(data, "iloc") else data[rows]


def table_columns(data: Any, what: str, rules: CellRules = PLAIN, header: bool = True) -> Columns:
    """The columns of a table, read as those of a file are. header: whether a table of pyarrow names the columns of a
    model.

    DataError, which calls the table `what`, for one without rows or columns, and where two have one name. The index of
    a DataFrame of pandas is no column.
    """
    if is_arrow(data):
        return arrow_columns(data, what, rules, header)
    names = names_of(what, map(str, data.columns))
    if not names or not len(data):
        raise DataError(f"{what}: {'0 rows' if names else '0 columns'}; need at least 1")
    return columns_of_arrays(what, names, arrays_of(data), True, rules)


def arrays_of(frame: Any) -> list[np.ndarray]:
    """The elements of each column of a DataFrame."""
    return [_array_of(frame[name]) for name in frame.columns]


def _array_of(series: Any) -> np.ndarray:
    """The elements of a column; times with a zone, which polars would give in UTC without it, as objects."""
    if getattr(getattr(series, "dtype", None), "time_zone", None) is not None:
        return np.array(series.to_list(), object)
    return np.asarray(series.to_numpy())


def columns_of_arrays(
    what: str, names: list[str], arrays: Sequence[np.ndarray], header: bool, rules: CellRules
) -> Columns:
    """The arrays, of numbers, texts or objects, as columns whose cells are read as those of a file are."""
    cells = [named_cells(what, name, array, rules) for name, array in zip(names, arrays, strict=True)]
    return Columns(what, names, cells, None, header)
