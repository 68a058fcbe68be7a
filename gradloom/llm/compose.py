"""Attention and rotation from simpler ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..graph.opspec import constant
from ..graph.value import Value


def swiglu(gate: Value, up: Value) -> Value:
    return ops.silu(gate) * up


def rope(x: Value, positions: Value, frequencies: Any, pairing: str = "interleaved", scale: float = 1.0) -> Value:
    b, t, h, d = x.shape
    n = frequencies.shape[0]
    angle = (ops.cast(positions, "f32").reshape(b, t, 1, 1)) * frequencies.reshape(1, 1, 1, n)
    cos, sin = ops.cos(angle), ops.sin(angle)
    turned, rest = x[..., : 2 * n], x[..., 2 * n :]
    if pairing == "half":
        first, second = turned[..., :n], turned[..., n:]
        y = ops.concat([first * cos - second * sin, first * sin + second * cos], -1)
    else:
        pairs = turned.reshape(b, t, h, n, 2)
        first, second = pairs[..., 0], pairs[..., 1]
        y = ops.stack([first * cos - second * sin, first * sin + second * cos], -1).reshape(b, t, h, 2 * n)
    return y if 2 * n == d else ops.concat([y, rest], -1)


def attention(q: Value, k: Value, v: Value, positions: Value, scale: float) -> Value:
    b, t, h, d = q.shape
    kv = k.shape[2]
    at = constant(np.arange(t, dtype=np.float32))
    first = at.reshape(1, t) - ops.cast(positions, "f32")  # [B, T]
    query, key = at.reshape(1, t, 1), at.reshape(1, 1, t)
    seen = ops.where(ops.less(query, key), 0.0, ops.where(ops.less(key, first.reshape(b, t, 1)), 0.0, 1.0))
    mask = (1.0 - seen) * -1e30
    q5 = q.reshape(b, t, kv, h // kv, d).transpose(0, 2, 3, 1, 4)  # [B, KV, G, T, D]
    k5 = k.transpose(0, 2, 3, 1).reshape(b, kv, 1, d, t)
    v5 = v.transpose(0, 2, 1, 3).reshape(b, kv, 1, t, d)
    scores = ops.matmul(q5, k5) * scale + mask.reshape(b, 1, 1, t, t)
    y = ops.matmul(ops.softmax(scores), v5)
    return y.transpose(0, 3, 1, 2, 4).reshape(b, t, h, d)
