"""Losses of a training as (sum, weight), so that batches of any size add up to the right mean."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from .. import losses, ops
from ..base.errors import DataError, GradloomError, GraphError, SettingError, ShapeError
from ..base.structures import Key, Structure, at, by_key, is_plain, listed, place
from ..data.dataset import Dataset, is_ids
from ..graph.graph import reachable
from ..graph.leaves import constant
from ..graph.value import Value, describe
from .batch_loss import BatchLoss
from .outputs import Outputs, described, values_of
from .terms import Batch, combined, pairs_of, terms_of

Loss = str | losses.Loss | Callable[..., Any] | BatchLoss


class LossPair(Protocol):
    """A loss as (sum, weight). all_count: no label is ignored."""

    def __call__(
        self, pred: Outputs, labels: Structure | None, weights: Value | None, all_count: bool = False
    ) -> tuple[Value, Value]: ...


def loss_pair(loss: str | losses.Loss | Callable[..., Any]) -> LossPair:
    """The (sum, weight) form of a loss.

    loss: a name or an object of gl.losses, or a function (outputs, labels) -> values per row, a scalar that is a mean
    over rows (or a sum of means and penalties, see terms.py), or a pair (sum, weight); it gets the outputs as the model
    gives them, and (outputs) alone where the data have no labels. Row weights f32 [rows] of the data go to a function
    that takes `weights`, which then returns a pair, or a mean that reads them; the values per row of any other, and
    their mean, are weighted here. A pair from a function that does not take them is refused (DataError), and so are
    labels for a loss that reads none.
    """
    if isinstance(loss, str):
        loss = losses.named(loss)
    if isinstance(loss, losses.Loss):
        return partial(_named, loss)
    if isinstance(loss, type) and issubclass(loss, losses.Loss):
        raise SettingError(f"loss: got the class {loss.__name__}; need an instance: gl.losses.{loss.__name__}()")
    if isinstance(loss, type) and issubclass(loss, BatchLoss):
        raise SettingError(f"loss: got the class {loss.__name__}; need an instance: {loss.__name__}(...)")
    if not callable(loss):
        raise SettingError(f"loss: got {type(loss).__name__}; need a name or a function (outputs, labels)")

    def own(
        pred: Outputs, labels: Structure | None, weights: Value | None, all_count: bool = False
    ) -> tuple[Value, Value]:
        return _own(loss, pred, labels, weights, all_count)

    return own


def _named(
    loss: losses.Loss, pred: Outputs, labels: Structure | None, weights: Value | None, all_count: bool = False
) -> tuple[Value, Value]:
    """The (sum, weight) of a named loss."""
    if labels is None and loss.has_labels:
        raise GraphError(
            f"loss {loss.name}: the data have no labels; need labels, or a loss without: 'mean', 'sum', 'triplet'"
        )
    if labels is not None and not loss.has_labels:
        raise DataError(
            f"loss {loss.name}: it does not look at labels, and the data have some; need data without labels, or "
            "another loss"
        )
    if not isinstance(pred, Value) and loss.outputs == 1:
        need = "need one, a loss for each output (a dict or tuple), or a function (outputs, labels)"
        raise GraphError(f"loss {loss.name}: the model gives {described(pred)}; {need}")
    if not is_plain(labels):
        need = "need one array, a loss for each output (a dict or tuple), or a function (outputs, labels)"
        raise DataError(f"loss {loss.name}: the labels are several arrays ({listed(by_key(labels))}); {need}")
    if not loss.takes_label_weights:
        _refuse_label_weights(loss.name, weights)
    return loss.pair(pred, labels, weights)


@contextlib.contextmanager
def named_output(key: Key) -> Iterator[None]:
    """Errors inside name the output of this key; None: there is one output."""
    try:
        yield
    except GradloomError as error:
        raise (error if key is None else error.extended(f"{place('output', key)}: ")) from error.__cause__


def check_labels(loss: losses.Loss, pred: Outputs, data: Dataset, key: Key = None) -> None:
    """DataError, ShapeError for labels of a Dataset that are out of range for the loss or for the classes of its
    output. key: of one of several outputs, with its labels."""
    labels = at(data.labels, key)
    if labels is None or not loss.has_labels:
        return
    with named_output(key):
        loss.check_labels(labels)
    exclusive = isinstance(pred, Value) and loss.is_exclusive(pred.shape[1:], labels.shape[1:])
    if isinstance(pred, Value) and exclusive and (pred.ndim == 2 or is_ids(labels)):
        data.check_labels(pred.shape[-1], key)


def loss_of_members(
    pair: LossPair, pred: Value, labels: Value, weights: Value | None, counted: Value | None = None
) -> tuple[Value, Value]:
    """(sum, weight) of outputs [rows, members, ...], those of several networks: the mean over the members, each of
    which is held against the labels [rows, ...] by itself. counted: 1 where a row counts for a member, and 0 where it
    does not, f32 [rows, members]; None: all do."""
    rows, members = pred.shape[:2]

    def to_each(x: Value) -> Value:
        """[rows, ...] as [rows * members, ...]."""
        wide = ops.broadcast_to(ops.reshape(x, (rows, 1, *x.shape[1:])), (rows, members, *x.shape[1:]))
        return ops.reshape(wide, (rows * members, *x.shape[1:]))

    flat = ops.reshape(pred, (rows * members, pred.shape[2]))
    each = None if weights is None else to_each(weights)
    if counted is not None:
        shares = ops.reshape(counted, (rows * members,))
        each = shares if each is None else each * shares
    total, weight = pair(flat, to_each(labels), each)
    return total * (1 / members), weight * (1 / members)


def _own(
    loss: Callable[..., Any], pred: Outputs, labels: Structure | None, weights: Value | None, all_count: bool
) -> tuple[Value, Value]:
    given = (pred,) if labels is None else (pred, labels)
    takes_weights, named = _weights_for(loss, given, weights)
    if not takes_weights:
        _refuse_label_weights("", weights)
    made = loss(*given, **named)
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(v, Value) for v in made):
        total, weight = made
        if total.shape or weight.shape:
            raise ShapeError(f"loss: the pair is {describe(total)}, {describe(weight)}; need two scalars (sum, weight)")
        if weights is not None and not takes_weights:
            raise DataError(
                "loss: the data have row weights, and the function gave a pair (sum, weight) without them; need a "
                "function (outputs, labels, weights), or one that gives one value per row"
            )
        return total, weight
    rows = {v.shape[0] for v in values_of(pred) if v.shape} if weights is None else {weights.shape[0]}
    reads_weights = (
        not takes_weights or weights is None or (isinstance(made, Value) and weights.node in reachable([made]))
    )
    if isinstance(made, Value) and not made.shape and len(rows) == 1 and reads_weights:
        return _scalar(made, Batch(rows.pop(), weights, labels, all_count))
    if not isinstance(made, Value) or made.ndim != 1 or made.shape[0] not in rows:
        seen = describe(made) if isinstance(made, Value) else type(made).__name__
        shown = " or ".join(f"[{n}]" for n in sorted(rows))
        mean = isinstance(made, Value) and not made.shape
        hint = "; a mean over the rows has no weight: leave the mean out, or name the loss: 'cross_entropy'" * mean
        raise ShapeError(
            f"loss: the function gave {seen}; need one value per row {shown} or a pair (sum, weight){hint}"
        )
    if weights is None:
        return ops.sum(made), constant(float(made.shape[0]))
    if takes_weights:
        raise DataError(
            "loss: the function takes the row weights and gave one value per row; need a pair (sum, weight), or a "
            "function without `weights`, whose values are weighted"
        )
    return ops.sum(made * weights), ops.sum(weights)


def _scalar(made: Value, batch: Batch) -> tuple[Value, Value]:
    """A scalar as (sum, weight): GraphError where its weight is not known, and where it adds means of different
    weights, which no pair stands for."""
    pairs = pairs_of(terms_of(made, batch.rows, "loss"), batch, "loss")
    total, weight, adds_up = combined(pairs, batch.rows)
    if not adds_up:
        raise GraphError(
            "loss: the function gave a sum of means whose weights differ (labels that are ignored, masks); need one "
            f"value per row, a pair (sum, weight), or a gl.Graph with marked losses; node {made.node.label}"
        )
    return total, weight


def _refuse_label_weights(loss: str, weights: Value | None) -> None:
    """DataError for weights of labels given to a loss that takes weights of rows."""
    if weights is not None and weights.ndim > 1:
        raise DataError(
            f"loss{loss and ' '}{loss}: class weights of sequences are {describe(weights)}, one for each label; need "
            "'cross_entropy', or a function (outputs, labels, weights)"
        )


def _weights_for(
    loss: Callable[..., Any], given: tuple[Any, ...], weights: Value | None
) -> tuple[bool, dict[str, Any]]:
    """Whether the function takes weights, and its arguments besides `given`; SettingError if it does not take these."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # not written in Python
        return False, {}
    declared = signature.parameters.get("weights")
    bound = isinstance(loss, partial) and "weights" in loss.keywords  # the caller's own, which are not replaced
    takes = declared is not None and declared.kind != declared.VAR_KEYWORD and not bound
    needs = takes and declared is not None and declared.default is declared.empty
    named = {"weights": weights} if takes and (weights is not None or needs) else {}
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        seen = "the outputs alone, as the data have no labels" if len(given) == 1 else "(outputs, labels)"
        raise SettingError(f"loss: the function is called with {seen}: {error}; need one that takes these") from None
    return takes, named
