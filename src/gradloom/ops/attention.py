"""Fused attention: causal, over packed sequences or a cache, with sliding windows and capped scores.

Queries, keys and values are [batch, tokens, heads, D]; query head h reads key head h // (H / KVH). A mask is never an
array: `positions` has for each query the number of tokens before it in its own sequence, so that packed sequences stay
apart, and `window` is the maximum number of keys: itself and the window - 1 tokens before it (sliding windows as in
Mistral, Gemma 2 and llama.cpp; in PyTorch's flex attention, a mask of q - k < window). `softcap` bounds the scaled
scores before softmax: softcap * tanh(score / softcap), as in Gemma 2. No T x T matrix exists outside the references.

Where q (of the gradient, g) is bf16, so are the operands of all products: the weights of v, and of the gradient the
slopes of the scores, are rounded too. A weight is exp(score - m) with m a multiple of log 2 near the largest score, so
that another m rounds alike; it is divided behind the product, by the sum of the weights as they were before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.dtypes import bf16, f32
from ..base.errors import GradientError, GraphError
from ..graph.declaration import IdRange, Reject
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.rounding import to_bf16
from ..graph.value import Value
from .common import Sample, Spec, bad, draw, need, need_rounded, zeros_like
from .elementwise import add, cast, div, exp, greater, less, log, minimum, mul, round_bf16, sqr, sub, tanh, where
from .elementwise import scale as times
from .layout import permute, reshape
from .matmul import matmul
from .reduce import max as largest
from .reduce import sum as sum_over
from .rope import POSITIONS
from .rounding import next_power, next_power_array


def _attention_shape(
    q: Spec, k: Spec, v: Spec, positions: Spec, window: int | None, softcap: float | None, cached: bool = False
) -> list[Spec]:
    need(q.ndim == 4 and k.ndim == 4, "q or k is not [batch, tokens, heads, D]", "q [B,T,H,D], k and v [B,S,KVH,D]")
    b, t, heads, d = q.shape
    need(k.shape == v.shape, "k and v differ", "k and v of one shape")
    need(k.shape[0] == b and k.shape[3] == d, "k does not fit q", f"k of shape [{b}, S, KVH, {d}]")
    need(
        d >= 1 and k.shape[2] >= 1 and heads % k.shape[2] == 0,
        "heads do not form groups",
        "H a multiple of KVH, D >= 1",
    )
    need_rounded(q, k, v)
    need(k.dtype is v.dtype, "k and v differ in dtype", "both in f32 or both in bf16")
    need(positions.shape == (b, t), "positions do not fit", f"a position per query, i32[{b}, {t}]")
    need(cached or k.shape[1] == t, "keys and queries differ in number", f"{t} keys, or cached=True")
    need(not cached or k.shape[1] > 0, "the cache has no rows", "at least one key")
    _need_limits(window, softcap)
    return [Spec(q.shape), Spec(q.shape[:3])]


def _need_limits(window: int | None, softcap: float | None) -> None:
    """Reject a window that holds no key, and a bound of scores that is no positive number."""
    if window is not None and window < 1:
        raise Reject(f"window={window}", "a number of keys >= 1, or None", GraphError)
    if softcap is not None and not 1e-30 <= softcap <= 1e30:  # in f32, so is its inverse
        raise Reject(f"softcap={softcap}", "a number > 0 (1e-30 to 1e30), or None", GraphError)


def _token_places(k: Any, cached: bool) -> IdRange:
    return IdRange("positions", k.shape[1] if cached else None, noun="position")


def _seen(positions: np.ndarray, keys: int, cached: bool, window: int | None) -> np.ndarray:
    """Which key each query sees, [B, T, S]. DataError for a position that cannot be."""
    own = np.arange(positions.shape[1])
    last = positions.astype(np.int64) if cached else np.broadcast_to(own, positions.shape)
    IdRange("positions", keys if cached else None, noun="position").check("attention", positions)
    first = np.zeros_like(positions) if cached else own - positions
    if window is not None:
        first = np.maximum(first, last - (window - 1))
    s = np.arange(keys)
    return (s >= first[..., None]) & (s <= last[..., None])


def _scores(q: np.ndarray, k: np.ndarray, scale: float, softcap: float | None) -> np.ndarray:
    """scale * q k^T, bounded, [B, KVH, G, T, S]."""
    z = np.einsum("btngd,bsnd->bngts", _grouped(q, k), k) * np.asarray(scale, q.dtype)
    if softcap is None:
        return z
    cap = np.asarray(softcap, q.dtype)
    return np.tanh(z / cap) * cap


def _probabilities(
    q: np.ndarray, k: np.ndarray, positions: np.ndarray, scale: float, cached: bool, window: int | None,
    softcap: float | None, rounded: bool,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Attention weights [B, KVH, G, T, S] and the logarithms of their divisors [B, KVH, G, T]."""
    z = _scores(q, k, scale, softcap)
    z = np.where(_seen(positions, k.shape[1], cached, window)[:, None, None], z, -np.inf)
    most = z.max(-1, keepdims=True) if z.size else np.zeros((*z.shape[:-1], 1), z.dtype)
    if rounded:
        most = next_power_array(most)
    e = np.exp(z - most)
    total = e.sum(-1, keepdims=True)
    return (to_bf16(e) if rounded else e) / total, (np.log(total) + most)[..., 0]


