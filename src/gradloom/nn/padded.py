"""Padding of convolutions with other values than zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base.errors import ShapeError
from ..graph.value import Value, describe
from ..ops.padding import check_pad_mode

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def checked_mode(place: str, mode: Any) -> str:
    """The mode; SettingError for one that is not known."""
    check_pad_mode(place, "padding_mode", mode, PADDING_MODES)
    return str(mode)


def padded(
    place: str, x: Value, kernel: Sequence[int], stride: Any, padding: Any, dilation: Sequence[int], mode: str
) -> Value:
    """x [N, C, ...] with the padding of a convolution around its last axes; "same": as long as before (stride 1).

    Raises ShapeError for x of another rank, for "same" with a stride, and for padding that the mode cannot fill.
    """
    if x.ndim != 2 + len(kernel):
        raise ShapeError(f"{place}: got {describe(x)}; need [N, channels, {', '.join('HW'[: len(kernel)])}]")
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ShapeError(f'{place}: padding "same" with stride {list(stride)}; need stride 1')
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(t // 2, t - t // 2) for t in totals]
    elif isinstance(padding, str):
        raise ShapeError(f'{place}: padding {padding!r} is not known; need a number, a pair or "same"')
    else:
        sides = [(p, p) for p in padding]
    return ops.pad(x, [(0, 0), (0, 0), *sides], mode=mode)
