"""The end of a training step, as nodes of the step's program: guard, sums of gradients, clipping, update.

    loss sum f32[], weight f32[], gradients of the loss sum (shapes of the parameters)
        guard               ends the step before anything is written when one of them is not finite
        accumulate          adds them to the sums of a window, when several micro-batches make a step
        clip                bounds the elements of sums / weight by max_value, then increases the weight when the
                            norm of sums / weight is above max_norm; of an ensemble each member has a norm of its own
        update              the optimiser's step on sums / weight

Trainers, ranks, replicas and the user's own loops end their steps here: no other file builds these nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..graph.leaves import Parameter
from ..graph.value import Value
from ..optim.clip import clip_values, clip_weight
from ..optim.members import clip_members
from ..optim.state import OptimizerState


def guard(loss: Value, weight: Value, grads: Sequence[Value]) -> Value:
    """The global norm of grads / weight, f32[]. When the loss or a gradient is not finite, the program ends here with
    nothing written."""
    return ops.guard(loss, weight, *grads)


def update(
    state: OptimizerState,
    parameters: Sequence[Parameter],
    sums: Sequence[Value],
    weight: Value,
    max_norm: float | Value = math.inf,
    norm: Value | None = None,
    max_value: float | Value = math.inf,
    each_member: bool = False,
) -> tuple[Value, ...]:
    """The optimiser's step on sums / weight, with elements of at most max_value, brought down to max_norm. norm: that
    of sums / weight, where known. each_member: max_norm bounds the norm of each member of an ensemble, and of what
    belongs to none, in place of the global one."""
    if isinstance(max_value, Value) or not math.isinf(max_value):
        sums, norm = clip_values(sums, weight, max_value), None
    if each_member and (isinstance(max_norm, Value) or not math.isinf(max_norm)):
        sums, max_norm = clip_members(parameters, sums, weight, max_norm), math.inf
    return tuple(state.update(parameters, sums, clip_weight(sums if norm is None else norm, weight, max_norm)))


def end_step(
    state: OptimizerState,
    parameters: Sequence[Parameter],
    grads: Sequence[Value],
    loss: Value,
    weight: Value,
    *,
    divisor: Value | None = None,
    accumulates: bool = False,
    updates: bool = True,
    others: Sequence[Parameter] = (),
    max_norm: float = math.inf,
    max_value: float = math.inf,
) -> tuple[list[Value], tuple[Value, ...]]:
    """(norms, updates) of a micro-batch, or of the sum over several.

    norms        f32[] each: the guard, which is the global norm of grads / weight; where the step ends and divides
                 something else, the global norm of that, too. So the last one is the norm of the step's gradient,
                 before clipping

    divisor      of the sums, by default the sum of weights
    accumulates  the gradients are added to the window's sums; else they are the whole step
    updates      the step ends here; others: parameters that the window holds besides these
    """
    norms = [guard(loss, weight, grads)]
    sums, by = list(grads), weight if divisor is None else divisor
    written: tuple[Value, ...] = ()
    if accumulates:
        written = state.accumulate(parameters, grads, weight if divisor is None else None)
        sums = list(written[: len(grads)])
        by = written[-1] if divisor is None else divisor
    if updates:
        sums += [state.sums[p.stored] for p in others]
        if accumulates or by is not weight:
            norms.append(ops.grad_norm(by, *sums))
        updated = (*parameters, *others)
        each_member = any(p.stored.members > 1 for p in updated)
        written += update(state, updated, sums, by, max_norm, norms[-1], max_value, each_member)
    return norms, written


def random_settings(seed: int, step: Any, row: Any = 0) -> dict[str, Any]:
    """The settings that random ops draw from: seed, step (from 1), and the number of a micro-batch's first row inside
    its step. step and row: a number, or one for each of several steps that one call runs."""
    return {"seed": seed, "step": step, "row": row}
