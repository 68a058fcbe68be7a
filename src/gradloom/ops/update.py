"""Update ops other than optimiser rules: sums, copies, averages, norms. Outputs are written in place of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.opspec import OpSpec
from .common import Sample, Spec, bad, draw, need, scalar_specs

ENDS = "an update ends a step; nothing flows through it"
Arrays = list[np.ndarray]


def same_shapes(names: str, **groups: list[Spec | None]) -> None:
    """Every group's members have one shape."""
    for members in zip(*groups.values(), strict=True):
        present = [m for m in members if m is not None]
        need(all(m.shape == present[0].shape for m in present), "shapes differ within a group", f"{names} of one shape")


def _accumulate_shape(keep: Spec, acc: list[Spec], g: list[Spec]) -> list[Spec]:
    scalar_specs(keep)
    same_shapes("acc and g", acc=list(acc), g=list(g))
    return [Spec(s.shape) for s in acc]


def _average_shape(decay: Spec, mean: list[Spec], w: list[Spec]) -> list[Spec]:
    scalar_specs(decay)
    same_shapes("mean and w", mean=list(mean), w=list(w))
    return [Spec(s.shape) for s in mean]


def _zero_shape(acc: list[Spec]) -> list[Spec]:
    return [Spec(s.shape) for s in acc]


def _assign_shape(state: list[Spec], x: list[Spec]) -> list[Spec]:
    same_shapes("state and x", state=list(state), x=list(x))
    return [Spec(s.shape) for s in state]


def _set_shape(cache: Spec, rows: Spec, position: Spec, axis: int) -> Spec:
    scalar_specs(position)
    need(0 <= axis < cache.ndim, f"axis {axis} does not exist", f"an axis from 0 to {cache.ndim - 1}")
    fits = rows.ndim == cache.ndim and rows.shape[axis] <= cache.shape[axis]
    fits = fits and all(i == axis or n == m for i, (n, m) in enumerate(zip(rows.shape, cache.shape, strict=True)))
    need(fits, "rows do not fit", f"the shape of cache, at most {cache.shape[axis]} along axis {axis}")
    return Spec(cache.shape)


def _places(cache: Any, rows: Any, axis: int) -> IdRange:
    return IdRange("position", cache.shape[axis] - rows.shape[axis] + 1, noun="position")


def _set_rows(cache: np.ndarray, rows: np.ndarray, position: np.ndarray, axis: int) -> np.ndarray:
    _places(cache, rows, axis).check("set_rows", position)
    at, n = int(position), rows.shape[axis]
    filled = cache.copy()
    filled[(slice(None),) * axis + (slice(at, at + n),)] = rows
    return filled


def _set_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (shape, axis, n) in enumerate(
        (((1,), 0, 1), ((9, 5), 0, 3), ((2, 8, 3, 4), 1, 8), ((3, 4, 7), 2, 2), ((2, 700, 3, 64), 1, 500))
    ):
        kind = np.int32 if i % 2 else np.int64
        rows = draw(rng, (*shape[:axis], n, *shape[axis + 1 :]))
        at = np.array(rng.integers(0, shape[axis] - n + 1), kind)
        samples.append(Sample((draw(rng, shape), rows, at), {"axis": axis}))
    return samples


def _norm_shape(weight: Spec, g: list[Spec]) -> Spec:
    scalar_specs(weight)
    return Spec(())


def _guard_shape(loss: Spec, weight: Spec, g: list[Spec]) -> Spec:
    scalar_specs(loss, weight)
    return _norm_shape(weight, g)


def _norm(weight: Any, g: Arrays) -> np.ndarray:
    total = sum(float(np.sum(np.square(x, dtype=np.float64))) for x in g)
    return np.asarray(np.sqrt(total) / weight if weight != 0 else 0.0, weight.dtype)


# ---- samples: several tensors at once, odd sizes, one large ----------------------------------------------

GROUPS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((),), ((1,),), ((7,), (33, 5)), ((4, 32), (32,), (32, 3), (3,)), ((65, 67), (1,), (401, 301), (), (17,)),
)  # fmt: skip


def scalars(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.array(v, np.float32) for v in values)


