"""Cross products, and triangular systems of linear equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.declare import op
from ..graph.leaves import as_value, constant
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Reject, Sample, Spec, bad, broadcast_shape, draw, need
from .elementwise import mul, neg, sub, where
from .layout import axis_of, broadcast_to, concat, permute, reshape, shape_error, split
from .matmul import matmul


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


# ---- triangular systems ----------------------------------------------------------------------------------


def _solve_shape(a: Spec, b: Spec) -> Spec:
    need(a.ndim >= 2 and a.shape[-1] == a.shape[-2], "a is not square", "a of shape [..., n, n]")
    wanted = [*a.shape[:-1], "m"]
    fits = b.ndim == a.ndim and b.shape[:-1] == a.shape[:-1]
    need(fits, "b does not fit", f"b of shape [{', '.join(map(str, wanted))}]")
    return Spec(b.shape)


def _triangle(n: int, lower: bool, diagonal: bool) -> np.ndarray:
    """u8 [n, n]: 1 in the triangle, its diagonal counted or not."""
    inside = np.tri(n, k=0 if diagonal else -1, dtype=np.uint8)
    return inside if lower else inside.T.copy()


def _solve_reference(a: np.ndarray, b: np.ndarray, lower: bool, unit_diagonal: bool) -> np.ndarray:
    n = a.shape[-1]
    x = np.array(b)
    for i in range(n) if lower else reversed(range(n)):
        known = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= np.einsum("...j,...jm->...m", a[..., i, known], x[..., known, :])
        if not unit_diagonal:
            x[..., i, :] /= a[..., i, i, None]
    return x


def _swapped(x: Value) -> Value:
    """The last two axes in the other order."""
    return permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _solve_vjp(g: Value, a: Value, x: Value, lower: bool, unit_diagonal: bool) -> list[Value]:
    """db = a^-T g, da = -db x^T inside of the triangle."""
    db = _solve(_swapped(a), g, lower=not lower, unit_diagonal=unit_diagonal)
    inside = constant(_triangle(a.shape[-1], lower, not unit_diagonal))
    return [where(inside, neg(matmul(db, _swapped(x))), 0.0), db]


SYSTEMS: tuple[tuple[Shape, int], ...] = (
    ((1, 1), 1), ((3, 3), 4), ((9, 9), 1), ((2, 7, 7), 3), ((2, 3, 5, 5), 2), ((33, 33), 70), ((65, 65), 5),
    ((2, 40, 40), 130), ((130, 130), 129),
)  # fmt: skip


def _solve_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (shape, columns) in enumerate(SYSTEMS):
        n = shape[-1]
        for unit_diagonal in (False, True):
            a = draw(rng, shape, -1.0, 1.0) / np.float32(n**0.5)  # the other triangle holds numbers that do not count
            a[..., np.arange(n), np.arange(n)] = draw(rng, shape[:-1], 1.0, 2.0)
            attrs = {"lower": i % 2 == 0, "unit_diagonal": unit_diagonal}
            samples.append(Sample((a, draw(rng, (*shape[:-1], columns))), attrs))
    return samples


_solve: OpSpec = op(
    "solve_triangular", inputs="a b", outputs="x", attrs="lower:bool=False unit_diagonal:bool=False",
    doc="a x = b; of a, the upper or lower triangle is read, its diagonal as 1 with unit_diagonal", dtypes="f32",
    shape=_solve_shape, vjp=_solve_vjp, reference=_solve_reference,
    cost=lambda a, b: (float(b.size * a.shape[-1]), a.bytes + 2 * b.bytes), samples=_solve_samples,
    bad_samples=[
        bad("solve_triangular: a is not square: a f32[2,3], b f32[2,1]; need a of shape [..., n, n]", (2, 3), (2, 1)),
        bad("solve_triangular: b does not fit: a f32[3,3], b f32[2,1]; need b of shape [3, m]", (3, 3), (2, 1)),
    ],
)  # fmt: skip


def solve_triangular(
    a: Any, b: Any, lower: bool = False, unit_diagonal: bool = False, transpose_a: bool = False
) -> Value:
    """x of a x = b for a triangular matrix a: [..., n, n] and b: [..., n, m] or [n] -> x of b's shape.

    lower           a is a lower triangle, else an upper one; numbers of the other triangle are not read
    unit_diagonal   the diagonal counts as 1 and is not read
    transpose_a     solve a^T x = b; `lower` describes a itself

    The axes before the matrices broadcast together. Names and defaults are those of scipy.linalg.solve_triangular, but
    for transpose_a, which is its trans="T". The CPU sums in f64. A 0 on the diagonal gives inf or NaN. Raises
    ShapeError for a that is not square and b that does not fit.
    """
    a, b = as_value(a), as_value(b)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise shape_error("solve_triangular", a, "a is not square", "a of shape [..., n, n]")
    if b.ndim == 1 and a.ndim == 2:
        column = solve_triangular(a, reshape(b, (*b.shape, 1)), lower, unit_diagonal, transpose_a)
        return reshape(column, b.shape)
    n = a.shape[-1]
    try:
        need(
            b.ndim >= 2 and b.shape[-2] == n,
            "b does not fit",
            f"b of shape [..., {n}, m]" + f" or [{n}]" * (a.ndim == 2),
        )
        batch = broadcast_shape(Spec(a.shape[:-2]), Spec(b.shape[:-2]))
    except Reject as reject:
        raise shape_error("solve_triangular", [a, b], reject.seen, reject.need) from None
    if transpose_a:
        a, lower = _swapped(a), not lower
    wide_a, wide_b = broadcast_to(a, (*batch, n, n)), broadcast_to(b, (*batch, *b.shape[-2:]))
    return _solve(wide_a, wide_b, lower=bool(lower), unit_diagonal=bool(unit_diagonal))
