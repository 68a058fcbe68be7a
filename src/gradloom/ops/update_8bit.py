"""Rules of optimisers whose moments are kept in 8 bits: block-wise dynamic tree quantisation, after Dettmers et al.,
8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861.

An array of moments is a code (u8) for each element and a scale (f32) for each block of BLOCK elements, the largest
absolute value in it. Scales have the shape [arrays, blocks]: blocks do not cross from one of several equal arrays
along the first axis (a stack) into the next. A number is its code's value times its scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.dtypes import u8
from ..graph.declare import op
from ..graph.opspec import OpSpec
from .common import Sample, Spec, bad, draw, need, scalar_specs
from .update import ENDS, scalars
from .update_rules import per_weight

BLOCK = 256
LEAST = float(np.finfo(np.float32).tiny)  # a smaller scale is 0


def _numbers(count: int) -> np.ndarray:
    """The numbers from 0 to 1, ascending: 0, seven decades and 1. `count` numbers are in the lowest decade, and double
    those of the decade below in each other one, at the centres of equal parts."""
    numbers = [0.0]
    for i, power in enumerate((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)):
        n = count << i
        numbers += [power * (0.1 + 0.9 * (2 * j + 1) / (2 * n)) for j in range(n)]
    return np.array([*numbers, 1.0])


POSITIVE = _numbers(2)
_HALF = _numbers(1)
SIGNED = np.concatenate([_HALF, -_HALF[1:-1]])  # 0, 127 numbers below 1, 1, and the 127 with the other sign


def values(signed: bool) -> np.ndarray:
    """The value of each code, f32[256]."""
    return (SIGNED if signed else POSITIVE).astype(np.float32)


def blocks_of(shape: tuple[int, ...], arrays: int = 1) -> tuple[int, int]:
    """The shape of the scales of `arrays` equal arrays that make up one of this shape."""
    return arrays, -(-math.prod(shape) // arrays // BLOCK)


def _cut(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The blocks of an array, [arrays, blocks, BLOCK], filled up with zeros."""
    flat = x.reshape(scale.shape[0], -1)
    room = scale.shape[1] * BLOCK - flat.shape[1]
    return np.pad(flat, ((0, 0), (0, room))).reshape(*scale.shape, BLOCK)


