"""Transposed convolution: the gradient of a convolution with respect to its input, as a function of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.leaves import as_value
from ..graph.value import Value
from .conv import check_groups, conv2d_back_input
from .elementwise import add
from .layout import concat, reshape, shape_error, split
from .windows import pair_of


def conv_transpose2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """Transposed convolution of x [N, I, H, W] with w [I, O / groups, KH, KW], plus bias [O]: [N, O, OH, OW] with
    OH = (H - 1) * stride - 2 * padding + dilation * (KH - 1) + output_padding + 1, and OW likewise.

    Raises ShapeError for other ranks and channels, groups that do not divide I, an output_padding that is not below the
    stride, and a padding that leaves nothing.
    """
    x, w = as_value(x), as_value(w)
    check_groups("conv_transpose2d", x, w, groups)
    if w.shape[0] != x.shape[1]:
        raise shape_error("conv_transpose2d", [x, w], "channels differ", f"w of shape [{x.shape[1]}, O, KH, KW]")
    steps, sides, gaps = pair_of("stride", stride), pair_of("padding", padding), pair_of("dilation", dilation)
    more = pair_of("output_padding", output_padding)
    least = (("stride", steps, 1), ("padding", sides, 0), ("dilation", gaps, 1), ("output_padding", more, 0))
    for name, pair, low in least:
        if len(pair) != 2 or min(pair) < low:
            seen = f"{name} {list(pair)} is not usable"
            raise shape_error("conv_transpose2d", [x, w], seen, f"one or two whole numbers >= {low}")
    if any(m >= s for m, s in zip(more, steps, strict=True)):
        seen = f"output_padding {list(more)} with stride {list(steps)}"
        raise shape_error("conv_transpose2d", [x, w], seen, "an output_padding below the stride")
    extents = zip(x.shape[2:], w.shape[2:], steps, sides, gaps, more, strict=True)
    height, width = ((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, d, m in extents)
    if height < 1 or width < 1:
        seen = f"padding {list(sides)} leaves an output of {height} x {width}"
        raise shape_error("conv_transpose2d", [x, w], seen, "less padding")
    how = {"height": height, "width": width, "stride": steps, "padding": sides, "dilation": gaps}
    parts = zip(split(x, groups, 1), split(w, groups), strict=True)
    y = concat([conv2d_back_input(part, kernels, **how) for part, kernels in parts], 1)
    return y if bias is None else add(y, reshape(as_value(bias), (-1, 1, 1)))


def conv_transpose1d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """Transposed convolution of x [N, I, L] with w [I, O / groups, K], plus bias [O]: [N, O, OL] with OL as OH of
    conv_transpose2d. Raises ShapeError for other ranks, and as conv_transpose2d.
    """
    x, w = as_value(x), as_value(w)
    if x.ndim != 3 or w.ndim != 3:
        raise shape_error(
            "conv_transpose1d", [x, w], "no rows and kernels", "x of shape [N, I, L], w of shape [I, O, K]"
        )
    row, kernels = (reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, w))
    how = ((1, stride), (0, padding), (0, output_padding), (1, dilation))
    y = conv_transpose2d(row, kernels, bias, *how, groups)
    return reshape(y, (*y.shape[:2], y.shape[3]))
