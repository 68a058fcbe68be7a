"""The features of one column, written where the model reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.errors import DataError
from ..reading.cells import composed, number_text, read_exactly
from ..reading.columns import Columns
from ..reading.kinds import check_unit, need_parts
from .column import Column
from .times import CALENDAR, NUMBER, date_text, phases, times_of, years_of

_LARGE = 1e300
_ROWS = 1 << 16  # that are put in order at a time
_MOST_NOTES = 12  # of filled cells, a line each; more are one line
_FILLED = "filled with the training median"


def write_features(data: Columns, index: int, column: Column, out: np.ndarray, order: np.ndarray | None) -> list[str]:
    """Writes the features of the column of this index into out, f32 [rows, column.width], for the rows in this order;
    notes on filled cells. DataError for cells that do not match the training data."""
    notes: list[str] = []
    if column.kind in ("text", "encoded"):
        codes, texts = data.texts(index)
        codes = codes if order is None else codes[order]
        if column.kind == "text":
            _one_hot(codes, texts, column, out, notes)
        else:
            table = np.array(column.codes, np.float32).reshape(len(column.categories), -1)
            place = places_of(codes, texts, column, notes)
            out[:] = np.where(place[:, None] >= 0, table[place], np.float32(0))
        return notes
    if column.kind == "time":
        parts = iter([times_of(data, index, column.form)[0]])
        marks = data.marks(index)
    else:
        what = f"column {column.name!r:.60}"
        parts = need_parts(data, index, what)
        if column.unit:
            check_unit(data, index, column.unit, what)
        marks = data.marks(index)
    made = np.empty((column.width, data.rows), np.float32)
    at = filled = 0
    for values in parts:
        check_finite(values, data, column.name, at)
        empty = np.isnan(values)
        count = int(np.count_nonzero(empty))
        if count:
            values = np.where(empty, column.median, values)
        part = made[:, at : at + len(values)]
        part[0] = standardised(shaped(values, column), column)
        if column.kind == "time":  # a number, and times of a few days, have no waves
            waves = phases(values, column.parts)
            for wave, row in zip(waves, part[1:], strict=False):
                row[...] = wave
            if CALENDAR in column.parts:
                part[1 + len(waves)] = standardised(years_of(values), column)
        if column.has_missing:
            part[-1] = empty
        at, filled = at + len(values), filled + count
    check_narrow(made[0], column.name, data)
    if filled:
        notes.append(_filled(filled, column, marks))
    for start in range(0, len(out), _ROWS):
        rows = slice(start, start + _ROWS)
        out[rows] = made[:, rows if order is None else order[rows]].T
    return notes


def shaped(values: np.ndarray, column: Column) -> np.ndarray:
    """asinh((x - center) / scale) of a skewed column, which is linear near the center and a logarithm far from it."""
    return np.arcsinh(values / column.scale - column.center / column.scale) if column.scale else values


def standardised(values: np.ndarray, column: Column) -> np.ndarray:
    """(values - mean) / std."""
    if column.std > _LARGE:  # differences might be beyond f64
        return values / column.std - column.mean / column.std
    return (values - column.mean) / column.std


def _filled(count: int, column: Column, marks: dict[str, int]) -> str:
    """The note on empty cells. marks: what stood in them, and how often."""
    text = "1 empty cell" if count == 1 else f"{count} empty cells"
    if marks:
        shown = [f"{n} {mark!r}" for mark, n in sorted(marks.items(), key=lambda item: -item[1])]
        text += f" ({listed(shown)} among them)" if sum(marks.values()) < count else f" ({listed(shown)})"
    is_date = column.kind == "time" and column.form != NUMBER
    median = date_text(column.median) if is_date else f"{column.median:g}"
    return f"{column.name}: {text} {_FILLED} {median}"


def grouped(notes: list[str]) -> list[str]:
    """The notes, with one line for empty cells where many columns have some."""
    filled = [note for note in notes if _FILLED in note]
    if len(filled) <= _MOST_NOTES:
        return notes
    columns = [note.partition(f" {_FILLED}")[0] for note in filled]
    return [note for note in notes if _FILLED not in note] + [f"filled with the training medians: {listed(columns)}"]


def places_of(codes: np.ndarray, texts: list[bytes], column: Column, notes: list[str]) -> np.ndarray:
    """The place of each row's text among the categories, -1 where it is none of them."""
    places = {composed(category).encode(): place for place, category in enumerate(column.categories)}
    if all(as_number(text) == text for text in places):  # the training has read numbers: 1.0 is the category 1
        texts = [text if text in places else as_number(text) for text in texts]
    truths = truth_words([text.decode() for text in places])
    if truths:
        texts = [truths.get(text.decode("utf-8", "replace").lower(), "").encode() or text for text in texts]
    of_text = np.array([places.get(text, -1) for text in texts], np.int64)
    place = of_text[codes]
    unknown = place < 0
    rows = int(unknown.sum())
    if rows and not column.others:
        new = sorted({texts[code] for code in np.unique(codes[unknown])})
        shown = listed([text.decode("utf-8", "replace") or "''" for text in new])
        notes.append(f"{column.name}: {rows} row{'s' * (rows != 1)} with a text unknown from training: {shown}")
    return place


def truth_words(known: Sequence[str]) -> dict[str, str]:
    """{true or false: how it is written among these texts}, where nothing else is among them: one program writes True,
    another true. Empty where both ways are there."""
    words = {text.lower(): text for text in known if text}
    return words if set(words) <= {"true", "false"} and len(words) == sum(map(bool, known)) else {}


def as_number(text: bytes) -> bytes:
    """The text as Columns.texts writes it for a column of numbers: 3 for 3.0, nothing for NA; other texts stay."""
    value = read_exactly(text)
    return b"" if value is None else number_text(value).encode() if isinstance(value, float) else text


def _one_hot(codes: np.ndarray, texts: list[bytes], column: Column, out: np.ndarray, notes: list[str]) -> None:
    """Writes a 1 into out, f32 [rows, categories], for each row with a category. codes [rows]: of its text."""
    place = places_of(codes, texts, column, notes)
    known = np.flatnonzero(place >= 0)
    out[known, place[known]] = 1


def check_finite(values: np.ndarray, data: Columns, name: str, first: int = 0) -> None:
    """DataError for an infinite number in a column. first: the row of the first value."""
    bad = np.flatnonzero(np.isinf(values))
    if bad.size:
        where = data.where(first + int(bad[0]))
        raise DataError(f"{where}: column {name!r:.60} is {values[bad[0]]}; need a finite number or an empty cell")


def check_narrow(values: np.ndarray, name: str, data: Columns | None = None) -> None:
    """DataError where standardised numbers [rows, ...] are beyond float32, with the place of the first in the data."""
    finite = np.isfinite(values)
    if not finite.all():
        where = f"{data.where(int(np.argwhere(~finite)[0][0]))}: " if data is not None else ""
        need = "a number is too far from those of the training rows; need it in float32"
        raise DataError(f"{where}column {name!r:.60}: {need}")


def is_usable(mean: float, std: float) -> bool:
    """Whether float32 holds the mean, the deviation and its inverse: the model subtracts and multiplies in float32."""
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        narrow = np.float32(std)
        return bool(np.isfinite([np.float32(mean), narrow, 1 / narrow]).all())


def listed(texts: list[str], most: int = 6) -> str:
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
