"""Several targets of a table: the rows that have one, and the task, classes and scale of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import DataError, SettingError
from ..reading.cell_rules import CellRules
from ..reading.cells import NumberCells, composed
from ..reading.columns import Columns
from ..reading.raw_table import RawTable, class_name, of_columns, read_raw
from .features import listed
from .hints import far_numbers
from .preprocess import Preprocess
from .target import Target, as_column
from .targets import (
    check_classes,
    decided,
    drop_rows_without_target,
    known_targets,
    target_scales,
    targets_of,
    targets_of_column,
)


def check_names(target: Sequence[str]) -> str | list[str]:
    """The name of a single target, or the names of several; SettingError for the same name twice."""
    names = list(target) if isinstance(target, (list, tuple)) else []
    odd = next((name for name in names if not isinstance(name, str) or not name), None)
    if not names or odd is not None:
        raise SettingError(setting="target", seen=target, need="a name, or a list of names of columns")
    if len(names) == 1:
        return names[0]
    twice = next((name for i, name in enumerate(map(composed, names)) if name in map(composed, names[:i])), None)
    if twice is not None:
        raise SettingError(f"{{target}}: {twice!r:.60} is named twice; name each target once", setting="target")
    return names


def with_targets(raw: RawTable, names: Sequence[str]) -> RawTable:
    """The table with these columns as targets. DataError for data without columns, for a column that is not there, and
    where no other is left."""
    data = raw.x
    if not isinstance(data, Columns) or raw.array:
        need = "several targets are one array of several columns, y [rows, targets]; need one {target}"
        raise DataError(f"{raw.path}: holds arrays; {need}", target=...)
    try:
        places = [data.find(name) for name in names]
    except DataError as error:
        raise DataError(f"{error}; see {{target}}", target=...) from None
    twice = next((i for i, place in enumerate(places) if place in places[:i]), None)
    if twice is not None:
        seen = f"{names[twice]!r:.60} is column {places[twice] + 1} again"
        raise SettingError(f"{{target}}: {seen}; name each target once", setting="target")
    if len(places) == len(data.names):
        text = f"{raw.path}: all {len(places)} columns are targets; need one to learn from; see {{target}}"
        raise DataError(text, target=...)
    made = replace(raw, target=", ".join(data.names[place] for place in places), targets=places, notes=[])
    made.target_index, made.texts = -1, None
    return made


def drop_rows_without_targets(raw: RawTable) -> RawTable:
    """The table without the rows in which all targets are empty; a note counts them."""
    made, places = raw, raw.targets
    assert isinstance(made.x, Columns)
    empty: np.ndarray = np.stack([_empty(made, place) for place in places], axis=1)
    for place, is_empty in zip(places, empty.T, strict=True):
        if is_empty.all():
            seen = f"target {made.x.names[place]!r:.60} is empty in all {len(empty)} rows"
            raise DataError(f"{raw.path}: {seen}; leave it out of {{target}}", target=...)
    rows = np.flatnonzero(~empty.all(axis=1))
    if len(rows) < len(empty):
        lost = len(empty) - len(rows)
        made.notes.append(f"{lost} of {len(empty)} rows left out: all their targets are empty")
        made.x = made.x.keep(rows)
    made.y = np.zeros(len(rows))
    return made


def _empty(raw: RawTable, place: int) -> np.ndarray:
    """The rows without this target, bool [rows]."""
    assert isinstance(raw.x, Columns)
    one = of_columns(raw.x, place, [])
    empty = raw.x.missing(place)
    if one.texts is not None and not empty.all():
        return np.array([text == b"" for text in one.texts])[one.y]
    return empty


def targets_of_each(raw: RawTable, task: str | None) -> tuple[list[Target], np.ndarray]:
    """(the targets, without their scales; their values f64 [rows, targets]: class ids or numbers, NaN where a cell is
    empty). task: of all of them; None: each by its cells."""
    assert isinstance(raw.x, Columns)
    rows = raw.x.rows
    made, values = [], np.full((rows, len(raw.targets)), np.nan)
    notes: list[str] = []
    why: dict[tuple[str, str], list[str]] = {}
    for k, place in enumerate(raw.targets):
        one = of_columns(raw.x, place, [])
        name = raw.x.names[place]
        one = drop_rows_without_target(one)
        known = np.arange(rows) if one.picked is None else one.picked
        lost = rows - len(known)
        if lost:
            one.notes[-1] = (
                f"target {name!r:.60}: empty in {lost:,} of {rows:,} rows, which train the other targets alone"
            )
        own = task
        if own is None:
            own, reason = decided(one, one.y)
            why.setdefault((own, reason), []).append(name)
        found, y, _, classes = targets_of(one, own)
        values[known, k] = y
        cells = raw.x.cells[place]
        grouped = found == "regression" and isinstance(cells, NumberCells) and cells.grouped
        made.append(Target(name, found, classes, index=place, grouped=grouped))
        notes += one.notes
    raw.notes += [_because(*decision, names) for decision, names in why.items()] + notes
    return made, values


def _because(task: str, reason: str, names: list[str]) -> str:
    """A note on the task of targets with one reason."""
    if len(names) == 1:
        return f"task: {task}, because the target {names[0]!r:.60} {reason}"
    return f"task: {task} of {listed([f'{name!r:.60}' for name in names])}, because each {reason}"


def scale_each(raw: RawTable, made: Sequence[Target], values: np.ndarray, known: np.ndarray) -> None:
    """Learn the scale of each number from the known rows; DataError for a target that is one number or one class in
    all of them."""
    for k, target in enumerate(made):
        assert isinstance(raw.x, Columns)
        what = f"target {target.name!r:.60}"
        rows = known[~np.isnan(values[known, k])]
        if not len(rows):
            raise DataError(
                f"{raw.path}: {what} is empty in every training row; leave it out of {{target}}", target=...
            )
        if target.task == "classification":
            notes: list[str] = []
            check_classes(f"{raw.path}: {what}", values[rows, k].astype(np.int64), target.classes, notes)
            raw.notes += [f"{what}: {note}" for note in notes]
            continue
        raw.notes += far_numbers(raw.x, values[:, k], rows, what)
        mean, std = target_scales(values[rows, k : k + 1], f"{raw.path}: {what}")
        if std[0] == 0:
            raise DataError(f"{raw.path}: {what} is {mean[0]:g} in every training row; need different values")
        target.mean, target.std = float(mean[0]), float(std[0])


def read_several(data: object, target: str | Sequence[str] | None, rules: CellRules) -> RawTable:
    """read_raw, of one target or of several."""
    names = target if target is None or isinstance(target, str) else check_names(target)
    if names is None or isinstance(names, str):
        return read_raw(data, names, rules)
    return with_targets(read_raw(data, None, rules, names), names)


def known_of_each(data: Columns, preprocess: Preprocess) -> tuple[np.ndarray | None, list[str]]:
    """(the targets of a table to predict on, f64 [rows, targets], None where it has none of them; problems with
    them)."""
    values = np.full((data.rows, len(preprocess.targets)), np.nan)
    if not preprocess.header and len(data.names) == len(preprocess.columns):
        return None, []
    problems: list[str] = []
    lost: list[str] = []
    for k, (one, _) in enumerate(preprocess.each_target):
        if preprocess.header and one.target not in data.names:
            lost.append(one.target)
            continue
        place = data.names.index(one.target) if preprocess.header else one.target_index
        assert place is not None
        found, more = targets_of_column(data, place, one)
        problems += [f"target {one.target!r:.60}: {text}" for text in more]
        if found is None:
            problems.append(f"target {one.target!r:.60}: holds no numbers, and counts in no score")
        else:
            values[:, k] = as_column(found)
    if len(lost) == len(preprocess.targets):
        return None, []
    return values, [*[f"without the targets {listed(lost)}"] * bool(lost), *problems]


def given_targets(y: np.ndarray, preprocess: Preprocess) -> tuple[np.ndarray | None, list[str]]:
    """known_targets; of several targets from an array [rows, targets], in their order."""
    if not preprocess.targets:
        return known_targets(y, preprocess)
    if y.ndim != 2 or y.shape[1] != len(preprocess.targets):
        return None, []
    values = np.full(y.shape, np.nan)
    problems: list[str] = []
    for k, (one, _) in enumerate(preprocess.each_target):
        found, more = known_targets(_of_kind(y[:, k], one.task), one)
        if found is None:
            return None, []
        values[:, k] = as_column(found)
        problems += [f"target {one.target!r:.60}: {text}" for text in more]
    return values, problems


def _of_kind(column: np.ndarray, task: str) -> np.ndarray:
    """A column of texts and numbers as the kind that its target has."""
    if column.dtype.kind != "O":
        return column
    if task == "classification":
        return np.array([class_name(value) for value in column.tolist()])
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        return column
