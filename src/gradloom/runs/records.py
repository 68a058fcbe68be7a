"""Records, such as the results of epochs, as columns: many small values become few arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.schema import array, either, items, optional, shown_name, table, text, whole

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


_COUNTS = array("int64", ndim=1, least=0)
_COLUMN = {"name": text, "of": optional(_COUNTS)}
_TEXTS = either(optional(text), items(text))


def packed_records(value: Any, name: str) -> None:
    """Schema: columns as `packed` makes them. DataError also where the records would take more room than the data that
    are present justify: columns of one value, repeated, and records without values are few compared with the others."""
    present, repeated = _check_packed(value, name, None)
    if repeated > 8 * present + 1000:
        raise DataError(f"{shown_name(name)}: {repeated} repeated values with {present} others; need packed values")


def _check_packed(value: Any, name: str, count: int | None) -> tuple[int, int]:
    """Check columns for this number of records; the number of values that are present and of those that repeat."""
    table({"records": whole(), "columns": items(_any_dict)})(value, name)
    records = value["records"]
    if count is not None and records != count:
        raise DataError(f"{shown_name(name)}: {records} records; need {count}")
    present, repeated = 0, records
    for i, column in enumerate(value["columns"]):
        place = f"{name}.columns[{i}]"
        kind = next((one for one in ("parts", "numbers", "dicts", "value", "values") if one in column), "values")
        rest = {"parts": _parts, "numbers": _numbers, "dicts": _any_dict, "value": _TEXTS, "values": items(_any)}
        fields = {kind: rest[kind]} | ({"lengths": _COUNTS} if kind == "parts" else {})
        table(_COLUMN | fields)(column, place)
        of = column["of"]
        cells = records if of is None else len(of)
        if of is not None and len(of) and (int(of[-1]) >= records or bool((of[1:] <= of[:-1]).any())):
            raise DataError(f"{place}: of is not usable; need increasing numbers of {records} records")
        if kind == "dicts":
            more, again = _check_packed(column["dicts"], f"{place}.dicts", cells)
            present, repeated = present + more, repeated + again
        elif kind == "value":
            repeated += cells
        else:
            held = column["lengths" if kind == "parts" else kind]
            present += len(held) + (len(column["parts"]) if kind == "parts" else 0)
            if len(held) != cells:
                raise DataError(f"{place}: {len(held)} values; need {cells}")
        if kind == "parts" and sum(column["lengths"].tolist()) != len(column["parts"]):
            raise DataError(f"{place}: lengths of other arrays than {len(column['parts'])} numbers")
    return present, repeated


_parts, _numbers = array(ndim=1), array(("bool", "int64", "float64"), ndim=1)


def _any(value: Any, name: str) -> None:
    """What belongs into a record is checked there."""


def _any_dict(value: Any, name: str) -> None:
    if type(value) is not dict:
        raise DataError(f"{shown_name(name)} is no dict; need packed records")


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
