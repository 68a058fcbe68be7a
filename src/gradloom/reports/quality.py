"""Quality of a model of tables or images on held-out rows: confusion, ROC, calibration, residuals, worst rows.

The definitions are scikit-learn's (confusion_matrix, roc_curve, roc_auc_score, calibration_curve).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..tables.model import Model
from ..tables.scores import Scores, classification_scores, of_each_class, regression_scores
from .held_out import HeldOut

BINS = 10  # parts of a calibration; a histogram has 20
WORST = 20  # rows
MOST_CURVES = 10  # classes with a ROC curve of their own


@dataclass(frozen=True)
class Roc:
    """ROC curve of one class against the others. area: nan where the rows are of one class."""

    name: str
    false_positive: np.ndarray  # f64 [points], rates
    true_positive: np.ndarray
    threshold: np.ndarray  # inf for the first point; nan for a mean of curves
    area: float


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities against observed shares, in equal parts of the probability, without empty ones.

    predicted: mean probability, f64 [parts]. observed: share of rows. low, high: its Wilson interval of one standard
    error (Wilson 1927 with z = 1), which has a width also where the share is 0 or 1. rows: i64 [parts]. error: mean
    |observed - predicted|, weighted by rows (expected calibration error).
    """

    name: str
    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray

    @property
    def error(self) -> float:
        return float(np.average(abs(self.observed - self.predicted), weights=self.rows))


@dataclass(frozen=True)
class Classes:
    """Quality of a classification. confusion: i64 [true class, predicted class], rows. worst: row numbers i64 [n] among
    the held-out rows, by the probability of their own class, the smallest first. probabilities: f64 [rows, classes]."""

    names: Sequence[str]
    scores: Scores
    of_class: dict[str, dict[str, float]]
    confusion: np.ndarray
    roc: Sequence[Roc]
    calibration: Calibration
    worst: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray


@dataclass(frozen=True)
class Numbers:
    """Quality of a regression. predicted, true: f64 [rows, targets] in the units of the data. worst: row numbers among
    the held-out rows, by the largest residual in standard deviations of the target, the largest first."""

    scores: Scores
    predicted: np.ndarray
    true: np.ndarray
    worst: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        """True minus predicted, f64 [rows, targets]."""
        return self.true - self.predicted


def quality(model: Model, rows: HeldOut) -> Classes | Numbers:
    """Quality on these rows, each of which counts once."""
    if model.task == "regression":
        predicted = model.preprocess.outputs_to_targets(rows.outputs)
        true = np.reshape(rows.targets, predicted.shape).astype(np.float64)
        far = (abs(true - predicted) / np.array(model.preprocess.target_std)).max(axis=1)
        return Numbers(regression_scores(predicted, true), predicted, true, np.argsort(-far, kind="stable")[:WORST])
    probabilities = model.probabilities(rows.outputs)
    labels, names = np.asarray(rows.targets).astype(np.int64), model.classes
    predicted = probabilities.argmax(axis=1)
    own = probabilities[np.arange(len(labels)), labels]
    return Classes(
        names,
        classification_scores(probabilities, labels) | _accuracy(predicted == labels),
        of_each_class(predicted, labels, names),
        confusion_matrix(labels, predicted, len(names)),
        [roc_curve(labels == c, probabilities[:, c], names[c]) for c in _curves(labels, len(names))],
        _calibration(probabilities, labels, names),
        np.argsort(own, kind="stable")[:WORST],
        predicted,
        probabilities,
    )


def _accuracy(right: np.ndarray) -> Scores:
    """The accuracy, with the uncertainty that gl.evaluate states."""
    share, n = float(right.mean()), len(right)
    return {"accuracy": share, "accuracy_unc": math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.nan}


def _curves(labels: np.ndarray, classes: int) -> list[int]:
    """The classes that get a ROC curve: of two the second one, of many those with the most rows."""
    if classes == 2:
        return [1]
    most = np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:MOST_CURVES]
    return sorted(most.tolist())