def _joined(blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    arrays = blocks.shape[0]
    return blocks.reshape(arrays, -1)[:, : math.prod(shape) // arrays].reshape(shape)


def decode(codes: np.ndarray, scale: np.ndarray, signed: bool) -> np.ndarray:
    """The numbers of codes, in the dtype of their scales."""
    numbers = values(signed).astype(scale.dtype)[_cut(codes, scale)] * scale[..., None]
    return _joined(numbers, codes.shape)


def encode(x: np.ndarray, scale: np.ndarray, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Codes (u8) of numbers, the nearest ones, and the scales of their blocks; scale: of that shape. Without a sign, a
    number above 0 does not become 0, by whose root a step would be divided."""
    blocks = _cut(x, scale)
    most = np.abs(blocks).max(-1)
    most = np.where(most < LEAST, 0, most).astype(x.dtype)
    ratio = np.divide(blocks, most[..., None], out=np.zeros_like(blocks), where=most[..., None] > 0)
    numbers = values(signed)[: 129 if signed else 256].astype(np.float64)
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    codes = np.searchsorted(middles, np.abs(ratio), side="right")
    if signed:
        codes = np.where((ratio < 0) & (codes > 0), np.minimum(codes, 127) + 128, codes)
    else:
        codes = np.maximum(codes, ratio > 0)
    return _joined(codes, x.shape).astype(np.uint8), most


def _fit(w: Spec, g: Spec, codes: list[Spec], scales: list[Spec]) -> list[Spec]:
    """The specs of the outputs; Reject for gradients, codes or scales that are not those of w."""
    size = math.prod(w.shape)
    need(all(x.shape == w.shape for x in (g, *codes)), "shapes differ", "w, g and the codes of one shape")
    for scale in scales:
        fits = scale.ndim == 2 and scale.shape[0] > 0 and size > 0 and size % scale.shape[0] == 0
        fits = fits and scale.shape == blocks_of(w.shape, scale.shape[0]) and scale.shape == scales[0].shape
        need(fits, "scales do not fit", f"f32[arrays, blocks], a number for each {BLOCK} elements of an array")
    pairs = zip(codes, scales, strict=True)
    return [Spec(w.shape), *(spec for one, scale in pairs for spec in (Spec(one.shape, u8), Spec(scale.shape)))]


def _adamw_8bit_shape(
    lr: Spec, beta1: Spec, beta2: Spec, eps: Spec, weight_decay: Spec, step: Spec, weight: Spec,
    w: Spec, g: Spec, m: Spec, m_scale: Spec, v: Spec, v_scale: Spec,
) -> list[Spec]:  # fmt: skip
    scalar_specs(lr, beta1, beta2, eps, weight_decay, step, weight)
    return _fit(w, g, [m, v], [m_scale, v_scale])


def _adamw_8bit(
    lr: Any, beta1: Any, beta2: Any, eps: Any, weight_decay: Any, step: Any, weight: Any,
    w: np.ndarray, g: np.ndarray, m: np.ndarray, m_scale: np.ndarray, v: np.ndarray, v_scale: np.ndarray,
) -> list[np.ndarray]:  # fmt: skip
    slope = per_weight(g, weight)
    m_new = beta1 * decode(m, m_scale, True) + (1 - beta1) * slope
    v_new = beta2 * decode(v, v_scale, False) + (1 - beta2) * slope * slope
    m_hat, v_hat = m_new / (1 - beta1**step), v_new / (1 - beta2**step)
    w_new = w * (1 - lr * weight_decay) - lr * m_hat / (np.sqrt(v_hat) + eps)
    return [w_new, *encode(m_new, m_scale, True), *encode(v_new, v_scale, False)]


def _lion_8bit_shape(
    lr: Spec, beta1: Spec, beta2: Spec, weight_decay: Spec, weight: Spec, w: Spec, g: Spec, m: Spec, m_scale: Spec
) -> list[Spec]:
    scalar_specs(lr, beta1, beta2, weight_decay, weight)
    return _fit(w, g, [m], [m_scale])


def _lion_8bit(
    lr: Any, beta1: Any, beta2: Any, weight_decay: Any, weight: Any,
    w: np.ndarray, g: np.ndarray, m: np.ndarray, m_scale: np.ndarray,
) -> list[np.ndarray]:  # fmt: skip
    slope, m_old = per_weight(g, weight), decode(m, m_scale, True)
    way = np.sign(beta1 * m_old + (1 - beta1) * slope)
    return [w * (1 - lr * weight_decay) - lr * way, *encode(beta2 * m_old + (1 - beta2) * slope, m_scale, True)]


# ---- samples ---------------------------------------------------------------------------------------------

_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (  # and the number of arrays
    ((7,), 1), ((33, 5), 1), ((16, 32), 2), ((257,), 1), ((3, 100), 3), ((5, 2, 129), 5), ((401, 301), 1),
)  # fmt: skip


def _unclear(x: np.ndarray, scale: np.ndarray, signed: bool) -> np.ndarray:
    """Elements near the middle of two codes, where the rounding of f32 decides which is the nearest."""
    blocks = _cut(x, scale)
    most = np.abs(blocks).max(-1, keepdims=True)
    ratio = np.abs(blocks) / np.where(most > 0, most, 1)
    numbers = values(signed)[: 129 if signed else 256].astype(np.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    after = np.clip(np.searchsorted(middles, ratio), 1, len(middles) - 1)
    away = np.minimum(np.abs(ratio - middles[after - 1]), np.abs(ratio - middles[after]))
    return _joined((away < 1e-4 * ratio + (2e-6 if signed else 0.0)) & (ratio > 0), x.shape)


def _states(
    rng: np.random.Generator, shape: tuple[int, ...], arrays: int, weight: float, betas: tuple[float, float], lion: bool
) -> list[Any]:
    """g and the moments before a step after which no element is near the middle of two codes (of Lion: and in which no
    sign is unclear)."""
    beta1, beta2 = (float(np.float32(b)) for b in betas)
    scales = [draw(rng, blocks_of(shape, arrays), 0.1, 1.0) for _ in range(2)]
    g = draw(rng, shape)
    m, v = (rng.integers(0, 256, shape, np.uint8) for _ in range(2))
    while True:
        slope = per_weight(g.astype(np.float64), weight)
        m_old, v_old = (decode(c, s.astype(np.float64), c is m) for c, s in zip((m, v), scales, strict=True))
        if lion:
            way = beta1 * m_old + (1 - beta1) * slope
            wrong = _unclear(beta2 * m_old + (1 - beta2) * slope, scales[0], True)
            wrong |= (np.abs(way) < 1e-3) & (way != 0)
        else:
            wrong = _unclear(beta1 * m_old + (1 - beta1) * slope, scales[0], True)
            wrong |= _unclear(beta2 * v_old + (1 - beta2) * slope**2, scales[1], False)
        if not wrong.any():
            return [g, m, scales[0]] if lion else [g, m, scales[0], v, scales[1]]
        n = int(wrong.sum())
        g[wrong], m[wrong], v[wrong] = draw(rng, (n,)), rng.integers(0, 256, n), rng.integers(0, 256, n)


def _adamw_8bit_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (shape, arrays) in enumerate(_SHAPES):
        numbers = scalars(1e-2, 0.9, 0.999, 1e-8, 0.1 * (i % 2), 1.0 + 3 * i, i)
        state = _states(rng, shape, arrays, i, (0.9, 0.999), lion=False)
        samples.append(Sample((*numbers, draw(rng, shape), *state)))
    return samples


def _lion_8bit_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (shape, arrays) in enumerate(_SHAPES):
        numbers = scalars(1e-2, 0.9, 0.99, 0.1 * (i % 2), i)
        samples.append(Sample((*numbers, draw(rng, shape), *_states(rng, shape, arrays, i, (0.9, 0.99), lion=True))))
    return samples


_CODED = "8-bit codes of blocks of 256 elements times the scales of the blocks (Dettmers et al., arXiv 2110.02861)"
adamw_8bit: OpSpec = op(
    "adamw_8bit", inputs="lr beta1 beta2 eps weight_decay step weight w g m m_scale v v_scale",
    outputs="w m m_scale v v_scale", updates="w=w m=m m_scale=m_scale v=v v_scale=v_scale",
    dense="w g m m_scale v v_scale", doc=f"adamw, whose m and v are kept as {_CODED}", dtypes="f32 m:u8 v:u8",
    shape=_adamw_8bit_shape, no_gradient=ENDS, foldable=False, reference=_adamw_8bit, samples=_adamw_8bit_samples,
    bad_samples=[
        bad(
            "adamw_8bit: scales do not fit: lr f32[], beta1 f32[], beta2 f32[], eps f32[], weight_decay "
            "f32[], step f32[], weight f32[], w f32[300], g f32[300], m u8[300], m_scale f32[1,1], v u8[300], "
            "v_scale f32[1,1]; need f32[arrays, blocks], a number for each 256 elements of an array",
            (), (), (), (), (), (), (), (300,), (300,), ("u8", (300,)), (1, 1), ("u8", (300,)), (1, 1),
        ),
        bad(
            "adamw_8bit: dtype f32 is not taken: lr f32[], beta1 f32[], beta2 f32[], eps f32[], weight_decay f32[], "
            "step f32[], weight f32[], w f32[3], g f32[3], m f32[3], m_scale f32[1,1], v u8[3], "
            "v_scale f32[1,1]; need u8",
            (), (), (), (), (), (), (), (3,), (3,), (3,), (1, 1), ("u8", (3,)), (1, 1),
        ),
    ],
)  # fmt: skip
lion_8bit: OpSpec = op(
    "lion_8bit", inputs="lr beta1 beta2 weight_decay weight w g m m_scale", outputs="w m m_scale",
    updates="w=w m=m m_scale=m_scale", dense="w g m m_scale", doc=f"lion, whose m is kept as {_CODED}",
    dtypes="f32 m:u8", shape=_lion_8bit_shape, no_gradient=ENDS, foldable=False, reference=_lion_8bit,
    samples=_lion_8bit_samples,
    bad_samples=[
        bad(
            "lion_8bit: shapes differ: lr f32[], beta1 f32[], beta2 f32[], weight_decay f32[], weight "
            "f32[], w f32[3], g f32[4], m u8[3], m_scale f32[1,1]; need w, g and the codes of one shape",
            (), (), (), (), (), (3,), (4,), ("u8", (3,)), (1, 1),
        ),
    ],
)  # fmt: skip
