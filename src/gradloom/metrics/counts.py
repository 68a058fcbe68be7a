"""Metrics of predicted classes: counts of right and wrong predictions of each class. Definitions of scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..base.errors import SettingError
from ..losses.loss import check_number, settle
from .score import ClassScore, Labelled

Average = Literal["auto", "macro", "micro", "weighted"] | None
AVERAGES = ("auto", "macro", "micro", "weighted")


class Counts(NamedTuple):
    """Weights of each class, f64 [classes]: predicted rightly, true, predicted."""

    hits: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def counts_of(labels: Labelled) -> Counts:
    """The counts of each class or label."""
    weights, predicted, true = labels.weights, labels.predicted, labels.true
    if not labels.is_exclusive:
        return Counts(*((weights * one).sum(axis=0) for one in (predicted & true, true, predicted)))
    classes = labels.outputs.shape[1]
    return Counts(
        np.bincount(true, weights * (predicted == true), classes),
        np.bincount(true, weights, classes),
        np.bincount(predicted, weights, classes),
    )


def ratio(above: np.ndarray, below: np.ndarray, otherwise: float) -> np.ndarray:
    """above / below, and `otherwise` where that is 0 / 0."""
    return np.divide(above, below, out=np.full(np.shape(above), otherwise), where=below != 0)


def averaged(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The mean of the values that are not nan; weighted, where some weight is not 0. nan where there are none."""
    known = ~np.isnan(values)
    if not known.any():
        return math.nan
    if weights is None or not weights[known].any():
        return float(values[known].mean())
    return float(np.average(values[known], weights=weights[known]))


@dataclass(frozen=True, repr=False)
class _OfCounts(ClassScore):
    """A score of each class from its counts.

    average        "macro": mean over the classes that are true or predicted in some row (of yes-or-no labels: all);
                   "weighted": the same, weighted by the true rows; "micro": of the sums of all classes; "auto": macro,
                   but of a single yes-or-no label the score of yes; None: array f64 [classes] (not in trainings)
    label          the class whose score it is, in place of an average
    zero_division  the score of a class where it is 0 / 0: 0, 1 or nan (nan: the class has no part in averages)
    """

    average: Average = "auto"
    label: int | None = None
    zero_division: float = 0.0

    def __post_init__(self) -> None:
        place = type(self).__name__
        if self.average not in (*AVERAGES, None):
            raise SettingError(setting="average", seen=self.average, need=f"{', '.join(AVERAGES)} or None", place=place)
        if self.label is not None and (isinstance(self.label, bool) or not isinstance(self.label, int)):
            raise SettingError(setting="label", seen=self.label, need="the id of a class", place=place)
        if self.label is not None and self.average != "auto":
            text = "{label} and {average} are mutually exclusive"
            raise SettingError(text, label=self.label, average=self.average, place=place)
        if self.zero_division not in (0, 1) and not (
            isinstance(self.zero_division, float) and math.isnan(self.zero_division)
        ):
            raise SettingError(setting="zero_division", seen=self.zero_division, need="0, 1 or nan", place=place)
        settle(self, zero_division=float(self.zero_division))

    def of_each(self, counts: Counts) -> np.ndarray:
        """The score of each class."""
        raise NotImplementedError

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> Any:
        found = self.labelled(outputs, labels, weights)
        counts, of_present = counts_of(found), found.is_exclusive
        if np.isnan(found.outputs).any():
            counts = Counts(*(one * math.nan for one in counts))
        if len(counts.true) == 1 and not found.is_exclusive and (self.average != "auto" or self.label is not None):
            counts, of_present = _both_sides(found, counts), True  # classes no and yes
        if self.average == "micro":
            return float(self.of_each(Counts(*(one.sum(keepdims=True) for one in counts)))[0])
        each = self.of_each(counts)
        if self.label is not None:
            if not 0 <= self.label < len(each):
                need = f"a class from 0 to {len(each) - 1}"
                raise SettingError(setting="label", seen=self.label, need=need, place=type(self).__name__)
            return float(each[self.label])
        if self.average is None:
            return each
        shown = (counts.true > 0) | (counts.predicted > 0) if of_present else np.ones(len(each), bool)
        return averaged(each[shown], counts.true[shown] if self.average == "weighted" else None)


