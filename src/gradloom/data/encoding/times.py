"""Dates and times of a column: parsing and features."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from ...base.errors import DataError
from ..reading.cells import ROUNDED, NumberCells
from ..reading.columns import Columns

CALENDAR = "calendar year"  # the beginning of the year, on the scale of the time
PARTS = ("year", "week", "day", CALENDAR)  # the others are cycles, whose phase a time has: a sine and a cosine each
NUMBER = "number"  # a form: the time is a plain number, such as a year
_DAY = 86400.0
_FEW = 200  # distinct texts for the choice of the form
_LEAST = 3  # different texts of a column of dates
_LEAST_NUMBERS = 5  # different numbers such as 20240131, which may be dates by chance
_ODD = 0.1  # share of the different texts of a column of dates that may be none
_LIKE_TIME = re.compile(r"(?!\d+:\d\b)(?:[A-Za-z]{3,9}\.? ?\d[\w ,:]*\d|\d[\w ./:,+-]*[\dZAMPamp])")
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
    as plain numbers. DataError, with the line, for a cell that is not a time, and for ambiguous dates.
    """
    name = data.names[index]
    if form == NUMBER or (not form and _are_numbers(data, index) and not _are_days(data, index)):
        values = data.numbers(index)
        if values is None:
            row, cell = data.first_text(index)
            raise DataError(f"{data.where(row)}: time column {name!r:.60}: {cell!r:.60} is no number; need one")
        return values, NUMBER
    texts = _Texts(data, index)
    forms = [form] if form else _likely_forms(texts.different()[:_FEW])
    read = {one: _read(texts.known, one) for one in forms}
    fitting = [one for one in forms if not texts.unread(read[one]).any()]
    if not fitting:
        row = max(texts.first(texts.unread(read[one])) for one in forms)
        need = f"need dates such as {example_of(forms[0])}" + " or 2024-01-31 12:00" * (forms[0] == "iso")
        raise DataError(f"{data.where(row)}: time column {name!r:.60}: {texts.at(row)!r:.60} is no time; {need}")
    different = [one for one in fitting if not np.array_equal(read[one], read[fitting[0]], equal_nan=True)]
    if different:
        row = texts.first(read[different[0]] != read[fitting[0]])
        raise DataError(
            f"{data.where(row)}: time column {name!r:.60}: {texts.at(row)!r:.60} may be day or month first;"
            " need dates such as 2024-01-31"
        )
    return read[fitting[0]][texts.codes], fitting[0]


def dates_of(data: Columns, index: int) -> tuple[np.ndarray, str, list[str]]:
    """(seconds since 1970, f64 [rows], NaN where a cell is missing; how the dates are written, "" where the column is
    none of dates; a hint where they can be read in two ways).

    A column of dates has at least three different texts, nearly all of which are dates in one form. DataError, with the
    line, for one of the others.
    """
    none, name = np.zeros(0), data.names[index]
    first = [text.decode("utf-8", "replace") for text in data.texts(index)[1][:_FEW]]
    if 2 * sum(_LIKE_TIME.fullmatch(text) is not None for text in first) < len(first):
        return none, "", []
    texts = _Texts(data, index)
    different = texts.different()
    looked_at = different[:_FEW]
    odd = int(_ODD * len(looked_at))
    if len(looked_at) < _LEAST or sum(_LIKE_TIME.fullmatch(text) is None for text in looked_at) > odd:
        return none, "", []
    forms = [form for form in FORMS if _most_fit(looked_at, form, odd)]
    read = {form: _read(texts.known, form) for form in forms}
    unread = {form: int(texts.unread(read[form]).sum()) for form in forms}
    least = min(unread.values(), default=len(different))
    if least > _ODD * len(different):
        return none, "", []
    best = [form for form in forms if unread[form] == least]
    if any(not np.array_equal(read[form], read[best[0]], equal_nan=True) for form in best):
        shown = texts.at(texts.first(~texts.is_missing))
        two = f"dates such as {shown!r:.60} may be day or month first, and are taken as texts; write them as 2024-01-31"
        return none, "", [f"{name}: {two}"]
    if least:
        row = texts.first(texts.unread(read[best[0]]))
        cell, others = texts.at(row), len(different) - least
        raise DataError(
            f"{data.where(row)}: column {name!r:.60}: {cell!r:.60} is no date such as {example_of(best[0])}, as"
            f" {others} other texts are; fix the cell or leave it empty, or declare it missing"
            f" ({{missing}} {shlex.quote(cell):.60}); {{categorical}} {name:.60} takes all as texts",
            missing=..., categorical=...,
        )  # fmt: skip
    return read[best[0]][texts.codes], best[0], []


