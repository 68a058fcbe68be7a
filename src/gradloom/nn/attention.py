"""Multi-head attention as a layer: causal self-attention by the fused op, everything else by products and softmax."""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool, as_whole
from ..base.arrays import as_array
from ..base.dtypes import f32, u8
from ..base.errors import DTypeError, SettingError, ShapeError
from ..graph.leaves import as_value, constant
from ..graph.value import Value, describe
from .initial import filled, uniform
from .layers import Dropout, Linear, need_positive
from .module import Module


class MultiheadAttention(Module):
    """softmax(q k^T / sqrt(D)) v by heads of D = features / heads, between projections of q, k, v and of the result
    (Vaswani et al. 2017).

    kv_heads   fewer heads of keys and values than of queries: query head h reads key head h // (heads / kv_heads)
    dropout    of the weights, in training
    causal     query t sees keys 0 to t only
    window     with causal: of these the last `window` ones, itself among them (Mistral's sliding window)
    softcap    scaled scores become softcap * tanh(score / softcap) before masks and softmax, as in Gemma 2

    Parameters query.weight [features, features], key.weight and value.weight [kv_heads * D, features], out.weight
    [features, features], with biases. Initialisation as in PyTorch: U(-b, b) with b = sqrt(6 / (4 * features)) for the
    first three, U(-1/sqrt(features), 1/sqrt(features)) for out; biases are 0.
    Raises ShapeError when heads do not divide features, or kv_heads heads; SettingError for a window without causal,
    and for a window or a softcap that is no positive number.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        need_positive("MultiheadAttention", features=features, heads=heads, kv_heads=kv_heads)
        if features % heads or heads % kv_heads:
            raise ShapeError(
                f"MultiheadAttention: features={features}, heads={heads}, kv_heads={kv_heads} do not fit; "
                "need heads to divide features and kv_heads to divide heads"
            )
        self.features, self.heads, self.kv_heads = features, heads, kv_heads
        self.causal, bias = as_bool("causal", causal, "MultiheadAttention"), as_bool("bias", bias, "MultiheadAttention")
        if window is not None and not self.causal:
            raise SettingError(f"MultiheadAttention: window={window} without causal; need causal=True, or a mask")
        self.window = None if window is None else as_whole("window", window, 1, "MultiheadAttention")
        if softcap is not None and (
            isinstance(softcap, bool) or not isinstance(softcap, Real) or not 0 < softcap < math.inf
        ):
            raise SettingError(setting="softcap", seen=softcap, need="a number > 0", place="MultiheadAttention")
        self.softcap = None if softcap is None else float(softcap)
        self.depth = features // heads
        self.query = _projection(features, features, bias)
        self.key = _projection(features, kv_heads * self.depth, bias)
        self.value = _projection(features, kv_heads * self.depth, bias)
        self.out = Linear(features, features, bias=bias)
        if self.out.bias is not None:
            self.out.draw_with(self.out.bias, filled(0.0))
        self.dropout = Dropout(dropout)

    def arguments(self) -> dict[str, Any]:
        return {
            "features": self.features, "heads": self.heads, "kv_heads": self.kv_heads,
            "bias": self.query.bias is not None, "dropout": self.dropout.rate, "causal": self.causal,
            "window": self.window, "softcap": self.softcap,
        }  # fmt: skip

    def forward(
        self,
        q: Value,
        k: Value | None = None,
        v: Value | None = None,
        mask: object | None = None,
        key_padding_mask: object | None = None,
    ) -> Value:
        """q [B, T, features], k and v [B, S, features] -> [B, T, features].

        k is q when it is not given (self-attention), v is k. mask [T, S], [B, T, S] or [B, heads, T, S], each extent
        possibly 1: of bools (or u8), true hides a key, as in PyTorch's layer of this name, and a query from which all
        keys are hidden gets 0 from them; of floats, it is added to the scaled scores. key_padding_mask [B, S] is such a
        mask for all queries and heads of a row.
        Raises ShapeError for other shapes, DTypeError for masks of other types.
        """
        if k is None and v is not None:
            raise ShapeError("MultiheadAttention: v without k; need both, k alone, or none")
        k = q if k is None else k
        v = k if v is None else v
        self._check(q, k, v)
        b, t = q.shape[:2]
        s = k.shape[1]
        heads, groups, depth = self.heads, self.kv_heads, self.depth
        queries = self.query(q).reshape(b, t, heads, depth)
        keys = self.key(k).reshape(b, s, groups, depth)
        values = self.value(v).reshape(b, s, groups, depth)
        scale = 1 / math.sqrt(depth)
        dropping = self.training and self.dropout.rate > 0
        if self.causal and mask is None and key_padding_mask is None and not dropping:
            y, _ = ops.attention(
                queries, keys, values, _counted(b, t), scale=scale, window=self.window, softcap=self.softcap
            )
            return self.out(y.reshape(b, t, self.features))
        # One product for the query heads of each key head: [B, kv_heads, heads / kv_heads * T, D].
        rows = heads // groups * t
        scores = ops.matmul(
            queries.transpose(0, 2, 1, 3).reshape(b, groups, rows, depth), keys.transpose(0, 2, 3, 1)
        ).reshape(b, heads, t, s)
        weights = self.dropout(self._softmax(scores, mask, key_padding_mask, scale))
        y = ops.matmul(weights.reshape(b, groups, rows, s), values.transpose(0, 2, 1, 3))
        return self.out(y.reshape(b, heads, t, depth).transpose(0, 2, 1, 3).reshape(b, t, self.features))

    def take_torch_names(self, arrays: dict[str, Any], path: str) -> None:
        """torch.nn packs the three projections in one array."""
        sizes = [one.weight.shape[0] for one in (self.query, self.key, self.value)]
        for kind in ("weight", "bias"):
            packed, out = f"{path}in_proj_{kind}", f"{path}out_proj.{kind}"
            if packed in arrays:
                array = arrays.pop(packed)
                if array.ndim < 1 or array.shape[0] != sum(sizes):
                    raise ShapeError(f"load: {packed} has shape {list(array.shape)}; need {sum(sizes)} rows")
                pieces = np.split(array, np.cumsum(sizes)[:-1])
                names = (f"{path}{part}.{kind}" for part in ("query", "key", "value"))
                arrays |= dict(zip(names, pieces, strict=True))
            if out in arrays:
                arrays[f"{path}out.{kind}"] = arrays.pop(out)

    def _check(self, q: Value, k: Value, v: Value) -> None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.ndim != 3 or x.shape[2] != self.features or x.shape[0] != q.shape[0] or not x.shape[1]:
                raise ShapeError(
                    f"MultiheadAttention: {name} is {describe(x)}; need [batch, tokens, {self.features}] with one "
                    "batch for q, k and v"
                )
        if k.shape[1] != v.shape[1]:
            raise ShapeError(f"MultiheadAttention: {k.shape[1]} keys, {v.shape[1]} values; need a value for each key")
        if self.causal and k.shape[1] != q.shape[1]:
            raise ShapeError(
                f"MultiheadAttention: causal with {q.shape[1]} queries and {k.shape[1]} keys; need equal numbers, "
                "or causal=False and a mask"
            )

    def _softmax(self, scores: Value, mask: object | None, key_padding_mask: object | None, scale: float) -> Value:
        """Weights [B, heads, T, S] of the keys."""
        b, _, t, s = scores.shape
        if self.softcap is not None:
            scores, scale = ops.tanh(scores * (scale / self.softcap)) * self.softcap, 1.0
        given = []
        if mask is not None:
            need = f"[{t}, {s}], [{b}, {t}, {s}] or {list(scores.shape)}, each extent possibly 1"
            given.append(_as_mask("mask", mask, scores, (2, 3, 4), need))
        if key_padding_mask is not None:
            given.append(_as_mask("key_padding_mask", key_padding_mask, scores, (), f"[{b}, {s}]"))
        hidden, added = ([one for one in given if one.dtype is kind] for kind in (u8, f32))
        if self.causal:
            (hidden if hidden else added).append(_unseen(t, self.window, "u8" if hidden else "f32"))
        total = None
        for one in added:
            total = one if total is None else total + one
        # Of a row that is hidden whole, -inf would make 0/0; a finite number makes any weights, and they are taken out.
        for one in hidden:
            scores = ops.mask(scores, one, -1e30)
        weights = ops.softmax(scores, mask=total, scale=scale)
        for one in hidden:
            weights = ops.mask(weights, one, 0.0)
        return weights


def _projection(n_in: int, n_out: int, bias: bool) -> Linear:
    """A linear layer that begins as PyTorch's packed one does."""
    made = Linear(n_in, n_out, bias=bias)
    made.draw_with(made.weight, uniform(math.sqrt(6 / (4 * n_in))))
    if made.bias is not None:
        made.draw_with(made.bias, filled(0.0))
    return made


