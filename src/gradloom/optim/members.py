"""Reductions over each member of an ensemble, whose arrays lie in stacks (see graph/stack.py)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import ops
from ..graph.leaves import Parameter
from ..graph.value import Value


def to_arrays(numbers: Value, x: Value) -> Value:
    """f32[members] as f32[count, 1, ...], to be broadcast to the stack x [count, ...]: the number of each array's
    member."""
    members, count = numbers.shape[0], x.shape[0]
    wide = ops.broadcast_to(ops.reshape(numbers, (members, 1)), (members, count // members))
    return ops.reshape(wide, (count, *[1] * (x.ndim - 1)))


def parts_of(x: Value, members: int) -> list[Value]:
    """The stack x [count, ...] cut into the arrays of each member."""
    each = x.shape[0] // members
    return [x[m * each : (m + 1) * each] for m in range(members)]


def clip_members(
    parameters: Sequence[Parameter], sums: Sequence[Value], weight: Value, max_norm: float | Value
) -> list[Value]:
    """Scale the sums of gradients so that sums / weight have a norm of at most max_norm in each member of an ensemble,
    and in the elements of no member. weight: f32[]. A norm is computed from the elements of its member alone."""
    clipped = list(sums)
    for members in {p.stored.members: None for p in parameters}:
        at = [i for i, p in enumerate(parameters) if p.stored.members == members]
        cut = zip(*(parts_of(sums[i], members) for i in at), strict=True) if members > 1 else [[sums[i] for i in at]]
        norms = [ops.reshape(ops.grad_norm(weight, *own), (1,)) for own in cut]
        excess = ops.maximum(ops.concat(norms, axis=0) / max_norm, 1.0)
        for i in at:
            clipped[i] = sums[i] / (to_arrays(excess, sums[i]) if members > 1 else ops.reshape(excess, ()))
    return clipped
