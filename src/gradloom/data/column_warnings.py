"""What is odd about a table, told before it is trained on: classes that few rows have, columns that tell too much or
nothing."""

from __future__ import annotations

import math

import numpy as np

from .dataset import Dataset
from .encoding.column import Column
from .table import Table

_MOST_ROWS = 20_000  # looked at: the first ones, which are drawn at random
_LEAST_ROWS = 100  # a smaller table has columns that fit its target by chance
_LEAST_FOR_EACH = 20  # rows of each different cell, for cells in any order to tell the target
_MOST_COUNTS = 10_000_000  # different cells times classes
_ERRORS = 0.001  # share of the rows that a column which tells the target may miss
_CORRELATION = 0.9999
_MOST_COMPARED = 200_000  # training rows that test rows are compared with
_LEAST_REPEATED, _REPEATED = 5, 0.02  # test rows, and their share, that are equal to training rows
_FEW_CELLS = 20  # different cells of each column of a table whose rows are equal by themselves
_IMBALANCE = 4.0  # rows of the largest class, as a multiple of the mean of the others


def column_warnings(table: Table) -> list[str]:
    """A sentence for each column of the training rows that is constant, numbers the rows, or tells the target by
    itself."""
    made = table.preprocess
    if made.kind == "array":
        return []
    features = table.train.data[:_MOST_ROWS]
    labels = table.train.labels
    assert labels is not None
    found, at = [], 0
    for column in made.columns:
        block = features[:, at : at + column.width]
        at += column.width
        if column.kind == "unused":
            found += [f"column {column.name!r:.60} is constant and left out"] * (column.reason == "constant")
        elif column.kind == "number" and not column.scale and _numbers_rows(block[:, 0], column, table):
            found.append(f"column {column.name!r:.60} looks like a row number: each row has another whole number")
        elif column.kind == "text" and _are_identifiers(block, column):
            found.append(
                f"column {column.name!r:.60} has another text in each row, as identifiers have: it tells nothing of"
                " other rows; leave it out (--drop)"
            )
        elif (
            share := _told(block if column.kind == "text" else block[:, :1], labels[:_MOST_ROWS], table.task)
        ) is not None:
            found.append(
                f"column {column.name!r:.60} alone tells {share} of the training rows: does it hold what is known only"
                " after the target?"
            )
    return found


def repeated_rows(table: Table) -> list[str]:
    """A sentence where test rows are equal to training rows, targets included, and more of them than by chance.

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


def _rows(data: Dataset, most: int) -> list[int]:
    """A hash of each of the first rows with its target."""
    labels = data.labels
    assert labels is not None
    pairs = zip(data.data[:most], labels[:most].astype(np.float64), strict=True)
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
    labels = table.train.labels
    assert labels is not None
    agree *= _pairs(np.unique(labels[:_MOST_ROWS], axis=0, return_counts=True)[1])
    return agree, most


def _pairs(counts: np.ndarray) -> float:
    """The share of pairs of different rows that are equal, from how often each value is there."""
    rows = int(counts.sum())
    return float((counts * (counts - 1.0)).sum() / (rows * (rows - 1))) if rows > 1 else 0.0


def imbalance(table: Table) -> list[str]:
    """A sentence where one class has most of the training rows."""
    if table.task != "classification":
        return []
    labels = table.train.labels
    assert labels is not None
    count = np.bincount(labels, minlength=len(table.preprocess.classes))
    most = int(count.argmax())
    others = (len(labels) - count[most]) / (len(count) - 1)
    if count[most] < _IMBALANCE * others:
        return []
    share = count[most] / len(labels)
    return [
        f"classes are imbalanced: {table.preprocess.classes[most]!r:.60} has {100 * share:.3g} % of the training rows"
    ]


def _numbers_rows(values: np.ndarray, column: Column, table: Table) -> bool:
    """Whether the whole numbers count the rows of the table: each another one, in a range that has little more."""
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
    """Whether no row shares its text, empty ones aside, with another one. block: f32 [rows, categories]."""
    rows = block.sum(axis=0)[[bool(text) for text in column.categories]]
    return len(rows) > 2 and bool(rows.max() <= 1)


def _told(block: np.ndarray, labels: np.ndarray, task: str) -> str | None:
    """How much of the target the column tells by itself, in words; None where that is not nearly all."""
    if len(block) < _LEAST_ROWS:
        return None
    if task == "classification":
        return _told_classes(block, labels)
    if block.shape[1] > 1 or labels.shape[1] > 1:
        return None
    x, y = block[:, 0].astype(np.float64), labels[:, 0].astype(np.float64)
    for a, b in ((x, y), (_ranks(x), _ranks(y))):
        if a.std() > 0 and b.std() > 0 and abs(np.corrcoef(a, b)[0, 1]) >= _CORRELATION:
            return "the numbers"
    return None


def _told_classes(block: np.ndarray, labels: np.ndarray) -> str | None:
    """Equal cells get their most frequent class. Numbers tell the target, too, where its classes follow one another in
    few runs along them (a threshold, or some)."""
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
