"""Arrays of numbers, texts, dates or objects as the cells of a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._cells import EXACT_TEXTS, NUMBERS, TEXTS
from ...base.errors import DataError
from .cell_rules import CellRules
from .cells import ArrayCells, NumberCells, RefusedCells, TextCells
from .columns import Columns
from .csv_file import read_cells

_WHOLE = 1 << 53  # the whole numbers that f64 holds, either sign


def cells_of(
    array: np.ndarray, what: str, mode: int = NUMBERS, comma: bool = False, missing: Sequence[str] = ()
) -> NumberCells | TextCells:
    """The elements [rows] as cells: numbers unchanged, others parsed like those of a file; mode, comma, missing: as for
    read_cells. what: the column in messages. Elements that hold several values raise a DataError when they are used."""
    kind = array.dtype.kind
    if kind == "c":
        raise DataError(f"{what} holds complex numbers; need real ones")
    if kind == "m":  # durations, in days
        return ArrayCells(np.where(np.isnat(array), np.nan, array / np.timedelta64(1, "D")), missing)
    if kind == "f" or (kind in "iu" and _is_exact(array)):
        return ArrayCells(array, missing)
    try:
        return read_cells(_texts(array, what), mode, comma, missing)
    except UnicodeEncodeError as error:
        shown = ascii(error.object)
        return RefusedCells(
            len(array), f"{what} holds {shown:.60}, which UTF-8 cannot hold; replace the lone surrogate"
        )
    except DataError as error:
        return RefusedCells(len(array), str(error))


def named_cells(what: str, name: str, array: np.ndarray, rules: CellRules) -> NumberCells | TextCells:
    """cells_of the column of this name in the table `what`."""
    mode = NUMBERS if name not in rules.texts else EXACT_TEXTS if rules.exact else TEXTS
    return cells_of(array, f"{what}: column {name!r:.60}", mode, rules.commas.get(name, False), rules.missing)


def array_columns(path: str, array: np.ndarray, names: list[str] | None = None, missing: Sequence[str] = ()) -> Columns:
    """The columns of an array of numbers, [rows, ...]; DataError for others."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path}: dtype {array.dtype!s:.60}; need numbers")
    flat = array.reshape(len(array), -1)
    if names is None:
        names = [f"column {i + 1}" for i in range(flat.shape[1])]
    made = [ArrayCells(one) if one.dtype.kind == "b" else cells_of(one, path, missing=missing) for one in flat.T]
    return Columns(path, names, made, None, is_named=False)


def _is_exact(array: np.ndarray) -> bool:
    """Whether f64 represents each of these integers."""
    if array.dtype.itemsize < 8 or not len(array):
        return True
    return int(array.min()) >= -_WHOLE and int(array.max()) <= _WHOLE


def _texts(column: np.ndarray, what: str) -> list[str]:
    if column.dtype.kind == "M":  # 2020-01-31, with a time of day where there is one
        return ["" if text == "NaT" else text for text in np.datetime_as_string(column, unit="auto").tolist()]
    cells = column.tolist()
    opaque = next((kind for kind in set(map(type, cells)) if _has_no_text(kind)), None)
    if opaque is not None:
        raise DataError(
            f"{what} holds objects of type {opaque.__name__:.60}, which have no text; leave it out ({{drop}})",
            drop=...,
        )
    nested = next((value for value in cells if isinstance(value, (list, tuple, dict, set, np.ndarray))), None)
    if nested is not None:
        raise DataError(
            f"{what} holds {type(nested).__name__}s of values; need one number, text, date or boolean in each row;"
            " leave it out ({drop})",
            drop=...,
        )
    try:
        return ["" if _is_missing(value) else _text(value) for value in cells]
    except UnicodeDecodeError as error:
        raise DataError(f"{what} holds bytes that are no UTF-8 text (byte {error.object[error.start]:#04x})") from None


def _has_no_text(kind: type) -> bool:
    """Whether its objects have no text except their address."""
    return kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__


def _is_missing(value: Any) -> bool:
    """None, NaN, and what pandas has for them."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value.decode() if isinstance(value, bytes) else str(value)
