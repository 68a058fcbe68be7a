"""Preprocessing that is learned from the training rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...base.errors import DataError
from ..reading.cells import NumberCells
from ..reading.columns import MOST_COLUMNS, Columns
from ..reading.kinds import code_reason, need_numbers, numbers_of, reading_notes, unit_of
from .column import Column
from .features import check_finite, is_usable, listed, shaped
from .hints import far_numbers, hints
from .preprocess import Preprocess
from .side_by_side import side_by_side
from .times import (
    NUMBER,
    are_days,
    date_parts_of,
    date_text,
    dates_of,
    described_parts,
    example_of,
    missing_time,
    parts_of,
    times_of,
)

MOST_CATEGORIES = 100  # that are one-hot; where there are more, they are encoded by their targets
MOST_ENCODED = 20_000  # categories with codes; the most frequent ones
_LEAST_MISSING = 5  # training rows with a missing cell, for a feature of it: fewer would be overfitted
_LEAST_REPEATED = 5  # training rows of a text that is a category where most texts are of one row
_LEAST_SHARE = 0.05  # of the training rows, which such texts have together
_SKEWED = 2.0  # the skewness from which on a column of numbers is
_WEIGHT = "the weights of the rows"


def fit_columns(
    data: Columns, train: np.ndarray, targets: Sequence[int], task: str, notes: list[str], roles: Mapping[int, str]
) -> Preprocess:
    """Learn the encoding of the columns from the training rows; appends notes for the user to `notes`.

    targets: the indices of their columns, none if they are no columns; roles: of columns, by index.
    Columns of many categories are of kind "encoded", and have no codes yet (see target_encoding.py).
    """
    if len(data.names) > MOST_COLUMNS:
        raise DataError(f"{data.path}: {len(data.names):,} columns; need at most {MOST_COLUMNS:,}")
    target = targets[0] if len(targets) == 1 else None
    made = Preprocess("columns", task, "" if target is None else data.names[target], header=data.header)
    made.separator, made.target_index = data.separator, target
    if target is not None and task == "regression":
        answers = data.cells[target]
        made.target_grouped = isinstance(answers, NumberCells) and answers.grouped
    others = [index for index in range(len(data.names)) if index not in targets]
    for column, more in side_by_side(lambda i: _fitted(data, i, train, roles.get(i)), others, data.rows):
        made.columns.append(column)
        notes += more
    unused = [f"{c.name} ({c.reason})" for c in made.columns if c.kind == "unused" and c.reason != _WEIGHT]
    if all(c.kind == "unused" for c in made.columns):
        raise DataError(
            f"{data.path}: no column is left to learn from: {listed(unused) or 'the target is the only one'}"
        )
    if unused:
        notes.append(f"columns left out: {listed(unused)}")
    return made


def _fitted(data: Columns, index: int, train: np.ndarray, role: str | None) -> tuple[Column, list[str]]:
    """(the encoding of this column, notes)."""
    name, notes = data.names[index], list[str]()
    if role in ("drop", "weight"):
        return Column(name, "unused", reason="dropped" if role == "drop" else _WEIGHT), notes
    if data.is_empty(index):
        seen = "empty" if data.lines is not None else "NaN"
        where = " from the file" if data.lines is not None else ""
        raise DataError(f"{data.path}: column {name!r:.60} is {seen} in all {data.rows} rows; remove it{where}")
    column = _column(data, index, train, role, notes)
    if column.kind in ("number", "time"):
        cells = data.cells[index]
        column.grouped = isinstance(cells, NumberCells) and cells.grouped
        column.unit = unit_of(data, index) if column.kind == "number" else ""
    return column, notes


def _column(data: Columns, index: int, train: np.ndarray, role: str | None, notes: list[str]) -> Column:
    name = data.names[index]
    what = f"column {name!r:.60}"
    if role == "time":
        return _time_column(data, index, train)
    if role == "categorical":
        return _text_column(name, *data.texts(index), train, notes)
    values = need_numbers(data, index, what, True) if role == "numeric" else numbers_of(data, index, what, True)
    if role is None:
        if values is None:
            seconds, form, hint = dates_of(data, index)
            notes += hint
        else:
            seconds, form = times_of(data, index, "%Y%m%d") if are_days(values) else (values, "")
        if form:
            return _date_column(name, seconds[train], form, notes)
    if values is None:
        notes += hints(data, index)
        return _text_column(name, *data.texts(index), train, notes)
    check_finite(values, data, name)
    why = None if role == "numeric" else code_reason(data, index, values)
    if why is not None:
        codes, texts = data.texts(index)
        count = len(np.unique(codes))
        notes.append(
            f"{name}: {count} different whole numbers are taken as categories, because {why} (--numeric {name})"
        )
        return _text_column(name, codes, texts, train, notes)
    notes += reading_notes(data, index, name) + far_numbers(data, values, train, f"column {name!r:.60}")
    return _number_column(name, values[train])


def _number_column(name: str, values: np.ndarray) -> Column:
    empty = np.isnan(values)
    count = int(np.count_nonzero(empty))
    known = values[~empty] if count else values
    if known.size == 0:
        return Column(name, "unused", reason="empty in the training rows")
    if known.min() == known.max():
        return Column(name, "unused", reason="constant")
    median = float(np.median(known))
    if not np.isfinite(median):  # of two numbers whose sum is beyond f64
        median = float(np.median(known / 2)) * 2
    made = Column(name, "number", median, has_missing=count >= _LEAST_MISSING)
    filled = np.where(empty, median, values) if count else values
    made.mean, made.std = mean_and_deviation(filled)
    if abs(_skewness(filled, made)) > _SKEWED and len(np.unique(known[:1000])) > 2:
        made.center, made.scale = median, _spread(known, made.std)
        made.mean, made.std = mean_and_deviation(shaped(filled, made))
    return made


def _skewness(values: np.ndarray, column: Column) -> float:
    """E[((x - mean) / std)^3]."""
    z = values / column.std - column.mean / column.std
    return float((z * z * z).mean())


def _spread(values: np.ndarray, std: float) -> float:
    """The distance of the quartiles, of whole numbers at least 1; the deviation where the quartiles are one number."""
    low, high = np.percentile(values / 2, [25, 75])
    return float((high - low) * 2) or std


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Of numbers that differ, also where their squares are beyond f64."""
    mean, std = float(values.mean()), float(values.std())
    if not (np.isfinite(mean) and np.isfinite(std)) or std == 0:
        scale = float(abs(values).max())
        scaled = values / scale
        mean, std = float(scaled.mean()) * scale, float(scaled.std()) * scale
    return mean, std or float(values.max() - values.min())


