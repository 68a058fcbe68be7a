"""Variance, standard deviation, logarithm of a sum of exponentials, and the place of the smallest element."""

from __future__ import annotations

import math
from typing import Any

from ..base.errors import SettingError
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Shape, Value
from .common import Reject, need_plain, normal_axes
from .elementwise import abs, add, equal, exp, less, log, neg, scale, sqr, sqrt, sub, where
from .layout import axis_of, detach, product, reshape, shape_error
from .reduce import Axes, argmax, mean, sum
from .reduce import max as max_over


def _axes_of(name: str, x: Value, axes: Axes) -> tuple[Shape, int]:
    """The axes in order, and the number of elements along them."""
    try:
        ordered = normal_axes(axes, x.ndim)
    except Reject as reject:
        raise shape_error(name, x, reject.seen, reject.need) from None
    return ordered, product([x.shape[a] for a in ordered])


def _variance(name: str, x: Any, axes: Axes, keepdims: bool, correction: float) -> Value:
    x = as_value(x)
    need_plain(name, correction=correction)
    ordered, count = _axes_of(name, x, axes)
    if not 0 <= correction < math.inf:
        raise SettingError(f"{name}: correction {correction} is not usable; need a number >= 0; at {user_location()}")
    if count <= correction:
        raise shape_error(name, x, f"{count} elements with correction {correction}", f"more than {correction} elements")
    centred = sub(x, mean(x, ordered, keepdims=True))
    return scale(sum(sqr(centred), ordered, keepdims), factor=1 / (count - correction))


def var(x: Any, axes: Axes = None, keepdims: bool = False, correction: float = 0) -> Value:
    """Variance over the axes (all when none is given): the sum of (x - mean)^2, divided by N - correction.

    correction   0: the variance of the N elements, as in NumPy, JAX and Keras. 1: the unbiased estimate of the variance
                 that they are drawn from, as in PyTorch by default

    Raises ShapeError for axes that do not exist and for N <= correction, SettingError for correction < 0.
    """
    return _variance("var", x, axes, keepdims, correction)


def std(x: Any, axes: Axes = None, keepdims: bool = False, correction: float = 0) -> Value:
    """Standard deviation over the axes (all when none is given): the square root of var(x, axes, keepdims, correction).

    Where the variance is 0, the gradient is 0. Raises what var raises.
    """
    variance = _variance("std", x, axes, keepdims, correction)
    none = equal(variance, 0.0)
    return where(none, 0.0, sqrt(where(none, 1.0, variance)))


def logsumexp(x: Any, axes: Axes = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) over the axes (all when none is given), without overflow: the largest element is taken out.

    -inf where all elements are -inf, with the gradient 0. Raises ShapeError for axes that do not exist and for empty
    ones.
    """
    x = as_value(x)
    ordered, count = _axes_of("logsumexp", x, axes)
    if not count:
        raise shape_error("logsumexp", x, "nothing to reduce", "extents >= 1")
    top = detach(max_over(x, ordered, keepdims=True))
    top = where(less(abs(top), math.inf), top, 0.0)
    total = sum(exp(sub(x, top)), ordered, keepdims)
    none = equal(total, 0.0)
    return add(where(none, -math.inf, log(where(none, 1.0, total))), reshape(top, total.shape))


def argmin(x: Any, axis: int = -1) -> Value:
    """Position of the first smallest element along the axis, as i32; of the first NaN where there is one.

    Raises ShapeError for an axis that does not exist or is empty.
    """
    x = as_value(x)
    at = axis_of("argmin", x, axis, x.ndim)
    if not x.shape[at]:
        raise shape_error("argmin", x, "nothing to choose from", "an extent >= 1")
    return argmax(neg(x), at)
