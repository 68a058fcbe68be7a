"""Rotary positions and fused attention: what a transformer does between its matrix products.

Queries, keys and values are [batch, tokens, heads, D]; query head h reads key head h // (H / KVH). A mask is never an
array: `positions` says for each query how many tokens lie before it in its own sequence, so that packed sequences stay
apart. No T x T matrix exists outside the references.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import numpy as np

from ..base.dtypes import f32, i32
from ..base.errors import GradientError, GraphError
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Sample, Spec, bad, draw, need, need_dtype, zeros_like
from .elementwise import cast, mul, neg, sub
from .layout import reshape
from .reduce import sum as sum_over

# ---- rope ------------------------------------------------------------------------------------------------


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
    as in Hugging Face's modeling_rope_utils; "yarn" (Peng et al. 2023: dimensions that turn more than high times within
    the context are kept, those that turn less than low times divided; low 1, high 32; `rope_scale` goes with it).
    context: the length first trained for. factors: [dims / 2] divisors, as GGUF's rope_freqs holds them.
    Raises GraphError for arguments that make no frequencies.
    """
    if dims < 2 or dims % 2:
        raise GraphError(f"rope_frequencies: {dims} dims; need an even number >= 2")
    if not base > 0 or not factor > 0:
        raise GraphError(f"rope_frequencies: base {base}, factor {factor}; need numbers > 0")
    if scaling not in ("none", "linear", "ntk", "llama3", "yarn"):
        raise GraphError(f"rope_frequencies: scaling {scaling!r}; need one of none, linear, ntk, llama3, yarn")
    if scaling in ("llama3", "yarn") and (context is None or context < 1):
        raise GraphError(f"rope_frequencies: context {context}; {scaling} needs the length first trained for")
    if scaling == "ntk" and dims > 2:
        base = base * factor ** (dims / (dims - 2))
    found = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if scaling == "linear":
        found = found / factor
    elif scaling == "llama3":
        least, most = 1.0 if low is None else low, 4.0 if high is None else high
        turns = float(context or 1) * found / (2 * math.pi)  # within the context
        mix = np.clip((turns - least) / (most - least), 0, 1)  # 1: kept
        found = found * ((1 - mix) / factor + mix)
    elif scaling == "yarn":
        least, most = 1.0 if low is None else low, 32.0 if high is None else high

        def dimension(turns: float) -> float:
            """The pair that turns so often within the context."""
            return dims * math.log(float(context or 1) / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = max(math.floor(dimension(most)), 0), min(math.ceil(dimension(least)), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - first) / max(last - first, 1e-3), 0, 1)  # 0: kept
        found = found * (ramp / factor + 1 - ramp)
    if factors is not None:
        divisors = np.asarray(factors, np.float64)
        if divisors.shape != found.shape or not (divisors > 0).all():
            raise GraphError(f"rope_frequencies: factors of shape {list(divisors.shape)}; need {dims // 2} numbers > 0")
        found = found / divisors
    return found


