"""Cross entropy from logits with its gradient, and the count of correct rows."""

from __future__ import annotations

from ...base.dtypes import f32, i32
from ..calls import Arg, Call, Dispatch
from .table import kernel

PAIR_BYTES = 8  # of a row's weighted loss and its weight


def check_labels(labels: Arg, classes: int) -> list[Dispatch]:
    """Stops the run at an id that is neither a class nor -100."""
    return [Dispatch(("tree", "labels"), "check_labels", (labels,), 1, (classes,))] if labels.dtype is i32 else []


def sum_pairs(pairs: Arg, first: Arg, second: Arg) -> Dispatch:
    """The sums of the columns of [rows][2]."""
    return Dispatch(("tree", "sums"), "sum_pairs", (pairs, first, second), 1)


def _cross_entropy(call: Call) -> list[Dispatch]:
    logits, labels, weights, loss, weight, grad, workspace = call.args
    rows, classes = logits.shape
    pairs = workspace.seen_with(f32, (rows, 2))
    family = "cross_entropy_ids" if labels.dtype is i32 else "cross_entropy_rows"
    made = check_labels(labels, classes)
    if rows:
        args = (logits, labels, weights, grad, pairs)
        made.append(Dispatch(("math", "tree", "cross_entropy", family), "cross_entropy", args, rows, (classes,)))
    return [*made, sum_pairs(pairs, loss, weight)]


def _correct(call: Call) -> list[Dispatch]:
    logits, labels, *_ = call.args
    family = "correct_ids" if labels.dtype is i32 else "correct_rows"
    counted = Dispatch(("tree", family, "correct"), "correct", call.args, 1, (logits.shape[1],))
    return [*check_labels(labels, logits.shape[1]), counted]


kernel("cross_entropy_sum", "f32 f32_i32_f32", _cross_entropy, workspace=lambda c: max(c[0].shape[0], 1) * PAIR_BYTES)
kernel("correct", "f32 f32_i32_f32", _correct)
