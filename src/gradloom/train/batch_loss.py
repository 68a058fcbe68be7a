"""BatchLoss: a loss that couples all rows of an optimiser step, which is computed in micro-batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.dtypes import f32, i32
from ..base.errors import DataError, DTypeError, GraphError, ShapeError
from ..base.structures import Structure, leaves
from ..graph.grad import gradients
from ..graph.leaves import constant
from ..graph.value import Value, describe
from .outputs import Outputs, values_of


class BatchLoss:
    """A loss whose rows depend on all rows of the optimiser step. Subclass it, and pass an instance as `loss=`.

    A step whose batch has several micro-batches has three parts:

    1. values(outputs, labels, weights) of each micro-batch: one or several values f32 or i32 [rows, ...]. The model
       runs forward, with the dropout masks of part 3. It updates no running statistics.
    2. join(values) of the whole batch, in a program of its own: values [batch_rows, ...] in the order of the rows; it
       returns one or several values f32 [batch_rows, ...].
    3. loss(outputs, labels, joined, weights) of each micro-batch, forward again and backward: a pair of scalars
       (sum, weight). joined: its rows of part 2, which are constants. The loss of the step is the sum of the sums over
       the sum of the weights.

    The gradient flows through `outputs` of part 3, and through parameters that `loss` reads itself. A batch of one
    micro-batch is one program with one forward pass. Memory holds one micro-batch, and values and joined of the batch.

    weights: row weights of the data times class weights, f32 [rows], None without either; methods that do not take
    them are called without, and refuse data with row weights (DataError). labels: None where the data have none.
    Whole numbers among the values must be below 2^24 in magnitude (DataError).

    An evaluation couples the rows of batches of the training's batch size; `gl.evaluate` those of its `batch_size`.
    Trainer.step takes the rows of a whole step: it requires accumulate=1.

    Example: preferences with a reference point that is the mean over the batch (as in KTO)

        class AboveMean(gl.train.BatchLoss):
            def values(self, outputs, labels, weights=None):
                return [outputs]                                            # scores f32 [rows]
            def join(self, values):
                (scores,) = values
                return [ops.broadcast_to(ops.mean(scores), scores.shape)]   # a constant in `loss`
            def loss(self, outputs, labels, joined, weights=None):
                each = ops.softplus((joined[0] - outputs) * (2.0 * labels - 1.0))
                return ops.sum(each), gl.constant(float(each.shape[0]))

    For gradients through the joined rows, as with negatives of the batch, use `through`.
    """

    def values(self, outputs: Outputs, labels: Structure | None, weights: Value | None = None) -> Sequence[Value]:
        """Part 1."""
        raise NotImplementedError

    def join(self, values: Sequence[Value]) -> Sequence[Value]:
        """Part 2."""
        raise NotImplementedError

    def loss(
        self, outputs: Outputs, labels: Structure | None, joined: Sequence[Value], weights: Value | None = None
    ) -> tuple[Value, Value]:
        """Part 3."""
        raise NotImplementedError

    @staticmethod
    def through(function: Callable[..., Value]) -> BatchLoss:
        """The loss of a function of the outputs of all rows, with its gradient through all of them.

        function: called with the model's outputs in their order (f32 [batch_rows, ...] each), and the labels where the
        data have some; it returns one value per row, f32 [batch_rows], each of which may depend on all rows. Row
        weights multiply them, and their sum is the weight. The function's gradients with respect to the outputs are
        computed in `join`; no gradient reaches parameters that the function itself reads.

        Example: InfoNCE of a model with outputs (a, b), f32 [rows, d] each

            def info_nce(a, b):
                own = np.eye(a.shape[0], dtype=np.float32)                  # row i of a belongs to row i of b
                return -ops.sum(ops.log_softmax(a @ b.T * 20.0, -1) * own, -1)

            gl.fit(model, pairs, loss=gl.train.BatchLoss.through(info_nce), batch_size=4096, micro_batch_size=64)
        """
        return _Through(function)


class _Through(BatchLoss):
    """BatchLoss.through. Values: row weights, outputs, labels. Joined: weighted loss of each row, and the gradient of
    their sum by each output."""

    def __init__(self, function: Callable[..., Value]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"BatchLoss.through({getattr(self.function, '__qualname__', type(self.function).__name__)})"

    def values(self, outputs: Outputs, labels: Structure | None, weights: Value | None = None) -> list[Value]:
        given = values_of(outputs)
        if weights is not None and weights.ndim > 1:
            raise DataError(f"loss: class weights of sequences are {describe(weights)}; need one value per row")
        each = constant(np.ones(given[0].shape[:1], np.float32)) if weights is None else weights
        return [each, *given, *leaves(labels)]

    def join(self, values: Sequence[Value]) -> list[Value]:
        weights, *given = values
        each = self.function(*given)
        if not isinstance(each, Value) or each.shape != weights.shape:
            seen = describe(each) if isinstance(each, Value) else type(each).__name__
            raise ShapeError(f"loss: the function gave {seen}; need one value per row, f32{list(weights.shape)}")
        losses = each * weights
        real = [v for v in given if v.dtype.is_float]
        found = zip(real, gradients(ops.sum(losses), real), strict=True)
        return [losses, *(ops.broadcast_to(constant(0.0), v.shape) if g is None else g for v, g in found)]

    def loss(
        self, outputs: Outputs, labels: Structure | None, joined: Sequence[Value], weights: Value | None = None
    ) -> tuple[Value, Value]:
        losses, *slopes = joined
        real = [v for v in values_of(outputs) if v.dtype.is_float]
        moved = sum((ops.sum(v * g) for v, g in zip(real, slopes, strict=False)), constant(0.0))
        total = ops.sum(losses) + (moved - ops.detach(moved))  # the number of the first, the gradient of the second
        return total, constant(float(losses.shape[0])) if weights is None else ops.sum(weights)


def batch_values(
    loss: BatchLoss, outputs: Outputs, labels: Structure | None, weights: Value | None, rows: int
) -> list[Value]:
    """Part 1 of a micro-batch of n rows, checked."""
    made = loss.values(outputs, labels, **_weights_for(loss.values, weights))
    values = _rows_of(loss, "values", made, rows)
    for v in values:
        if v.dtype not in (f32, i32):
            raise DTypeError(f"{_name(loss)}.values gave {describe(v)}; need f32 or i32; node {v.node.label}")
    return values


def joined_values(loss: BatchLoss, values: Sequence[Value], rows: int) -> list[Value]:
    """Part 2 of a batch of n rows, checked; no gradient flows through the result."""
    joined = _rows_of(loss, "join", loss.join(values), rows)
    for v in joined:
        if v.dtype is not f32:
            raise DTypeError(f"{_name(loss)}.join gave {describe(v)}; need f32; node {v.node.label}")
    return [ops.detach(v) for v in joined]


def batch_pair(
    loss: BatchLoss, outputs: Outputs, labels: Structure | None, joined: Sequence[Value], weights: Value | None
) -> tuple[Value, Value]:
    """Part 3 of a micro-batch, checked."""
    pair = loss.loss(outputs, labels, joined, **_weights_for(loss.loss, weights))
    if not isinstance(pair, tuple) or len(pair) != 2 or any(not isinstance(v, Value) or v.shape for v in pair):
        seen = ", ".join(describe(v) if isinstance(v, Value) else type(v).__name__ for v in _listed(pair))
        raise ShapeError(f"{_name(loss)}.loss gave ({seen}); need two scalars (sum, weight)")
    return pair


def _rows_of(loss: BatchLoss, method: str, made: Any, rows: int) -> list[Value]:
    """The values that a method gave; GraphError and ShapeError unless there are some, of n rows each."""
    values = _listed(made)
    if not values or any(not isinstance(v, Value) for v in values):
        seen = ", ".join(sorted({type(v).__name__ for v in values})) or "none"
        raise GraphError(f"{_name(loss)}.{method} gave {seen}; need one or several values of the graph")
    for v in values:
        if v.shape[:1] != (rows,):
            raise ShapeError(
                f"{_name(loss)}.{method} gave {describe(v)}; need {rows} rows along the first axis; node {v.node.label}"
            )
    return values


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _name(loss: BatchLoss) -> str:
    return type(loss).__name__.replace("_Through", "BatchLoss.through")


def _weights_for(method: Callable[..., Any], weights: Value | None) -> dict[str, Value]:
    """The argument `weights`, where there are some; DataError for a method that does not take them."""
    if weights is None:
        return {}
    if "weights" not in inspect.signature(method).parameters:
        raise DataError(f"loss: the data have row weights, and {method.__qualname__} does not take `weights`")
    return {"weights": weights}
