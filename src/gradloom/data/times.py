"""Dates and times of a column: read, and made features of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from ..base.errors import DataError
from .columns import ROUNDED, Columns, NumberCells

PARTS = ("year", "week", "day")  # whose phase a time has: a sine and a cosine each
NUMBER = "number"  # a form: the time is a number as it stands, such as a year
_DAY = 86400.0
_FEW = 200  # different texts that show how times are written
_ISO = re.compile(r"(\d{4}-\d\d(?:-\d\d)?)(?:[T ](\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?))?(Z|[+-]\d\d:?\d\d)?\Z")
FORMS = (
    "iso", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d", "%d %b %Y",
    "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %Y", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%d-%b-%Y",
    "%d-%b-%y", "%d-%B-%Y", "%d-%b-%Y %H:%M:%S", "%d-%b-%Y %H:%M", "%d %b %Y %H:%M:%S", "%d %b %Y %H:%M", "%Y.%m.%d",
    "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p",
    "%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p",
)  # fmt: skip


def times_of(data: Columns, index: int, form: str = "") -> tuple[np.ndarray, str]:
    """(seconds since 1970, f64 [rows], NaN where a cell is missing; how the texts are written) of a column.

    form: how they are written, where that is known. Whole numbers such as 20240131 are dates; other numbers are times
    as they stand. DataError, with the line, for a cell that is no time, and where dates can be read in two ways.
    """
    name = data.names[index]
    if form == NUMBER or (not form and _are_numbers(data, index) and not _are_days(data, index)):
        values = data.numbers(index)
        if values is None:
            row, cell = data.first_text(index)
            raise DataError(f"{data.where(row)}: time column {name!r:.60}: {cell!r:.60} is no number; need one")
        return values, NUMBER
    codes, texts = data.texts(index)
    said = [text.decode("utf-8", "replace") for text in texts]
    missing = data.missing(index)
    is_missing = np.ones(len(said), bool)
    is_missing[codes[~missing]] = False
    known = [None if gone else text for text, gone in zip(said, is_missing.tolist(), strict=True)]
    forms = [form] if form else _likely_forms([text for text in known if text is not None][:_FEW])
    read = {one: _read(known, one) for one in forms}
    fitting = [one for one in forms if not np.isnan(read[one][~is_missing]).any()]
    if not fitting:
        row = max(int(np.flatnonzero(np.isnan(read[one][codes]) & ~missing)[0]) for one in forms)
        need = "need dates such as 2024-01-31 or 2024-01-31 12:00"
        raise DataError(f"{data.where(row)}: time column {name!r:.60}: {said[codes[row]]!r:.60} is no time; {need}")
    different = [one for one in fitting if not np.array_equal(read[one], read[fitting[0]], equal_nan=True)]
    if different:
        row = int(np.flatnonzero((read[different[0]] != read[fitting[0]])[codes] & ~missing)[0])
        raise DataError(
            f"{data.where(row)}: time column {name!r:.60}: {said[codes[row]]!r:.60} may be day or month first;"
            " need dates such as 2024-01-31"
        )
    return read[fitting[0]][codes], fitting[0]


def _likely_forms(texts: Sequence[str]) -> list[str]:
    """How all of these texts may be written, or most of them where no form fits all."""
    unread = {form: int(np.isnan(_read(texts, form)).sum()) for form in FORMS}
    least = min(unread.values())
    return [form for form, count in unread.items() if count == least]


def are_times(texts: Sequence[str]) -> bool:
    """Whether one form fits all of these texts."""
    return any(not any(np.isnan(_seconds(text, form)) for text in texts) for form in FORMS)


def _are_numbers(data: Columns, index: int) -> bool:
    """Whether all cells are numbers, also such as 1700000000123456789."""
    cells = data.cells[index]
    return isinstance(cells, NumberCells) or (bool(cells.codes_with(ROUNDED)) and data.numbers(index) is not None)


def _are_days(data: Columns, index: int) -> bool:
    """Whether a column of numbers holds days as 20240131."""
    values = data.numbers(index)
    assert values is not None
    known = values[~np.isnan(values)]
    return len(known) > 0 and bool(((known > 18000101) & (known < 22000101) & (known == np.rint(known))).all())


def _read(texts: Sequence[str | None], form: str) -> np.ndarray:
    """Seconds since 1970 of each text in this form, NaN for others."""
    return np.array([np.nan if text is None else _seconds(text, form) for text in texts])


def _seconds(text: str, form: str) -> float:
    try:
        if form != "iso":
            return (datetime.strptime(text, form) - datetime(1970, 1, 1)).total_seconds()
        found = _ISO.match(text)
        if found is None:
            return np.nan
        day, time, zone = found.groups()
        stamp = np.datetime64(day if time is None else f"{day}T{time.replace(',', '.')}", "us")
        seconds = float(stamp.astype(np.int64)) / 1e6
        if zone and zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            seconds -= (-1 if zone[0] == "-" else 1) * (3600 * hours + 60 * minutes)
        return seconds
    except ValueError:
        return np.nan


def parts_of(seconds: np.ndarray) -> list[str]:
    """The cycles in which these times, without NaN, differ."""
    days = np.floor(seconds / _DAY)
    found = []
    if np.ptp(days) > 60:
        found.append("year")
    if len(np.unique(days % 7)) > 2:
        found.append("week")
    if len(np.unique(seconds % _DAY)) > 2:
        found.append("day")
    return found


def phases(seconds: np.ndarray, parts: list[str]) -> list[np.ndarray]:
    """A sine and a cosine of the time in each cycle, f64 [rows] each."""
    of_part = {"year": seconds / (365.2425 * _DAY), "week": (seconds / _DAY + 3) / 7, "day": seconds / _DAY}
    made = []
    for part in parts:
        angle = 2 * np.pi * (of_part[part] % 1.0)
        made += [np.sin(angle), np.cos(angle)]
    return made


def missing_time(data: Columns, index: int, seconds: np.ndarray) -> DataError | None:
    """The error of the first row without a time."""
    empty = np.flatnonzero(np.isnan(seconds))
    if not len(empty):
        return None
    where = data.where(int(empty[0]))
    return DataError(f"{where}: time column {data.names[index]!r:.60} is empty; need a time in each row to train on")
