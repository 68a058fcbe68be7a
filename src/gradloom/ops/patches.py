"""Windows of images as columns (im2col), and their sum back into images: compositions of slices and pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.value import Shape, Value
from .common import Reject, Spec, f32_values
from .elementwise import add
from .indexing import slice as slice_of
from .layout import concat, pad_op, product, reshape, shape_error
from .padding import pad
from .windows import out_extents, pair_of

Pairs = int | Sequence[int]


def unfold(x: Any, kernel: Pairs, stride: Pairs = 1, padding: Pairs = 0, dilation: Pairs = 1) -> Value:
    """The windows of images as columns: x [N, C, H, W] -> [N, C * KH * KW, OH * OW]; row (c * KH + i) * KW + j holds
    element (i, j) of the windows of channel c, window by window, row by row.

    kernel, stride, padding (zeros), dilation: numbers or pairs, as of conv2d. f32. As torch.nn.functional.unfold.
    Raises ShapeError for x of another rank, and for windows that do not fit.
    """
    (x,) = f32_values("unfold", x, promote=False)
    if x.ndim != 4:
        raise shape_error("unfold", x, "x is no batch of images", "x of shape [N, C, H, W]")
    n, channels = x.shape[:2]
    size, steps, sides, gaps, out = _windows("unfold", x, x.shape, kernel, stride, padding, dilation)
    wide = pad(x, [(0, 0), (0, 0), *((p, p) for p in sides)]) if any(sides) else x
    columns = []
    for at in np.ndindex(*size):
        first = [int(i) * d for i, d in zip(at, gaps, strict=True)]
        stops = [a + (o - 1) * s + 1 for a, o, s in zip(first, out, steps, strict=True)]
        seen = slice_of(wide, (0, 0, *first), (n, channels, *stops), (1, 1, *steps))
        columns.append(reshape(seen, (n, channels, 1, product(out))))
    return reshape(concat(columns, 2), (n, channels * product(size), product(out)))


def fold(
    x: Any, output_size: Pairs, kernel: Pairs, stride: Pairs = 1, padding: Pairs = 0, dilation: Pairs = 1
) -> Value:
    """Columns added up as windows of images: x [N, C * KH * KW, OH * OW] -> [N, C, H, W], the transpose of unfold of
    images of output_size = (H, W) with the same kernel, stride, padding and dilation.

    f32. As torch.nn.functional.fold. Raises ShapeError for x of another shape, and for windows that do not fit.
    """
    (x,) = f32_values("fold", x, promote=False)
    extents = pair_of("output_size", output_size)
    if x.ndim != 3 or len(extents) != 2 or min(extents) < 1:
        seen = f"x and output_size {list(extents)} are not usable"
        raise shape_error("fold", x, seen, "x of shape [N, C * KH * KW, OH * OW], two whole numbers >= 1")
    size, steps, sides, gaps, out = _windows("fold", x, (1, 1, *extents), kernel, stride, padding, dilation)
    count = product(size)
    if x.shape[1] % count or x.shape[2] != product(out):
        seen = f"x does not hold windows of {count} elements at {list(out)} places"
        raise shape_error("fold", x, seen, f"x of shape [N, C * {count}, {product(out)}]")
    n, channels = x.shape[0], x.shape[1] // count
    wide = [extent + 2 * p for extent, p in zip(extents, sides, strict=True)]
    columns = reshape(x, (n, channels, count, *out))
    total = None
    for i, at in enumerate(np.ndindex(*size)):
        before = [int(a) * d for a, d in zip(at, gaps, strict=True)]
        after = [w - a - (o - 1) * s - 1 for w, a, o, s in zip(wide, before, out, steps, strict=True)]
        placed = pad_op(
            columns[:, :, i], before=[0, 0, *before], after=[0, 0, *after], interior=[0, 0, *(s - 1 for s in steps)]
        )
        total = placed if total is None else add(total, placed)
    assert total is not None
    stops = [p + extent for p, extent in zip(sides, extents, strict=True)]
    return slice_of(total, (0, 0, *sides), (n, channels, *stops)) if any(sides) else total


def _windows(name: str, x: Value, images: Shape, *how: Pairs) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding, dilation as pairs, and the extents of the result; ShapeError where they do not fit."""
    words = ("kernel", "stride", "padding", "dilation")
    pairs = [pair_of(word, given) for word, given in zip(words, how, strict=True)]
    try:
        return *pairs, out_extents(Spec(images), *pairs)
    except Reject as reject:
        raise shape_error(name, x, reject.seen, reject.need) from None
