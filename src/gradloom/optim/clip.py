"""Clipping: by value, which bounds each element of the mean gradient, and by the global norm, which writes no gradient
and increases the divisor of the update op. Where both are given, the values are clipped first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import f32_hint, in_f32, what_is
from ..base.errors import GradientError, SettingError
from ..graph.value import Value
from .optimizer import Optimizer
from .window import GradientSource


def is_one(weight: Any) -> bool:
    """Nothing is divided by it."""
    return isinstance(weight, (int, float)) and weight == 1


def check_max(name: str, bound: float) -> float:
    """max_norm or max_value as a float, inf for none; SettingError unless it is a number above 0."""
    usable = isinstance(bound, (int, float, np.number)) and not isinstance(bound, bool) and bound > 0
    usable = usable and (0 < in_f32(bound) < math.inf or bound == math.inf)
    if not usable:
        raise SettingError(setting=name, seen=bound, need=f"a number above 0{f32_hint(bound)} (inf: no clipping)")
    return float(bound)


def clip_values(sums: Sequence[Value], weight: Value, max_value: float | Value) -> list[Value]:
    """The sums of gradients with each element of sums / weight held between -max_value and max_value.

    weight: f32[]. torch.nn.utils.clip_grad_value_ on the mean gradient. With max_value inf, the sums themselves.
    """
    if not isinstance(max_value, Value) and math.isinf(max_value):
        return list(sums)
    return held_between(sums, weight * max_value)


def held_between(sums: Sequence[Value], limit: Value) -> list[Value]:
    """Each element between -limit and limit, a scalar."""
    lowest = -limit
    return [ops.minimum(ops.maximum(g, lowest), limit) for g in sums]


def clip_weight(norm: Value | Sequence[Value], weight: Value, max_norm: float | Value) -> Value:
    """The weight to divide by instead, so that gradients / weight have a global norm of at most max_norm.

    norm: the global norm of gradients / weight, f32[] (what ops.guard and ops.grad_norm give), or the gradients.
    weight: f32[]. Returns weight * max(1, norm / max_norm), f32[], which the update op divides by in any case: clipping
    writes no gradient. PyTorch's clip_grad_norm_ (Pascanu et al., arXiv 1211.5063) without its 1e-6. With max_norm inf,
    the weight itself. max_norm may be a scalar of the graph (a setting). Raises SettingError for a max_norm that is not
    above 0.
    """
    if not isinstance(max_norm, Value):
        max_norm = check_max("max_norm", max_norm)
        if math.isinf(max_norm):
            return weight
    return weight * _excess(norm if isinstance(norm, Value) else ops.grad_norm(weight, *norm), max_norm)


def _excess(norm: Value, max_norm: float | Value) -> Value:
    """How many times too large the norm is, at least 1."""
    return ops.maximum(ops.div(norm, max_norm), 1.0)


def clip_grad_norm(grads: GradientSource | Optimizer, max_norm: float) -> Any:
    """Make the next step use gradients whose global norm is at most max_norm; returns the norm before.

    grads: what tape.backward gave (the norm is a scalar Tensor, computed with the step; the gradients themselves stay
    as they are, their `weight` changes), or an optimiser that has accumulated gradients (the norm is a number, measured
    now, and its next `step()` clips). SettingError unless max_norm is above 0. The norm is global also where members of
    an nn.Ensemble are trained (max_norm= of gl.fit and gl.Trainer bounds each member's).
    """
    max_norm = check_max("max_norm", max_norm)
    if isinstance(grads, Optimizer):
        return grads.clip(max_norm)
    _need_gradients("clip_grad_norm", grads)
    norm = ops.grad_norm(1.0, *(g for g in grads.values() if g is not None))  # each is divided by the weight already
    if not math.isinf(max_norm):
        excess = _excess(norm, max_norm)
        grads.weight = excess if is_one(grads.weight) else grads.weight * excess
    return norm


def clip_grad_value(grads: GradientSource | Optimizer, max_value: float) -> None:
    """Make the next step use gradients with every element between -max_value and max_value, as
    torch.nn.utils.clip_grad_value_ does.

    grads: the result of tape.backward (clipped in its current state, after an earlier clip_grad_norm), or an
    optimiser that has accumulated gradients (its next `step()` clips the values of their mean, before any norm).
    SettingError unless max_value is above 0.
    """
    max_value = check_max("max_value", max_value)
    if isinstance(grads, Optimizer):
        return grads.clip_value(max_value)
    _need_gradients("clip_grad_value", grads)
    if not math.isinf(max_value):
        limit = max_value if is_one(grads.weight) else grads.weight * max_value
        before = grads.limit
        if isinstance(limit, float) and isinstance(before, float):
            grads.limit = min(limit, before)
        else:
            grads.limit = limit if isinstance(before, float) and math.isinf(before) else ops.minimum(limit, before)
    return None


def _need_gradients(who: str, grads: object) -> None:
    if isinstance(grads, type) or not hasattr(grads, "add_to"):
        need = "what tape.backward(loss) gave, or an optimiser that has accumulated gradients"
        raise GradientError(f"{who}: got {what_is(grads)}; need {need}")
