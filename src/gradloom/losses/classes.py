"""Losses of classes: exclusive ones (logits [..., classes] and an id per label), and labels that are true or false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool, as_share
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Value, describe
from ..ops.loss import Pair, as_rows, cross_entropy_pair, ids_that_count, one_hot, weighted
from .loss import (
    Loss,
    as_targets,
    check_number,
    check_share,
    check_values,
    one_of,
    one_or_several,
    row_pair,
    settle,
)

LEAST = 1e-12  # of 1 - p in the focal loss: its powers have finite slopes


@dataclass(frozen=True, repr=False)
class CrossEntropy(Loss, name="cross_entropy"):
    """-sum of label * log_softmax(x) per row of logits; torch.nn.functional.cross_entropy.

    Labels: ids [...] for outputs [..., classes], or rows of probabilities [..., classes]. The mean divides by the sum
    of the row weights, never by sums of label rows. PyTorch divides by the weights of the classes with weight=, and so
    does class_weight= here.

    label_smoothing  share s, at least 0 and below 1, of each label that is spread over all classes: labels become
                     (1 - s) label + s / classes. Class weights multiply the row (PyTorch's multiply each class's term)
    """

    kind = "classes"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        settle(self, label_smoothing=as_share("label_smoothing", self.label_smoothing, "CrossEntropy"))

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        if not self.label_smoothing:
            return cross_entropy_pair(outputs, labels, weights)
        logits, rows, each = as_rows(outputs, labels, weights)
        _check_rows(self.name, logits, rows, "rows")
        classes = logits.shape[-1]
        if not rows.dtype.is_float:
            counted = ids_that_count(rows, classes)
            logits, rows = _of_counted(logits, counted), one_hot(rows, classes)
            each = counted if each is None else each * counted
        smooth = ops.scale(rows, factor=1 - self.label_smoothing, bias=self.label_smoothing / classes)
        return cross_entropy_pair(logits, smooth, each)


class NLL(Loss, name="nll"):
    """-x at the label, of log-probabilities x [..., classes] and ids [...]; torch.nn.functional.nll_loss.

    The outputs are those of ops.log_softmax: the loss does not divide by their sum (for logits use cross_entropy).
    """

    kind = "classes"

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, ids, each = as_rows(outputs, labels, weights)
        _check_rows(self.name, x, ids, "ids")
        hit = ops.equal(ops.reshape(ids, (*ids.shape, 1)), np.arange(x.shape[-1], dtype=np.int32))
        return row_pair(self.name, -ops.sum(ops.where(hit, x, 0.0), -1), each, ids_that_count(ids, x.shape[-1]))


@dataclass(frozen=True, repr=False)
class KL(Loss, name="kl"):
    """sum of y (log y - x) over the last axis: the Kullback-Leibler divergence of targets y (probabilities) from
    outputs x (log-probabilities, as of ops.log_softmax); torch.nn.functional.kl_div. Where y is 0 it is 0.

    The mean is that of the distributions, reduction="batchmean" for outputs [rows, classes]; PyTorch's default "mean"
    divides by the number of elements instead.

    log_target  the targets are log-probabilities
    """

    kind = "rows"
    log_target: bool = False

    def __post_init__(self) -> None:
        as_bool("log_target", self.log_target, "KL")

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, y = as_value(outputs), ops.cast(as_value(labels), "f32")
        if x.shape != y.shape or x.ndim < 2:
            seen = f"outputs {describe(x)}, labels {describe(as_value(labels))}"
            raise ShapeError(f"kl: shapes differ: {seen}; need [rows, ..., classes] for both; at {user_location()}")
        if self.log_target:
            each = ops.exp(y) * (y - x)
        else:
            some = ops.greater(y, 0.0)
            each = y * (ops.log(ops.where(some, y, 1.0)) - ops.where(some, x, 0.0))
        return row_pair(self.name, ops.sum(each, -1), weights)

    def check_labels(self, labels: np.ndarray) -> None:
        if not self.log_target:
            check_values(self.name, labels, labels >= 0, "probabilities of at least 0 (or log_target=True)")


@dataclass(frozen=True, repr=False)
class BCE(Loss, name="bce"):
    """-y log s(x) - (1 - y) log(1 - s(x)), s(x) = 1 / (1 + e^-x), of a logit x per label y;
    torch.nn.functional.binary_cross_entropy_with_logits. Computed as y softplus(-x) + (1 - y) softplus(x).

    Labels: 0 or 1 (whole numbers, of which -100 is ignored, or bool), or probabilities, of the outputs' shape; labels
    [...] fit outputs [..., 1]. The mean is that over all labels that count.

    pos_weight  factor of the first term, above 0: one number, or one for each output along the last axis
    """

    kind = "binary"
    pos_weight: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        settle(
            self, pos_weight=one_or_several(self.pos_weight, lambda w: check_number("BCE", "pos_weight", w, above=0))
        )
        if self.pos_weight == ():
            raise SettingError(setting="pos_weight", seen=self.pos_weight, need="at least one number", place="BCE")

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, y, ignored = as_targets(self.name, outputs, labels)
        if isinstance(self.pos_weight, tuple):
            if len(self.pos_weight) != x.shape[-1]:
                seen = f"{len(self.pos_weight)} pos_weight, outputs {describe(x)}"
                raise ShapeError(f"bce: {seen}; need one for each output along the last axis; at {user_location()}")
            positive = y * np.array(self.pos_weight, np.float32)
        else:
            positive = y if self.pos_weight == 1 else ops.scale(y, factor=self.pos_weight)
        each = positive * ops.softplus(-x) + _rest(y) * ops.softplus(x)
        return weighted(self.name, each, weights, ignored)

    def check_labels(self, labels: np.ndarray) -> None:
        check_values(self.name, labels, *_shares(labels))


@dataclass(frozen=True, repr=False)
class Focal(Loss, name="focal"):
    """(1 - p)^gamma times the cross entropy, p the probability of the label: rows that are well classified weigh less
    (Lin et al., arXiv 1708.02002).

    Ids [...] for logits [..., classes]: p of the softmax, one loss per label. Labels of the outputs' shape (or [...]
    for outputs [..., 1]), as those of bce: p = y s(x) + (1 - y) (1 - s(x)), one loss per output, as
    torchvision.ops.sigmoid_focal_loss, whose reduction="mean" this is.

    gamma  exponent, at least 0; 0 is the cross entropy
    alpha  for labels of the outputs' shape: weight alpha y + (1 - alpha) (1 - y), above 0 and below 1; None: 1
           (torchvision: 0.25). For ids use class_weight=
    """

    kind = "classes"
    gamma: float = 2.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        settle(self, gamma=check_number("Focal", "gamma", self.gamma, least=0))
        if self.alpha is not None:
            settle(self, alpha=check_share("Focal", "alpha", self.alpha, "above 0 and below 1, or None"))

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, y = as_value(outputs), as_value(labels)
        if self.is_exclusive(x.shape, y.shape):
            return self._of_ids(x, y, weights)
        x, y, ignored = as_targets(self.name, x, y)
        cross = y * ops.softplus(-x) + _rest(y) * ops.softplus(x)
        wrong = y * ops.sigmoid(-x) + _rest(y) * ops.sigmoid(x)
        each = cross * self._power(wrong)
        if self.alpha is not None:
            each = each * ops.scale(y, factor=2 * self.alpha - 1, bias=1 - self.alpha)
        return weighted(self.name, each, weights, ignored)

    def is_exclusive(self, outputs: Sequence[int], labels: Sequence[int]) -> bool:
        return tuple(outputs) not in (tuple(labels), (*labels, 1))

    def _of_ids(self, x: Value, y: Value, weights: Any) -> Pair:
        if self.alpha is not None:
            text = "Focal: {alpha} requires labels of the outputs' shape; use class_weight= for class ids"
            raise SettingError(text, alpha=self.alpha)
        x, ids, each = as_rows(x, y, weights)
        _check_rows(self.name, x, ids, "ids")
        counted = ids_that_count(ids, x.shape[-1])
        own = ops.sum(one_hot(ids, x.shape[-1]) * ops.log_softmax(_of_counted(x, counted)), -1)
        return row_pair(self.name, -own * self._power(-ops.expm1(own)), each, counted)

    def _power(self, wrong: Value) -> Value:
        return ops.pow(ops.maximum(wrong, LEAST), self.gamma)

    def check_labels(self, labels: np.ndarray) -> None:
        if labels.dtype.kind == "f":
            check_values(self.name, labels, *_shares(labels))


@dataclass(frozen=True, repr=False)
class Hinge(Loss, name="hinge"):
    """max(0, margin - t x), t = 1 for a true label and -1 for a false one, of an output x per label; Keras' hinge,
    sklearn.metrics.hinge_loss. The slope at the corner is 0.

    Labels: 1 is true; 0 and -1 are false; whole numbers (-100 is ignored) or floats, of the outputs' shape; labels
    [...] fit outputs [..., 1]. The mean is that over all labels that count.

    margin  least t x without a loss, above 0
    """

    kind = "binary"
    margin: float = 1.0

    def __post_init__(self) -> None:
        settle(self, margin=check_number("Hinge", "margin", self.margin, above=0))

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, y, ignored = as_targets(self.name, outputs, labels)
        signed = ops.where(ops.greater(y, 0.0), x, -x)
        each = ops.relu(ops.scale(signed, factor=-1.0, bias=self.margin))
        return weighted(self.name, each, weights, ignored)

    def check_labels(self, labels: np.ndarray) -> None:
        check_values(self.name, labels, one_of(labels, (-1, 0, 1)), "1, 0 or -1")


def _rest(y: Value) -> Value:
    return ops.scale(y, factor=-1.0, bias=1.0)


def _shares(labels: np.ndarray) -> tuple[np.ndarray, str]:
    return (labels >= 0) & (labels <= 1), "0 or 1, or a probability between them"


def _of_counted(x: Value, counted: Value) -> Value:
    """Rows x [rows, classes], 0 where counted [rows] is 0: the contents of ignored rows have no effect."""
    return ops.where(ops.equal(ops.reshape(counted, (*counted.shape, 1)), 0.0), 0.0, x)


def _check_rows(name: str, x: Value, labels: Value, need: str) -> None:
    """ShapeError unless x is [N, classes], and labels are ids [N], or (need "rows") rows of the same shape."""
    fits = x.ndim == 2 and (labels.shape == x.shape[:1] if not labels.dtype.is_float else labels.shape == x.shape)
    if not fits or (need == "ids" and labels.dtype.is_float):
        wanted = "ids [...] for outputs [..., classes]" + ", or label rows of their shape" * (need == "rows")
        shown = f"outputs {describe(x)}, labels {describe(labels)}"
        raise ShapeError(f"{name}: labels do not fit: {shown}; need {wanted}; at {user_location()}")
