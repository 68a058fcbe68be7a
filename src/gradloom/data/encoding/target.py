"""Target: one of several targets of a table, with its classes or its scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...base.described import Described
from ..dataset import IGNORED
from ..reading.cells import composed

MIXED = "mixed"  # the task of a table with targets of both tasks
TASKS = ("classification", "regression")

Labels = np.ndarray | tuple[np.ndarray, ...]


@dataclass
class Target:
    """One of several targets of a table.

    name     of its column
    task     "classification" or "regression"
    classes  names, in the order of the outputs of the model; of a classification
    mean, std  of the training rows, of a regression
    index    its column in the training file; None of targets that are arrays
    grouped  as Column.grouped, of a regression
    """

    name: str
    task: str
    classes: list[str] = field(default_factory=list)
    mean: float = 0.0
    std: float = 1.0
    index: int | None = None
    grouped: bool = False

    @property
    def width(self) -> int:
        """Outputs of the model: a logit per class, or one number."""
        return len(self.classes) if self.task == "classification" else 1

    def described(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_described(cls, entry: Described) -> Target:
        """From parsed JSON; DataError for keys and types that `described` does not produce."""
        made = cls(
            name=composed(entry.text("name")),
            task=entry.text("task", TASKS),
            classes=entry.texts("classes"),
            mean=entry.number("mean"),
            std=entry.number("std", positive=True),
            index=entry.whole_or_none("index", 0),
            grouped=entry.flag("grouped"),
        )
        entry.end()
        return made


def task_of(targets: Sequence[Target]) -> str:
    """The task that all targets have, or "mixed"."""
    tasks = {target.task for target in targets}
    return tasks.pop() if len(tasks) == 1 else MIXED


def as_ids(column: np.ndarray) -> np.ndarray:
    """Class ids f64 [rows], NaN where they are unknown, as i32 with -100 there."""
    return np.where(np.isnan(column), IGNORED, column).astype(np.int32)


def of_target(targets: np.ndarray, k: int, task: str) -> np.ndarray:
    """One of several targets f64 [rows, targets] as that of a model with this target alone: ids i32 [rows], -100 where
    they are unknown, or numbers f64 [rows, 1]."""
    return as_ids(targets[:, k]) if task == "classification" else targets[:, k : k + 1]


def as_column(targets: np.ndarray) -> np.ndarray:
    """Class ids [rows], of which those below 0 are unknown, or numbers f64 [rows, 1], as f64 [rows]: NaN where they are
    unknown."""
    values = targets.reshape(-1).astype(np.float64)
    return np.where(np.isnan(values) | ((targets.reshape(-1) < 0) & (targets.dtype.kind == "i")), np.nan, values)


def taken_labels(labels: Labels, rows: np.ndarray | slice) -> Any:
    """These rows of the labels of a table, an array or a tuple of arrays."""
    return tuple(one[rows] for one in labels) if isinstance(labels, tuple) else labels[rows]
