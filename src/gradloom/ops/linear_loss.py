"""Cross entropy of logits x w^T over a large vocabulary, whose logits are never held.

One op gives the sum over the rows with its gradients, the other the loss of each row.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from ..base.dtypes import bf16, f32, i32
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.rounding import to_bf16
from ..graph.value import Value
from .common import Sample, Spec, bad, draw, need
from .elementwise import cast, div, equal, exp, mul, neg, round_bf16, sub, where
from .layout import product, reshape
from .loss import (
    IGNORED,
    Pair,
    cross_entropy_arrays,
    cross_entropy_graph,
    loss_gradients,
    one_hot,
    rows_that_count,
    weights_of_labels,
)
from .matmul import NARROW, matmul, narrow_operand
from .reduce import max as largest
from .reduce import sum as sum_over
from .rounding import next_power, next_power_array
from .softmax import log_softmax

# ---- the ops ---------------------------------------------------------------------------------------------


def _linear_shape(x: Spec, w: Spec, labels: Spec, weights: Spec | None) -> list[Spec]:
    need(x.ndim == 2 and w.ndim == 2, "x and w are not matrices", "x of shape [N, d] and w of shape [V, d]")
    need(x.shape[1] == w.shape[1], "inner sizes differ", f"w of shape [V, {x.shape[1]}]")
    need(w.size > 0, "w is empty", "at least one class and one feature")
    need(labels.shape == x.shape[:1], "labels do not fit", f"one id per row, i32[{x.shape[0]}]")
    need(weights is None or weights.shape == x.shape[:1], "weights do not fit", f"a weight per row, [{x.shape[0]}]")
    return [Spec(()), Spec(()), Spec(x.shape), Spec(w.shape)]


def _vocabulary(w: Any) -> IdRange:
    return IdRange("labels", w.shape[0], IGNORED)


def _linear_cross_entropy(
    x: np.ndarray, w: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, rounded: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """cross_entropy_sum(x @ w.T, labels, weights) of the rows that weigh something; the others are never looked at."""
    kind = x.dtype
    w = w.astype(kind)
    _vocabulary(w).check("linear_cross_entropy", labels)
    row_weights = np.ones(len(x), kind) if weights is None else weights.astype(kind)
    used = (labels != IGNORED) & (row_weights != 0)
    logits, ids = x[used] @ w.T, labels[used]
    loss, weight, slope = cross_entropy_arrays(logits, ids, row_weights[used])
    dx = np.zeros_like(x)
    if not rounded:
        dx[used] = slope @ w
        return loss, weight, dx, slope.T @ x[used]
    e = np.exp(logits - next_power_array(logits.max(1, keepdims=True)))
    of_x = to_bf16(e) / e.sum(1, keepdims=True) * row_weights[used][:, None]
    own = np.arange(len(ids)), ids
    of_x[own] = slope[own]
    dx[used] = of_x @ w
    return loss, weight, dx, to_bf16(slope).T @ x[used]


def _linear_samples(rng: np.random.Generator) -> list[Sample]:
    """One row and many blocks of rows; one class and several blocks of classes; ignored rows, rows of weight 0."""
    found = []
    sizes = ((1, 1, 1), (1, 3, 5), (7, 4, 3), (33, 10, 17), (13, 70, 401), (40, 8, 1000), (300, 5, 50), (530, 17, 390))
    for i, (n, d, v) in enumerate((*sizes, (64, 48, 3000))):
        x, w = draw(rng, (n, d)), draw(rng, (v, d))
        ids = rng.integers(0, v, n).astype(np.int32)
        if n > 4:
            ids[rng.integers(0, n, n // 4)] = IGNORED
            ids[0] = v - 1
        weights = rng.uniform(0.1, 2, n).astype(np.float32) if i % 2 == 0 else None
        if weights is not None and n > 4:
            weights[3] = 0
        found.append(Sample((x, w, ids, weights)))
    for kind in NARROW:
        x = draw(rng, (40, 2 * kind.block if kind.is_quantised else 24))
        w = narrow_operand(rng, kind, (45, x.shape[1]), False)
        x /= np.abs(x @ (w.numpy() if kind.is_quantised else w.astype(np.float32)).T).max() / 5  # tame logits
        ids = rng.integers(0, 45, 40).astype(np.int32)
        ids[::5] = IGNORED
        found.append(Sample((x, w, ids, None)))
        found.append(Sample((x.astype(bf16.numpy), w, ids, None)))
    rounded = [found[i].inputs for i in (1, 3, 6, 8)]
    kinds = [f32, bf16, bf16, f32]
    pairs = zip(rounded, kinds, strict=True)
    return found + [Sample((x.astype(bf16.numpy), w.astype(kind.numpy), *more)) for (x, w, *more), kind in pairs]


def _as_read(x: Value, w: Value) -> tuple[Value, Value]:
    """x as f32, and w rounded to bf16 where x is bf16."""
    if x.dtype is bf16 and w.dtype is not bf16:
        w = round_bf16(cast(w, f32))
    return cast(x, f32), w


def _linear_graph(x: Value, w: Value, labels: Value, weights: Value | None) -> list[Value]:
    """linear_cross_entropy from simpler ops; it holds the logits [N, V]."""
    rounded = x.dtype is bf16
    x, w = _as_read(x, w)
    counted = rows_that_count(labels)
    x = where(equal(reshape(counted, (x.shape[0], 1)), 0.0), 0.0, x)
    logits = matmul(x, w, transpose_y=True)
    loss, weight, slope = cross_entropy_graph(logits, labels, weights)
    if not rounded:
        return [loss, weight, matmul(slope, w), matmul(slope, x, transpose_x=True)]
    e = exp(sub(logits, next_power(largest(logits, 1, keepdims=True))))
    row_weights = reshape(counted if weights is None else mul(weights, counted), (x.shape[0], 1))
    others = mul(cast(round_bf16(e), f32), div(row_weights, sum_over(e, 1, keepdims=True)))
    of_x = where(equal(one_hot(labels, w.shape[0]), 1.0), slope, others)
    return [loss, weight, matmul(of_x, w), matmul(round_bf16(slope), x, transpose_x=True)]


linear_cross_entropy: OpSpec = op(
    "linear_cross_entropy", inputs="x w labels weights?", outputs="loss weight dx? dw?",
    unit="w", dense="labels weights", rounds="x w",
    doc="cross_entropy_sum(x w^T, labels, weights) and its gradients, block by block of the vocabulary: the logits "
    "[N, V] are never held; rows of label -100 or weight 0 cost nothing and their contents are ignored; w of any "
    "dtype that products take is decoded as it is read; where x is bf16, w and the slopes of the logits that w and x "
    "are multiplied by are rounded to bf16; second derivatives and those of weights hold the logits",
    shape=_linear_shape,
    vjp=lambda g_loss, g_weight, g_dx, g_dw, x, w, labels, weights, dx, dw, needed: loss_gradients(
        _linear_graph, {"x": x, "w": w, "labels": labels, "weights": weights}, {"x": dx, "w": dw}, needed,
        g_loss, g_weight, g_dx, g_dw,
    ),
    no_gradient_to={"labels": "ids have no slope"}, composition=_linear_graph, reference=_linear_cross_entropy,
    samples=_linear_samples,
    cost=lambda x, w: (4.0 * x.size * w.shape[0], float(2 * x.bytes + w.bytes)),
    dtypes="f32 x:f32|bf16 w:f32|f16|bf16|quantised labels:i32", ids=_vocabulary,
    bad_samples=[
        bad(
            "linear_cross_entropy: inner sizes differ: x f32[4,3], w f32[9,4], labels i32[4]; need w of shape [V, 3]",
            (4, 3), (9, 4), ("i32", (4,)),
        ),
        bad(
            "linear_cross_entropy: x and w are not matrices: x f32[3], w f32[9,3], labels i32[4]; need x of shape "
            "[N, d] and w of shape [V, d]",
            (3,), (9, 3), ("i32", (4,)),
        ),
        bad(
            "linear_cross_entropy: labels do not fit: x f32[4,3], w f32[9,3], labels i32[5]; need one id per row, "
            "i32[4]",
            (4, 3), (9, 3), ("i32", (5,)),
        ),
        bad(
            "linear_cross_entropy: weights do not fit: x f32[4,3], w f32[9,3], labels i32[4], weights f32[3]; need a "
            "weight per row, [4]",
            (4, 3), (9, 3), ("i32", (4,)), (3,),
        ),
        bad(
            "linear_cross_entropy: w is empty: x f32[4,3], w f32[0,3], labels i32[4]; need at least one class and one "
            "feature",
            (4, 3), (0, 3), ("i32", (4,)),
        ),
        bad(
            "linear_cross_entropy: dtype f32 is not taken: x f32[4,3], w f32[9,3], labels f32[4]; need i32",
            (4, 3), (9, 3), (4,),
        ),
    ],
)  # fmt: skip


def _linear_rows_shape(x: Spec, w: Spec, labels: Spec) -> Spec:
    _linear_shape(x, w, labels, None)
    return Spec(labels.shape)


def _linear_rows(x: np.ndarray, w: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The losses of the rows of x @ w.T; 0 for an ignored row, which is never looked at."""
    w = w.astype(x.dtype)
    _vocabulary(w).check("linear_cross_entropy_rows", labels)
    used = labels != IGNORED
    z = x[used] @ w.T
    z = z - z.max(1, keepdims=True)
    losses = np.zeros(len(x), x.dtype)
    losses[used] = np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels[used]]
    return losses


