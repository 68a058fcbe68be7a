"""Scores of several targets: of each, and their means over the targets of one task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..data.encoding.preprocess import Preprocess
from ..data.encoding.target import as_ids
from ..train.metric import Metric
from .scores import (
    SCORES,
    Measure,
    Scores,
    class_measure,
    class_probabilities,
    is_defined,
    number_measure,
    with_uncertainties,
)
from .target_loss import unpacked


class Cells(NamedTuple):
    """One target: the rows in which it is known, i64 [n], and there the outputs of the network f32 [n, outputs] and the
    targets, ids i32 [n] or numbers f64 [n, 1]. preprocess: as if it were the only target."""

    preprocess: Preprocess
    rows: np.ndarray
    outputs: np.ndarray
    targets: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """Of its classes, f64 [n, classes]."""
        return class_probabilities(self.outputs, "cross_entropy")

    @property
    def numbers(self) -> np.ndarray:
        """The predicted numbers, f64 [n, 1]."""
        return self.preprocess.outputs_to_targets(self.outputs)


def cells_of_targets(preprocess: Preprocess, outputs: np.ndarray, targets: np.ndarray) -> list[Cells]:
    """Each target by itself. outputs: f32 [rows, outputs] of the network. targets: f64 [rows, targets], see
    Preprocess."""
    made = []
    for (one, at), column in zip(preprocess.each_target, targets.T, strict=True):
        rows = np.flatnonzero(~np.isnan(column))
        known = column[rows]
        own = as_ids(known) if one.task == "classification" else known[:, None]
        made.append(Cells(one, rows, outputs[rows][:, at], own))
    return made


def target_scores(
    cells: Sequence[Cells], weights: np.ndarray | None = None, uncertainties: bool = True
) -> tuple[dict[str, Scores], Scores]:
    """(scores of each target by its name; their means over the targets for which they are defined, by name), each
    followed by NAME_unc where asked for. Scores: as of classification_scores and regression_scores. All are drawn from
    the same resamplings of the rows. weights: of the rows, f64 [rows].

    A target without a known row has no scores.
    """
    measured = [(one, _measure(one)) for one in cells if len(one.rows)]
    total = max((int(one.rows.max()) + 1 for one, _ in measured), default=0)

    def scores(weight: np.ndarray) -> Scores:
        found: Scores = {}
        for k, (one, measure) in enumerate(measured):
            own = weight[one.rows]
            each = measure.scores(own) if own.any() else dict.fromkeys(SCORES[one.preprocess.task], math.nan)
            found |= {f"{k}.{name}": value for name, value in each.items()}
        return found | _means(found)

    keys, numbers = [], 0
    for one, measure in measured:
        for key in measure.keys:
            wide = np.full(total, np.inf)
            wide[one.rows] = key
            keys.append(wide)
        numbers += measure.numbers
    if not measured:
        return {}, {}
    whole = with_uncertainties(
        scores, keys, numbers if uncertainties else 0, None if weights is None else weights[:total]
    )
    each = {
        one.preprocess.target: {
            name.partition(".")[2]: value for name, value in whole.items() if name.startswith(f"{k}.")
        }
        for k, (one, _) in enumerate(measured)
    }
    return each, {name: value for name, value in whole.items() if "." not in name}


def _measure(one: Cells) -> Measure:
    if one.preprocess.task == "classification":
        return class_measure(one.probabilities, one.targets)
    return number_measure(one.numbers, one.targets)


def _means(found: Mapping[str, float]) -> Scores:
    """The mean of each score over the targets that have it; nan where no target has."""
    by_name: dict[str, list[float]] = {}
    for name, value in found.items():
        by_name.setdefault(name.partition(".")[2], []).append(value)
    known = {name: [v for v in values if not math.isnan(v)] for name, values in by_name.items()}
    return {name: float(np.mean(values)) if values else math.nan for name, values in known.items()}


def mean_metric(name: str, preprocess: Preprocess) -> Metric:
    """The mean of a score over the targets, as a metric of gl.fit for packed labels."""

    def mean(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
        cells = cells_of_targets(preprocess, outputs, unpacked(labels, preprocess))
        return target_scores(cells, weights, uncertainties=False)[1].get(name, math.nan)

    return Metric(mean, whole=True)


def is_defined_for_some(name: str, targets: np.ndarray, weights: np.ndarray | None) -> bool:
    """Whether a score is a number for some target, f64 [rows, targets]."""
    known = [(column, ~np.isnan(column)) for column in targets.T]
    return any(
        rows.any() and is_defined(name, column[rows], None if weights is None else weights[rows])
        for column, rows in known
    )
