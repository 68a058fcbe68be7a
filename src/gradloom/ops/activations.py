"""Activation functions without a kernel of their own: compositions of elementwise ops, with their gradients."""

from __future__ import annotations

from typing import Any

from ..graph.leaves import as_value
from ..graph.value import Value
from .elementwise import clamp, greater, mul, scale, softplus, tanh, where
from .layout import reshape, shape_error


def mish(x: Any) -> Value:
    """x * tanh(softplus(x)), of any shape (Misra 2019, arXiv 1908.08681)."""
    x = as_value(x)
    return mul(x, tanh(softplus(x)))


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
