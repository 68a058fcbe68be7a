"""The loss of several targets: a mean over the cells of all targets that are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import losses, ops
from ..base.errors import SettingError
from ..data.dataset import IGNORED, Dataset
from ..data.encoding.preprocess import Preprocess
from ..data.encoding.target import Labels
from ..graph.value import Value


def packed(labels: Labels, preprocess: Preprocess) -> np.ndarray:
    """Labels of several targets as TargetLoss reads them, f32 [rows, 2 * targets]: for each target the class id or the
    standardised number, 0 where it is missing; then for each 1 where it is known, else 0. labels: as of
    Preprocess.labels."""
    each, known = [], []
    for k, (one, _) in enumerate(preprocess.each_target):
        column = labels[k] if isinstance(labels, tuple) else labels[:, k]
        known.append(column != IGNORED if one.task == "classification" else ~np.isnan(column))
        each.append(np.where(known[-1], column, 0))
    return np.stack([*each, *known], axis=1).astype(np.float32)


def packed_dataset(data: Dataset, preprocess: Preprocess) -> Dataset:
    """The data set with packed labels, in the same order."""
    made = Dataset(data.data, packed(data.labels, preprocess), weights=data.weights)
    made.records = data.records
    return made


def unpacked(labels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """The packed labels as targets, f64 [rows, targets]: class ids, numbers in the units of the data, NaN where they
    are missing."""
    targets, columns = len(preprocess.targets), []
    for k, (one, _) in enumerate(preprocess.each_target):
        own = labels[:, k]
        column = own if one.task == "classification" else one.outputs_to_targets(own)[:, 0]
        columns.append(np.where(labels[:, targets + k] > 0, column, np.nan))
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class _Run:
    """Consecutive targets of one task and width."""

    is_class: bool
    start: int  # of their outputs
    first: int  # target
    count: int
    width: int


class TargetLoss:
    """sum of loss(cell) / number of cells, over all known targets of all rows, each weighted by its row (and class).

    The loss of a class is the cross entropy in nats, that of a number `numbers` ("mse", "l1" or "huber") of the
    standardised target. All targets have weight 1. Called with outputs f32 [rows, outputs], packed labels and row
    weights f32 [rows] or None; returns (sum, weight). class_weight: factor of each output that is a class, f32
    [outputs].
    """

    def __init__(self, preprocess: Preprocess, numbers: str, class_weight: Sequence[float] | None = None) -> None:
        self.targets, self.numbers = len(preprocess.targets), numbers
        self.class_weight = None if class_weight is None else np.array(class_weight, np.float32)
        self.runs: list[_Run] = []
        first = start = 0
        for (task, width), same in itertools.groupby(preprocess.targets, lambda one: (one.task, one.width)):
            count = len(list(same))
            self.runs.append(_Run(task == "classification", start, first, count, width))
            first, start = first + count, start + count * width

    def __repr__(self) -> str:
        """The same text in each process."""
        runs = ", ".join(f"{run.count} x {run.width if run.is_class else self.numbers}" for run in self.runs)
        weights = "" if self.class_weight is None else f", class_weight={self.class_weight.tolist()}"
        return f"TargetLoss({runs}{weights})"

    def __call__(self, outputs: Value, labels: Value, weights: Value | None = None) -> tuple[Value, Value]:
        rows = outputs.shape[0]
        own = None if weights is None else ops.reshape(weights, (rows, 1))
        totals, counts = [], []
        for run in self.runs:
            x = self._columns(outputs, run.start, run.count * run.width)
            y = self._columns(labels, run.first, run.count)
            known = self._columns(labels, self.targets + run.first, run.count)
            if run.is_class:
                x = ops.log_softmax(ops.reshape(x, (rows, run.count, run.width)), -1)
                ids = np.arange(run.width, dtype=np.float32)
                is_own = ops.equal(ops.reshape(y, (rows, run.count, 1)), ids)
                each = -ops.sum(ops.where(is_own, x, 0.0), -1)
                if self.class_weight is not None:
                    table = self.class_weight[run.start : run.start + run.count * run.width]
                    table = table.reshape(1, run.count, run.width)
                    known = known * ops.sum(ops.where(is_own, table, 0.0), -1)
            else:
                each = self._values(x, y)
            known = known if own is None else known * own
            totals.append(ops.sum(each * known))
            counts.append(ops.sum(known))
        return _sum(totals), _sum(counts)

    def _values(self, x: Value, y: Value) -> Value:
        loss: Any = losses.named(self.numbers)
        made: Value = loss.values(x, y)
        return made

    @staticmethod
    def _columns(x: Value, start: int, count: int) -> Value:
        return ops.slice(x, (0, start), (x.shape[0], start + count))


def _sum(values: Iterable[Value]) -> Value:
    first, *others = values
    for one in others:
        first = first + one
    return first


def balanced(labels: np.ndarray, preprocess: Preprocess) -> list[float]:
    """n / (k * count) for each class of each target, as scikit-learn's "balanced", from packed labels f32 of the
    training rows; 1 for numbers, and for classes without rows. SettingError where no target has classes."""
    if preprocess.task == "regression":
        raise SettingError("{class_weight} requires a target with classes", class_weight="balanced")
    made = np.ones(preprocess.outputs)
    for k, (one, at) in enumerate(preprocess.each_target):
        if one.task == "classification":
            known = labels[:, len(preprocess.targets) + k] > 0
            count = np.bincount(labels[known, k].astype(np.int64), minlength=len(one.classes)).astype(np.float64)
            made[at] = np.where(count > 0, count.sum() / ((count > 0).sum() * np.maximum(count, 1)), 1.0)
    return made.tolist()