def rope_scale(factor: float) -> float:
    """What yarn multiplies rotated dimensions by: 0.1 ln(factor) + 1, and 1 for factors <= 1."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _rope_shape(x: Spec, positions: Spec, frequencies: Spec) -> Spec:
    need_dtype(x, frequencies)
    need_dtype(positions, kind=i32)
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
    """dx is g turned back. An angle moves a pair (y1, y2) along (-y2, y1): dangle = g2 y1 - g1 y2."""
    dx = rope(g, positions, frequencies, pairing=pairing, scale=scale, inverse=not inverse)
    if "frequencies" not in needed:
        return [dx, None, None]
    n = frequencies.shape[0]
    first, second = (
        (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if pairing == "interleaved" else (slice(n), slice(n, 2 * n))
    )
    angles = sum_over(sub(mul(g[..., second], y[..., first]), mul(g[..., first], y[..., second])), -2)  # [..., n]
    turned = mul(angles, reshape(cast(positions, f32), (*positions.shape, 1)))
    return [dx, None, sum_over(neg(turned) if inverse else turned, range(positions.ndim))]


def _rope_samples(rng: np.random.Generator) -> list[Sample]:
    cases = (
        ((3, 2), 1, "interleaved"), ((5, 3, 8), 4, "half"), ((2, 7, 2, 16), 8, "interleaved"),
        ((1, 5, 3, 20), 6, "half"),
        ((2, 3, 1, 33), 16, "interleaved"), ((2, 3, 4, 33), 15, "half"), ((3, 1, 64), 32, "half"),
        ((1, 100, 9, 64), 32, "interleaved"), ((1, 100, 9, 64), 32, "half"), ((4, 3, 80), 9, "interleaved"),
        ((2, 2, 9, 2, 36), 17, "half"),
    )  # fmt: skip
    found = []
    for i, (shape, n, pairing) in enumerate(cases):
        positions = rng.integers(0, 9000 if i % 3 == 0 else 50, shape[:-2]).astype(np.int32)
        frequencies = rope_frequencies(2 * n).astype(np.float32)
        attrs = {"pairing": pairing, "scale": 1.25 if i % 4 == 1 else 1.0, "inverse": i % 2 == 1}
        found.append(Sample((draw(rng, shape), positions, frequencies), attrs))
    return found


rope: OpSpec = op(
    "rope", inputs="x positions frequencies",
    attrs="pairing:interleaved/half=interleaved scale:float=1 inverse:bool=False",
    doc="pairs of the first 2n of x's D dimensions turn by position * frequency[i] (back with inverse) times scale; "
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


# ---- attention -------------------------------------------------------------------------------------------


def _attention_shape(q: Spec, k: Spec, v: Spec, positions: Spec, cached: bool = False) -> list[Spec]:
    need_dtype(q, k, v)
    need_dtype(positions, kind=i32)
    need(q.ndim == 4 and k.ndim == 4, "q or k is not [batch, tokens, heads, D]", "q [B,T,H,D], k and v [B,S,KVH,D]")
    b, t, heads, d = q.shape
    need(k.shape == v.shape, "k and v differ", "k and v of one shape")
    need(k.shape[0] == b and k.shape[3] == d, "k does not fit q", f"k of shape [{b}, S, KVH, {d}]")
    need(
        d >= 1 and k.shape[2] >= 1 and heads % k.shape[2] == 0,
        "heads do not form groups",
        "H a multiple of KVH, D >= 1",
    )
    need(positions.shape == (b, t), "positions do not fit", f"a position per query, i32[{b}, {t}]")
    need(cached or k.shape[1] == t, "keys and queries differ in number", f"{t} keys, or cached=True")
    need(not cached or k.shape[1] > 0, "the cache has no rows", "at least one key")
    return [Spec(q.shape), Spec(q.shape[:3])]


def _token_places(k: Any, cached: bool) -> IdRange:
    return IdRange("positions", k.shape[1] if cached else None, noun="position")


def _seen(positions: np.ndarray, keys: int, cached: bool) -> np.ndarray:
    """Which key each query sees, [B, T, S]. DataError for a position that cannot be."""
    own = np.arange(positions.shape[1])
    last = positions if cached else np.broadcast_to(own, positions.shape)
    IdRange("positions", keys if cached else None, noun="position").check("attention", positions)
    first = np.zeros_like(positions) if cached else own - positions
    s = np.arange(keys)
    return (s >= first[..., None]) & (s <= last[..., None])


def _probabilities(
    q: np.ndarray, k: np.ndarray, positions: np.ndarray, scale: float, cached: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Attention weights [B, KVH, G, T, S] and the logarithms of their divisors [B, KVH, G, T]."""
    z = np.einsum("btngd,bsnd->bngts", _grouped(q, k), k) * np.asarray(scale, q.dtype)
    z = np.where(_seen(positions, k.shape[1], cached)[:, None, None], z, -np.inf)
    most = z.max(-1, keepdims=True) if z.size else np.zeros((*z.shape[:-1], 1), z.dtype)
    e = np.exp(z - most)
    total = e.sum(-1, keepdims=True)
    return e / total, (np.log(total) + most)[..., 0]


