"""Distillation loss of logits x w^T over a large vocabulary: KL divergence from a teacher's likeliest classes.

Hinton et al. 2015 (arXiv 1503.02531), with the classes beyond the k likeliest ones of the teacher joined to one class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.errors import SettingError
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.leaves import constant
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Spec, need
from .elementwise import add, cast, div, equal, exp, greater, log, maximum, mul, scale, sub, where
from .index import get_rows, scatter_rows
from .layout import concat, reshape
from .loss import loss_gradients, one_hot, rows_that_count
from .matmul import matmul
from .reduce import argmax
from .reduce import max as largest
from .reduce import sum as sum_over
from .softmax import log_softmax

BLOCK = 1 << 23  # logits of a block: places in it are exact in f32
LEAST = 1e-30  # probability of a class that the teacher names
FAR = -1e30  # log-probability of a class that is left out


class Distilled(NamedTuple):
    """Sums over the rows that count, f32[] each.

    loss    (1 - hard) T^2 KL + hard times the cross entropy, with its gradient
    weight  number of these rows
    kl      divergence of the teacher's distribution at temperature T from the student's, in nats
    nll     cross entropy of the labels, in nats
    same    rows whose first largest logit is the first id
    """

    loss: Value
    weight: Value
    kl: Value
    nll: Value
    same: Value


def _shape(x: Spec, w: Spec, labels: Spec, ids: Spec, teacher: Spec) -> list[Spec]:
    need(x.ndim == 2 and w.ndim == 2, "x and w are not matrices", "x of shape [N, d] and w of shape [V, d]")
    need(x.shape[1] == w.shape[1], "inner sizes differ", f"w of shape [V, {x.shape[1]}]")
    _check(x.shape[0], w.shape[0], labels, ids, teacher)
    return [*[Spec(())] * 5, Spec(x.shape), Spec(w.shape)]


def _check(rows: int, classes: int, labels: Spec | Value, ids: Spec | Value, teacher: Spec | Value) -> None:
    """Reject for shapes that do not fit."""
    need(labels.shape == (rows,), "labels do not fit", f"one id per row, i32[{rows}]")
    fits = len(ids.shape) == 2 and ids.shape[0] == rows and 1 <= ids.shape[1] <= classes
    need(fits, "ids do not fit", f"1 to {classes} ids per row, i32[{rows}, k]")
    wide = (rows, ids.shape[1] + 1)
    need(
        teacher.shape == wide, "teacher does not fit", f"log-probabilities of the ids and of the rest, f32{list(wide)}"
    )


class _Rows(NamedTuple):
    """Numbers of each row, f32 [B, 1], and the slope of its loss by its logits, f32 [B, V]."""

    loss: Value
    kl: Value
    nll: Value
    same: Value
    slope: Value


def _rows(z: Value, labels: Value, ids: Value, teacher: Value, temperature: float, hard: float) -> _Rows:
    """Losses of rows of logits z [B, V].

    p_i of the ids and r of the rest are the teacher's probabilities, q_j the student's, s = sum of the q_j of the rest:
    KL = sum p_i (log p_i - log q_i) + r (log r - log s). Its slope by z_j / T is q_j - p_j for an id, and else
    q_j - r q_j / s. With k = V there is no rest.
    """
    (rows, classes), k = z.shape, ids.shape[1]
    starts = constant(classes * np.arange(rows, dtype=np.float32)[:, None])

    def taken(from_: Value, which: Value) -> Value:
        return reshape(get_rows(reshape(from_, (rows * classes, 1)), _places(which, starts)), which.shape)

    log_q = log_softmax(scale(z, 1 / temperature) if temperature != 1 else z)
    log_p, log_r = teacher[:, :k], teacher[:, k:]
    p = maximum(exp(log_p), LEAST)
    given = scatter_rows(reshape(p, (rows * k, 1)), _places(ids, starts), rows=rows * classes)
    given = reshape(given, (rows, classes))
    kl = sum_over(mul(p, sub(log_p, taken(log_q, ids))), 1, keepdims=True)
    total, target = sum_over(p, 1, keepdims=True), given
    if k < classes:
        is_named, r = greater(given, 0.0), exp(log_r)
        rest = where(is_named, FAR, log_q)
        top = largest(rest, 1, keepdims=True)
        each = exp(sub(rest, top))
        of_all = sum_over(each, 1, keepdims=True)
        kl = add(kl, mul(r, sub(log_r, add(top, log(of_all)))))
        total, target = add(total, r), where(is_named, given, mul(each, div(r, of_all)))
    slope = scale(sub(mul(exp(log_q), total), target), (1 - hard) * temperature)
    log_own = log_q if temperature == 1 else log_softmax(z)
    ids_of_labels = reshape(cast(maximum(cast(labels, "f32"), 0.0), "i32"), (rows, 1))
    nll = scale(taken(log_own, ids_of_labels), -1.0)
    if hard:
        slope = add(slope, scale(sub(exp(log_own), one_hot(labels, classes)), hard))
    loss = add(scale(kl, (1 - hard) * temperature**2), scale(nll, hard))
    same = where(equal(argmax(z), reshape(ids[:, :1], (rows,))), 1.0, 0.0)
    return _Rows(loss, kl, nll, reshape(same, (rows, 1)), slope)


def _places(ids: Value, starts: Value) -> Value:
    """Places of ids i32 [B, k] in the logits of a block, i32 [B k]."""
    return reshape(cast(add(cast(ids, "f32"), starts), "i32"), (ids.size,))


def _sums(rows: list[_Rows], counted: Value) -> list[Value]:
    """Sums over the rows that count of (loss, kl, nll, same)."""
    columns = [concat([getattr(one, name) for one in rows]) for name in ("loss", "kl", "nll", "same")]
    left_out = equal(counted, 0.0)
    return [sum_over(where(left_out, 0.0, reshape(column, counted.shape))) for column in columns]


def _blocks(rows: int, classes: int) -> list[slice]:
    size = max(1, BLOCK // classes)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _graph(
    x: Value, w: Value, labels: Value, ids: Value, teacher: Value, temperature: float, hard: float
) -> list[Value]:
    """The op from simpler ones: logits and their slopes are held for one block of rows at a time."""
    counted = rows_that_count(labels)
    found, dx, dw = list[_Rows](), list[Value](), list[Value]()
    for part in _blocks(x.shape[0], w.shape[0]):
        own = reshape(counted[part], (part.stop - part.start, 1))
        read = where(equal(own, 0.0), 0.0, x[part])
        rows = _rows(matmul(read, w, transpose_y=True), labels[part], ids[part], teacher[part], temperature, hard)
        slope = mul(rows.slope, own)
        found.append(rows)
        dx.append(matmul(slope, w))
        more = matmul(slope, read, transpose_x=True)
        dw = [add(dw[0], more) if dw else more]
    loss, kl, nll, same = _sums(found, counted)
    return [loss, sum_over(counted), kl, nll, same, concat(dx), *dw]


linear_distillation: OpSpec = op(
    "linear_distillation", inputs="x w labels ids teacher", attrs="temperature:float=1 hard:float=0",
    outputs="loss weight kl nll same dx? dw?", dense="labels ids teacher",
    doc="loss = sum over rows of (1 - hard) T^2 KL(teacher || softmax(x w^T / T)) + hard times the cross entropy at "
    "the labels, and its gradients; teacher: log-probabilities of the ids, then of all other classes together; rows of "
    "label -100 count nothing; block by block of the rows: the logits [N, V] are never held",
    shape=_shape,
    vjp=lambda g_loss, g_weight, g_kl, g_nll, g_same, g_dx, g_dw, x, w, labels, ids, teacher, temperature, hard, dx, dw,
    needed: [
        *loss_gradients(
            lambda x, w: _graph(x, w, labels, ids, teacher, temperature, hard), {"x": x, "w": w}, {"x": dx, "w": dw},
            needed, g_loss, g_weight, g_kl, g_nll, g_same, g_dx, g_dw,
        ),
        None, None, None,
    ],
    no_gradient_to={"labels": "ids have no slope", "ids": "ids have no slope", "teacher": "targets are fixed"},
    composition=_graph, ids=lambda w: IdRange("ids", w.shape[0]),
    dtypes="f32 w:f32|f16|bf16|quantised labels:i32 ids:i32",
    no_samples="it has no kernel of its own: tests/ops/test_distillation.py",
)  # fmt: skip


def linear_distilled(
    x: Value, w: Value, labels: Value, ids: Value, teacher: Value, temperature: float = 1.0, hard: float = 0.0
) -> Distilled:
    """Distillation loss of logits x w^T, which are never held in full.

    x: f32 [N, d]. w: [V, d], f32, f16, bf16 or quantised. labels: i32 [N]; -100: the row does not count. ids: i32
    [N, k], different classes of each row. teacher: f32 [N, k + 1], log-probabilities of the ids at temperature T, then
    that of all other classes together. hard: share of the cross entropy. Raises ShapeError, SettingError.
    """
    _check_vocabulary(w.shape[0])
    found = linear_distillation(x, w, labels, ids, teacher, temperature=temperature, hard=hard)
    return Distilled(*found[:5])


def distilled(
    z: Value, labels: Value, ids: Value, teacher: Value, temperature: float = 1.0, hard: float = 0.0
) -> Distilled:
    """linear_distilled of logits z f32 [N, V]."""
    _check_vocabulary(z.shape[1])
    counted = rows_that_count(labels)
    z = where(equal(reshape(counted, (z.shape[0], 1)), 0.0), 0.0, z)
    parts = _blocks(*z.shape)
    rows = [_rows(z[part], labels[part], ids[part], teacher[part], temperature, hard) for part in parts]
    loss, kl, nll, same = _sums(rows, counted)
    return Distilled(loss, sum_over(counted), kl, nll, same)


def _check_vocabulary(classes: int) -> None:
    """SettingError where places in a row of logits are not exact in f32."""
    if classes > 2 * BLOCK:
        raise SettingError(f"distillation: {classes:,} classes; need at most {2 * BLOCK:,}")
