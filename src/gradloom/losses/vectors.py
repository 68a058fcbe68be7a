"""Losses of distances and angles between outputs of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Value, describe
from ..ops.loss import IGNORED, Pair
from .loss import Loss, check_number, check_values, one_of, parts_of, row_pair, settle

SMALL = 1e-6  # added to each difference of a distance, as in PyTorch: its slope at 0 is finite
SQUARE = 1e-12  # added to the square of a length, as in PyTorch


@dataclass(frozen=True, repr=False)
class Triplet(Loss, name="triplet"):
    """max(0, margin + d(a, p) - d(a, n)) of outputs (a, p, n), f32 [rows, ..., width] each (anchor, one that belongs
    to it, one that does not); d(u, v) = |u - v + 1e-6|, the Euclidean norm; torch.nn.functional.triplet_margin_loss.
    The data have no labels. The mean is that over all triplets; the slope at the corner is 0.

    margin  least difference of the distances without a loss, above 0
    """

    kind = "rows"
    has_labels = False
    outputs = 3
    margin: float = 1.0

    def __post_init__(self) -> None:
        settle(self, margin=check_number("Triplet", "margin", self.margin, above=0))

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        anchor, near, far = _alike(self.name, parts_of(self.name, outputs, 3))
        gap = _distance(anchor, near) - _distance(anchor, far)
        return row_pair(self.name, ops.relu(ops.scale(gap, factor=1.0, bias=self.margin)), weights)


@dataclass(frozen=True, repr=False)
class Cosine(Loss, name="cosine"):
    """1 - cos(a, b) where the label is 1, max(0, cos(a, b) - margin) where it is 0 or -1, of outputs (a, b), f32
    [rows, ..., width] each; cos(a, b) = a.b / sqrt((a.a + 1e-12) (b.b + 1e-12));
    torch.nn.functional.cosine_embedding_loss. The mean is that over all pairs whose label is not -100.

    margin  largest cosine of a pair of label 0 or -1 without a loss, from -1 to 1
    """

    kind = "rows"
    outputs = 2
    margin: float = 0.0

    def __post_init__(self) -> None:
        is_number = isinstance(self.margin, (int, float, np.number)) and not isinstance(self.margin, bool)
        if not is_number or not -1 <= self.margin <= 1:
            raise SettingError(setting="margin", seen=self.margin, need="a number from -1 to 1", place="Cosine")
        settle(self, margin=float(self.margin))

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        a, b = _alike(self.name, parts_of(self.name, outputs, 2))
        y = as_value(labels)
        if y.shape == (*a.shape[:-1], 1):
            y = ops.reshape(y, a.shape[:-1])
        if y.shape != a.shape[:-1]:
            seen = f"outputs {describe(a)}, labels {describe(y)}"
            raise ShapeError(f"cosine: labels do not fit: {seen}; need a label per vector; at {user_location()}")
        counted = None
        if not y.dtype.is_float:
            ids = ops.cast(y, "i32")
            counted = ops.where(ops.equal(ids, np.array([IGNORED], np.int32)), 0.0, 1.0)
            y = ids
        lengths = [ops.scale(ops.sum(ops.sqr(v), -1), factor=1.0, bias=SQUARE) for v in (a, b)]
        cos = ops.sum(a * b, -1) / ops.sqrt(lengths[0] * lengths[1])
        apart = ops.relu(ops.scale(cos, factor=1.0, bias=-self.margin))
        each = ops.where(ops.greater(ops.cast(y, "f32"), 0.0), ops.scale(cos, factor=-1.0, bias=1.0), apart)
        return row_pair(self.name, each, weights, counted)

    def check_labels(self, labels: np.ndarray) -> None:
        check_values(self.name, labels, one_of(labels, (-1, 0, 1)), "1, 0 or -1")


def _distance(u: Value, v: Value) -> Value:
    return ops.sqrt(ops.sum(ops.sqr(ops.scale(u - v, factor=1.0, bias=SMALL)), -1))


def _alike(name: str, parts: list[Value]) -> list[Value]:
    """The outputs; ShapeError unless they have one shape [rows, ..., width]."""
    if any(one.shape != parts[0].shape or one.ndim < 2 for one in parts):
        shown = ", ".join(map(describe, parts))
        raise ShapeError(f"{name}: outputs {shown}; need one shape [rows, ..., width]; at {user_location()}")
    return parts
