"""Metrics of the likelihood and the rank of labels: nodes of a graph, also of long rows of outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_whole
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import as_value
from ..graph.value import Value, describe
from ..losses import Loss
from ..losses.loss import row_pair
from ..ops.loss import Pair, as_rows, ids_that_count, one_hot
from .score import Score, as_node


class _OfLabels(Score):
    """A mean over labels. Outputs are logits of exclusive classes [..., classes], labels ids [...] (-100 does not
    count), or label rows [..., classes]."""

    whole = False

    def of_loss(self, loss: Loss | None) -> Score:
        if loss is not None and (loss.kind in ("numbers", "binary") or not loss.has_labels or loss.outputs > 1):
            text = f"{{metrics}}: {self.key!r} requires a loss of exclusive classes; not {loss.name}"
            raise SettingError(text, metrics=...)
        return self

    def values(self, x: Value, labels: Value) -> Value:
        """The value of each label, f32 [N], of logits [N, classes] and ids [N] or rows [N, classes]."""
        raise NotImplementedError

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> Value | Pair:
        given = as_node(self, outputs, labels)
        x, y, each = as_rows(given, labels, weights)
        if x.ndim != 2 or y.shape not in (x.shape[:1], x.shape):
            seen = f"outputs {describe(given)}, labels {describe(as_value(labels))}"
            need = "ids [...] for outputs [..., classes]"
            raise ShapeError(f"{self.key}: labels do not fit: {seen}; need {need}")
        values, counted = self.values(x, y), None
        if not y.dtype.is_float:
            counted = ids_that_count(y, x.shape[1])
            values = ops.where(ops.equal(counted, 0.0), 0.0, values)
        if given.ndim == 2:
            return values  # weighted by gl.train.Metric
        return row_pair(self.key, values, each, counted)


@dataclass(frozen=True, repr=False)
class TopK(_OfLabels, name="top_5"):
    """Share of the labels that are among the k classes of the largest outputs; of equal outputs the last class is
    first, as in sklearn.metrics.top_k_accuracy_score.

    k  number of classes, at least 1
    """

    k: int = 5

    def __post_init__(self) -> None:
        as_whole("k", self.k, 1, "TopK")

    @property
    def key(self) -> str:
        return f"top_{self.k}"

    def values(self, x: Value, labels: Value) -> Value:
        n, classes = x.shape
        ids = ops.argmax(labels, -1) if labels.dtype.is_float else labels
        hit = ops.equal(ops.reshape(ids, (n, 1)), np.arange(classes, dtype=np.int32))
        own = ops.sum(ops.where(hit, x, 0.0), -1, keepdims=True)
        later = ops.greater(np.arange(classes, dtype=np.float32), ops.reshape(ops.cast(ids, "f32"), (n, 1)))
        tied = ops.where(ops.equal(x, own), ops.where(later, 1.0, 0.0), 0.0)
        above = ops.sum(ops.where(ops.greater(x, own), 1.0, tied), -1)
        unknown = ops.sum(ops.where(ops.equal(x, x), 0.0, 1.0), -1)  # outputs that are nan
        return ops.where(ops.greater(unknown, 0.0), math.nan, ops.where(ops.less(above, float(self.k)), 1.0, 0.0))


class Perplexity(_OfLabels, name="perplexity"):
    """e to the mean cross entropy. Its uncertainty is that of the mean, times the perplexity."""

    higher = False

    def values(self, x: Value, labels: Value) -> Value:
        rows = labels if labels.dtype.is_float else one_hot(labels, x.shape[1])
        return -ops.sum(rows * ops.log_softmax(x), -1)

    def reported(self, value: float, spread: float) -> tuple[float, float]:
        try:
            found = math.exp(value)
        except OverflowError:
            found = math.inf
        return found, found * spread
