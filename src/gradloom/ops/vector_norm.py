"""Norms of vectors along axes, and vectors of norm 1. Layers that normalise are in norm.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..base.errors import SettingError
from ..graph.scope import user_location
from ..graph.value import Value
from .common import f32_values
from .elementwise import abs as abs_of
from .elementwise import div, equal, maximum, power, sqr, sqrt, where
from .layout import axis_of
from .reduce import axes_of
from .reduce import max as max_over
from .reduce import sum as sum_over


def norm(x: Any, ord: float = 2.0, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The norm of the vectors along the axes, of all elements when none is given: (sum |x|^ord)^(1/ord).

    ord: a number of at least 1, or math.inf for the largest |x|. The gradient at a vector of zeros is 0. f32. As
    torch.linalg.vector_norm. Raises SettingError for another ord, ShapeError for axes that do not exist.
    """
    (x,) = f32_values("norm", x)
    axes = axes_of("norm", x, axes)
    if isinstance(ord, bool) or not isinstance(ord, (int, float)) or not ord >= 1:
        need = "a number of at least 1, or math.inf"
        raise SettingError(setting="ord", seen=ord, need=need, place=f"norm at {user_location()}")
    if ord == math.inf:
        return max_over(abs_of(x), axes, keepdims)
    if ord == 1:
        return sum_over(abs_of(x), axes, keepdims)
    total = sum_over(sqr(x) if ord == 2 else power(abs_of(x), float(ord)), axes, keepdims)
    none = equal(total, 0.0)  # where the root has no slope
    safe = where(none, 1.0, total)
    return where(none, 0.0, sqrt(safe) if ord == 2 else power(safe, 1 / ord))


def l2_norm(x: Any, axis: int = -1, eps: float = 1e-12) -> Value:
    """The vectors along an axis, divided by their length: x / max(sqrt(sum x^2), eps), of x's shape.

    f32. As ggml's l2_norm, and torch.nn.functional.normalize with axis=1. Raises SettingError unless eps is a number
    from 1e-18 (whose square f32 holds), ShapeError for an axis that does not exist.
    """
    (x,) = f32_values("l2_norm", x)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 1e-18 <= eps < math.inf:
        place = f"l2_norm at {user_location()}"
        raise SettingError(setting="eps", seen=eps, need="a number of at least 1e-18", place=place)
    total = sum_over(sqr(x), axis_of("l2_norm", x, axis, x.ndim), keepdims=True)
    return div(x, sqrt(maximum(total, eps * eps)))
