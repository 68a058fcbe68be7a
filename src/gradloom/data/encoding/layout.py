"""Compares the columns of a file without names with those of training, so that an additional column is noticed."""

from __future__ import annotations

import re

import numpy as np

from ...base.errors import DataError
from ..reading.columns import Columns, find_column
from .column import Column
from .features import listed, places_of, shaped, standardised
from .preprocess import Preprocess
from .targets import targets_of_column
from .times import NUMBER, times_of

_FAR = 6.0  # deviations from the mean of the training that the median of a column may have
_NUMBERED = re.compile(r"(?:column_)?([0-9]{1,9})")  # labels that pandas and polars give to columns without names
_LEAST_ROWS = 5  # fewer may all be far from it


def order_of_columns(where: str, names: list[str], made: Preprocess) -> tuple[list[int], list[str]]:
    """(columns of a table in the order of a training file without column names, notes).

    A table with the model's own names ("column 1", ...) is matched by name, with or without the target. Numbered labels
    (0, 1, ..., or column_0, column_1, ... of polars) are matched by number. Other names have no effect, which is a
    note. DataError for a table with some of the model's names, or with numbers in an order that cannot be matched.
    """
    own = [column.name for column in made.columns]
    if own and set(own) & set(names):
        for name in own:
            find_column(where, names, name, True)
        extra = [name for name in names if name not in {*own, *made.target_names}]
        notes = [f"not used, because the model does not know them: {listed(extra)}"] * bool(extra)
        places = [len(own) if one.target_index is None else one.target_index for one, _ in made.each_target]
        wanted = list(own)
        if set(made.target_names) <= set(names):
            for place, target in sorted(zip(places, made.target_names, strict=True)):
                wanted.insert(place, target)
        return [names.index(name) for name in wanted], notes
    here = list(range(len(names)))
    numbers = [int(found[1]) if (found := _NUMBERED.fullmatch(name)) else -1 for name in names]
    if min(numbers, default=-1) < 0:
        return here, [
            f"{where}: column names ignored, because the training data had none: columns are matched by order"
        ]
    width = len(names) + len(made.target_names)
    without_target = [i for i in range(width) if i not in made.target_places]
    if numbers != sorted(numbers) and sorted(numbers) not in (here, without_target):
        seen = f"columns are labelled {', '.join(map(str, numbers))}"
        raise DataError(f"{where}: {seen}; requires the labels 0 to {len(names) - 1}, or ascending ones")
    return sorted(here, key=numbers.__getitem__), []


def check_layout(data: Columns, made: Preprocess) -> list[str]:
    """Notes on the columns of a file without names; DataError if an additional column is unlikely to be the target."""
    count = len(made.columns)
    if made.header or not data.is_named or len(data.names) not in (count, count + len(made.target_names)):
        return []
    if made.targets:
        targets = made.target_places if len(data.names) > count else []
        columns = iter(made.columns)
        return _said([i not in targets and _is_unlike(data, i, next(columns)) for i in range(len(data.names))])
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
