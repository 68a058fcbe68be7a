"""Metrics of scores: their order (ROC AUC, average precision), and their calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import SettingError
from .counts import averaged
from .score import ClassScore, Labelled


class Ranking:
    """Rows in the order of a score, largest first, for any row weights; rows of equal scores are one step.

    score: f64 [rows]; positive: bool [rows].
    """

    def __init__(self, score: np.ndarray, positive: np.ndarray) -> None:
        self.order = np.argsort(-score, kind="stable")
        ranked = score[self.order]
        starts = np.ones(len(ranked), bool)
        starts[1:] = ranked[1:] != ranked[:-1]
        self.starts = np.flatnonzero(starts)
        self.positive = positive[self.order]

    def _steps(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the positive and of the negative rows of each step."""
        ranked = weight[self.order]
        if not len(ranked):
            return np.empty(0), np.empty(0)
        up = np.add.reduceat(np.where(self.positive, ranked, 0.0), self.starts)
        return up, np.add.reduceat(np.where(self.positive, 0.0, ranked), self.starts)

    def area(self, weight: np.ndarray) -> float:
        """The area under the ROC curve (ties count half); nan where all rows that weigh something are on one side."""
        up, right = self._steps(weight)
        if not up.any() or not right.any():
            return math.nan
        return float((right * (np.cumsum(up) - up / 2)).sum() / (up.sum() * right.sum()))

    def average_precision(self, weight: np.ndarray) -> float:
        """The sum over steps of precision times the growth of recall; 0 without a positive row."""
        up, right = self._steps(weight)
        if not up.any():
            return 0.0
        hits, all_ = np.cumsum(up), np.cumsum(up + right)
        precision = np.divide(hits, all_, out=np.zeros_like(hits), where=all_ > 0)
        return float((precision * up).sum() / hits[-1])


@dataclass(frozen=True, repr=False)
class _OfRanking(ClassScore):
    """A score of the order of the probabilities of each class.

    average  "macro": mean over the classes; "weighted": weighted by their rows; "micro": of all pairs of row and class
             as one; None: array f64 [classes] (not in trainings). One yes-or-no label has one score
    """

    average: Literal["macro", "micro", "weighted"] | None = "macro"

    def __post_init__(self) -> None:
        if self.average not in ("macro", "micro", "weighted", None):
            need = "macro, micro, weighted or None"
            raise SettingError(setting="average", seen=self.average, need=need, place=type(self).__name__)

    def of_ranking(self, ranking: Ranking, weight: np.ndarray) -> float:
        """The score of one class."""
        raise NotImplementedError

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> Any:
        found = self.labelled(outputs, labels, weights)
        if np.isnan(found.outputs).any() or not found.weights.any():
            return math.nan if self.average is not None else np.full(len(self.classes(found)), math.nan)
        scores = found.probabilities if found.is_exclusive else found.outputs  # in the order of the logits
        hits, wide = found.hits, found.wide_weights
        if self.average == "micro":
            scores = scores if found.is_exclusive else found.probabilities
            kept = wide.ravel() > 0
            return self.of_ranking(Ranking(scores.ravel()[kept], hits.ravel()[kept]), wide.ravel()[kept])
        each = np.array([
            self.of_ranking(Ranking(scores[:, c][wide[:, c] > 0], hits[:, c][wide[:, c] > 0]), wide[wide[:, c] > 0, c])
            for c in self.classes(found)
        ])  # fmt: skip
        if self.average is None:
            return each
        of_class = (wide * hits).sum(axis=0)[list(self.classes(found))]
        return averaged(each, of_class if self.average == "weighted" else None)

    def classes(self, labels: Labelled) -> range:
        """The classes that have a score."""
        return range(labels.outputs.shape[1])


class ROCAUC(_OfRanking, name="roc_auc"):
    """Area under the ROC curve; sklearn.metrics.roc_auc_score (multi_class="ovr": each class against the rest).

    Of two exclusive classes it is that of the second one. nan for a class without rows, or with all rows, which has no
    part in averages.
    """

    def of_ranking(self, ranking: Ranking, weight: np.ndarray) -> float:
        return ranking.area(weight)

    def classes(self, labels: Labelled) -> range:
        count = labels.outputs.shape[1]
        return range(1, 2) if labels.is_exclusive and count == 2 else range(count)


class AveragePrecision(_OfRanking, name="average_precision"):
    """Sum over thresholds of precision times the growth of recall; sklearn.metrics.average_precision_score.

    0 for a class without rows, as there.
    """

    def of_ranking(self, ranking: Ranking, weight: np.ndarray) -> float:
        return ranking.average_precision(weight)


@dataclass(frozen=True, repr=False)
class ECE(ClassScore, name="ece"):
    """Expected calibration error (Naeini et al. 2015; Guo et al., arXiv 1706.04599): sum over bins of the share of the
    rows in a bin times |share that is right - mean probability|.

    Of exclusive classes the probability is that of the predicted class; of yes-or-no labels that of yes, all labels
    together, and right means true. Bins (a, b] of equal width divide 0 to 1.

    bins  number of bins, at least 1
    """

    higher = False
    bins: int = 15

    def __post_init__(self) -> None:
        as_whole("bins", self.bins, 1, "ECE")

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> float:
        found = self.labelled(outputs, labels, weights)
        if np.isnan(found.outputs).any() or not found.weights.any():
            return math.nan
        shares = found.probabilities
        if found.is_exclusive:
            chosen, right = shares.max(axis=1), found.predicted == found.true
        else:
            chosen, right = shares.ravel(), found.true.ravel()
        each = found.weights.ravel()
        bins = np.searchsorted(np.linspace(0, 1, self.bins + 1)[1:-1], chosen)
        gap = np.bincount(bins, each * (right - chosen), self.bins)
        return float(np.abs(gap).sum() / each.sum())
