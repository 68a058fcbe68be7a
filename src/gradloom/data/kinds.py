"""What the columns of a table are, numbers or texts: decided here for all readers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from ..base.errors import DataError
from .columns import MISSING, ROUNDED, TEXT, Columns, NumberCells, TextCells

_FEW = 20  # different cells of a column that may be categories though some are numbers


def numbers_of(data: Columns, index: int, what: str, learns: bool = False) -> np.ndarray | None:
    """The column as f64 numbers, NaN where a cell is missing; None where it is one of texts.

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
    """need_numbers, piece by piece where the column is held so."""
    cells = data.cells[index]
    if isinstance(cells, NumberCells) and data.picked is None:
        _check_units(data, cells, what)
        return cells.parts()
    return iter([need_numbers(data, index, what)])


def no_number(data: Columns, index: int, what: str, learns: bool = False) -> DataError:
    """The error of the first text among numbers. learns: the table is one to train on, whose missing values may be
    declared."""
    row, cell = data.first_text(index)
    cells = data.cells[index]
    assert isinstance(cells, TextCells)
    codes = cells.codes if data.picked is None else cells.codes[data.picked]
    count = int((cells.numbers[1][codes] == 0).sum())
    declare = f", or declare it missing ({{missing}} {shlex.quote(cell)})" if learns and len(cell) < 30 else ""
    why = f", as {count} of its other cells are; fix the cell or leave it empty{declare}" if count else ""
    return DataError(f"{data.where(row)}: {what}: {cell!r:.60} is no number{why}", missing=...)


def _is_numeric(data: Columns, cells: TextCells) -> bool:
    """Whether a column with texts among numbers is one of numbers: there are far fewer texts, or far fewer different
    ones, and not so few different cells at all that each may be a category."""
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
    """DataError where the numbers of a column are not of one unit."""
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
    """Whether numbers without a percent sign are other than 0."""
    values = cells.values()
    return int(np.count_nonzero(np.nan_to_num(values))) > percentages


def said_of(data: Columns, index: int, name: str) -> list[str]:
    """What a person should know of how the numbers of a column were read."""
    cells = data.cells[index]
    if not isinstance(cells, NumberCells):
        count = len(cells.codes_with(ROUNDED))
        return [f"{name}: {ROUNDED}, and are rounded: {count} different ones"] * bool(count)
    units = [f"{unit!r} of {count} cells" for unit, (count, _) in cells.units.items() if unit]
    said = [f"{name}: {' and '.join(units)} is no part of the number" for _ in units[:1]]
    if cells.in_brackets:
        said.append(f"{name}: {cells.in_brackets} numbers in brackets are negative, as accountants write them")
    return said + [f"{name}: {cells.commas}"] * bool(cells.commas)


def unit_of(data: Columns, index: int) -> str:
    """The unit of the numbers of a column, such as $; empty where there is none."""
    cells = data.cells[index]
    return next((unit for unit in cells.units if unit), "") if isinstance(cells, NumberCells) else ""


def check_unit(data: Columns, index: int, unit: str, what: str) -> None:
    """DataError, with the line, where a number has another unit than this one."""
    cells = data.cells[index]
    for other, (_, row) in cells.units.items() if isinstance(cells, NumberCells) else ():
        if other not in ("", unit):
            where = f"{data.path} row {row}" if data.lines is None else f"{data.path} line {data.lines[row]}"
            raise DataError(f"{where}: {what}: a number has {other!r}, those of the training {unit!r}; need one unit")


def is_missing_text(data: Columns, index: int) -> np.ndarray:
    """Which texts of a column of texts are empty or a mark such as NA, bool for each code."""
    cells = data.cells[index]
    assert isinstance(cells, TextCells)
    return cells.numbers[1] == MISSING