def _both_sides(labels: Labelled, yes: Counts) -> Counts:
    """The counts of no and yes of one yes-or-no label."""
    no = counts_of(Labelled(-labels.outputs, ~labels.true, labels.weights))
    right = (labels.weights * (~labels.predicted & ~labels.true)).sum(axis=0)  # an output of 0 is a no
    predicted = (labels.weights * ~labels.predicted).sum(axis=0)
    no = Counts(right, no.true, predicted)
    return Counts(*(np.concatenate(pair) for pair in zip(no, yes, strict=True)))


class Precision(_OfCounts, name="precision"):
    """Share of the rows predicted as a class that belong to it; sklearn.metrics.precision_score."""

    def of_each(self, counts: Counts) -> np.ndarray:
        return ratio(counts.hits, counts.predicted, self.zero_division)


class Recall(_OfCounts, name="recall"):
    """Share of the rows of a class that are predicted as it; sklearn.metrics.recall_score."""

    def of_each(self, counts: Counts) -> np.ndarray:
        return ratio(counts.hits, counts.true, self.zero_division)


@dataclass(frozen=True, repr=False)
class FBeta(_OfCounts, name="f_beta"):
    """(1 + beta^2) p r / (beta^2 p + r) of precision p and recall r; sklearn.metrics.fbeta_score.

    beta  how much more recall weighs than precision, above 0
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, beta=check_number(type(self).__name__, "beta", self.beta, above=0))

    def of_each(self, counts: Counts) -> np.ndarray:
        square = self.beta**2
        return ratio((1 + square) * counts.hits, square * counts.true + counts.predicted, self.zero_division)


class F1(_OfCounts, name="f1"):
    """2 p r / (p + r) of precision p and recall r; sklearn.metrics.f1_score."""

    def of_each(self, counts: Counts) -> np.ndarray:
        return ratio(2 * counts.hits, counts.true + counts.predicted, self.zero_division)


class IoU(_OfCounts, name="iou"):
    """Rows of a class that are predicted as it, over rows of either; sklearn.metrics.jaccard_score."""

    def of_each(self, counts: Counts) -> np.ndarray:
        return ratio(counts.hits, counts.true + counts.predicted - counts.hits, self.zero_division)


class BinaryAccuracy(ClassScore, name="binary_accuracy"):
    """Share of the labels that are predicted rightly: yes where the output is above 0. (The accuracy of exclusive
    classes is always measured with cross_entropy and nll.)"""

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> float:
        found = self.labelled(outputs, labels, weights)
        total = found.weights.sum()
        if np.isnan(found.outputs).any():
            return math.nan
        return float((found.weights * (found.predicted == found.true)).sum() / total) if total else math.nan


def confusion_matrix(outputs: Any, labels: Any, weights: Any = None, *, sigmoid: bool | None = None) -> np.ndarray:
    """Rows (their weights) of each true class (first index) that were predicted as each class (second index).

    outputs: logits f32 [..., classes], or of one yes-or-no label [...], [..., 1] (then 2 x 2). labels, sigmoid: as of
    ClassScore. Returns i64 [classes, classes], f64 with weights; sklearn.metrics.confusion_matrix. Raises ShapeError,
    DataError.
    """
    found = ClassScore(sigmoid=sigmoid).labelled(outputs, labels, weights)
    true, predicted, each, classes = found.true, found.predicted, found.weights, found.outputs.shape[1]
    if not found.is_exclusive:
        if classes != 1:
            raise SettingError(f"confusion_matrix: {classes} yes-or-no labels per row; need one, or exclusive classes")
        true, predicted, each, classes = true[:, 0].astype("i8"), predicted[:, 0].astype("i8"), each[:, 0], 2
    table = np.bincount(true * classes + predicted, each, classes**2).reshape(classes, classes)
    return table.astype(np.int64) if weights is None else table
