"""The rules of optimisers as update ops: each the step of many parameters at once. Their outputs lie where their inputs
do; nothing flows through them. g is a sum of gradients, divided by `weight`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.declare import op
from ..graph.opspec import OpSpec
from .common import Sample, Spec, bad, draw, scalar_specs
from .update import ENDS, GROUPS, Arrays, same_shapes, scalars


def per_weight(g: np.ndarray, weight: Any) -> np.ndarray:
    """g / weight; a step in which no row counts (weight 0) has no gradient."""
    return g / weight if weight != 0 else np.zeros_like(g)


def _sgd_shape(
    lr: Spec, momentum: Spec, weight_decay: Spec, weight: Spec, w: list[Spec], g: list[Spec], m: list[Spec | None]
) -> list[Spec]:
    scalar_specs(lr, momentum, weight_decay, weight)
    same_shapes("w, g and m", w=list(w), g=list(g), m=m)
    return [Spec(s.shape) for s in w for _ in range(2)]


def _sgd(
    lr: Any, momentum: Any, weight_decay: Any, weight: Any, w: Arrays, g: Arrays, m: list[np.ndarray | None]
) -> Arrays:
    results = []
    for w_i, g_i, m_i in zip(w, g, m, strict=True):
        step = per_weight(g_i, weight)
        if m_i is not None:
            step = momentum * m_i + step
        results += [w_i * (1 - lr * weight_decay) - lr * step, np.zeros_like(w_i) if m_i is None else step]
    return results


def _nesterov(lr: Any, momentum: Any, weight_decay: Any, weight: Any, w: Arrays, g: Arrays, m: Arrays) -> Arrays:
    results = []
    for w_i, g_i, m_i in zip(w, g, m, strict=True):
        slope = per_weight(g_i, weight)
        m_new = momentum * m_i + slope
        results += [w_i * (1 - lr * weight_decay) - lr * (slope + momentum * m_new), m_new]
    return results


def _adamw_shape(
    lr: Spec, beta1: Spec, beta2: Spec, eps: Spec, weight_decay: Spec, step: Spec, weight: Spec,
    w: list[Spec], g: list[Spec], m: list[Spec], v: list[Spec],
) -> list[Spec]:  # fmt: skip
    scalar_specs(lr, beta1, beta2, eps, weight_decay, step, weight)
    same_shapes("w, g, m and v", w=list(w), g=list(g), m=list(m), v=list(v))
    return [Spec(s.shape) for s in w for _ in range(3)]


def _adamw(
    lr: Any, beta1: Any, beta2: Any, eps: Any, weight_decay: Any, step: Any, weight: Any,
    w: Arrays, g: Arrays, m: Arrays, v: Arrays,
) -> Arrays:  # fmt: skip
    results = []
    for w_i, g_i, m_i, v_i in zip(w, g, m, v, strict=True):
        slope = per_weight(g_i, weight)
        m_new = beta1 * m_i + (1 - beta1) * slope
        v_new = beta2 * v_i + (1 - beta2) * slope * slope
        m_hat, v_hat = m_new / (1 - beta1**step), v_new / (1 - beta2**step)
        results += [w_i * (1 - lr * weight_decay) - lr * m_hat / (np.sqrt(v_hat) + eps), m_new, v_new]
    return results


def _lion_shape(
    lr: Spec, beta1: Spec, beta2: Spec, weight_decay: Spec, weight: Spec, w: list[Spec], g: list[Spec], m: list[Spec]
) -> list[Spec]:
    scalar_specs(lr, beta1, beta2, weight_decay, weight)
    same_shapes("w, g and m", w=list(w), g=list(g), m=list(m))
    return [Spec(s.shape) for s in w for _ in range(2)]


def _lion(lr: Any, beta1: Any, beta2: Any, weight_decay: Any, weight: Any, w: Arrays, g: Arrays, m: Arrays) -> Arrays:
    results = []
    for w_i, g_i, m_i in zip(w, g, m, strict=True):
        slope = per_weight(g_i, weight)
        way = np.sign(beta1 * m_i + (1 - beta1) * slope)
        results += [w_i * (1 - lr * weight_decay) - lr * way, beta2 * m_i + (1 - beta2) * slope]
    return results


def _rmsprop_shape(
    lr: Spec, alpha: Spec, momentum: Spec, eps: Spec, weight_decay: Spec, weight: Spec,
    w: list[Spec], g: list[Spec], v: list[Spec], a: list[Spec | None], m: list[Spec | None],
) -> list[Spec]:  # fmt: skip
    scalar_specs(lr, alpha, momentum, eps, weight_decay, weight)
    same_shapes("w, g, v, a and m", w=list(w), g=list(g), v=list(v), a=a, m=m)
    return [Spec(s.shape) for s in w for _ in range(4)]


def _rmsprop(
    lr: Any, alpha: Any, momentum: Any, eps: Any, weight_decay: Any, weight: Any,
    w: Arrays, g: Arrays, v: Arrays, a: list[np.ndarray | None], m: list[np.ndarray | None],
) -> Arrays:  # fmt: skip
    results = []
    for w_i, g_i, v_i, a_i, m_i in zip(w, g, v, a, m, strict=True):
        slope = per_weight(g_i, weight)
        v_new = alpha * v_i + (1 - alpha) * slope * slope
        a_new = np.zeros_like(w_i) if a_i is None else alpha * a_i + (1 - alpha) * slope
        step = slope / (np.sqrt(np.maximum(v_new - a_new * a_new, 0)) + eps)
        if m_i is not None:
            step = momentum * m_i + step
        results += [
            w_i * (1 - lr * weight_decay) - lr * step,
            v_new,
            a_new,
            np.zeros_like(w_i) if m_i is None else step,
        ]
    return results


def _sgd_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, shapes in enumerate(GROUPS):
        for with_m in (True, False):
            flat: list[Any] = []
            for s in shapes:
                flat += [draw(rng, s), draw(rng, s), draw(rng, s) if with_m else None]
            numbers = scalars(0.1, 0.9 if with_m else 0.0, 0.01 * (i % 2), i)
            samples.append(Sample((*numbers, *flat)))
    return samples


def _adamw_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, shapes in enumerate(GROUPS):
        flat: list[Any] = []
        for s in shapes:
            flat += [draw(rng, s), draw(rng, s), draw(rng, s), draw(rng, s, 0.01, 2.0)]
        samples.append(Sample((*scalars(1e-2, 0.9, 0.999, 1e-8, 0.1 * (i % 2), 1.0 + 3 * i, i), *flat)))
    return samples


def _nesterov_samples(rng: np.random.Generator) -> list[Sample]:
    return [s for s in _sgd_samples(rng) if s.inputs[6] is not None]


def _lion_samples(rng: np.random.Generator) -> list[Sample]:
    """g and m keep away from 0, where rounding decides the sign of a step."""
    samples = []
    for i, shapes in enumerate(GROUPS):
        flat: list[Any] = []
        for s in shapes:
            sign = np.sign(draw(rng, s)) + np.float32(0.0)
            flat += [draw(rng, s), sign * draw(rng, s, 0.1, 1.0), sign * draw(rng, s, 0.1, 1.0)]
        samples.append(Sample((*scalars(1e-2, 0.9, 0.99, 0.1 * (i % 2), i), *flat)))
    return samples


def _rmsprop_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, shapes in enumerate(GROUPS):
        for centered, with_m in ((False, False), (True, False), (False, True), (True, True)):
            flat: list[Any] = []
            for s in shapes:
                flat += [draw(rng, s), draw(rng, s), draw(rng, s, 4.0, 6.0)]
                flat.append(draw(rng, s, -1.0, 1.0) if centered else None)
                flat.append(draw(rng, s) if with_m else None)
            samples.append(Sample((*scalars(1e-2, 0.9, 0.8 if with_m else 0.0, 1e-3, 0.1 * (i % 2), i), *flat)))
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
sgd_nesterov: OpSpec = op(
    "sgd_nesterov", inputs="lr momentum weight_decay weight | w g m", outputs="| w m", updates="w=w m=m", dense="w g m",
    doc="m = momentum * m + g'; w = w * (1 - lr * weight_decay) - lr * (g' + momentum * m); g' = g / weight",
    dtypes="f32", shape=_sgd_shape, no_gradient=ENDS, foldable=False, reference=_nesterov, samples=_nesterov_samples,
    bad_samples=[
        bad(
            "sgd_nesterov: shapes differ within a group: lr f32[], momentum f32[], weight_decay f32[], weight f32[], "
            "w0 f32[3], g0 f32[4], m0 f32[3]; need w, g and m of one shape",
            (), (), (), (), (3,), (4,), (3,),
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
lion: OpSpec = op(
    "lion", inputs="lr beta1 beta2 weight_decay weight | w g m", outputs="| w m", updates="w=w m=m", dense="w g m",
    doc="g' = g / weight; w = w * (1 - lr * weight_decay) - lr * sign(beta1 m + (1 - beta1) g'); "
    "m = beta2 m + (1 - beta2) g'",
    dtypes="f32", shape=_lion_shape, no_gradient=ENDS, foldable=False, reference=_lion, samples=_lion_samples,
    bad_samples=[
        bad(
            "lion: shapes differ within a group: lr f32[], beta1 f32[], beta2 f32[], weight_decay f32[], weight f32[], "
            "w0 f32[3], g0 f32[4], m0 f32[3]; need w, g and m of one shape",
            (), (), (), (), (), (3,), (4,), (3,),
        ),
    ],
)  # fmt: skip
rmsprop: OpSpec = op(
    "rmsprop", inputs="lr alpha momentum eps weight_decay weight | w g v a? m?", outputs="| w v a? m?",
    updates="w=w v=v a=a m=m", dense="w g v a m",
    doc="g' = g / weight; v = alpha v + (1 - alpha) g'^2; a = alpha a + (1 - alpha) g' (0 without a); "
    "m = momentum * m + g' / (sqrt(v - a^2) + eps) (without m the quotient alone); "
    "w = w * (1 - lr * weight_decay) - lr * m",
    dtypes="f32", shape=_rmsprop_shape, no_gradient=ENDS, foldable=False, reference=_rmsprop, samples=_rmsprop_samples,
    bad_samples=[
        bad(
            "rmsprop: a scalar is not of shape (): lr f32[2], alpha f32[], momentum f32[], eps f32[], weight_decay "
            "f32[], weight f32[], w0 f32[3], g0 f32[3], v0 f32[3]; need shape ()",
            (2,), (), (), (), (), (), (3,), (3,), (3,), None, None,
        ),
    ],
)  # fmt: skip