def are_days(values: np.ndarray) -> bool:
    """Whether numbers, f64 with NaN, are dates such as 20240131, each one a day of the calendar."""
    known = np.unique(values[~np.isnan(values)]) if _in_range(values) else values[:0]
    return len(known) >= _LEAST_NUMBERS and not np.isnan(_read([f"{day:.0f}" for day in known], "%Y%m%d")).any()


def example_of(form: str) -> str:
    """A date in this form."""
    return "2024-01-31" if form == "iso" else datetime(2024, 1, 31, 14, 30).strftime(form)


class _Texts:
    """The texts of a column: codes [rows]; of each code the text, None where its cells are missing."""

    def __init__(self, data: Columns, index: int) -> None:
        self.codes, texts = data.texts(index)
        self.texts = [text.decode("utf-8", "replace") for text in texts]
        self.is_missing = np.ones(len(self.texts), bool)
        self.is_missing[self.codes[~data.missing(index)]] = False
        self.known = [None if no else text for text, no in zip(self.texts, self.is_missing.tolist(), strict=True)]

    def different(self) -> list[str]:
        return [text for text in self.known if text is not None]

    def unread(self, seconds: np.ndarray) -> np.ndarray:
        """Which codes have a text, and no time among these."""
        return np.isnan(seconds) & ~self.is_missing

    def first(self, which: np.ndarray) -> int:
        """The first row with one of these codes, bool for each."""
        return int(np.argmax((which & ~self.is_missing)[self.codes]))

    def at(self, row: int) -> str:
        return self.texts[self.codes[row]]


def _likely_forms(texts: Sequence[str]) -> list[str]:
    """How all of these texts may be written, or most of them where no form fits all."""
    unread = {form: int(np.isnan(_read(texts, form)).sum()) for form in FORMS}
    least = min(unread.values())
    return [form for form, count in unread.items() if count == least]


def _most_fit(texts: Sequence[str], form: str, odd: int) -> bool:
    """Whether all of these texts but `odd` are times in this form."""
    for text in texts:
        odd -= bool(np.isnan(_seconds(text, form)))
        if odd < 0:
            return False
    return True


def _are_numbers(data: Columns, index: int) -> bool:
    """Whether all cells are numbers, also such as 1700000000123456789."""
    cells = data.cells[index]
    return isinstance(cells, NumberCells) or (bool(cells.codes_with(ROUNDED)) and data.numbers(index) is not None)


def _are_days(data: Columns, index: int) -> bool:
    """Whether a column of numbers holds days as 20240131."""
    values = data.numbers(index)
    assert values is not None
    return _in_range(values)


def _in_range(values: np.ndarray) -> bool:
    """Whether these are whole numbers, NaN aside, such as 20240131."""
    known = values[~np.isnan(values)]
    return (
        len(known) > 0
        and bool(known.min() > 18000101)
        and bool(known.max() < 22000101)
        and bool((known == np.rint(known)).all())
    )


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
        if part == CALENDAR:
            continue
        angle = 2 * np.pi * (of_part[part] % 1.0)
        made += [np.sin(angle), np.cos(angle)]
    return made


def years_of(seconds: np.ndarray) -> np.ndarray:
    """The beginning of the calendar year of each time, in seconds since 1970."""
    years = np.floor(seconds).astype("M8[s]").astype("M8[Y]")
    return np.asarray(years.astype("M8[s]").astype(np.float64))


def date_parts_of(seconds: np.ndarray) -> list[str]:
    """The parts of dates that are a feature, without NaN: the cycles in which they differ, and the calendar year."""
    return parts_of(seconds) + [CALENDAR] * (len(np.unique(years_of(seconds))) > 1)


def described_parts(parts: Sequence[str]) -> str:
    """The features of dates, in words."""
    words = {"year": "month", "week": "weekday", "day": "time of day"}
    cycles = [words[part] for part in parts if part != CALENDAR]
    names = ["the calendar year"] * (CALENDAR in parts)
    return ", ".join(names + [f"a sine and a cosine of the {word}" for word in cycles])


def date_text(seconds: float) -> str:
    """A time as a text such as 2024-01-31, with the time of day where there is one."""
    stamp = np.datetime64(round(seconds), "s")
    return str(stamp.astype("M8[D]") if seconds % _DAY == 0 else stamp)


def missing_time(data: Columns, index: int, seconds: np.ndarray) -> DataError | None:
    """The error of the first row without a time."""
    empty = np.flatnonzero(np.isnan(seconds))
    if not len(empty):
        return None
    where = data.where(int(empty[0]))
    return DataError(f"{where}: time column {data.names[index]!r:.60} is empty; need a time in each row to train on")
