"""Rotary positions (Su et al. 2021): frequencies and their scalings, and the op that rotates pairs of dimensions."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import numpy as np

from ..base.dtypes import f32
from ..base.errors import GraphError
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Sample, Spec, bad, draw, need, need_plain
from .elementwise import cast, mul, neg, sub
from .layout import reshape
from .reduce import sum as sum_over


def rope_frequencies(
    dims: int,
    base: float = 10000.0,
    scaling: str = "none",
    factor: float = 1.0,
    *,
    context: int | None = None,
    low: float | None = None,
    high: float | None = None,
    factors: Any = None,
) -> np.ndarray:
    """Radians per token of each pair of rotated dimensions, f64 [dims / 2]: base^(-2i / dims), scaled.

    scaling: "none"; "linear" (divided by factor); "ntk" (base * factor^(dims / (dims - 2))); "llama3" (waves longer
    than context / low are divided by factor, those shorter than context / high kept, in between mixed; low 1, high 4),
    as in Hugging Face's modeling_rope_utils; "yarn" (Peng et al. 2023: dimensions that make more than high revolutions
    within the context are kept, those that make fewer than low divided; low 1, high 32; `rope_scale` goes with it).
    context: the length first trained for. factors: [dims / 2] divisors, as GGUF's rope_freqs holds them.
    Raises GraphError for arguments that make no frequencies.
    """
    need_plain(
        "rope_frequencies", dims=dims, base=base, factor=factor, context=context, low=low, high=high, factors=factors
    )
    if dims < 2 or dims % 2:
        raise GraphError(f"rope_frequencies: {dims} dims; need an even number >= 2")
    if not base > 0 or not factor > 0:
        raise GraphError(f"rope_frequencies: base {base}, factor {factor}; need numbers > 0")
    if scaling not in ("none", "linear", "ntk", "llama3", "yarn"):
        raise GraphError(f"rope_frequencies: scaling {scaling!r}; must be one of none, linear, ntk, llama3, yarn")
    if scaling in ("llama3", "yarn") and (context is None or context < 1):
        raise GraphError(f"rope_frequencies: context {context}; {scaling} needs the length first trained for")
    if scaling == "yarn" and base == 1:
        raise GraphError(f"rope_frequencies: base {base}; yarn needs another one than 1")
    if scaling == "ntk" and dims > 2:
        base = base * factor ** (dims / (dims - 2))
    frequencies = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if scaling == "linear":
        frequencies = frequencies / factor
    elif scaling == "llama3":
        least, most = 1.0 if low is None else low, 4.0 if high is None else high
        revolutions = float(context or 1) * frequencies / (2 * math.pi)  # within the context
        mix = np.clip((revolutions - least) / (most - least), 0, 1)  # 1: kept
        frequencies = frequencies * ((1 - mix) / factor + mix)
    elif scaling == "yarn":
        least, most = 1.0 if low is None else low, 32.0 if high is None else high

        def dimension(revolutions: float) -> float:
            """The pair that makes `revolutions` within the context."""
            return dims * math.log(float(context or 1) / (revolutions * 2 * math.pi)) / (2 * math.log(base))

        first, last = max(math.floor(dimension(most)), 0), min(math.ceil(dimension(least)), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - first) / max(last - first, 1e-3), 0, 1)  # 0: kept
        frequencies = frequencies * (ramp / factor + 1 - ramp)
    if factors is not None:
        divisors = np.asarray(factors, np.float64)
        if divisors.shape != frequencies.shape or not (divisors > 0).all():
            raise GraphError(f"rope_frequencies: factors of shape {list(divisors.shape)}; need {dims // 2} numbers > 0")
        frequencies = frequencies / divisors
    return frequencies


def rope_scale(factor: float) -> float:
    """What yarn multiplies rotated dimensions by: 0.1 ln(factor) + 1, and 1 for factors <= 1."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _rope_shape(x: Spec, positions: Spec, frequencies: Spec) -> Spec:
    need(x.ndim >= 2, "x has no heads", "x of shape [..., heads, D]")
    need(positions.shape == x.shape[:-2], "positions do not fit", f"a position per token, i32{list(x.shape[:-2])}")
    fits = frequencies.ndim == 1 and 0 < 2 * frequencies.shape[0] <= x.shape[-1]
    need(fits, "frequencies do not fit", f"frequencies of shape [n] with 1 <= n <= {x.shape[-1] // 2}")
    return Spec(x.shape)


