"""Losses by name: each gives (sum, weight), so that batches of any size add up to the right mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..base.errors import GraphError, SettingError, ShapeError
from ..graph.opspec import constant
from ..graph.value import Value, describe

LossPair = Callable[[Value, "Value | None", "Value | None"], tuple[Value, Value]]


def loss_pair(loss: str | Callable[..., Any]) -> LossPair:
    """The (sum, weight) form of a loss.

    loss: a name, or a function (outputs, labels) -> values per row or a pair (sum, weight).
    """
    if isinstance(loss, str):
        pair = ops.loss.loss_pair(loss)

        def named(pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
            if labels is None and loss in ("cross_entropy", "mse"):
                raise GraphError(f"loss {loss}: the data have no labels; need labels, or the loss 'mean' or 'sum'")
            return pair(pred, labels, weights)

        return named
    if not callable(loss):
        raise SettingError(f"loss: got {type(loss).__name__}; need a name or a function (outputs, labels)")
    return lambda pred, labels, weights: _own(loss, pred, labels, weights)


def _own(loss: Callable[..., Any], pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
    found = loss(pred) if labels is None else loss(pred, labels)
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(v, Value) for v in found):
        total, weight = found
        if total.shape or weight.shape:
            raise ShapeError(f"loss: the pair is {describe(total)}, {describe(weight)}; need two scalars (sum, weight)")
        return total, weight
    if not isinstance(found, Value) or found.shape != (pred.shape[0],):
        seen = describe(found) if isinstance(found, Value) else type(found).__name__
        need = f"one value per row [{pred.shape[0]}] or a pair (sum, weight)"
        raise ShapeError(f"loss: the function gave {seen}; need {need}")
    if weights is None:
        return ops.sum(found), constant(float(pred.shape[0]))
    return ops.sum(found * weights), ops.sum(weights)