def _grouped(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """[B, T, H, ...] as [B, T, KVH, G, ...]."""
    n = k.shape[2]
    return q.reshape(*q.shape[:2], n, q.shape[2] // n, *q.shape[3:])


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, scale: float, cached: bool,
    window: int | None = None, softcap: float | None = None, rounded: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    p, lse = _probabilities(q, k, positions, scale, cached, window, softcap, rounded)
    return np.einsum("bngts,bsnd->btngd", p, v).reshape(q.shape), lse.transpose(0, 3, 1, 2).reshape(q.shape[:3])


def _attention_back(
    g: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, lse: np.ndarray, positions: np.ndarray,
    g_lse: np.ndarray | None, scale: float, window: int | None, softcap: float | None, rounded: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    z = _scores(q, k, scale, softcap)
    lse = _grouped(lse, k).transpose(0, 2, 3, 1)
    p = np.where(_seen(positions, k.shape[1], False, window)[:, None, None], np.exp(z - lse[..., None]), 0)
    grouped = _grouped(g, k)
    delta = (g * y).sum(-1) - (0 if g_lse is None else g_lse)
    dp = np.einsum("btngd,bsnd->bngts", grouped, v)
    dz = p * (dp - _grouped(delta, k).transpose(0, 2, 3, 1)[..., None]) * np.asarray(scale, q.dtype)
    if softcap is not None:
        dz = dz * (1 - np.square(z / np.asarray(softcap, q.dtype)))
    if rounded:
        p, dz = to_bf16(p), to_bf16(dz)
    dq = np.einsum("bngts,bsnd->btngd", dz, k).reshape(q.shape)
    return dq, np.einsum("bngts,btngd->bsnd", dz, _grouped(q, k)), np.einsum("bngts,btngd->bsnd", p, grouped)


def _strips(x: Value, groups: int) -> Value:
    """[B, T, H, D] as [B, KVH, H / KVH * T, D]: the queries that read one key head; groups is KVH."""
    b, t, heads, d = x.shape
    return reshape(
        permute(reshape(x, (b, t, groups, heads // groups, d)), (0, 2, 3, 1, 4)), (b, groups, heads // groups * t, d)
    )


def _unstrips(x: Value, tokens: int, heads: int) -> Value:
    """The inverse of _strips."""
    b, groups, _, d = x.shape
    wide = reshape(x, (b, groups, heads // groups, tokens, d))
    return reshape(permute(wide, (0, 3, 1, 2, 4)), (b, tokens, heads, d))


def _scores_graph(
    q: Value, k: Value, positions: Value, scale: float, cached: bool, window: int | None, softcap: float | None
) -> tuple[Value, Value]:
    """Bounded scores [B, KVH, H / KVH * T, S], and the same with -inf at the keys that a query does not see."""
    (b, t), keys, groups = positions.shape, k.shape[1], k.shape[2]
    scores = times(matmul(_strips(q, groups), permute(k, (0, 2, 3, 1))), scale)
    if softcap is not None:
        scores = times(tanh(times(scores, 1 / softcap)), softcap)
    place = reshape(cast(positions, f32), (b, 1, 1, t, 1))
    before = place if window is None else minimum(place, float(window - 1))  # how many keys before the last one
    last = place if cached else np.arange(t, dtype=np.float32).reshape(t, 1)
    distance = sub(last, np.arange(keys, dtype=np.float32))
    wide = reshape(scores, (b, groups, q.shape[2] // groups, t, keys))
    seen = where(less(distance, 0.0), -math.inf, where(greater(distance, before), -math.inf, wide))
    return scores, reshape(seen, scores.shape)


def _attention_graph(
    q: Value, k: Value, v: Value, positions: Value, scale: float, cached: bool, window: int | None,
    softcap: float | None,
) -> list[Value]:  # fmt: skip
    """attention from simpler ops; it holds the scores."""
    _, seen = _scores_graph(q, k, positions, scale, cached, window, softcap)
    most = largest(seen, -1, keepdims=True)
    rounded = q.dtype is bf16
    if rounded:
        most = next_power(most)
    e = exp(sub(seen, most))
    total = sum_over(e, -1, keepdims=True)
    values = permute(v, (0, 2, 1, 3))
    y = div(matmul(round_bf16(e), values), total) if rounded else matmul(div(e, total), values)
    t, heads = q.shape[1:3]
    return [_unstrips(y, t, heads), reshape(_unstrips(add(log(total), most), t, heads), q.shape[:3])]


def _back_graph(
    g: Value, q: Value, k: Value, v: Value, y: Value, lse: Value, positions: Value, g_lse: Value | None, scale: float,
    window: int | None, softcap: float | None,
) -> list[Value]:  # fmt: skip
    """attention_back from simpler ops; it holds the scores."""
    groups, (t, heads) = k.shape[2], q.shape[1:3]

    def per_query(x: Value) -> Value:
        """[B, T, H] as a column that broadcasts against the scores."""
        return _strips(reshape(x, (*x.shape, 1)), groups)

    scores, seen = _scores_graph(q, k, positions, scale, False, window, softcap)
    p = exp(sub(seen, per_query(lse)))
    delta = sum_over(mul(cast(g, f32), cast(y, f32)), -1)
    back = sub(
        matmul(_strips(g, groups), permute(v, (0, 2, 3, 1))), per_query(delta if g_lse is None else sub(delta, g_lse))
    )
    dz = times(mul(p, back), scale)
    if softcap is not None:
        dz = mul(dz, sub(1.0, sqr(times(scores, 1 / softcap))))
    if g.dtype is bf16:
        p, dz = round_bf16(p), round_bf16(dz)
    dq = _unstrips(matmul(dz, permute(k, (0, 2, 1, 3))), t, heads)
    dk, dv = (
        permute(matmul(weights, _strips(x, groups), transpose_x=True), (0, 2, 1, 3)) for weights, x in ((dz, q), (p, g))
    )
    return [dq, dk, dv]


def _attention_vjp(
    g_y: Value | None, g_lse: Value | None, q: Value, k: Value, v: Value, positions: Value, y: Value, lse: Value,
    scale: float, cached: bool, window: int | None, softcap: float | None,
) -> list[Value | None]:  # fmt: skip
    if cached:
        raise GradientError(
            f"attention has no gradient with cached=True; node {y.node.label}; train on whole sequences, cached=False"
        )
    g = zeros_like(y) if g_y is None else g_y
    q, k, v = (cast(x, f32) for x in (q, k, v))
    return [*attention_back(g, q, k, v, y, lse, positions, g_lse, scale=scale, window=window, softcap=softcap), None]


def _back_shape(
    g: Spec, q: Spec, k: Spec, v: Spec, y: Spec, lse: Spec, positions: Spec, g_lse: Spec | None, window: int | None,
    softcap: float | None,
) -> list[Spec]:  # fmt: skip
    _attention_shape(q, k, v, positions, window, softcap)
    need(g.shape == y.shape == q.shape, "g, y and q differ", "g, q and y of one shape")
    kinds = {x.dtype for x in (g, q, k, v, y)}
    need(len(kinds) == 1, "g, q, k, v and y differ in dtype", "all in f32 or all in bf16")
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


# Of the samples: one key, a window within a block of keys, several blocks, more than there are; caps that bend scores a
# little and much.
LIMITS: tuple[dict[str, float], ...] = (
    {"window": 1}, {"window": 3, "softcap": 1.5}, {"window": 40}, {"window": 10**6, "softcap": 30.0},
    {"window": 150, "softcap": 0.7}, {"softcap": 5.0},
)  # fmt: skip


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
    samples = [Sample(tuple(_inputs(rng, *case)), {"scale": case[4] ** -0.5}) for case in ATTENTIONS]
    for b, t, s, heads, groups, d in (
        (1, 1, 9, 2, 1, 16), (2, 1, 300, 6, 2, 64), (1, 1, 1000, 9, 3, 64), (1, 6, 40, 4, 2, 32),
        (1, 40, 333, 3, 1, 48),
        (1, 1, 600, 40, 1, 20), (3, 1, 64, 2, 2, 128),
    ):  # fmt: skip
        positions = np.sort(rng.integers(0, s, (b, t)), axis=1).astype(np.int32)
        positions[0, -1] = s - 1
        inputs = (draw(rng, (b, t, heads, d)), draw(rng, (b, s, groups, d)), draw(rng, (b, s, groups, d)), positions)
        samples.append(Sample(inputs, {"scale": d**-0.5, "cached": True}))
    # Scores of exactly 200 or 0: a few keys take all, and e^200 is no f32.
    _, _, v, positions = _inputs(rng, 1, 40, 2, 2, 8, 0)
    rows = np.eye(8, dtype=np.float32)
    q, k = (rows[rng.integers(0, 8, (1, 40, 2))] * np.float32(by) for by in (10, 20))
    samples.append(Sample((q, k, v, positions), {"scale": 1.0}))
    limited = [Sample(x.inputs, x.attrs | LIMITS[i % len(LIMITS)]) for i, x in enumerate(samples)]
    samples += limited
    for i, x in enumerate(samples[1::2]):
        q, k, v, positions = x.inputs
        kind = bf16 if i % 3 else f32  # cached values are rounded when they are read
        operands = (q.astype(bf16.numpy), k.astype(kind.numpy), v.astype(kind.numpy), positions)
        samples.append(Sample(operands, x.attrs))
    return samples


def _back_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, case in enumerate(ATTENTIONS):
        q, k, v, positions = _inputs(rng, *case)
        scale = case[4] ** -0.5
        y, lse = _attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), positions, scale, False)
        # Of one token without it, dq and dk are 0 but for rounding.
        g_lse = draw(rng, lse.shape) if i % 3 == 2 or case[1] == 1 else None
        inputs = (draw(rng, q.shape), q, k, v, y.astype(np.float32), lse.astype(np.float32), positions, g_lse)
        samples.append(Sample(inputs, {"scale": scale}))
        limits: dict[str, Any] = dict(LIMITS[i % len(LIMITS)])
        y, lse = _attention(
            q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), positions, scale, False, **limits
        )
        inputs = (*inputs[:4], y.astype(np.float32), lse.astype(np.float32), positions, draw(rng, lse.shape))
        samples.append(Sample(inputs, {"scale": scale} | limits))
    for x in samples[::3]:
        operands = [a.astype(bf16.numpy) for a in x.inputs[:5]]
        samples.append(Sample((*operands, *x.inputs[5:]), x.attrs))
    return samples


def _pairs_seen(positions: Value, keys: int, window: int | None) -> float:
    """About how many (query, key) pairs count: half of all where every key has its query, or the window's."""
    b, t = positions.shape
    pairs = b * t * keys * (0.5 if keys == t else 1.0)
    return pairs if window is None else min(pairs, float(b * t * window))


_Q = "q f32[2,5,4,8], k f32[2,5,2,8], v f32[2,5,2,8]"
attention: OpSpec = op(
    "attention", inputs="q k v positions", outputs="y lse?",
    attrs="scale:float cached:bool=False window:int? softcap:float?",
    doc="y = softmax(scale * q k^T) v by heads, lse = log of the softmax's divisor. Query t sees keys t - positions[t] "
    "to t: its own sequence up to itself; cached: keys 0 to positions[t] of a cache; of these the last `window`. "
    "softcap: softmax of softcap * tanh(scale * q k^T / softcap). q [B,T,H,D], k and v [B,S,KVH,D]. Where q is bf16, "
    "the numerators of softmax are rounded to it as well",
    shape=_attention_shape, dense="q k v positions", rounds="q k v", may_overwrite={"y": "q"},
    vjp=_attention_vjp, no_gradient_to={"positions": POSITIONS},
    composition=_attention_graph, reference=_attention,
    cost=lambda q, k, positions, window: (
        4.0 * _pairs_seen(positions, k.shape[1], window) * q.shape[2] * q.shape[3], 8.0 * (q.size + k.size),
    ),
    samples=_attention_samples,
    dtypes="f32 q:f32|bf16 k:f32|bf16 v:f32|bf16 positions:i32", ids=_token_places,
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
        bad(
            f"attention: window=0: {_Q}, positions i32[2,5]; need a number of keys >= 1, or None",
            (2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), ("i32", (2, 5)), scale=1.0, window=0,
        ),
        bad(
            f"attention: softcap=-1.0: {_Q}, positions i32[2,5]; need a number > 0 (1e-30 to 1e30), or None",
            (2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), ("i32", (2, 5)), scale=1.0, softcap=-1,
        ),
    ],
)  # fmt: skip
attention_back: OpSpec = op(
    "attention_back", inputs="g q k v y lse positions g_lse?", outputs="dq dk dv",
    attrs="scale:float window:int? softcap:float?",
    doc="z = scale * q k^T, softcap: z = softcap * tanh(z / softcap); p = exp(z - lse) where the query sees the key, "
    "dz = p * (g v^T - sum(g * y) + g_lse) * scale, softcap: times 1 - (z / softcap)^2; dq = dz k, dk = dz^T q, "
    "dv = p^T g; where g is bf16, p and dz are rounded to it for the products that read them",
    shape=_back_shape, dense="g q k v y lse positions g_lse", rounds="g q k v y",
    may_overwrite={"dq": "g q y", "dk": "k v", "dv": "k v"},
    no_gradient="its second derivative would need T x T numbers; write attention with matmul and softmax for one",
    composition=_back_graph, reference=_attention_back,
    cost=lambda q, k, positions, window: (
        10.0 * _pairs_seen(positions, k.shape[1], window) * q.shape[2] * q.shape[3], 16.0 * (q.size + k.size),
    ),
    samples=_back_samples,
    dtypes="f32 g:f32|bf16 q:f32|bf16 k:f32|bf16 v:f32|bf16 y:f32|bf16 positions:i32",
    ids=lambda: IdRange("positions", None, noun="position"),
    bad_samples=[
        bad(
            "attention_back: lse does not fit: g f32[1,5,2,8], q f32[1,5,2,8], k f32[1,5,1,8], v f32[1,5,1,8], "
            "y f32[1,5,2,8], lse f32[1,2,5], positions i32[1,5]; need f32[1, 5, 2]",
            (1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 1, 8), (1, 5, 1, 8), (1, 5, 2, 8), (1, 2, 5), ("i32", (1, 5)), None,
            scale=1.0,
        ),
    ],
)  # fmt: skip
