"""The rows of a table for training, validation and test: by class, or by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.defaults import LEAST_VALIDATED, VALIDATED
from ..base.errors import DataError
from .dataset import split_rows
from .encoding.targets import hold_out
from .encoding.times import NUMBER, missing_time, times_of
from .reading.columns import Columns
from .reading.raw_table import RawTable


class TableSplit:
    """The rows of each part: `rows` for training, `held` for the test, and `val_rows` where they are split by time.

    by_time: the column of times, if there is one. in_fit: whether fit takes the validation rows from `rows`.
    """

    def __init__(self, raw: RawTable, roles: Mapping[int, str], val_split: float | None, seed: int) -> None:
        self.raw, self.seed = raw, seed
        self.by_time = next((index for index, role in roles.items() if role == "time"), None)
        self.val_split: Any = val_split
        self.rows = np.arange(len(raw.y), dtype=np.int64)
        self.val_rows, self.held = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.changes = self.rows
        if self.by_time is not None:
            self.rows, self.changes = _in_time(raw, self.by_time)

    @property
    def in_fit(self) -> bool:
        return bool(self.val_split) and self.by_time is None

    def hold_out_test(self, classes: np.ndarray, share: float) -> None:
        if len(classes) < 2:
            raise DataError(f"{self.raw.path}: {len(classes)} row; need at least 2, one of them for the test")
        if self.by_time is not None:
            self.rows, self.held = _latest(self.raw, self.rows, self.changes, share, "test")
        else:
            self.rows, self.held = hold_out(classes, share, self.seed)

    def choose_validation(self) -> None:
        """Decide the share where it is None, and take the latest rows where they are split by time."""
        if self.val_split is None:
            is_validated = isinstance(self.raw.x, Columns) and len(self.rows) >= LEAST_VALIDATED
            self.val_split = VALIDATED if is_validated else 0.0
            if self.by_time is not None and not (self.changes < len(self.rows)).any():
                self.val_split = 0.0  # one time is left: no later one validates
        if self.by_time is not None and self.val_split and len(self.rows) > 1:
            self.rows, self.val_rows = _latest(self.raw, self.rows, self.changes, self.val_split, "validation")

    def known(self) -> np.ndarray:
        """The rows that are trained on; DataError for fewer than two."""
        rows = self.rows
        known = rows[split_rows(len(rows), self.val_split, self.seed)[0]] if self.in_fit else rows
        if len(known) < 2:
            n, need = len(self.raw.y), f"{len(known)} remains for training after test and validation; need at least 2"
            raise DataError(f"{self.raw.path}: {n} row{'s' * (n != 1)}, of which {need}")
        return known


def _latest(
    raw: RawTable, rows: np.ndarray, changes: np.ndarray, share: float, part: str
) -> tuple[np.ndarray, np.ndarray]:
    """(the other rows, about this share of the latest rows); rows of one time are on one side.

    changes: the positions in `rows` where a new time begins. DataError if all rows have one time."""
    wanted = len(rows) - min(max(round(len(rows) * share), 1), len(rows) - 1)
    changes = changes[changes < len(rows)]
    if not len(changes):
        need = f"the {part} rows require later ones than the others"
        raise DataError(f"{raw.path}: time: all {len(rows)} rows that are left have the same time; {need}")
    start = int(changes[np.argmin(abs(changes - wanted))])
    if start != wanted:
        count, seen = len(rows) - start, len(rows) - wanted
        raw.notes.append(f"{part}: {count:,} rows in place of {seen:,}, because rows of the same time stay together")
    return rows[:start], rows[start:]


def _in_time(raw: RawTable, index: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows in the order of time, then of the file; positions where a new time begins)."""
    assert isinstance(raw.x, Columns)
    seconds, form = times_of(raw.x, index)
    error = missing_time(raw.x, index, seconds)
    if error is not None:
        raise error
    kind = "numbers" if form == NUMBER else "dates of the form 2024-01-31" if form == "iso" else f"dates, {form}"
    if form != NUMBER and form != "iso" and "%y" not in form.lower():
        kind = f"times of day without a date, {form}"
    raw.notes.append(f"time: {raw.names_of()[index]!r:.60} holds {kind}; the rows are split by it, the latest last")
    order = np.argsort(seconds, kind="stable")
    return order, np.flatnonzero(np.diff(seconds[order])) + 1
