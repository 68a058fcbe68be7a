"""Losses. Each has a form that returns the pair (sum, weight): sums add up over micro-batches and are divided once."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.dtypes import f32, i32
from ..base.errors import SettingError, ShapeError
from ..base.habits import value_hint
from ..graph.composition import pullback
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Value, describe
from .common import Sample, Spec, bad, draw, need, zeros_like
from .elementwise import add, cast, div, equal, exp, full_like, mul, neg, sqr, sub, where
from .index import get_rows
from .layout import broadcast_to, product, reshape
from .reduce import sum as sum_over
from .softmax import log_softmax

IGNORED = -100
Pair = tuple[Value, Value]


# ---- cross entropy ---------------------------------------------------------------------------------------


def _rows_shape(logits: Spec, labels: Spec, weights: Spec | None) -> None:
    need(logits.ndim == 2 and logits.shape[1] > 0, "logits are no rows of classes", "logits of shape [N, C]")
    if labels.dtype is i32:
        rows = f", or label rows as floats, f32{list(logits.shape)}" * (labels.shape == logits.shape)
        need(labels.shape == logits.shape[:1], "labels do not fit", f"one id per row, i32[{logits.shape[0]}]{rows}")
    else:
        need(labels.shape == logits.shape, "labels do not fit", f"label rows f32{list(logits.shape)} or ids of i32")
    need(
        weights is None or weights.shape == logits.shape[:1],
        "weights do not fit",
        f"a weight per row, [{logits.shape[0]}]",
    )


def _cross_entropy_shape(logits: Spec, labels: Spec, weights: Spec | None) -> list[Spec]:
    _rows_shape(logits, labels, weights)
    return [Spec(()), Spec(()), Spec(logits.shape)]


def _correct_shape(logits: Spec, labels: Spec, weights: Spec | None) -> Spec:
    _rows_shape(logits, labels, weights)
    return Spec(())


def _classes(logits: Any, labels: Any) -> IdRange | None:
    """Of labels that are ids, not rows of probabilities."""
    return IdRange("labels", logits.shape[1], IGNORED) if len(labels.shape) == 1 else None


def _counted(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which rows take part."""
    if labels.ndim == 2:
        return np.ones(len(logits), bool)
    IdRange("labels", logits.shape[1], IGNORED).check("cross_entropy", labels)
    return labels != IGNORED