def _calibration(probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> Calibration:
    """Of two classes the probability of the second one; of more that of the predicted class."""
    if len(names) == 2:
        return calibration_curve(labels == 1, probabilities[:, 1], f"probability of {names[1]!r:.60}")
    right = probabilities.argmax(axis=1) == labels
    return calibration_curve(right, probabilities.max(axis=1), "probability of the predicted class")


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """i64 [classes, classes]: rows of each true class (first index) that were predicted as each class."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def roc_curve(positive: np.ndarray, score: np.ndarray, name: str = "") -> Roc:
    """The ROC curve of scores f64 [rows] for rows that are positive or not, bool [rows]. Points on a straight line
    between others are left out."""
    order = np.argsort(-score, kind="stable")
    ranked, up = score[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of equal scores
    true, false = np.cumsum(up)[last].astype(np.float64), np.cumsum(~up)[last].astype(np.float64)
    if len(last) > 2:
        bends = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
        kept = np.flatnonzero(np.concatenate([[True], bends, [True]]))
        true, false, last = true[kept], false[kept], last[kept]
    true, false = np.append(0.0, true), np.append(0.0, false)
    threshold = np.append(np.inf, ranked[last])
    if not (true[-1] and false[-1]):
        return Roc(name, false / max(false[-1], 1), true / max(true[-1], 1), threshold, math.nan)
    x, y = false / false[-1], true / true[-1]
    return Roc(name, x, y, threshold, float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum()))


def mean_curve(curves: Sequence[Roc], name: str) -> Roc:
    """The mean of ROC curves at each false positive rate, with the mean area (roc_auc_score(multi_class="ovr")); its
    threshold is nan. Curves without an area, of classes without rows, do not count."""
    known = [curve for curve in curves if not math.isnan(curve.area)]
    x = np.unique(np.concatenate([curve.false_positive for curve in known])) if known else np.array([0.0, 1.0])
    below, above = (
        np.mean([_true_positive(curve, x, side) for curve in known], axis=0) if known else np.full(2, np.nan)
        for side in ("left", "right")
    )
    both_x, both_y = np.repeat(x, 2), np.stack([below, above], axis=1).reshape(-1)
    area = float((np.diff(both_x) * (both_y[1:] + both_y[:-1]) / 2).sum())
    return Roc(name, both_x, both_y, np.full(len(both_x), np.nan), area)


def _true_positive(curve: Roc, x: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
    """The true positive rate at false positive rates f64 [n]; where the curve is vertical, that of its lower (left) or
    upper (right) end."""
    own, y = curve.false_positive, curve.true_positive
    at = np.searchsorted(own, x, side)
    if side == "right":
        before, after = at - 1, np.minimum(at, len(own) - 1)
    else:
        before, after = np.maximum(at - 1, 0), at
    width = own[after] - own[before]
    share = np.where(width > 0, (x - own[before]) / np.where(width > 0, width, 1.0), float(side == "left"))
    return np.asarray(y[before] + share * (y[after] - y[before]))


def calibration_curve(positive: np.ndarray, probability: np.ndarray, name: str = "", bins: int = BINS) -> Calibration:
    """Calibration of probabilities f64 [rows] for rows that are positive or not, bool [rows]."""
    edges = np.linspace(0, 1, bins + 1)
    part = np.searchsorted(edges[1:-1], probability)
    rows = np.bincount(part, minlength=bins)
    used = np.flatnonzero(rows)
    count = rows[used]
    observed = np.bincount(part, positive, bins)[used] / count
    predicted = np.bincount(part, probability, bins)[used] / count
    middle = (observed + 1 / (2 * count)) / (1 + 1 / count)
    half = np.sqrt(observed * (1 - observed) / count + 1 / (4 * count**2)) / (1 + 1 / count)
    return Calibration(name, predicted, observed, np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0), count)


def histogram(values: np.ndarray, ends: tuple[float, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(rows i64 [bins], edges f64 [bins + 1]) of finite values. ends: the first and the last edge."""
    return np.histogram(values, 2 * BINS, ends)