def _as_mask(name: str, mask: object, scores: Value, ranks: tuple[int, ...], need: str) -> Value:
    """A mask with the axes of scores [B, heads, T, S]. ranks: those allowed; none: it must be [B, S]."""
    given = mask if isinstance(mask, Value) else as_value(as_array(f"attention: {name}", mask))
    if given.dtype not in (u8, f32):
        raise DTypeError(f"MultiheadAttention: {name} is {describe(given)}; need bools (true hides a key) or floats")
    b, _, _, s = scores.shape
    shape = given.shape
    wide: tuple[int, ...] = (b, 1, 1, s)
    if not ranks:
        fits = shape == (b, s)
    else:
        wide = shape[:1] + (1,) + shape[1:] if given.ndim == 3 else (1,) * (4 - given.ndim) + shape
        fits = given.ndim in ranks and all(m in (1, n) for m, n in zip(wide, scores.shape, strict=True))
    if not fits:
        raise ShapeError(f"MultiheadAttention: {name} is {describe(given)}; need {need}")
    return given if given.shape == wide else given.reshape(wide)


@lru_cache(maxsize=16)
def _counted(batch: int, tokens: int) -> Value:
    """0, 1, 2, ... in each row, i32 [batch, tokens]: one sequence per row."""
    return constant(np.broadcast_to(np.arange(tokens, dtype=np.int32), (batch, tokens)), name="positions")


@lru_cache(maxsize=16)
def _unseen(tokens: int, window: int | None, kind: str) -> Value:
    """[tokens, tokens]: keys after their query, and those `window` and more before it, as u8 1 or f32 -inf; else 0."""
    unseen = ~np.tri(tokens, dtype=bool)
    if window is not None:
        unseen |= np.tri(tokens, k=-window, dtype=bool)
    return constant(unseen if kind == "u8" else np.where(unseen, -np.inf, 0.0), kind, name="causal")
