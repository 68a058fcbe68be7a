"""Metrics of predicted numbers. x: outputs, y: labels, of one shape [rows, ...]; whole-number labels of -100 do not
count. Definitions of scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import ShapeError
from ..graph.value import Value
from ..losses.loss import as_targets
from ..ops.loss import IGNORED, Pair, weighted
from .score import Score, arrays_of, as_node, weights_of

LEAST = float(np.finfo(np.float64).eps)  # of |y| in mape, as in scikit-learn


class _OfRows(Score):
    """A mean over rows of the mean over the elements of a row: a node of the graph, with the standard error of the
    mean."""

    whole = False
    higher = False

    def values(self, x: Value, y: Value) -> Value:
        """The value of each element."""
        raise NotImplementedError

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> Value | Pair:
        x, y, ignored = as_targets(self.key, as_node(self, outputs, labels), labels)
        each = self.values(x, y)
        if ignored is not None and each.size > each.shape[0]:
            return weighted(self.key, each, weights, ignored)
        return each if each.ndim == 1 else ops.mean(each, axes=tuple(range(1, each.ndim)))


class MAE(_OfRows, name="mae"):
    """Mean of |x - y|; sklearn.metrics.mean_absolute_error."""

    def values(self, x: Value, y: Value) -> Value:
        return ops.abs(x - y)


class MAPE(_OfRows, name="mape"):
    """Mean of |x - y| / max(|y|, 2.2e-16), 1 for 100 %; sklearn.metrics.mean_absolute_percentage_error."""

    def values(self, x: Value, y: Value) -> Value:
        return ops.abs(x - y) / ops.maximum(ops.abs(y), LEAST)


class _OfTargets(Score):
    """A mean over targets of a score of each."""

    def arrays(self, outputs: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(x, y, weights), f64 [n, targets], of the rows and targets with a label that counts; x and y are 0 where a
        label does not."""
        given, true = arrays_of(self, outputs, labels)
        if given.shape not in (true.shape, (*true.shape, 1)) or not given.ndim:
            seen = f"outputs of shape {list(given.shape)}, labels {list(true.shape)}"
            raise ShapeError(f"{self.key}: {seen}; need one output per label")
        flat = len(given), math.prod(given.shape[1:])
        counted = np.ones(flat) if true.dtype.kind != "i" else (true != IGNORED).reshape(flat).astype(np.float64)
        each = counted * weights_of(self.key, weights, len(given))[:, None]
        x, y = (np.where(each > 0, one.reshape(flat).astype(np.float64), 0.0) for one in (given, true))
        kept = np.ix_(each.any(axis=1), each.any(axis=0))
        return x[kept], y[kept], each[kept]


class RMSE(_OfTargets, name="rmse"):
    """Root of the mean of (x - y)^2, mean over targets; sklearn.metrics.root_mean_squared_error.

    Of one target its uncertainty is that of the mean square m, divided by 2 sqrt(m).
    """

    higher = False

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> float:
        x, y, each = self.arrays(outputs, labels, weights)
        return float(np.sqrt((np.square(x - y) * each).sum(axis=0) / each.sum(axis=0)).mean()) if x.size else math.nan

    def measured(self, outputs: Any, labels: Any, weights: Any) -> Any:
        x, y, each = self.arrays(outputs, labels, weights)
        if x.shape[1] != 1:
            return self(outputs, labels, weights) ** 2
        return (np.square(x - y) * each)[:, 0], each[:, 0]

    def reported(self, value: float, spread: float) -> tuple[float, float]:
        root = math.sqrt(value) if value >= 0 else math.nan
        return root, spread / (2 * root) if root > 0 else math.nan


class R2(_OfTargets, name="r2"):
    """1 - sum of (x - y)^2 / sum of (y - mean y)^2, mean over targets; sklearn.metrics.r2_score.

    A constant target scores 1 where all outputs equal it, else 0. nan for fewer than two rows.
    """

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> float:
        x, y, each = self.arrays(outputs, labels, weights)
        if not x.size or ((each > 0).sum(axis=0) < 2).any():
            return math.nan
        mean = (y * each).sum(axis=0) / each.sum(axis=0)
        residual, total = (each * np.square(x - y)).sum(axis=0), (each * np.square(y - mean)).sum(axis=0)
        lowest = np.where(each > 0, y, np.inf).min(axis=0)
        varies = (
            np.where(each > 0, y, -np.inf).max(axis=0) > lowest
        )  # the rounded mean of a constant may differ from it
        of_constant = np.where(np.isnan(residual), math.nan, residual == 0)
        return float(np.where(varies, 1 - residual / np.where(varies, total, 1.0), of_constant).mean())
