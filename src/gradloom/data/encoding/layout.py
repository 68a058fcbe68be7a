"""Compares the columns of a file without names with those of training, so that an additional column is noticed."""

from __future__ import annotations

import numpy as np

from ...base.errors import DataError
from ..reading.columns import Columns
from .column import Column
from .features import places_of, shaped, standardised
from .preprocess import Preprocess
from .targets import targets_of_column
from .times import NUMBER, times_of

_FAR = 6.0  # deviations from the mean of the training that the median of a column may have
_LEAST_ROWS = 5  # fewer may all be far from it


def check_layout(data: Columns, made: Preprocess) -> list[str]:
    """Notes on the columns of a file without names; DataError if an additional column is unlikely to be the target."""
    count = len(made.columns)
    if made.header or not data.is_named or len(data.names) not in (count, count + 1):
        return []
    target = made.target_index if len(data.names) == count + 1 else None
    here = [_is_unlike(data, i, column) for i, column in enumerate(made.columns)]
    if target is None:
        return _said(here)
    next_to = [_is_unlike(data, i + 1, column) for i, column in enumerate(made.columns)]
    without = [sum(here[:place]) + sum(next_to[place:]) for place in range(count + 1)]  # the column at this place
    seen = without[target] + _is_unlike_target(data, target, made)
    place = int(np.argmin(without))
    if without[place] < seen and place != target:
        raise DataError(
            f"{data.path}: {count + 1} columns without names; with the target as column {target + 1},"
            f" {seen} of them are unlike those of training; with no target and without column {place + 1},"
            f" {without[place]} are; remove that column"
        )
    return _said(here[:target] + [False] + next_to[target:])


def _said(unlike: list[bool]) -> list[str]:
    found = [f"column {i + 1}" for i, odd in enumerate(unlike) if odd]
    return [f"unlike the column of the training at its place: {', '.join(found)}"] * bool(found)


def _is_unlike(data: Columns, index: int, column: Column) -> bool:
    """Whether the column of this index is hardly this one of the training."""
    if column.kind == "unused":
        return False
    if column.kind in ("text", "encoded"):
        places = places_of(*data.texts(index), column, [])
        return bool((places < 0).all()) and not data.is_empty(index)
    if column.kind == "time" and column.form != NUMBER:
        try:
            values: np.ndarray | None = times_of(data, index, column.form)[0]
        except DataError:
            return True
    else:
        values = data.numbers(index)
    return values is None or _is_far(standardised(shaped(values, column), column))


def _is_unlike_target(data: Columns, index: int, made: Preprocess) -> bool:
    targets, _ = targets_of_column(data, index, made)
    if targets is None or made.task == "classification":
        return not data.is_empty(index) and (targets is None or bool((targets < 0).all()))
    return _is_far((targets[:, 0] - made.target_mean[0]) / made.target_std[0])


def _is_far(standard: np.ndarray) -> bool:
    known = standard[np.isfinite(standard)]
    return len(known) >= _LEAST_ROWS and abs(float(np.median(known))) > _FAR
