"""The kind of a column, numbers or texts, and whole numbers that are codes; for all readers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import numpy as np

from ...base.errors import DataError
from .cells import LEADING_ZERO, MISSING, ROUNDED, TEXT, NumberCells, TextCells
from .columns import Columns

_FEW = 20  # distinct cells of a column that may be categories although some are numbers
_CODE_NAMES = {
    "zip", "zipcode", "postcode", "postalcode", "postal", "plz", "fips", "id", "ids", "code", "codes", "sku", "isbn",
    "ean", "upc", "naics", "sic", "icd", "iban", "msa",
}  # fmt: skip
_LEAST_DIGITS = 4
_LEAST_TIMES = 4  # average rows of each code, for codes of equal length


def numbers_of(data: Columns, index: int, what: str, learns: bool = False) -> np.ndarray | None:
    """The column as f64 numbers, NaN where a cell is missing; None for a column of texts.

    DataError, with the line, for a text in a column of numbers, for two currencies, and for some percentages among
    other numbers. learns: as for no_number.
    """
    cells = data.cells[index]
    if isinstance(cells, NumberCells):
        _check_units(data, cells, what)
        return data.numbers(index)
    values = data.numbers(index)
    if values is None and _is_numeric(data, cells):
        raise no_number(data, index, what, learns)
    return values


def need_numbers(data: Columns, index: int, what: str, learns: bool = False) -> np.ndarray:
    """The column as numbers; DataError, with the line, where some cell is a text. learns: as for no_number."""
    values = numbers_of(data, index, what, learns)
    if values is None:
        raise no_number(data, index, what, learns)
    return values


def need_parts(data: Columns, index: int, what: str) -> Iterator[np.ndarray]:
    """need_numbers in pieces, where the column is stored in pieces."""
    cells = data.cells[index]
    if isinstance(cells, NumberCells) and data.picked is None:
        _check_units(data, cells, what)
        return cells.parts()
    return iter([need_numbers(data, index, what)])


def no_number(data: Columns, index: int, what: str, learns: bool = False) -> DataError:
    """The error for the first text among numbers. learns: in training data, missing values can be declared."""
    row, cell = data.first_text(index)
    cells = data.cells[index]
    assert isinstance(cells, TextCells)
    codes = cells.codes if data.picked is None else cells.codes[data.picked]
    count = int((cells.numbers[1][codes] == 0).sum())
    declare = f", or declare it missing ({{missing}} {shlex.quote(cell)})" if learns and len(cell) < 30 else ""
    why = f", as {count} of its other cells are; fix the cell or leave it empty{declare}" if count else ""
    return DataError(f"{data.where(row)}: {what}: {cell!r:.60} is no number{why}", missing=...)


def _is_numeric(data: Columns, cells: TextCells) -> bool:
    """Whether a column with texts among numbers is numeric: far fewer texts (or distinct texts) than numbers, and too
    many distinct cells for categories."""
    values, kinds = cells.numbers
    codes = cells.codes if data.picked is None else cells.codes[data.picked]
    counts = np.bincount(codes, minlength=len(kinds))
    is_text, is_number = (kinds == TEXT) & (counts > 0), (kinds == 0) & (counts > 0)
    texts, numbers = int(is_text.sum()), int(is_number.sum())
    known = values[is_number]
    if texts + numbers <= _FEW and not (numbers > 2 * texts and (known != np.rint(known)).any()):
        return False
    return counts[is_number].sum() >= 9 * counts[is_text].sum() or texts <= max(3, numbers // 10)


def _check_units(data: Columns, cells: NumberCells, what: str) -> None:
    """DataError unless the numbers of a column have one unit."""
    total = sum(count for count, _ in cells.units.values())
    others = {unit: seen for unit, seen in cells.units.items() if unit}
    percent = others.get("%")
    if len(others) > 1 or (percent and percent[0] < total and _differs(cells, percent[0])):
        unit, (count, row) = max(others.items(), key=lambda item: item[1][1])
        rest = (
            f"{count} of {total} numbers have {unit!r}, others {' or '.join(repr(u) for u in cells.units if u != unit)}"
        )
        where = data.path if data.lines is None else f"{data.path} line {data.lines[row]}"
        raise DataError(f"{where}: {what}: {rest.replace(repr(''), 'none')}; need one unit")


def _differs(cells: NumberCells, percentages: int) -> bool:
    """Whether some number without a percent sign is not 0."""
    values = cells.values()
    return int(np.count_nonzero(np.nan_to_num(values))) > percentages


def reading_notes(data: Columns, index: int, name: str) -> list[str]:
    """Notes on how the numbers of a column were read."""
    cells = data.cells[index]
    if not isinstance(cells, NumberCells):
        count = len(cells.codes_with(ROUNDED))
        return [f"{name}: {ROUNDED}, and are rounded: {count} different ones"] * bool(count)
    units = [f"{unit!r} of {count} cells" for unit, (count, _) in cells.units.items() if unit]
    notes = [f"{name}: {' and '.join(units)} is not part of the number" for _ in units[:1]]
    if cells.in_brackets:
        notes.append(f"{name}: {cells.in_brackets} numbers in brackets are negative, as accountants write them")
    return notes + [f"{name}: {cells.commas}"] * bool(cells.commas)


def unit_of(data: Columns, index: int) -> str:
    """The unit of a column of numbers, such as $; empty without one."""
    cells = data.cells[index]
    return next((unit for unit in cells.units if unit), "") if isinstance(cells, NumberCells) else ""


def check_unit(data: Columns, index: int, unit: str, what: str) -> None:
    """DataError, with the line, for a number with a different unit."""
    cells = data.cells[index]
    for other, (_, row) in cells.units.items() if isinstance(cells, NumberCells) else ():
        if other not in ("", unit):
            where = f"{data.path} row {row}" if data.lines is None else f"{data.path} line {data.lines[row]}"
            raise DataError(f"{where}: {what}: a number has {other!r}, those of the training {unit!r}; need one unit")


def is_missing_text(data: Columns, index: int) -> np.ndarray:
    """Which texts of a column are empty or a mark such as NA, bool for each code."""
    cells = data.cells[index]
    assert isinstance(cells, TextCells)
    return cells.numbers[1] == MISSING


def code_reason(data: Columns, index: int, values: np.ndarray) -> str | None:
    """The reason why the numbers of a column are codes, such as zip codes and identifiers; None if they are not."""
    first = values[:1000]
    if (first != np.rint(first))[~np.isnan(first)].any():  # most columns with decimals
        return None
    known = values[~np.isnan(values)]
    if not len(known) or (known != np.rint(known)).any():
        return None
    if data.has_leading_zeros(index):
        return LEADING_ZERO
    if data.merges(index):
        return f"{ROUNDED}, which makes different ones the same"
    word = next((word for word in _words(data.names[index]) if word in _CODE_NAMES), None)
    if word is not None and data.header:
        return f"the name contains {word!r}"
    digits = _digits(known)
    if digits and len(np.unique(known)) * _LEAST_TIMES <= len(known):
        return f"all have {digits} digits"
    return None


def _words(name: str) -> list[str]:
    """The words of a name such as zip_code, ZipCode or zip."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return [name.lower(), *(part.lower() for part in parts)]


def _digits(known: np.ndarray) -> int:
    """The number of digits, if all values have it and spread over the whole range of that length; else 0."""
    low, high = float(known.min()), float(known.max())
    digits = len(str(int(low))) if low > 0 and high < 1e15 else 0
    step = 10.0 ** (digits - 1)
    if digits < _LEAST_DIGITS or digits != len(str(int(high))) or low >= 1.5 * step or high < 9 * step:
        return 0
    return digits