def cross_entropy_arrays(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kind = logits.dtype
    counted = _counted(logits, labels)
    x = logits[counted]
    w = np.ones(len(x), kind) if weights is None else weights[counted]
    z = x - x.max(1, keepdims=True)
    lse = np.log(np.exp(z).sum(1, keepdims=True))
    p = np.exp(z - lse)
    if labels.ndim == 2:
        y = labels.astype(kind)
        rows = np.where(y != 0, y * (lse - z), 0).sum(1)  # a class that the label does not name adds nothing
        slope = y.sum(1, keepdims=True) * p - y
    else:
        ids = labels[counted]
        at = np.arange(len(x)), ids
        rows = (lse - z)[at]
        slope = p.copy()
        slope[at] -= 1
    grad = np.zeros_like(logits)
    grad[counted] = w[:, None] * slope
    return np.asarray((w * rows).sum(), kind), np.asarray(w.sum(), kind), grad


def _correct(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    counted = _counted(logits, labels)
    if weights is not None:
        counted = counted & (weights != 0)
    ids = np.argmax(labels, 1) if labels.ndim == 2 else labels
    return np.asarray((counted & (np.argmax(logits, 1) == ids)).sum(), logits.dtype)


def _labelled(rng: np.random.Generator) -> list[Sample]:
    """Ids, some of them ignored; label rows of sum 1, of other sums and of sum 0; with and without weights."""
    found = []
    for i, (n, c) in enumerate(((1, 1), (1, 5), (7, 3), (33, 10), (5, 67), (64, 16), (300, 17), (500, 10), (40, 5000))):
        x = draw(rng, (n, c), -4, 4)
        ids = rng.integers(0, c, n).astype(np.int32)
        if n > 4:
            ids[rng.integers(0, n, n // 4)] = IGNORED
            ids[0] = c - 1
        rows = rng.uniform(0, 1, (n, c)).astype(np.float32)
        if i % 2:
            rows /= rows.sum(1, keepdims=True)
        if n > 4:
            rows[2] = 0
        weights = rng.uniform(0.1, 2, n).astype(np.float32) if i % 3 else None
        if weights is not None and n > 4:
            weights[3] = 0
        found += [Sample((x, ids, weights)), Sample((x, rows, weights))]
    onehot = np.eye(4, dtype=np.float32)
    extreme = np.array([[1e4, 0, -1e4, 5], [3e38, 0, 1, 2], [-3e38, 1, 2, 3], [1, 2, 3, -np.inf]], np.float32)
    found += [Sample((extreme, np.array([0, 0, 1, 2], np.int32), None)), Sample((extreme, onehot[[0, 0, 1, 2]], None))]
    return found


def _bad_labels(name: str) -> list:
    return [
        bad(
            f"{name}: labels do not fit: logits f32[4,3], labels i32[5]; need one id per row, i32[4]",
            (4, 3), ("i32", (5,)),
        ),
        bad(
            f"{name}: labels do not fit: logits f32[4,3], labels f32[4]; need label rows f32[4, 3] or ids of i32",
            (4, 3), (4,)
        ),
        bad(
            f"{name}: logits are no rows of classes: logits f32[4], labels i32[4]; need logits of shape [N, C]",
            (4,), ("i32", (4,)),
        ),
        bad(
            f"{name}: weights do not fit: logits f32[4,3], labels i32[4], weights f32[3]; need a weight per row, [4]",
            (4, 3), ("i32", (4,)), (3,),
        ),
        bad(f"{name}: dtype i64 is not taken: logits f32[4,3], labels i64[4]; need f32 or i32", (4, 3), ("i64", (4,))),
    ]  # fmt: skip


def one_hot(labels: Value, classes: int) -> Value:
    """Ids [N] as rows of 0 and 1, [N, C]; an ignored one as zeros."""
    own = reshape(labels, (labels.shape[0], 1))
    return where(equal(own, np.arange(classes, dtype=np.int32)), 1.0, 0.0)


def rows_that_count(labels: Value) -> Value:
    """1 for each row that takes part, 0 for one that is ignored, [N]; labels are ids."""
    return where(equal(labels, as_value(np.array([IGNORED], np.int32))), 0.0, 1.0)


def ids_that_count(labels: Value, classes: int) -> Value:
    """rows_that_count of ids [N] of classes; IndexOutOfRange, when it is computed, for an id that is no class and is
    not ignored. one_hot and comparisons give zeros for such ids."""
    counted = rows_that_count(labels)
    own = cast(where(equal(counted, 0.0), 0.0, cast(labels, f32)), i32)
    return mul(counted, reshape(get_rows(np.ones((classes, 1), np.float32), own), labels.shape))


def cross_entropy_graph(logits: Value, labels: Value, weights: Value | None) -> list[Value]:
    """loss, weight and grad of cross_entropy_sum from simpler ops."""
    n, classes = logits.shape
    if labels.dtype.is_float:
        rows, totals, counted = labels, sum_over(labels, 1, keepdims=True), full_like(logits[:, 0], 1.0)
    else:
        rows, counted = one_hot(labels, classes), rows_that_count(labels)
        totals = reshape(counted, (n, 1))
        logits = where(equal(totals, 0.0), 0.0, logits)  # the contents of ignored rows have no effect
    row_weights = counted if weights is None else mul(weights, counted)
    log_p = log_softmax(logits)
    losses = neg(sum_over(mul(rows, log_p), 1))
    grad = mul(reshape(row_weights, (n, 1)), sub(mul(totals, exp(log_p)), rows))
    return [sum_over(mul(row_weights, losses)), sum_over(row_weights), grad]


def loss_gradients(
    compose: Callable[..., list[Value]], inputs: Mapping[str, Value | None], fused: Mapping[str, Value],
    needed: Container[str], g_loss: Value | None, g_weight: Value | None, *g_fused: Value | None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of a loss op (loss, weight, fused outputs): one per input, None where it is not needed or an id.

    compose: the op from simpler ops. fused: the inputs for which the loss's gradient is an output of the op, only
    scaled here; all else comes from the composition.
    """
    found: list[Value | None] = []
    for name, read in inputs.items():
        if read is None or name not in needed or not read.dtype.is_float:
            found.append(None)
            continue
        seeds = (None, None, *g_fused) if name in fused else (g_loss, g_weight, *g_fused)
        terms = [mul(fused[name], g_loss)] if name in fused and g_loss is not None else []
        if any(g is not None for g in seeds):
            terms += pullback(lambda v, name=name: compose(**{**inputs, name: v}), [read], *seeds)
        found.append(add(*terms) if len(terms) == 2 else terms[0] if terms else zeros_like(read))
    return found


cross_entropy_sum: OpSpec = op(
    "cross_entropy_sum", inputs="logits labels weights?", outputs="loss weight grad?", dense="logits labels weights",
    doc="loss = sum of weight * -sum(label * log_softmax(logits)) over the rows, weight = sum of the row weights, "
    "grad = weight * (sum(label) * softmax - label); labels: ids (i32, -100 is ignored) or rows (f32) of any sum",
    shape=_cross_entropy_shape, may_overwrite={"grad": "logits"},
    vjp=lambda g_loss, g_weight, g_grad, logits, labels, weights, grad, needed: loss_gradients(
        cross_entropy_graph, {"logits": logits, "labels": labels, "weights": weights}, {"logits": grad}, needed,
        g_loss, g_weight, g_grad,
    ),
    no_gradient_to={"labels": "ids have no slope"}, reference=cross_entropy_arrays, samples=_labelled,
    cost=lambda logits: (10.0 * logits.size, 8.0 * logits.size),
    dtypes="f32 labels:f32|i32", ids=_classes,
    bad_samples=_bad_labels("cross_entropy_sum"),
)  # fmt: skip
_correct_op: OpSpec = op(
    "correct", inputs="logits labels weights?", outputs="count", dense="logits labels weights",
    doc="count of the rows whose first largest logit is at the label; ignored rows and rows of weight 0 do not count",
    shape=_correct_shape, no_gradient="a count has no slope",
    dtypes="f32 labels:f32|i32", exact=True, ids=_classes,
    reference=_correct, samples=_labelled, bad_samples=_bad_labels("correct"),
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def weights_of_labels(weights: Value, shape: Sequence[int]) -> Value:
    """Weights of the labels' shape [n, ...], or [n], one for all labels of a row, as [N]; any other as they are."""
    if weights.shape == tuple(shape[:1]):
        wide = reshape(weights, (*weights.shape, *(1,) * (len(shape) - 1)))
        weights = broadcast_to(wide, shape)
    return reshape(weights, (product(shape),)) if weights.shape == tuple(shape) else weights


def as_rows(logits: Any, labels: Any, weights: Any) -> tuple[Value, Value, Value | None]:
    """logits [..., C] with ids [...] or rows [..., C] -> [N, C] with [N] or [N, C]; weights as in weights_of_labels."""
    logits, labels = as_value(logits), as_value(labels)
    weights = None if weights is None else as_value(weights)
    if not labels.dtype.is_float:
        labels = cast(labels, i32)
    if logits.ndim > 2:
        n, classes = product(logits.shape[:-1]), logits.shape[-1]
        if labels.shape == logits.shape:
            labels = reshape(labels, (n, classes))
        elif labels.shape == logits.shape[:-1]:
            labels = reshape(labels, (n,))
        if weights is not None:
            weights = weights_of_labels(weights, logits.shape[:-1])
        logits = reshape(logits, (n, classes))
    return logits, labels, weights


def cross_entropy_pair(logits: Any, labels: Any, weights: Any = None) -> Pair:
    """(sum of the weighted row losses, sum of the row weights); see cross_entropy."""
    loss, weight, _ = cross_entropy_sum(*as_rows(logits, labels, weights))
    return loss, weight


def cross_entropy(logits: Any, labels: Any, weights: Any = None) -> Value:
    """Mean cross entropy of rows of logits.

    labels: a class id per row (-100: the row is ignored) or a row of class probabilities (of any sum).
    weights: one per row; the mean divides by their sum, never by the sum of the labels. For logits [n, ..., C] they
    are [n, ...], one per label, or [n], where each label weighs what its row does: a row counts once per label.
    """
    return div(*cross_entropy_pair(logits, labels, weights))


def correct(logits: Any, labels: Any, weights: Any = None) -> Value:
    """How many rows have their largest logit at the label."""
    return _correct_op(*as_rows(logits, labels, weights))


def weighted(name: str, values: Value, weights: Any, ignored: Value | None = None) -> Pair:
    """(sum of weight * element, weight of all elements) of values [rows, ...]; without weights every element weighs 1.

    weights: f32 [rows]. ignored: u8 of the values' shape, 1 at elements that are left out.
    """
    if weights is not None:
        weights = as_value(weights)
        if values.ndim == 0 or weights.shape != values.shape[:1]:
            shown = f"{describe(values)}, weights {describe(weights)}"
            raise ShapeError(f"{name}: weights do not fit: {shown}; need a weight per row; at {user_location()}")
    if ignored is not None:
        counted = where(ignored, 0.0, 1.0)
        if weights is not None:
            counted = mul(counted, reshape(weights, (*weights.shape, *(1,) * (values.ndim - 1))))
        return sum_over(mul(values, counted)), sum_over(counted)
    if weights is None:
        return sum_over(values), as_value(float(values.size))
    rows = reshape(weights, (*weights.shape, *(1,) * (values.ndim - 1)))
    return sum_over(mul(values, rows)), mul(sum_over(weights), float(product(values.shape[1:])))


def fitted(name: str, pred: Any, target: Any) -> tuple[Value, Value]:
    """(pred, target) of one shape, the target as f32; one of shape [...] fits pred [..., 1]. ShapeError for others."""
    pred, target = as_value(pred), as_value(target)
    target = cast(target, f32)
    if pred.shape == (*target.shape, 1):
        target = reshape(target, pred.shape)
    if pred.shape != target.shape:
        shown = f"pred {describe(pred)}, target {describe(target)}"
        raise ShapeError(f"{name}: shapes differ: {shown}; need one shape; at {user_location()}")
    return pred, target


def mse_pair(pred: Any, target: Any, weights: Any = None) -> Pair:
    """(sum of squared differences, number of elements), rows weighted where weights are given."""
    pred, target = fitted("mse", pred, target)
    return weighted("mse", sqr(sub(pred, target)), weights)


def mse(pred: Any, target: Any, weights: Any = None) -> Value:
    """Mean squared difference over all elements; rows weighted where weights are given."""
    return div(*mse_pair(pred, target, weights))


def mean_pair(values: Any, labels: Any = None, weights: Any = None) -> Pair:
    """(sum, number of elements): the outputs are themselves the loss; labels are not looked at."""
    return weighted("mean", as_value(values), weights)


def sum_pair(values: Any, labels: Any = None, weights: Any = None) -> Pair:
    """(sum, 1): the outputs are themselves the loss, not divided; labels are not looked at."""
    total, _ = weighted("sum", as_value(values), weights)
    return total, as_value(1.0)


LOSSES: dict[str, Callable[..., Pair]] = {
    "cross_entropy": cross_entropy_pair, "mse": mse_pair, "mean": mean_pair, "sum": sum_pair,
}  # fmt: skip


def loss_pair(name: str) -> Callable[..., Pair]:
    """The loss of this name as a function (outputs, labels, weights=None) -> (sum, weight): cross_entropy, mse, mean or
    sum. gl.losses.named(name).pair is the same of all losses by name."""
    if name not in LOSSES:
        hint = value_hint("loss", name, LOSSES)
        others = "; gl.losses.named(name).pair has others" * (not hint)
        raise SettingError(f"loss: {name!r} is not known; must be one of {', '.join(LOSSES)}{hint}{others}")
    return LOSSES[name]
