"""Activation functions without a kernel of their own: compositions of elementwise ops, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from ..base.errors import SettingError
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Value
from .elementwise import clamp, greater, mul, neg, scale, tanh, where
from .elementwise import softplus as softplus_op
from .layout import reshape, shape_error


def softplus(x: Any, beta: float = 1.0) -> Value:
    """log(1 + e^(beta x)) / beta, of any shape. Raises SettingError unless beta is a number above 0."""
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 < beta < math.inf:
        raise SettingError(setting="beta", seen=beta, need="a number above 0", place=f"softplus at {user_location()}")
    if beta == 1:
        return softplus_op(x)
    return scale(softplus_op(scale(x, factor=beta)), factor=1 / beta)


def mish(x: Any) -> Value:
    """x * tanh(softplus(x)), of any shape (Misra 2019, arXiv 1908.08681)."""
    x = as_value(x)
    return mul(x, tanh(softplus_op(x)))


def logsigmoid(x: Any) -> Value:
    """Logarithm of sigmoid(x), of any shape: -softplus(-x), exact for large |x|."""
    return neg(softplus_op(neg(as_value(x))))


def hardsigmoid(x: Any) -> Value:
    """x / 6 + 1/2 held between 0 and 1, of any shape."""
    return clamp(scale(as_value(x), factor=1 / 6, bias=0.5), min=0.0, max=1.0)


def hardswish(x: Any) -> Value:
    """x * hardsigmoid(x), of any shape (Howard et al. 2019, arXiv 1905.02244)."""
    x = as_value(x)
    return mul(x, hardsigmoid(x))


def prelu(x: Any, weight: Any) -> Value:
    """x where x > 0, else weight * x. weight [1], or [C] with one slope for each index of axis 1 of x [N, C, ...].

    Raises ShapeError for a weight that is neither.
    """
    x, weight = as_value(x), as_value(weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.ndim != 1 or weight.shape[0] not in (1, channels):
        raise shape_error("prelu", [x, weight], "weight does not fit", f"weight of shape [1] or [{channels}]")
    if weight.shape[0] > 1:
        weight = reshape(weight, (channels, *(1,) * (x.ndim - 2)))
    return where(greater(x, 0.0), x, mul(x, weight))