def _text_column(name: str, codes: np.ndarray, texts: list[bytes], train: np.ndarray, notes: list[str]) -> Column:
    """One-hot categories, or of many an encoding. Where most rows have a text of their own, those texts alone that
    repeat are categories; a note counts the others."""
    counts = np.bincount(codes[train], minlength=len(texts))
    seen = np.flatnonzero(counts)
    if len(seen) == 1:
        return Column(name, "unused", reason="constant")
    many, others = len(seen) > MOST_CATEGORIES, False
    if many and 2 * len(seen) > len(train):
        repeated = np.flatnonzero(counts >= _LEAST_REPEATED)
        rows = int(counts[repeated].sum())
        if not len(repeated) or rows < _LEAST_SHARE * len(train):
            return Column(name, "unused", reason=f"{len(seen)} different texts in {len(train)} rows")
        kept = min(len(repeated), MOST_CATEGORIES)
        notes.append(
            f"{name}: {kept} text{'s' * (kept != 1)} of {_LEAST_REPEATED} rows or more"
            f" {'are categories' if kept != 1 else 'is a category'} ({rows:,} of {len(train):,} rows); the other"
            f" {len(seen) - kept:,} texts are encoded as one (--drop {name} leaves the column out)"
        )
        seen, many, others = repeated, False, True
    ordered = sorted(seen.tolist(), key=lambda code: texts[code])
    most = sorted(ordered, key=lambda code: -counts[code])[: MOST_ENCODED if many else MOST_CATEGORIES]
    categories = [texts[code].decode() for code in sorted(most, key=lambda code: texts[code])]
    return Column(name, "encoded" if many else "text", categories=categories, others=others)


def _time_column(data: Columns, index: int, train: np.ndarray) -> Column:
    """The column of --time, which has a time in each row."""
    name = data.names[index]
    seconds, form = times_of(data, index)
    error = missing_time(data, index, seconds)
    if error is not None:
        raise error
    known = seconds[train]
    if known.min() == known.max():
        return Column(name, "unused", reason="constant")
    made = Column(name, "time", float(np.median(known)), form=form)
    made.mean, made.std = mean_and_deviation(known)
    made.parts = [] if form == NUMBER else parts_of(known)
    return made


def _date_column(name: str, seconds: np.ndarray, form: str, notes: list[str]) -> Column:
    """A column of dates that is a feature, as it may be of rows that are split at random. seconds: of training rows."""
    known = seconds[~np.isnan(seconds)]
    if known.size == 0:
        return Column(name, "unused", reason="empty in the training rows")
    if known.min() == known.max():
        return Column(name, "unused", reason="constant")
    made = Column(name, "time", float(np.median(known)), form=form, parts=date_parts_of(known))
    made.has_missing = len(seconds) - len(known) >= _LEAST_MISSING
    made.mean, made.std = mean_and_deviation(np.where(np.isnan(seconds), made.median, seconds))
    kind = "times of day" if "%y" not in form.lower() and form != "iso" else "dates"
    parts = described_parts(made.parts)
    notes.append(
        f"{name}: {kind} such as {example_of(form)} become {made.width} feature{'s' * (made.width != 1)}: days since"
        f" {date_text(float(known.min()))}{', ' * bool(parts)}{parts}{', whether it is missing' * made.has_missing}"
        f" (--categorical {name}: texts; --time {name}: the latest rows are the test)"
    )
    return made


def fit_array(path: str, data: np.ndarray, train: np.ndarray, task: str, target: str) -> Preprocess:
    """One mean and one standard deviation for images and the like, from the training rows, in pieces."""
    total = squares = 0.0
    count = 0
    for start in range(0, len(train), 1024):
        part = data[train[start : start + 1024]].astype(np.float64)
        total += part.sum()
        squares += np.square(part).sum()
        count += part.size
    if not np.isfinite(total + squares):
        raise DataError(f"{path}: some element is NaN or inf; need finite numbers")
    mean = total / count
    std = float(np.sqrt(max(squares / count - mean * mean, 0.0)))
    if std == 0:
        raise DataError(f"{path}: every element of every training row is {mean:g}; need data that differ")
    if not is_usable(mean, std):
        raise DataError(
            f"{path}: mean {mean:g} and deviation {std:g} of the elements are beyond float32; scale the data"
        )
    return Preprocess("array", task, target, shape=[int(s) for s in data.shape[1:]], mean=float(mean), std=std)
