"""OutputLosses: a loss for each output of a model, by key or position, whose weighted sum is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import losses as named_losses
from .. import ops
from ..base.arguments import what_is
from ..base.errors import DataError, GraphError, SettingError
from ..base.structures import Key, Structure, at, by_key, listed, output_name, place
from ..data.dataset import IGNORED
from ..graph.leaves import constant
from ..graph.value import Value, describe
from ..runs.state import shown
from .batch_loss import BatchLoss
from .class_weight import Tables, class_weighted
from .losses import Loss, check_labels, loss_pair, named_output
from .metric import usable_name
from .outputs import Outputs
from .terms import Pair

_One = str | named_losses.Loss | Callable[..., Any]
Losses = Loss | Mapping[str, _One] | Sequence["_One | None"]
LossWeights = Mapping[str, float] | Sequence[float] | None


class OutputLosses:
    """The losses of outputs: loss_k of output k is a weighted mean of its own, and the sum of weight_k * loss_k is
    trained.

    losses   key of the output -> object of gl.losses or function, see losses.loss_pair; sorted by key
    names    key -> the name of its numbers: the key itself, output_1, ... of positions
    factors  key -> weight_k

    SettingError for names that cannot be distinguished, and for losses and weights that are not usable.
    """

    def __init__(self, losses: Mapping[Any, Any], factors: Mapping[Any, float]) -> None:
        self.losses: dict[Key, Any] = {key: losses[key] for key in sorted(losses)}
        for key, loss in self.losses.items():
            with named_output(key):
                self.losses[key] = named_losses.named(loss) if isinstance(loss, str) else loss
        self.names = {key: output_name(key) for key in self.losses}
        self.factors = {key: factors.get(key, 1.0) for key in self.losses}
        self.class_weights: dict[Key, np.ndarray] = {}
        self._pairs = {}
        for key, loss in self.losses.items():
            if not usable_name(self.names[key]):
                text = f"{{loss}}: the key {key!r:.60} is reserved or invalid; use another name for the output"
                raise SettingError(text, setting="loss")
            if isinstance(loss, (named_losses.Sum, BatchLoss)):
                what = "a BatchLoss" if isinstance(loss, BatchLoss) else "'sum', a total,"
                text = f"{{loss}}: {what} for {place('output', key)} cannot be one of several; use a mean"
                raise SettingError(text, setting="loss")
            with named_output(key):
                self._pairs[key] = loss_pair(loss)
        self.accuracies = {
            key: f"{self.names[key]}_accuracy"
            for key, loss in self.losses.items()
            if isinstance(loss, (named_losses.CrossEntropy, named_losses.NLL))
        }
        if twice := set(self.accuracies.values()) & set(self.names.values()):
            text = f"{{loss}}: {min(twice)!r} is the name of an output and of an accuracy; use another"
            raise SettingError(text, setting="loss")

    def __repr__(self) -> str:
        parts = []
        for key, loss in self.losses.items():
            factor = f" * {self.factors[key]:g}" if self.factors[key] != 1 else ""
            parts.append(f"{self.names[key]}: {_text(loss)}{factor}")
        return f"{{{', '.join(parts)}}}"

    @property
    def measured(self) -> list[str]:
        """The names of the losses, then of the accuracies."""
        return [*self.names.values(), *self.accuracies.values()]

    @property
    def weighting(self) -> dict[str, float | None]:
        """Name -> its factor in the loss; None of an accuracy. Empty where all factors are 1 and nothing else is
        measured."""
        made: dict[str, float | None] = {self.names[k]: factor for k, factor in self.factors.items() if factor != 1.0}
        return made | dict.fromkeys(self.accuracies.values())

    def settings(self) -> dict[str, Any]:
        """Losses and weights as texts and numbers, for the run identity."""
        losses = {self.names[key]: _text(loss) for key, loss in self.losses.items()}
        made = {"loss": losses, "loss_weights": {self.names[key]: factor for key, factor in self.factors.items()}}
        weights = {self.names[key]: str(table.tolist()) for key, table in self.class_weights.items()}
        return made | ({"class_weights of outputs": weights} if weights else {})

    def weigh(self, class_weights: Tables) -> None:
        """Weigh the labels of outputs by their classes: key -> f32 [classes]. SettingError for weights that are not by
        output, and for an output without a loss."""
        if not isinstance(class_weights, Mapping):
            text = "{class_weights} must be by output, as {loss} is"
            raise SettingError(text, class_weights=..., loss=...)
        for key in class_weights:
            if key not in self.losses:
                text = f"{{class_weights}}: no loss for {place('output', key)}; {{loss}} has {listed(self.losses)}"
                raise SettingError(text, class_weights=..., loss=...)
        self.class_weights = dict(class_weights)

    def pairs(
        self, outputs: Outputs, labels: Structure | None, weights: Value | None, rows: int, all_count: bool
    ) -> dict[Key, Pair]:
        """Key -> the pair of its loss for a batch of n rows. all_count: no label of it is ignored. GraphError for an
        output that the model does not give, DataError for a label that is missing."""
        if isinstance(outputs, Value):
            need = f"outputs for the losses of {listed(self.losses)}"
            raise GraphError(f"loss: the model gives one output, {describe(outputs)}; need {need}")
        if isinstance(labels, Value):
            raise DataError(
                f"loss: the labels are one array; need labels for {listed(self.losses)}, by key or position"
            )
        given = by_key(tuple(outputs) if isinstance(outputs, list) else outputs)
        found: dict[Key, Pair] = {}
        for key, loss in self.losses.items():
            if key not in given:
                raise GraphError(f"{place('loss', key)}: the model has no such output; it gives {listed(given)}")
            if not isinstance(given[key], Value):
                raise GraphError(f"{place('loss', key)}: the output is {what_is(given[key])}; need one value")
            label = at(labels, key)
            if label is None and not (isinstance(loss, named_losses.Loss) and not loss.has_labels):
                raise DataError(f"{place('loss', key)}: no such label; the data have {listed(by_key(labels))}")
            table = self.class_weights.get(key)
            with named_output(key):
                own = weights if table is None or label is None else class_weighted(table, label, weights)
                total, weight = self._pairs[key](given[key], label, own, all_count)
            if table is not None:
                found[key] = ("output", key), total, weight
                continue
            found[key] = _keyed(key, loss, total, weight, given[key], label, weights, rows, all_count)
        return found

    def check_labels(self, outputs: Outputs, data: Any) -> None:
        """Refuse labels of a Dataset that the classes of an output do not fit."""
        given = by_key(tuple(outputs) if isinstance(outputs, list) else outputs)
        for key, loss in self.losses.items():
            if isinstance(loss, named_losses.Loss):
                check_labels(loss, given[key], data, key)

    def scaled(self, pairs: Mapping[Key, Pair]) -> list[Pair]:
        """The pairs times the weights of their losses."""
        factors = self.factors
        return [(own, s if factors[k] == 1 else ops.mul(s, factors[k]), w) for k, (own, s, w) in pairs.items()]

    def right(self, outputs: Outputs, labels: Structure, weights: Value | None) -> list[tuple[Value, Value]]:
        """Of each output with classes (rows whose largest output is at the label, rows that count)."""
        made = []
        given = by_key(tuple(outputs) if isinstance(outputs, list) else outputs)
        for key in self.accuracies:
            pred, label = given[key], at(labels, key)
            counted = constant(np.ones(pred.shape[:-1], np.float32))
            if weights is not None:
                own = ops.where(ops.greater(weights, 0.0), 1.0, 0.0)
                counted = counted * ops.reshape(own, (weights.shape[0], *(1,) * (pred.ndim - 2)))
            if not label.dtype.is_float:
                ignored = ops.equal(label, constant(np.int32(IGNORED), "i32"))
                counted = ops.where(ignored, 0.0, counted)
            made.append((ops.correct(pred, label, weights), ops.sum(counted)))
        return made


def losses_of(loss: Any, loss_weights: Any) -> Any:
    """OutputLosses of a dict or a tuple (or list) of losses; another loss as it is. SettingError for weights that are
    no finite numbers, or of outputs without a loss, and for weights of a single loss."""
    if not isinstance(loss, (Mapping, tuple, list)):
        if loss_weights is not None:
            text = "{loss_weights} requires {loss} by output: a dict or a tuple"
            raise SettingError(text, loss_weights=..., loss=...)
        return loss
    if isinstance(loss, Mapping):
        if any(not isinstance(key, str) for key in loss):
            raise SettingError("{loss}: the keys must be texts, those of the outputs", setting="loss")
        losses: dict[Any, Any] = dict(loss)
    else:
        losses = {key: one for key, one in enumerate(loss) if one is not None}
    if not losses:
        raise SettingError("{loss} has no loss; must have one for at least one output", setting="loss")
    return OutputLosses(losses, _factors(loss, losses, loss_weights))


def _factors(loss: Any, losses: Mapping[Any, Any], given: Any) -> dict[Any, float]:
    if given is None:
        return {}
    if isinstance(given, Mapping) != isinstance(loss, Mapping) or not isinstance(given, (Mapping, tuple, list)):
        text = f"{{loss_weights}} is {what_is(given)}; must be {what_is(loss)} as {{loss}} is"
        raise SettingError(text, loss_weights=..., loss=...)
    weights = dict(given) if isinstance(given, Mapping) else {k: w for k, w in enumerate(given) if w is not None}
    for key, weight in weights.items():
        if key not in losses:
            text = f"{{loss_weights}}: no loss for {place('output', key)}; {{loss}} has {listed(losses)}"
            raise SettingError(text, loss_weights=..., loss=...)
        is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight):
            text = f"{{loss_weights}}: {weight!r:.60} of {place('output', key)} must be a finite number"
            raise SettingError(text, setting="loss_weights")
    return {key: float(weight) for key, weight in weights.items()}


def _keyed(
    key: Key, loss: Any, total: Value, weight: Value, pred: Value, label: Value | None, weights: Value | None,
    rows: int, all_count: bool,
) -> Pair:  # fmt: skip
    """The pair with its key: "rows" where its weight is proportional to that of the rows, for batches of any size, and
    is then replaced by it; else the key of the output."""
    if isinstance(loss, named_losses.Loss):
        per_row = _weight_of_a_row(loss, pred, label, rows, all_count)
        if per_row is None:
            return ("output", key), total, weight
        total = total if per_row == 1 else ops.scale(total, factor=1.0 / per_row)
        return "rows", total, constant(float(rows)) if weights is None else ops.sum(weights)
    node = weight.node
    if weights is None and node.op.name == "constant" and float(node.attrs["data"]) == rows:
        return "rows", total, weight
    if weights is not None and node.op.name == "sum" and node.inputs[0] is weights:
        return "rows", total, weight
    return ("output", key), total, weight


def _weight_of_a_row(
    loss: named_losses.Loss, pred: Value, label: Value | None, rows: int, all_count: bool
) -> float | None:
    """The weight of a row of weight 1 in a named loss, the same for each; None where labels may be ignored."""
    if label is not None and not label.dtype.is_float:
        if not all_count:
            return None
        if loss.is_exclusive(pred.shape, label.shape):
            return label.size / rows
        label = ops.cast(label, "f32")  # of which none is ignored
    weight = loss.pair(pred, label, None)[1].node
    return float(weight.attrs["data"]) / rows if weight.op.name == "constant" else None


def _text(loss: Any) -> str:
    return str(loss) if isinstance(loss, named_losses.Loss) else shown(loss)