def _rope(
    x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, pairing: str, scale: float, inverse: bool
) -> np.ndarray:
    n = len(frequencies)
    angle = positions[..., None, None].astype(np.float64) * frequencies.astype(np.float64)
    c, s = (np.cos(angle) * scale).astype(x.dtype), (np.sin(angle) * (-scale if inverse else scale)).astype(x.dtype)
    first, second = (
        (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if pairing == "interleaved" else (slice(n), slice(n, 2 * n))
    )
    y = x.copy()
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


POSITIONS = "positions are whole numbers"


def _rope_vjp(
    g: Value, positions: Value, frequencies: Value, y: Value, pairing: str, scale: float, inverse: bool,
    needed: Container[str],
) -> list[Value | None]:  # fmt: skip
    """dx is g rotated back. An angle moves a pair (y1, y2) along (-y2, y1): dangle = g2 y1 - g1 y2."""
    dx = rope(g, positions, frequencies, pairing=pairing, scale=scale, inverse=not inverse)
    if "frequencies" not in needed:
        return [dx, None, None]
    n = frequencies.shape[0]
    first, second = (
        (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if pairing == "interleaved" else (slice(n), slice(n, 2 * n))
    )
    angles = sum_over(sub(mul(g[..., second], y[..., first]), mul(g[..., first], y[..., second])), -2)  # [..., n]
    moved = mul(angles, reshape(cast(positions, f32), (*positions.shape, 1)))
    return [dx, None, sum_over(neg(moved) if inverse else moved, range(positions.ndim))]


def _rope_samples(rng: np.random.Generator) -> list[Sample]:
    cases = (
        ((3, 2), 1, "interleaved"), ((5, 3, 8), 4, "half"), ((2, 7, 2, 16), 8, "interleaved"),
        ((1, 5, 3, 20), 6, "half"),
        ((2, 3, 1, 33), 16, "interleaved"), ((2, 3, 4, 33), 15, "half"), ((3, 1, 64), 32, "half"),
        ((1, 100, 9, 64), 32, "interleaved"), ((1, 100, 9, 64), 32, "half"), ((4, 3, 80), 9, "interleaved"),
        ((2, 2, 9, 2, 36), 17, "half"),
    )  # fmt: skip
    samples = []
    for i, (shape, n, pairing) in enumerate(cases):
        positions = rng.integers(0, 9000 if i % 3 == 0 else 50, shape[:-2]).astype(np.int32)
        frequencies = rope_frequencies(2 * n).astype(np.float32)
        attrs = {"pairing": pairing, "scale": 1.25 if i % 4 == 1 else 1.0, "inverse": i % 2 == 1}
        samples.append(Sample((draw(rng, shape), positions, frequencies), attrs))
    return samples


rope: OpSpec = op(
    "rope", inputs="x positions frequencies",
    attrs="pairing:interleaved/half=interleaved scale:float=1 inverse:bool=False",
    doc="pairs of the first 2n of x's D dimensions rotate by position * frequency[i] (back with inverse) times scale; "
    "pairs (2i, 2i + 1) interleaved, (i, i + n) half; the rest is copied. x [..., heads, D], positions i32 [...]",
    shape=_rope_shape, dense="x positions frequencies", may_overwrite="x",
    vjp=_rope_vjp, no_gradient_to={"positions": POSITIONS},
    reference=_rope, cost=lambda x: (3.0 * x.size, 8.0 * x.size), samples=_rope_samples,
    dtypes="f32 positions:i32",
    bad_samples=[
        bad(
            "rope: positions do not fit: x f32[5,2,8], positions i32[4], frequencies f32[4]; "
            "need a position per token, i32[5]",
            (5, 2, 8), ("i32", (4,)), (4,),
        ),
        bad(
            "rope: frequencies do not fit: x f32[5,2,8], positions i32[5], frequencies f32[5]; "
            "need frequencies of shape [n] with 1 <= n <= 4",
            (5, 2, 8), ("i32", (5,)), (5,),
        ),
        bad(
            "rope: dtype f32 is not taken: x f32[5,2,8], positions f32[5], frequencies f32[4]; need i32",
            (5, 2, 8), (5,), (4,),
        ),
        bad(
            "rope: pairing='pairs' is not a choice: x f32[5,2,8], positions i32[5], frequencies f32[4]; "
            "need one of interleaved, half",
            (5, 2, 8), ("i32", (5,)), (4,), pairing="pairs",
        ),
    ],
)  # fmt: skip