def _grouped(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """[B, T, H, ...] as [B, T, KVH, G, ...]."""
    n = k.shape[2]
    return q.reshape(*q.shape[:2], n, q.shape[2] // n, *q.shape[3:])


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, scale: float, cached: bool
) -> tuple[np.ndarray, np.ndarray]:
    p, lse = _probabilities(q, k, positions, scale, cached)
    return np.einsum("bngts,bsnd->btngd", p, v).reshape(q.shape), lse.transpose(0, 3, 1, 2).reshape(q.shape[:3])


def _attention_back(
    g: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, lse: np.ndarray, positions: np.ndarray,
    g_lse: np.ndarray | None, scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    z = np.einsum("btngd,bsnd->bngts", _grouped(q, k), k) * np.asarray(scale, q.dtype)
    lse = _grouped(lse, k).transpose(0, 2, 3, 1)
    p = np.where(_seen(positions, k.shape[1], False)[:, None, None], np.exp(z - lse[..., None]), 0)
    grouped = _grouped(g, k)
    delta = (g * y).sum(-1) - (0 if g_lse is None else g_lse)
    dp = np.einsum("btngd,bsnd->bngts", grouped, v)
    dz = p * (dp - _grouped(delta, k).transpose(0, 2, 3, 1)[..., None]) * np.asarray(scale, q.dtype)
    dq = np.einsum("bngts,bsnd->btngd", dz, k).reshape(q.shape)
    return dq, np.einsum("bngts,btngd->bsnd", dz, _grouped(q, k)), np.einsum("bngts,btngd->bsnd", p, grouped)


def _attention_vjp(
    g_y: Value | None, g_lse: Value | None, q: Value, k: Value, v: Value, positions: Value, y: Value, lse: Value,
    scale: float, cached: bool,
) -> list[Value | None]:  # fmt: skip
    if cached:
        raise GradientError(
            f"attention has no gradient with cached=True; node {y.node.label}; train on whole sequences, cached=False"
        )
    g = zeros_like(y) if g_y is None else g_y
    return [*attention_back(g, q, k, v, y, lse, positions, g_lse, scale=scale), None]


def _back_shape(
    g: Spec, q: Spec, k: Spec, v: Spec, y: Spec, lse: Spec, positions: Spec, g_lse: Spec | None
) -> list[Spec]:
    _attention_shape(q, k, v, positions)
    need_dtype(g, y, lse, g_lse)
    need(g.shape == y.shape == q.shape, "g, y and q differ", "g, q and y of one shape")
    fits = lse.shape == q.shape[:3] and (g_lse is None or g_lse.shape == lse.shape)
    need(fits, "lse does not fit", f"f32{list(q.shape[:3])}")
    return [Spec(q.shape), Spec(k.shape), Spec(v.shape)]


def _packed(rng: np.random.Generator, batch: int, tokens: int, longest: int) -> np.ndarray:
    """Positions of sequences of random lengths, end to end."""
    rows = []
    for _ in range(batch):
        row: list[int] = []
        while len(row) < tokens:
            row += range(int(rng.integers(1, longest + 1)))
        rows.append(row[:tokens])
    return np.array(rows, np.int32).reshape(batch, tokens)


# batch, tokens, heads, key heads, D, longest sequence (0: one per row, -1: any positions)
ATTENTIONS = (
    (1, 1, 1, 1, 16, 0), (3, 1, 6, 2, 16, 0), (1, 7, 2, 1, 5, 0), (2, 5, 4, 2, 8, 3), (1, 17, 3, 3, 16, -1),
    (1, 33, 2, 1, 32, 0),
    (2, 67, 6, 2, 16, 20), (1, 130, 3, 1, 64, 0), (1, 97, 4, 4, 80, 60), (1, 70, 2, 2, 128, 0), (1, 259, 2, 1, 33, -1),
    (1, 200, 9, 3, 64, 0),
)  # fmt: skip


def _inputs(
    rng: np.random.Generator, b: int, t: int, heads: int, groups: int, d: int, longest: int
) -> list[np.ndarray]:
    q, k, v = draw(rng, (b, t, heads, d)), draw(rng, (b, t, groups, d)), draw(rng, (b, t, groups, d))
    own = np.arange(t)
    if longest == 0:
        positions = np.broadcast_to(own, (b, t)).astype(np.int32)
    elif longest > 0:
        positions = _packed(rng, b, t, longest)
    else:
        positions = rng.integers(0, own + 1, (b, t)).astype(np.int32)
    return [q, k, v, positions]


def _attention_samples(rng: np.random.Generator) -> list[Sample]:
    found = [Sample(tuple(_inputs(rng, *case)), {"scale": case[4] ** -0.5}) for case in ATTENTIONS]
    for b, t, s, heads, groups, d in (
        (1, 1, 9, 2, 1, 16), (2, 1, 300, 6, 2, 64), (1, 1, 1000, 9, 3, 64), (1, 6, 40, 4, 2, 32),
        (1, 40, 333, 3, 1, 48),
        (1, 1, 600, 40, 1, 20), (3, 1, 64, 2, 2, 128),
    ):  # fmt: skip
        positions = np.sort(rng.integers(0, s, (b, t)), axis=1).astype(np.int32)
        positions[0, -1] = s - 1
        inputs = (draw(rng, (b, t, heads, d)), draw(rng, (b, s, groups, d)), draw(rng, (b, s, groups, d)), positions)
        found.append(Sample(inputs, {"scale": d**-0.5, "cached": True}))
    # Scores of exactly 200 or 0: a few keys take all, and e^200 is no f32.
    _, _, v, positions = _inputs(rng, 1, 40, 2, 2, 8, 0)
    rows = np.eye(8, dtype=np.float32)
    q, k = (rows[rng.integers(0, 8, (1, 40, 2))] * np.float32(by) for by in (10, 20))
    found.append(Sample((q, k, v, positions), {"scale": 1.0}))
    return found


def _back_samples(rng: np.random.Generator) -> list[Sample]:
    found = []
    for i, case in enumerate(ATTENTIONS):
        q, k, v, positions = _inputs(rng, *case)
        scale = case[4] ** -0.5
        y, lse = _attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), positions, scale, False)
        # Of one token without it, dq and dk are 0 but for rounding.
        g_lse = draw(rng, lse.shape) if i % 3 == 2 or case[1] == 1 else None
        inputs = (draw(rng, q.shape), q, k, v, y.astype(np.float32), lse.astype(np.float32), positions, g_lse)
        found.append(Sample(inputs, {"scale": scale}))
    return found


