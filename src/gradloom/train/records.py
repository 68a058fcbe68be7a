"""Records, dicts of values such as those of the epochs of a run, as columns: many small values become few arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

_NUMBERS: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


def packed(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns, as `unpacked` reads them: each holds the values of one name and one kind.

    name    in the records; a name whose values are of several kinds has several columns
    of      i64[values], the numbers of the records; None: all of them
    parts, lengths | numbers | dicts | value | values
            arrays of one axis as one array and their lengths i64[values]; numbers as an array; dicts as records; None,
            or texts that are the same everywhere; a list of other values
    """
    groups: dict[tuple[str, Hashable], list[int]] = {}
    for i, record in enumerate(records):
        for name, value in record.items():
            groups.setdefault((name, _kind(value)), []).append(i)
    columns = []
    for (name, kind), of in groups.items():
        numbers = None if len(of) == len(records) else np.array(of, np.int64)
        columns.append({"name": name, "of": numbers, **_column(kind, [records[i][name] for i in of])})
    return {"records": len(records), "columns": columns}


def _kind(value: Any) -> Hashable:
    """Values of one kind share a column."""
    if isinstance(value, np.ndarray):
        return value.dtype if value.ndim == 1 else np.ndarray
    kind: type = type(value)
    return object if kind is int and not -(2**63) <= value < 2**63 else kind


def _column(kind: Hashable, values: list[Any]) -> dict[str, Any]:
    if isinstance(kind, np.dtype):
        return {"parts": np.concatenate(values), "lengths": np.array([len(v) for v in values], np.int64)}
    if isinstance(kind, type) and kind in _NUMBERS:
        return {"numbers": np.array(values, _NUMBERS[kind])}
    if kind is dict:
        return {"dicts": packed(values)}
    if kind is type(None) or all(_is_text(value) and value == values[0] for value in values):
        return {"value": values[0]}
    return {"values": values}


def _is_text(value: Any) -> bool:
    """A text, or a list of texts: equal ones are the same."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def unpacked(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records that `packed` was given."""
    records: list[dict[str, Any]] = [{} for _ in range(columns["records"])]
    for column in columns["columns"]:
        of = range(len(records)) if column["of"] is None else column["of"].tolist()
        for i, value in zip(of, _values(column, len(of)), strict=True):
            records[i][column["name"]] = value
    return records


def _values(column: Mapping[str, Any], count: int) -> Sequence[Any]:
    if "parts" in column:
        return np.split(column["parts"], np.cumsum(column["lengths"])[:-1])
    if "numbers" in column:
        numbers: list[Any] = column["numbers"].tolist()
        return numbers
    if "dicts" in column:
        return unpacked(column["dicts"])
    return [column["value"]] * count if "value" in column else column["values"]
