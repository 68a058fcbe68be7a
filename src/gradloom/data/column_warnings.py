"""Warnings about training data: imbalanced classes, repeated rows, constant columns, columns that leak the target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .dataset import Dataset
from .encoding.column import Column
from .table import Table

_MOST_ROWS = 20_000  # the first ones, which are a random sample
_LEAST_ROWS = 100  # in a smaller table columns explain the target by chance
_LEAST_FOR_EACH = 20  # rows per distinct cell, for cells in any order to explain the target
_MOST_COUNTS = 10_000_000  # different cells times classes
_ERRORS = 0.001  # share of errors of a column that explains the target
_CORRELATION = 0.9999
_MOST_COMPARED = 200_000  # training rows that test rows are compared with
_LEAST_REPEATED, _REPEATED = 5, 0.02  # test rows, and their share, that are equal to training rows
_FEW_CELLS = 20  # different cells of each column of a table whose rows are equal by themselves
_MOST_NAMED = 3  # targets, or constant columns, with a warning of their own
_MISSING = -1e300  # in place of a missing number
_IMBALANCE = 4.0  # rows of the largest class, as a multiple of the mean of the others


def column_warnings(table: Table) -> list[str]:
    """A warning for each column that is constant, numbers the rows, has only distinct texts, or explains the target
    alone."""
    made = table.preprocess
    if made.kind == "array":
        return []
    features = table.train.data[:_MOST_ROWS]
    found, at = _constant_columns(made.columns), 0
    for column in made.columns:
        block = features[:, at : at + column.width]
        at += column.width
        if column.kind == "unused":
            continue
        if column.kind == "number" and not column.scale and _numbers_rows(block[:, 0], column, table):
            found.append(f"column {column.name!r:.60} looks like a row number: each row has a different whole number")
        elif column.kind == "text" and _are_identifiers(block, column):
            found.append(
                f"column {column.name!r:.60} has a different text in each row, like identifiers: it cannot"
                " generalise; leave it out (--drop)"
            )
        elif (share := _explained_target(block if column.kind == "text" else block[:, :1], table)) is not None:
            found.append(f"column {column.name!r:.60} alone predicts {share}: is it known only after the target?")
    return found


def _constant_columns(columns: Sequence[Column]) -> list[str]:
    """A warning for each constant column, or one for more than a few, such as the border pixels of images."""
    names = [f"{column.name!r:.60}" for column in columns if column.kind == "unused" and column.reason == "constant"]
    if len(names) <= _MOST_NAMED:
        return [f"column {name} is constant and left out" for name in names]
    return [f"{len(names)} columns are constant and left out: {', '.join(names[:_MOST_NAMED])}, ..."]


def repeated_rows(table: Table) -> list[str]:
    """A warning if more test rows than by chance are equal to training rows, targets included.

    Chance: the rows that agree in all columns if the columns were independent. A table without a column of more than 20
    different cells has equal rows by itself. Columns of kind "encoded" differ between training and test rows: a table
    with one is not looked at.
    """
    made, test = table.preprocess, table.test
    if test is None or any(column.kind == "encoded" for column in made.columns):
        return []
    train = _rows(table.train, _MOST_COMPARED)
    looked_at = _rows(test, _MOST_ROWS)
    known = set(train)
    found = sum(row in known for row in looked_at)
    if found < max(_LEAST_REPEATED, _REPEATED * len(looked_at)):
        return []
    if made.kind == "columns":
        agree, different = _agreement(table)
        if different <= _FEW_CELLS or found < 10 * agree * len(train) * len(looked_at):
            return []
    share = f"{100 * found / len(looked_at):.3g} %"
    seen = f"{found:,} of {len(looked_at):,} test rows ({share}) are equal to training rows, target included"
    return [f"{seen}: the test scores are too good for new rows; remove duplicates from the table"]


def _label_rows(data: Dataset, most: int) -> np.ndarray:
    """The labels of the first rows, f64 [rows] or [rows, targets], with a number in place of NaN."""
    labels = data.labels
    assert labels is not None
    if isinstance(labels, tuple):
        labels = np.stack([one[:most].astype(np.float64) for one in labels], axis=1)
    return np.nan_to_num(labels[:most].astype(np.float64), nan=_MISSING)


def _rows(data: Dataset, most: int) -> list[int]:
    """A hash of each of the first rows with its target."""
    pairs = zip(data.data[:most], _label_rows(data, most), strict=True)
    return [hash((np.ascontiguousarray(row).tobytes(), target.tobytes())) for row, target in pairs]


def _agreement(table: Table) -> tuple[float, int]:
    """(the share of pairs of rows that agree, if columns and target were independent; the most different cells of a
    column)."""
    features = table.train.data[:_MOST_ROWS]
    agree, most, at = 1.0, 0, 0
    for column in table.preprocess.columns:
        block = features[:, at : at + column.width]
        at += column.width
        if column.width:
            cells = np.where(block.any(axis=1), block.argmax(axis=1) + 1, 0) if column.kind == "text" else block[:, 0]
            counts = np.unique(cells, return_counts=True)[1]
            agree *= _pairs(counts)
            most = max(most, len(counts))
    agree *= _pairs(np.unique(_label_rows(table.train, _MOST_ROWS), axis=0, return_counts=True)[1])
    return agree, most


def _pairs(counts: np.ndarray) -> float:
    """The share of pairs of different rows that are equal, from how often each value is there."""
    rows = int(counts.sum())
    return float((counts * (counts - 1.0)).sum() / (rows * (rows - 1))) if rows > 1 else 0.0


def imbalance(table: Table) -> list[str]:
    """A warning if one class has most of the training rows; of several targets one for each, and a count of further
    ones."""
    found = []
    for one, labels in table.each_target(table.train):
        if one.task != "classification":
            continue
        count = np.bincount(labels, minlength=len(one.classes))
        most = int(count.argmax())
        others = (len(labels) - count[most]) / (len(count) - 1)
        if count[most] >= _IMBALANCE * others:
            share = f"{100 * count[most] / len(labels):.3g} % of the training rows"
            of = f"target {one.target!r:.60}: " if table.preprocess.targets else ""
            found.append(f"{of}classes are imbalanced: {one.classes[most]!r:.60} has {share}")
    if len(found) > _MOST_NAMED:
        found[_MOST_NAMED:] = [f"classes of {len(found) - _MOST_NAMED} more targets are imbalanced"]
    return found


def _explained_target(block: np.ndarray, table: Table) -> str | None:
    """The share of a target that the column explains alone, in words; None unless nearly all. block: f32, its features
    in the first training rows."""
    for k, (one, _) in enumerate(table.preprocess.each_target):
        labels, known = table.labels_of(table.train, k)
        used = known[: len(block)]
        share = _explained(block[used], labels[: len(block)][used], one.task)
        if share is not None:
            of = f" for target {one.target!r:.60}" if table.preprocess.targets else ""
            return f"{share} of the training rows{of}"
    return None


def _numbers_rows(values: np.ndarray, column: Column, table: Table) -> bool:
    """Whether integers count the rows of the table: all distinct, in a range that is hardly larger."""
    rows = table.train.n + (0 if table.test is None else table.test.n)
    numbers = values.astype(np.float64) * column.std + column.mean
    low, high = float(numbers.min()), float(numbers.max())
    is_whole = np.abs(numbers - np.rint(numbers)).max() < 0.2  # float32 keeps as much of a standardised number
    deviation = rows / math.sqrt(12)  # of 1, 2, ... rows
    return bool(
        rows >= _LEAST_ROWS
        and is_whole
        and len(np.unique(np.rint(numbers))) == len(numbers)
        and high - low < 1.5 * rows
        and 0.8 * deviation < column.std < 1.5 * deviation
    )


def _are_identifiers(block: np.ndarray, column: Column) -> bool:
    """Whether no two rows share a text that is not empty. block: f32 [rows, categories]."""
    rows = block.sum(axis=0)[[bool(text) for text in column.categories]]
    return len(rows) > 2 and bool(rows.max() <= 1)


def _explained(block: np.ndarray, labels: np.ndarray, task: str) -> str | None:
    """The share of the target that the column explains alone, in words; None unless nearly all."""
    if len(block) < _LEAST_ROWS:
        return None
    if task == "classification":
        return _explained_classes(block, labels)
    if block.shape[1] > 1 or labels.shape[1] > 1:
        return None
    x, y = block[:, 0].astype(np.float64), labels[:, 0].astype(np.float64)
    for a, b in ((x, y), (_ranks(x), _ranks(y))):
        if a.std() > 0 and b.std() > 0 and abs(np.corrcoef(a, b)[0, 1]) >= _CORRELATION:
            return "the numbers"
    return None


def _explained_classes(block: np.ndarray, labels: np.ndarray) -> str | None:
    """Predicts the most frequent class of equal cells. Numbers also explain the target if its classes form few runs
    along them (thresholds)."""
    n, classes = len(labels), int(labels.max()) + 1
    cells = np.where(block.any(axis=1), block.argmax(axis=1) + 1, 0) if block.shape[1] > 1 else block[:, 0]
    different, place = np.unique(cells, return_inverse=True)
    if len(different) * classes > _MOST_COUNTS:
        return None
    counts = np.bincount(place.reshape(-1) * classes + labels, minlength=len(different) * classes)
    counts = counts.reshape(-1, classes)
    missed = n - int(counts.max(axis=1).sum())
    if n < _LEAST_FOR_EACH * len(different):
        of_cells = counts.argmax(axis=1)
        changes = int((of_cells[1:] != of_cells[:-1]).sum())
        missed += max(changes + 1 - 2 * classes, 0) // 2  # a row on the wrong side makes two more runs
    without = n - int(np.bincount(labels).max())
    if missed > _ERRORS * n or without < 0.02 * n:
        return None
    return f"the class of {100 * (1 - missed / n):.4g} %"


def _ranks(values: np.ndarray) -> np.ndarray:
    """The places of the values in their order; equal values share the first one."""
    return np.searchsorted(np.sort(values), values).astype(np.float64)
