"""Update ops: the end of a step. Their outputs lie where their inputs do; nothing flows through them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.opspec import OpSpec
from .common import Sample, Spec, bad, draw, need, scalar_specs

ENDS = "an update ends a step; nothing flows through it"
Arrays = list[np.ndarray]


def _same(names: str, **groups: list[Spec | None]) -> None:
    """Every group's members have one shape."""
    for members in zip(*groups.values(), strict=True):
        present = [m for m in members if m is not None]
        need(all(m.shape == present[0].shape for m in present), "shapes differ within a group", f"{names} of one shape")


def _per_weight(g: np.ndarray, weight: Any) -> np.ndarray:
    """g / weight; a step in which no row counts (weight 0) has no gradient."""
    return g / weight if weight != 0 else np.zeros_like(g)


def _sgd_shape(
    lr: Spec, momentum: Spec, weight_decay: Spec, weight: Spec, w: list[Spec], g: list[Spec], m: list[Spec | None]
) -> list[Spec]:
    scalar_specs(lr, momentum, weight_decay, weight)
    _same("w, g and m", w=list(w), g=list(g), m=m)
    return [Spec(s.shape) for s in w for _ in range(2)]


def _sgd(
    lr: Any, momentum: Any, weight_decay: Any, weight: Any, w: Arrays, g: Arrays, m: list[np.ndarray | None]
) -> Arrays:
    results = []
    for w_i, g_i, m_i in zip(w, g, m, strict=True):
        step = _per_weight(g_i, weight)
        if m_i is not None:
            step = momentum * m_i + step
        results += [w_i * (1 - lr * weight_decay) - lr * step, np.zeros_like(w_i) if m_i is None else step]
    return results


def _adamw_shape(
    lr: Spec, beta1: Spec, beta2: Spec, eps: Spec, weight_decay: Spec, step: Spec, weight: Spec,
    w: list[Spec], g: list[Spec], m: list[Spec], v: list[Spec],
) -> list[Spec]:  # fmt: skip
    scalar_specs(lr, beta1, beta2, eps, weight_decay, step, weight)
    _same("w, g, m and v", w=list(w), g=list(g), m=list(m), v=list(v))
    return [Spec(s.shape) for s in w for _ in range(3)]


def _adamw(
    lr: Any, beta1: Any, beta2: Any, eps: Any, weight_decay: Any, step: Any, weight: Any,
    w: Arrays, g: Arrays, m: Arrays, v: Arrays,
) -> Arrays:  # fmt: skip
    results = []
    for w_i, g_i, m_i, v_i in zip(w, g, m, v, strict=True):
        slope = _per_weight(g_i, weight)
        m_new = beta1 * m_i + (1 - beta1) * slope
        v_new = beta2 * v_i + (1 - beta2) * slope * slope
        m_hat, v_hat = m_new / (1 - beta1**step), v_new / (1 - beta2**step)
        results += [w_i * (1 - lr * weight_decay) - lr * m_hat / (np.sqrt(v_hat) + eps), m_new, v_new]
    return results


def _accumulate_shape(keep: Spec, acc: list[Spec], g: list[Spec]) -> list[Spec]:
    scalar_specs(keep)
    _same("acc and g", acc=list(acc), g=list(g))
    return [Spec(s.shape) for s in acc]


def _zero_shape(acc: list[Spec]) -> list[Spec]:
    return [Spec(s.shape) for s in acc]


def _assign_shape(state: list[Spec], x: list[Spec]) -> list[Spec]:
    _same("state and x", state=list(state), x=list(x))
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


def _scalars(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.array(v, np.float32) for v in values)


def _sgd_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, shapes in enumerate(GROUPS):
        for with_m in (True, False):
            flat: list[Any] = []
            for s in shapes:
                flat += [draw(rng, s), draw(rng, s), draw(rng, s) if with_m else None]
            scalars = _scalars(0.1, 0.9 if with_m else 0.0, 0.01 * (i % 2), i)
            samples.append(Sample((*scalars, *flat)))
    return samples


def _adamw_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, shapes in enumerate(GROUPS):
        flat: list[Any] = []
        for s in shapes:
            flat += [draw(rng, s), draw(rng, s), draw(rng, s), draw(rng, s, 0.01, 2.0)]
        samples.append(Sample((*_scalars(1e-2, 0.9, 0.999, 1e-8, 0.1 * (i % 2), 1.0 + 3 * i, i), *flat)))
    return samples


sgd: OpSpec = op(
    "sgd", inputs="lr momentum weight_decay weight | w g m?", outputs="| w m?", updates="w=w m=m", dense="w g m",
    doc="m = momentum * m + g / weight; w = w * (1 - lr * weight_decay) - lr * m (- lr * g / weight without m)",
    dtypes="f32", shape=_sgd_shape, no_gradient=ENDS, foldable=False, reference=_sgd, samples=_sgd_samples,
    bad_samples=[
        bad(
            "sgd: shapes differ within a group: lr f32[], momentum f32[], weight_decay f32[], weight f32[], w0 f32[3], "
            "g0 f32[4]; need w, g and m of one shape",
            (), (), (), (), (3,), (4,), None,
        ),
    ],
)  # fmt: skip
adamw: OpSpec = op(
    "adamw", inputs="lr beta1 beta2 eps weight_decay step weight | w g m v", outputs="| w m v", updates="w=w m=m v=v",
    dense="w g m v",
    doc="g' = g / weight; m = beta1 m + (1 - beta1) g'; v = beta2 v + (1 - beta2) g'^2; "
    "w = w * (1 - lr * weight_decay) - lr * m^ / (sqrt(v^) + eps); "
    "m^ = m / (1 - beta1^step), v^ = v / (1 - beta2^step)",
    dtypes="f32", shape=_adamw_shape, no_gradient=ENDS, foldable=False, reference=_adamw, samples=_adamw_samples,
    bad_samples=[
        bad(
            "adamw: a scalar is not of shape (): lr f32[2], beta1 f32[], beta2 f32[], eps f32[], weight_decay f32[], "
            "step f32[], weight f32[], w0 f32[3], g0 f32[3], m0 f32[3], v0 f32[3]; need shape ()",
            (2,), (), (), (), (), (), (), (3,), (3,), (3,), (3,),
        ),
    ],
)  # fmt: skip
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
    ids=_places, samples=_set_samples,
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
        Sample((*_scalars(i), *(draw(rng, s) for s in shapes))) for i, shapes in enumerate((*GROUPS, GROUPS[3]))
    ],
    bad_samples=[
        bad("grad_norm: a scalar is not of shape (): weight f32[2], g0 f32[3]; need shape ()", (2,), (3,)),
        bad("grad_norm: dtype i32 is not taken: weight f32[], g0 i32[3]; need f32", (), ("i32", (3,))),
    ],
)  # fmt: skip
guard: OpSpec = op(
    "guard", inputs="loss weight | g", outputs="norm", dense="g", guard=True, foldable=False,
    doc="norm = sqrt(sum of g^2) / weight; stops the run before any update when the loss or the norm is not finite",
    dtypes="f32", shape=_guard_shape, no_gradient=ENDS, reference=lambda loss, weight, g: _norm(weight, g),
    samples=lambda rng: [
        Sample((*_scalars(1.5, i), *(draw(rng, s) for s in shapes))) for i, shapes in enumerate((*GROUPS, GROUPS[3]))
    ],
    bad_samples=[
        bad(
            "guard: a scalar is not of shape (): loss f32[2], weight f32[], g0 f32[3]; need shape ()",
            (2,), (), (3,),
        ),
    ],
)  # fmt: skip