def _pairs_seen(positions: Value, keys: int) -> float:
    """About how many (query, key) pairs count: half of all where every key has its query."""
    b, t = positions.shape
    return b * t * keys * (0.5 if keys == t else 1.0)


_Q = "q f32[2,5,4,8], k f32[2,5,2,8], v f32[2,5,2,8]"
attention: OpSpec = op(
    "attention", inputs="q k v positions", outputs="y lse?", attrs="scale:float cached:bool=False",
    doc="y = softmax(scale * q k^T) v by heads, lse = log of the softmax's divisor. Query t sees keys t - positions[t] "
    "to t: its own sequence up to itself; cached: keys 0 to positions[t] of a cache. q [B,T,H,D], k and v [B,S,KVH,D]",
    shape=_attention_shape, dense="q k v positions", may_overwrite={"y": "q"},
    vjp=_attention_vjp, no_gradient_to={"positions": POSITIONS}, reference=_attention,
    cost=lambda q, k, positions: (
        4.0 * _pairs_seen(positions, k.shape[1]) * q.shape[2] * q.shape[3], 8.0 * (q.size + k.size),
    ),
    samples=_attention_samples,
    dtypes="f32 positions:i32", ids=_token_places,
    bad_samples=[
        bad(
            f"attention: positions do not fit: {_Q}, positions i32[5]; need a position per query, i32[2, 5]",
            (2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), ("i32", (5,)), scale=1.0,
        ),
        bad(
            "attention: heads do not form groups: q f32[2,5,3,8], k f32[2,5,2,8], v f32[2,5,2,8], positions i32[2,5]; "
            "need H a multiple of KVH, D >= 1",
            (2, 5, 3, 8), (2, 5, 2, 8), (2, 5, 2, 8), ("i32", (2, 5)), scale=1.0,
        ),
        bad(
            "attention: keys and queries differ in number: q f32[1,5,2,8], k f32[1,7,2,8], v f32[1,7,2,8], "
            "positions i32[1,5]; need 5 keys, or cached=True",
            (1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8), ("i32", (1, 5)), scale=1.0,
        ),
        bad(
            "attention: the cache has no rows: q f32[1,1,2,8], k f32[1,0,2,8], v f32[1,0,2,8], positions i32[1,1]; "
            "need at least one key",
            (1, 1, 2, 8), (1, 0, 2, 8), (1, 0, 2, 8), ("i32", (1, 1)), scale=1.0, cached=True,
        ),
        bad(
            "attention: k and v differ: q f32[1,5,2,8], k f32[1,5,2,8], v f32[1,5,1,8], positions i32[1,5]; "
            "need k and v of one shape",
            (1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 1, 8), ("i32", (1, 5)), scale=1.0,
        ),
        bad(
            f"attention: dtype f32 is not taken: {_Q}, positions f32[2,5]; need i32",
            (2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), (2, 5), scale=1.0,
        ),
    ],
)  # fmt: skip
attention_back: OpSpec = op(
    "attention_back", inputs="g q k v y lse positions g_lse?", outputs="dq dk dv", attrs="scale:float",
    doc="p = exp(scale * q k^T - lse), dz = p * (g v^T - sum(g * y) + g_lse) * scale; "
    "dq = dz k, dk = dz^T q, dv = p^T g",
    shape=_back_shape, dense="g q k v y lse positions g_lse",
    may_overwrite={"dq": "g q y", "dk": "k v", "dv": "k v"},
    no_gradient="its second derivative would need T x T numbers; write attention with matmul and softmax for one",
    reference=_attention_back,
    cost=lambda q, k, positions: (
        10.0 * _pairs_seen(positions, k.shape[1]) * q.shape[2] * q.shape[3], 16.0 * (q.size + k.size),
    ),
    samples=_back_samples,
    dtypes="f32 positions:i32", ids=lambda: IdRange("positions", None, noun="position"),
    bad_samples=[
        bad(
            "attention_back: lse does not fit: g f32[1,5,2,8], q f32[1,5,2,8], k f32[1,5,1,8], v f32[1,5,1,8], "
            "y f32[1,5,2,8], lse f32[1,2,5], positions i32[1,5]; need f32[1, 5, 2]",
            (1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 1, 8), (1, 5, 1, 8), (1, 5, 2, 8), (1, 2, 5), ("i32", (1, 5)), None,
            scale=1.0,
        ),
    ],
)  # fmt: skip
