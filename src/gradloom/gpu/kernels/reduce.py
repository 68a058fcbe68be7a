"""Sums, means, maxima and minima over axes; the position of the largest element."""

from __future__ import annotations

import math
from dataclasses import replace

from ...base.dtypes import f32
from ..calls import Arg, Call, Dispatch, groups_for, joined
from .table import Rule, kernel

SHORT = 64  # elements of a fold that one thread takes
MANY = 4096  # outputs that fill a device with a thread each
LONG = 16384  # elements of a fold that is cut into slices where outputs are few
FEW = 64  # outputs

FOLDS = {
    "sum": {"START": "0.0", "MERGE": "add", "FINISH": "as_is"},
    "mean": {"START": "0.0", "MERGE": "add", "FINISH": "mean_of"},
    "max": {"START": "-infinity()", "MERGE": "larger", "FINISH": "as_is"},
    "min": {"START": "infinity()", "MERGE": "smaller", "FINISH": "as_is"},
}


def _axes(x: Arg, folded: tuple[int, ...]) -> tuple[Arg, Arg]:
    """x over the axes that are kept, and over the folded ones."""
    parts = []
    for wanted in (False, True):
        axes = [i for i in range(len(x.shape)) if (i in folded) == wanted]
        part = replace(x, shape=tuple(x.shape[i] for i in axes), strides=tuple(x.strides[i] for i in axes))
        parts.append(joined([part])[0])
    return parts[0], parts[1]


def _slices(outputs: int, length: int) -> int:
    return min(length // 4096, 64) if 0 < outputs <= FEW and length >= LONG else 1


def _counts(call: Call) -> tuple[int, int]:
    """(outputs, elements folded into each)."""
    x, axes = call[0], call.attrs["axes"]
    return math.prod(n for i, n in enumerate(x.shape) if i not in axes), math.prod(x.shape[i] for i in axes)


def _workspace(call: Call) -> int:
    outputs, length = _counts(call)
    slices = _slices(outputs, length)
    return 4 * outputs * slices if slices > 1 else 0


def _reduce(defines: dict[str, str]) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x, y = call.args[:2]
        outputs, length = _counts(call)
        kept, folded = _axes(x, call.attrs["axes"])
        args: tuple[Arg, ...] = (y.seen_as((outputs,)), kept, folded)
        slices = _slices(outputs, length)
        words = (length, slices)
        if slices > 1:
            args = (*args, call[2].seen_with(f32, (outputs * slices,)))
            split = ("tree", "reduce", "reduce_group", "reduce_split")
            return [
                Dispatch(split, "slice", args, outputs * slices, words, defines),
                Dispatch(split, "join", args, groups_for(outputs), words, defines),
            ]
        if length <= SHORT or outputs >= MANY:
            return [Dispatch(("reduce",), "by_thread", args, groups_for(outputs), words, defines)]
        sources = ("tree", "reduce", "reduce_group")
        return [Dispatch(sources, "by_group", args, max(outputs, 1), words, defines)]

    return rule


def _argmax(call: Call) -> list[Dispatch]:
    x, y = call.args
    axis = call.attrs["axis"]
    kept, _ = _axes(x, (axis,))
    words = (x.shape[axis], x.strides[axis])
    return [Dispatch(("argmax",), "argmax", (y.seen_as((y.size,)), kept), groups_for(y.size), words)]


for _name, _defines in FOLDS.items():
    kernel(_name, "f32", _reduce(_defines), _workspace)
kernel("argmax", "f32_i32", _argmax)
