"""The sum of the gradients of a value. A weight that many steps read (of a recurrent layer) gets a product from each:

    h_1^T g_1 + h_2^T g_2 + ... = [h_1; h_2; ...]^T [g_1; g_2; ...]

one product of stacked rows, which writes the gradient once instead of twice per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..base.dtypes import f32
from .opspec import REGISTRY
from .value import Value

FEWEST, MOST_ROWS = 4, 128  # products; rows of each, above which the sums take little of their time


def sum_of(terms: Sequence[Value]) -> Value:
    """The terms, of one shape, added in their order; products of few rows as one product of stacked rows."""
    pairs = [_factors(term) for term in terms]
    if len(terms) < FEWEST or any(pair is None or pair[0].shape[0] > MOST_ROWS for pair in pairs):
        return reduce(REGISTRY["add"], terms)
    # The last step comes first. In the order of the steps the stack is often there: the gradient of its slices.
    left, right = (_stacked([pair[i] for pair in reversed(pairs) if pair is not None]) for i in range(2))
    return REGISTRY["matmul"](REGISTRY["permute"](left, axes=(1, 0)), right)


def _factors(term: Value) -> tuple[Value, Value] | None:
    """h [N, H] and g [N, G] of the matrix h^T g, which may be written as the transpose of g^T h; None of anything
    else."""
    if _transposes(term):
        inner = term.node.inputs[0]
        pair = None if inner is None or _transposes(inner) else _factors(inner)
        return None if pair is None else (pair[1], pair[0])
    if term.node.op.name != "matmul" or term.ndim != 2:
        return None
    left, right = term.node.inputs
    if left is None or right is None or not _transposes(left):
        return None
    rows = left.node.inputs[0]
    if rows is None or rows.dtype is not f32 or right.dtype is not f32:
        return None
    return rows, right


def _transposes(value: Value) -> bool:
    return value.node.op.name == "permute" and value.node.attrs["axes"] == (1, 0)


def _stacked(rows: Sequence[Value]) -> Value:
    """Matrices [N_i, H] as one [sum of N_i, H]. Equal ones are joined along a new axis, as slices of it are."""
    if len({value.shape for value in rows}) > 1:
        return REGISTRY["concat"](*rows, axis=0)
    n, width = rows[0].shape
    joined = REGISTRY["concat"](*(REGISTRY["reshape"](value, shape=(1, n, width)) for value in rows), axis=0)
    return REGISTRY["reshape"](joined, shape=(len(rows) * n, width))
