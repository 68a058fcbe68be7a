"""Layers of transformers, and sinusoidal positions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import ShapeError
from ..graph.leaves import constant
from ..graph.value import Value, describe
from .attention import MultiheadAttention
from .layers import Dropout, LayerNorm, Linear, need_positive
from .module import Module


class _TransformerLayer(Module):
    """Self-attention and two linear layers, with sums and norms; a decoder adds a second attention."""

    def __init__(
        self, features: int, heads: int, hidden: int, dropout: float, activation: str, eps: float, norm_first: bool,
        causal: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        place = type(self).__name__
        need_positive(place, features=features, heads=heads, hidden=hidden)
        self.norm_first = as_bool("norm_first", norm_first, place)
        self.self_attn = MultiheadAttention(features, heads, dropout=dropout, causal=as_bool("causal", causal, place))
        self.linear1 = Linear(features, hidden, activation=activation)
        self.linear2 = Linear(hidden, features)
        self.norm1, self.norm2 = LayerNorm(features, eps), LayerNorm(features, eps)
        self.dropout = Dropout(dropout)

    def arguments(self) -> dict[str, Any]:
        return {
            "features": self.linear1.n_in, "heads": self.self_attn.heads, "hidden": self.linear1.n_out,
            "dropout": self.dropout.rate, "activation": self.linear1.arguments()["activation"], "eps": self.norm1.eps,
            "norm_first": self.norm_first, "causal": self.self_attn.causal,
        }  # fmt: skip

    def _dense(self, x: Value) -> Value:
        return self.dropout(self.linear2(self.dropout(self.linear1(x))))

    def _self(self, x: Value, mask: object | None, key_padding_mask: object | None) -> Value:
        return self.dropout(self.self_attn(x, mask=mask, key_padding_mask=key_padding_mask))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then two linear layers, each added to its input and normalised (Vaswani et al. 2017):
    x [N, T, features] -> [N, T, features].

    features    the model's width; heads must divide it
    heads       of the attention
    hidden      width between the linear layers, 2048 by default (PyTorch's dim_feedforward)
    dropout     in training: of attention weights, of both results and between the linear layers; 0.1 by default
    activation  between the linear layers, "relu" by default
    eps         of the norms, 1e-5 by default
    norm_first  False (the default): norm(x + f(x)); True: x + f(norm(x))
    causal      token t sees tokens 0 to t only; False by default

    forward(x, mask, key_padding_mask): masks as of MultiheadAttention. Parameters are called as in PyTorch: linear1,
    linear2, norm1, norm2, self_attn; those of self_attn as of MultiheadAttention. Raises as MultiheadAttention.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        eps: float = 1e-5,
        norm_first: bool = False,
        causal: bool = False,
    ) -> None:
        super().__init__(features, heads, hidden, dropout, activation, eps, norm_first, causal)

    def forward(self, x: Value, mask: object | None = None, key_padding_mask: object | None = None) -> Value:
        if self.norm_first:
            x = x + self._self(self.norm1(x), mask, key_padding_mask)
            return x + self._dense(self.norm2(x))
        x = self.norm1(x + self._self(x, mask, key_padding_mask))
        return self.norm2(x + self._dense(x))


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the output of an encoder, then two linear layers, each added to its input and
    normalised (Vaswani et al. 2017): x [N, T, features], memory [N, S, features] -> [N, T, features].

    Arguments as of TransformerEncoderLayer; causal concerns the self-attention and is False by default, as in PyTorch.

    forward(x, memory, mask, memory_mask, key_padding_mask, memory_key_padding_mask): masks as of MultiheadAttention.
    Parameters are called as in PyTorch: linear1, linear2, norm1, norm2, norm3, self_attn, multihead_attn; those of both
    attentions as of MultiheadAttention. Raises as MultiheadAttention.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        eps: float = 1e-5,
        norm_first: bool = False,
        causal: bool = False,
    ) -> None:
        super().__init__(features, heads, hidden, dropout, activation, eps, norm_first, causal)
        self.multihead_attn = MultiheadAttention(features, heads, dropout=dropout)
        self.norm3 = LayerNorm(features, eps)

    def forward(
        self,
        x: Value,
        memory: Value,
        mask: object | None = None,
        memory_mask: object | None = None,
        key_padding_mask: object | None = None,
        memory_key_padding_mask: object | None = None,
    ) -> Value:
        def crossed(y: Value) -> Value:
            seen = self.multihead_attn(y, memory, mask=memory_mask, key_padding_mask=memory_key_padding_mask)
            return self.dropout(seen)

        if self.norm_first:
            x = x + self._self(self.norm1(x), mask, key_padding_mask)
            x = x + crossed(self.norm2(x))
            return x + self._dense(self.norm3(x))
        x = self.norm1(x + self._self(x, mask, key_padding_mask))
        x = self.norm2(x + crossed(x))
        return self.norm3(x + self._dense(x))


class PositionalEncoding(Module):
    """x + sinusoidal positions (Vaswani et al. 2017): x [N, T, features] -> the same shape.

    Position t adds sin(t / 10000^(2i / features)) to feature 2i, and the cosine to feature 2i + 1. It has no
    parameters. Raises ShapeError for x of another shape.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        need_positive("PositionalEncoding", features=features)
        self.features = features

    def arguments(self) -> dict[str, Any]:
        return {"features": self.features}

    def forward(self, x: Value) -> Value:
        if x.ndim != 3 or x.shape[2] != self.features:
            raise ShapeError(f"PositionalEncoding: got {describe(x)}; need [rows, tokens, {self.features}]")
        return x + _positions(x.shape[1], self.features)


@lru_cache(maxsize=16)
def _positions(tokens: int, features: int) -> Value:
    """Sines and cosines, f32 [tokens, features]."""
    pairs = np.arange(features) // 2 * 2
    angles = np.arange(tokens)[:, None] / 10000 ** (pairs / features)
    waves = np.where(np.arange(features) % 2 == 0, np.sin(angles), np.cos(angles))
    return constant(waves.astype(np.float32), name="positions")
