"""Triangles and diagonals of matrices, and the outer product: compositions with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.leaves import constant
from ..graph.value import Value
from .common import f32_values, whole
from .elementwise import mul, where
from .layout import pad_op, permute, product, reshape, shape_error, slice_op


def tril(x: Any, k: int = 0) -> Value:
    """The lower triangle of each matrix of x [..., M, N]: 0 above diagonal k (0: the main one, 1: the one above it).

    f32. Raises ShapeError for x of fewer than 2 axes.
    """
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, k: int = 0) -> Value:
    """The upper triangle of each matrix of x [..., M, N]: 0 below diagonal k (0: the main one, 1: the one above it).

    f32. Raises ShapeError for x of fewer than 2 axes.
    """
    return _triangle("triu", x, k, lower=False)


def _triangle(name: str, x: Any, k: int, lower: bool) -> Value:
    (x,) = f32_values(name, x, promote=False)
    k = whole(name, "k", k)
    if x.ndim < 2:
        raise shape_error(name, x, "x is no matrix", "at least 2 axes")
    rows, columns = x.shape[-2:]
    below = np.tri(rows, columns, k if lower else k - 1, np.uint8)
    return where(constant(below), x, 0.0) if lower else where(constant(below), 0.0, x)


def diag(x: Any, k: int = 0) -> Value:
    """Diagonal k of a matrix [M, N] as a vector; of a vector [n], the matrix [n + |k|, n + |k|] with it there, else 0.

    k: 0 is the main diagonal, positive ones lie above it. f32. Raises ShapeError for x of other ranks, and for a
    diagonal that the matrix does not have. Of several matrices: einsum("...ii->...i", x).
    """
    (x,) = f32_values("diag", x, promote=False)
    k = whole("diag", "k", k)
    if x.ndim == 1:
        extent, wide = x.shape[0] + abs(k), x.shape[0] + abs(k)
        before = k if k >= 0 else -k * wide
        inside = max((x.shape[0] - 1) * (wide + 1) + 1, 0)
        flat = pad_op(x, before=[before], after=[wide * extent - before - inside], interior=[wide])
        return reshape(flat, (extent, wide))
    if x.ndim != 2:
        raise shape_error("diag", x, f"x has {x.ndim} axes", "a vector or a matrix")
    rows, columns = x.shape
    if not -rows < k < columns and (k or x.size):
        raise shape_error("diag", x, f"diagonal {k} does not exist", f"k from {1 - rows} to {columns - 1}")
    count = min(rows, columns - k) if k >= 0 else min(rows + k, columns)
    start = k if k >= 0 else -k * columns
    stop = start + max((count - 1) * (columns + 1) + 1, 0)
    flat = reshape(x, (x.size,))
    return slice_op(flat, starts=[start], stops=[stop], steps=[columns + 1])


def diagonal(x: Value, first: int, second: int) -> Value:
    """The diagonal of two axes of one extent, as the last axis."""
    rest = [a for a in range(x.ndim) if a not in (first, second)]
    shape, n = [x.shape[a] for a in rest], x.shape[first]
    flat = reshape(permute(x, [*rest, first, second]), (product(shape), n * n))
    taken = slice_op(flat, starts=[0, 0], stops=flat.shape, steps=[1, n + 1])
    return reshape(taken, (*shape, n))


def outer(x: Any, y: Any) -> Value:
    """z[i, j] = x[i] * y[j] of two vectors: [m], [n] -> [m, n]. f32. Raises ShapeError for other ranks."""
    x, y = f32_values("outer", x, y)
    if x.ndim != 1 or y.ndim != 1:
        raise shape_error("outer", [x, y], "x and y are not both vectors", "one axis each")
    return mul(reshape(x, (-1, 1)), y)
