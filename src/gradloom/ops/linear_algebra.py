"""Products of vectors, and systems of linear equations."""

from __future__ import annotations

from typing import Any

from ..graph.leaves import as_value
from ..graph.value import Value
from .elementwise import mul, sub
from .layout import axis_of, concat, shape_error, split


def cross(x: Any, y: Any, axis: int = -1) -> Value:
    """Cross product of vectors of three numbers along an axis; x and y broadcast together along the others.

    axis   of the value with more axes. Raises ShapeError unless x and y have extent 3 there.
    """
    x, y = as_value(x), as_value(y)
    ndim = max(x.ndim, y.ndim)
    at = axis_of("cross", x if x.ndim == ndim else y, axis, ndim) - ndim
    if any(v.ndim < -at or v.shape[at] != 3 for v in (x, y)):
        raise shape_error("cross", [x, y], f"axis {at} does not hold three numbers", "extent 3 in x and y")
    a, b = split(x, 3, at), split(y, 3, at)
    parts = [sub(mul(a[i - 2], b[i - 1]), mul(a[i - 1], b[i - 2])) for i in range(3)]
    return concat(parts, at)