def _linear_rows_graph(x: Value, w: Value, labels: Value) -> Value:
    """linear_cross_entropy_rows from simpler ops; it holds the logits [N, V]."""
    x, w = _as_read(x, w)
    counted = reshape(rows_that_count(labels), (x.shape[0], 1))
    log_p = log_softmax(matmul(where(equal(counted, 0.0), 0.0, x), w, transpose_y=True))
    return neg(sum_over(mul(one_hot(labels, w.shape[0]), log_p), 1))


def _linear_rows_vjp(g: Value, x: Value, w: Value, labels: Value, needed: Container[str]) -> list[Value | None]:
    """The gradients of sum(g * losses) are those of the sum with row weights g."""
    _, _, dx, dw = linear_cross_entropy(x, w, labels, g)
    return [dx if "x" in needed else None, dw if "w" in needed else None, None]


_linear_rows_op: OpSpec = op(
    "linear_cross_entropy_rows", inputs="x w labels", outputs="losses", unit="w", dense="labels", rounds="x w",
    doc="the row losses of linear_cross_entropy, -log_softmax(x w^T) at the labels, block by block of the vocabulary; "
    "0 for rows of label -100; with a gradient g per row, dx and dw are those of linear_cross_entropy of row weights g",
    shape=_linear_rows_shape, vjp=_linear_rows_vjp, no_gradient_to={"labels": "ids have no slope"},
    composition=_linear_rows_graph, reference=_linear_rows,
    samples=lambda rng: [Sample(s.inputs[:3]) for s in _linear_samples(rng)],
    cost=lambda x, w: (2.0 * x.size * w.shape[0], float(x.bytes + w.bytes)),
    dtypes="f32 x:f32|bf16 w:f32|f16|bf16|quantised labels:i32", ids=_vocabulary,
    bad_samples=[
        bad(
            "linear_cross_entropy_rows: inner sizes differ: x f32[4,3], w f32[9,4], labels i32[4]; need w of shape "
            "[V, 3]",
            (4, 3), (9, 4), ("i32", (4,)),
        ),
        bad(
            "linear_cross_entropy_rows: labels do not fit: x f32[4,3], w f32[9,3], labels i32[5]; need one id per row, "
            "i32[4]",
            (4, 3), (9, 3), ("i32", (5,)),
        ),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def linear_cross_entropy_pair(x: Any, w: Any, labels: Any, weights: Any = None) -> Pair:
    """cross_entropy_pair(x @ w.T, labels, weights) without ever holding the logits: for large vocabularies.

    x: f32 [..., d], the input of the output layer. w: [V, d], a row per class (often the embedding table itself); f32,
    f16, bf16 or quantised.
    labels: a class id per row, [...]; -100: the row is ignored. weights: one per row, [...], or for x [n, ..., d] one
    for all labels of each of the n, [n]; rows of weight 0 cost nothing. Returns (sum of the weighted row losses, sum of
    the row weights). Second derivatives, and gradients of the weights, hold the logits.
    Raises ShapeError, DTypeError; a run stops with IndexError at an id that is neither a class nor -100.
    """
    x, labels, weights = _hidden_rows(as_value(x), as_value(labels), None if weights is None else as_value(weights))
    loss, weight, _, _ = linear_cross_entropy(x, w, labels, weights)
    return loss, weight


def _hidden_rows(x: Value, labels: Value, weights: Value | None) -> tuple[Value, Value, Value | None]:
    """x [..., d] with ids [...] and weights [...] or [n] -> [N, d], [N], [N]."""
    if not labels.dtype.is_float:
        labels = cast(labels, i32)
    if x.ndim != 2 and x.ndim > 0:
        rows = product(x.shape[:-1])
        if labels.shape == x.shape[:-1]:
            labels = reshape(labels, (rows,))
        if weights is not None:
            weights = weights_of_labels(weights, x.shape[:-1])
        x = reshape(x, (rows, x.shape[-1]))
    return x, labels, weights


def linear_cross_entropy_rows(x: Any, w: Any, labels: Any) -> Value:
    """The loss of each row, f32 [...], 0 where the label is -100: linear_cross_entropy_pair before its sum.

    x: f32 [..., d]. w: [V, d], a row per class; f32, f16, bf16 or quantised. labels: a class id per row, [...].
    The gradient of a row's loss is its weight: row weights, preference losses, clipping by row. Its
    gradients hold no logits; they read w once more than the sum does. Raises as linear_cross_entropy_pair.
    """
    x, labels = as_value(x), as_value(labels)
    shape = labels.shape
    x, labels, _ = _hidden_rows(x, labels, None)
    losses = _linear_rows_op(x, w, labels)
    return losses if losses.shape == shape else reshape(losses, shape)
