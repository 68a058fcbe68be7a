"""Permutation importance of the columns of a table: how much worse a model scores when one column is shuffled.

The definition is scikit-learn's (permutation_importance with the accuracy or R2 as score, and the same shuffles for a
seed). The columns of a file are shuffled, each with all features that are made of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ..base.terminal import plural
from ..data.encoding.target import MIXED, of_target
from ..tables.model import Model
from .held_out import HeldOut

REPEATS = 10
SECONDS = 45.0  # planned for all columns; a column that begins after 60 s is left out
_LATEST = 60.0
_LEAST_ROWS, _LEAST_REPEATS = 500, 3
_SEED = 0


@dataclass(frozen=True)
class Importance:
    """Importance of each column, in the order of the table.

    score: "accuracy" or "R2"; of several targets the mean of theirs. base: the score of the rows as they are. mean:
    f64 [columns], base minus the score with the column shuffled, mean over the repeats. spread: its standard
    deviation over the repeats. error: standard error of the mean that follows from the scatter between rows; nan for
    fewer than two rows. repeats, rows: shuffles of each column, and rows that are shuffled, of `of_rows`. left_out:
    columns that were not measured for lack of time.
    """

    names: list[str]
    score: str
    base: float
    mean: np.ndarray
    spread: np.ndarray
    error: np.ndarray
    repeats: int
    rows: int
    of_rows: int
    left_out: int = 0

    def described(self) -> str:
        """One sentence on rows and repeats."""
        rows = (
            plural(self.rows, "row") if self.rows == self.of_rows else f"{self.rows:,} of {self.of_rows:,} rows, drawn"
        )
        text = f"{self.score} {self.base:.4g} minus the {self.score} with a column shuffled: mean of {self.repeats}"
        text += f" shuffles of {rows}."
        if self.left_out:
            text += f" Left out for lack of time: the last {plural(self.left_out, 'column')} of the table."
        return text

    def order(self) -> np.ndarray:
        """The columns, the most important one first, i64 [columns]."""
        return np.argsort(-self.mean, kind="stable")


def importance(model: Model, rows: HeldOut, repeats: int = REPEATS, seconds: float = SECONDS) -> Importance | None:
    """The importance of the used columns on held-out rows; None for a model of images, which has no columns, for a
    score that is not defined (targets that are all equal), and for a single row.

    seconds: the planned time. First the number of rows is reduced for it, then the repeats, then the columns.
    """
    made = model.preprocess
    used = [(c.name, c.width) for c in made.columns if c.width]
    if made.kind != "columns" or not used or rows.count < 2:
        return None
    features, targets, outputs = rows.features, rows.targets, rows.outputs
    began = time.monotonic()
    model.outputs(features)  # compiled by the call before, if these rows were just predicted
    per_row = (time.monotonic() - began) / len(features)
    count, repeats = _affordable(len(features), len(used), repeats, seconds / max(per_row, 1e-9))
    if count < len(features):
        chosen = np.sort(np.random.RandomState(_SEED).permutation(len(features))[:count])
        features, targets, outputs = features[chosen], targets[chosen], outputs[chosen]
    base = _gains(model, outputs, targets)
    if base is None:
        return None
    seeds = np.random.RandomState(_SEED).randint(np.iinfo(np.int32).max + 1)
    deadline = time.monotonic() + seconds * _LATEST / SECONDS
    means: list[float] = []
    spreads: list[float] = []
    errors: list[float] = []
    at = 0
    for _, width in used:
        if means and time.monotonic() > deadline:
            break
        lost = np.stack(_shuffled(model, features, targets, slice(at, at + width), repeats, seeds, base))
        at += width
        scores = lost.mean(axis=1)
        means.append(scores.mean())
        spreads.append(scores.std())
        of_rows = lost.mean(axis=0)
        errors.append(of_rows.std(ddof=1) / np.sqrt(len(of_rows)) if len(of_rows) > 1 else np.nan)
    names_of_tasks = {"classification": "accuracy", "regression": "R2", MIXED: "score (accuracy or R2)"}
    score = f"{'mean ' * bool(made.targets)}{names_of_tasks[model.task]}"
    names = [name for name, _ in used[: len(means)]]
    return Importance(
        names, score, float(base.mean()), np.array(means), np.array(spreads), np.array(errors), repeats,
        len(features), len(rows.features), len(used) - len(means),
    )  # fmt: skip


def _affordable(rows: int, columns: int, repeats: int, most: float) -> tuple[int, int]:
    """(rows, repeats) with rows * repeats * columns at most `most`, as far as there are enough of each."""
    share = most / columns
    count = rows if rows * repeats <= share else min(rows, max(int(share / repeats), _LEAST_ROWS))
    if count * repeats > share:
        repeats = min(repeats, max(int(share / count), _LEAST_REPEATS))
    return count, repeats


def _shuffled(
    model: Model, features: np.ndarray, targets: np.ndarray, part: slice, repeats: int, seed: int, base: np.ndarray
) -> list[np.ndarray]:
    """For each repeat the contribution of each row to the importance, f64 [rows]: their mean is base minus score."""
    rng = np.random.RandomState(seed)
    changed, order = features.copy(), np.arange(len(features))
    found = []
    for _ in range(repeats):
        rng.shuffle(order)
        changed[:, part] = changed[order, part]
        gains = _gains(model, model.outputs(changed), targets)
        assert gains is not None
        found.append(base - gains)
    return found


def _gains(model: Model, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
    """The contribution of each row to the score, f64 [rows]: the mean is the accuracy, or the mean R2 of the targets;
    of several targets the mean of those that are defined. None where R2 is not defined."""
    if model.preprocess.targets:
        made = []
        for k, (one, at) in enumerate(model.of_targets()):
            known = np.flatnonzero(~np.isnan(targets[:, k]))
            own = of_target(targets[known], k, one.task)
            gains = _gains(one, outputs[known][:, at], own) if len(known) else None
            if gains is not None:
                wide = np.zeros(len(targets))
                wide[known] = gains * (len(targets) / len(known))
                made.append(wide)
        return np.mean(made, axis=0) if made else None
    if model.task == "classification":
        return (outputs.argmax(axis=1) == targets).astype(np.float64)
    predicted = model.preprocess.outputs_to_targets(outputs)
    true = np.reshape(targets, predicted.shape).astype(np.float64)
    spread = np.square(true - true.mean(axis=0)).mean(axis=0)
    if not spread.all():
        return None
    return (1 - np.square(predicted - true) / spread).mean(axis=1)