accumulate: OpSpec = op(
    "accumulate", inputs="keep | acc g", outputs="| acc", updates="acc=acc", dense="acc g",
    doc="acc = acc + g where keep is not 0, else g: the first of a window writes, so nothing need be zeroed",
    dtypes="f32", shape=_accumulate_shape, no_gradient=ENDS, foldable=False,
    reference=lambda keep, acc, g: [b + a if keep != 0 else a.copy() for b, a in zip(acc, g, strict=True)],
    samples=lambda rng: [
        Sample((np.array(keep, np.float32), *(draw(rng, s) for s in shapes for _ in range(2))))
        for shapes in GROUPS
        for keep in (0.0, 1.0)
    ],
    bad_samples=[
        bad(
            "accumulate: shapes differ within a group: keep f32[], acc0 f32[3], g0 f32[4]; need acc and g of one shape",
            (), (3,), (4,),
        ),
        bad("accumulate: 2 inputs: keep f32[], acc0 f32[3]; need 1 and groups of 2 inputs", (), (3,)),
    ],
)  # fmt: skip
average: OpSpec = op(
    "average", inputs="decay | mean w", outputs="| mean", updates="mean=mean", dense="mean w",
    doc="mean = decay * mean + (1 - decay) * w", dtypes="f32", shape=_average_shape, no_gradient=ENDS, foldable=False,
    reference=lambda decay, mean, w: [decay * a + (1 - decay) * x for a, x in zip(mean, w, strict=True)],
    samples=lambda rng: [
        Sample((np.array(decay, np.float32), *(draw(rng, s) for s in shapes for _ in range(2))))
        for shapes in GROUPS
        for decay in (0.0, 0.99)
    ],
    bad_samples=[
        bad("average: shapes differ within a group: decay f32[], mean0 f32[3], w0 f32[4]; need mean and w of one shape",
            (), (3,), (4,)),
    ],
)  # fmt: skip
zero: OpSpec = op(
    "zero", inputs="| acc", updates="acc=acc", outputs="| acc", dense="acc", doc="acc = 0", dtypes="f32",
    shape=_zero_shape, no_gradient=ENDS, foldable=False, reference=lambda acc: [np.zeros_like(a) for a in acc],
    exact=True, samples=lambda rng: [Sample(tuple(draw(rng, s) for s in shapes)) for shapes in GROUPS],
    bad_samples=[bad("zero: dtype i32 is not taken: acc0 i32[3]; need f32", ("i32", (3,)))],
)  # fmt: skip
assign: OpSpec = op(
    "assign", inputs="| state x", updates="state=state", outputs="| state", dense="state x", doc="state = x",
    dtypes="f32", shape=_assign_shape, no_gradient=ENDS, foldable=False,
    reference=lambda state, x: [a.copy() for a in x], exact=True,
    samples=lambda rng: [Sample(tuple(draw(rng, s) for s in shapes for _ in range(2))) for shapes in GROUPS],
    bad_samples=[
        bad(
            "assign: shapes differ within a group: state0 f32[3], x0 f32[4]; need state and x of one shape",
            (3,), (4,),
        ),
    ],
)  # fmt: skip
set_rows: OpSpec = op(
    "set_rows", inputs="cache rows position", outputs="cache", updates="cache=cache", attrs="axis:int=0",
    dense="cache rows", doc="rows position, position + 1, ... of the cache along an axis = rows",
    dtypes="f32 position:i32|i64", shape=_set_shape, no_gradient=ENDS, foldable=False, reference=_set_rows,
    ids=_places, samples=_set_samples, cost=lambda rows: (0.0, 2.0 * rows.bytes),
    bad_samples=[
        bad(
            "set_rows: rows do not fit: cache f32[8,3], rows f32[9,3], position i32[]; "
            "need the shape of cache, at most 8 along axis 0",
            (8, 3), (9, 3), ("i32", ()),
        ),
        bad("set_rows: dtype f32 is not taken: cache f32[8,3], rows f32[2,3], position f32[]; need i32 or i64",
            (8, 3), (2, 3), ()),
        bad("set_rows: axis 2 does not exist: cache f32[8,3], rows f32[2,3], position i32[]; need an axis from 0 to 1",
            (8, 3), (2, 3), ("i32", ()), axis=2),
    ],
)  # fmt: skip
grad_norm: OpSpec = op(
    "grad_norm", inputs="weight | g", outputs="norm", dense="g", foldable=False,
    doc="norm = sqrt(sum of g^2) / weight, over all elements of all g, summed in double; 0 where weight is 0",
    dtypes="f32", shape=_norm_shape,
    no_gradient="a measure of gradients, to clip them; one that is differentiated is a sum of sqr", reference=_norm,
    samples=lambda rng: [
        Sample((*scalars(i), *(draw(rng, s) for s in shapes))) for i, shapes in enumerate((*GROUPS, GROUPS[3]))
    ],
    bad_samples=[
        bad("grad_norm: a scalar is not of shape (): weight f32[2], g0 f32[3]; need shape ()", (2,), (3,)),
        bad("grad_norm: dtype i32 is not taken: weight f32[], g0 i32[3]; need f32", (), ("i32", (3,))),
    ],
)  # fmt: skip
guard: OpSpec = op(
    "guard", inputs="loss weight | g", outputs="norm", dense="g", guard=True, foldable=False,
    doc="norm = sqrt(sum of g^2) / weight; stops the run before any update when the loss, sum of g^2 or norm^2 is not "
    "finite in f32",
    dtypes="f32", shape=_guard_shape, no_gradient=ENDS, reference=lambda loss, weight, g: _norm(weight, g),
    samples=lambda rng: [
        Sample((*scalars(1.5, i), *(draw(rng, s) for s in shapes))) for i, shapes in enumerate((*GROUPS, GROUPS[3]))
    ],
    bad_samples=[
        bad(
            "guard: a scalar is not of shape (): loss f32[2], weight f32[], g0 f32[3]; need shape ()",
            (2,), (), (3,),
        ),
    ],
)  # fmt: skip
