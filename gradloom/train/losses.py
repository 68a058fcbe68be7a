"""Losses by name: each gives (sum, weight), so that batches of any size add up to the right mean."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from .. import ops
from ..base.errors import GraphError, SettingError, ShapeError
from ..graph.opspec import constant
from ..graph.value import Value, describe

LossPair = Callable[[Value, "Value | None", "Value | None"], tuple[Value, Value]]


def _need_labels(name: str, labels: Value | None) -> Value:
    if labels is None:
        raise GraphError(f"loss {name}: the data have no labels; need labels, or the loss 'mean' or 'sum'")
    return labels


def _cross_entropy(pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
    return ops.cross_entropy_pair(pred, _need_labels("cross_entropy", labels), weights)


def _mse(pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
    target = _need_labels("mse", labels)
    if target.shape == pred.shape[:-1] and pred.shape[-1:] == (1,):
        target = ops.reshape(target, pred.shape)
    return ops.mse_pair(pred, target, weights)


def _mean(pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
    return ops.mean_pair(pred)


def _sum(pred: Value, labels: Value | None, weights: Value | None) -> tuple[Value, Value]:
    return ops.sum_pair(pred)


LOSSES: dict[str, LossPair] = {"cross_entropy": _cross_entropy, "mse": _mse, "mean": _mean, "sum": _sum}


def loss_pair(loss: str | Callable[..., Any]) -> LossPair:
    """The (sum, weight) form of a loss: a name, or a function (outputs, labels) -> values per row or a pair (sum, weight)."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            near = difflib.get_close_matches(loss, LOSSES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"loss: {loss!r} is not known; need one of {', '.join(LOSSES)} or a function{hint}")
        return LOSSES[loss]
    if not callable(loss):
        raise SettingError(f"loss: got {type(loss).__name__}; need a name or a function (outputs, labels)")
    return lambda pred, labels, weights: _own(loss, pred, labels, weights)


def _own(
    loss: Callable[..., Any], pred: Value, labels: Value | None, weights: Value | None
) -> tuple[Value, Value]:
    found = loss(pred) if labels is None else loss(pred, labels)
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(v, Value) for v in found):
        total, weight = found
        if total.shape or weight.shape:
            raise ShapeError(f"loss: the pair is {describe(total)}, {describe(weight)}; need two scalars (sum, weight)")
        return total, weight
    if not isinstance(found, Value) or found.shape != (pred.shape[0],):
        seen = describe(found) if isinstance(found, Value) else type(found).__name__
        raise ShapeError(f"loss: the function gave {seen}; need one value per row [{pred.shape[0]}] or a pair (sum, weight)")
    if weights is None:
        return ops.sum(found), constant(float(pred.shape[0]))
    return ops.sum(found * weights), ops.sum(weights)
