"""Net: a forward pass under construction. Families build their blocks with it, by names of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np

from .. import ops
from ..graph.leaves import Parameter, constant
from ..graph.scope import scope
from ..graph.stored import Stored
from ..graph.value import Value
from .config import Config, Rope
from .gpu_layers import GpuLayers, at

Pairing = Literal["interleaved", "half"]  # elements of a head that are rotated together


class Weights(Protocol):
    """The parts of a model that a forward pass reads."""

    config: Config
    weights: dict[str, Stored]

    def frequencies(self, rope: Rope, tokens: int) -> np.ndarray:
        """Radians per token of each rotated pair, f32 [rope.dims / 2], of texts of at most `tokens` tokens."""

    def leaf(self, name: str) -> Parameter:
        """The graph's leaf for a tensor."""


class ForwardAdapter(Protocol):
    """The contributions of an adapter to a forward pass."""

    def weight(self, name: str) -> Parameter | None:
        """The replacement for a tensor, or None."""

    def linear(self, name: str, x: Value, rows: int, training: bool) -> Value | None:
        """The term added to x @ W^T: x [N, n_in], W the tensor of this name; the N tokens form `rows` sequences."""

    def embed(self, name: str, tokens: Value) -> Value | None:
        """The term added to the rows of the embedding for tokens i32 [N]."""


class Caches(Protocol):
    """Keys and values of earlier tokens. longest: the most tokens of a text; rows: with padding behind it."""

    longest: int
    rows: int

    def attend(
        self, layer: int, q: Value, k: Value, v: Value, positions: Value, scale: float, window: int | None
    ) -> Value:
        """Store k, v [B, T, KVH, D] at the positions and attend with q [B, T, H, D] to all stored ones, or to the last
        `window` of them."""


class Net:
    """A forward pass under construction: adds the terms of the adapter to the model's."""

    def __init__(
        self,
        model: Weights,
        shape: Sequence[int],
        adapter: ForwardAdapter | None,
        caches: Caches | None,
        training: bool,
        layers: GpuLayers | None = None,
        longest: int | None = None,
    ) -> None:
        """layers: blocks on a GPU; None: no placement. longest: tokens of a text where a row may hold more."""
        self.placing = layers
        self.model, self.config, self.adapter, self.caches, self.training = (
            model, model.config, adapter, caches, training
        )  # fmt: skip
        self.batch, self.length = shape
        self.blocks: list[Value] = []  # the residual stream behind each block, [B*T, d]
        self.longest = (longest or self.length) if caches is None else caches.longest  # tokens of a text

    def weight(self, name: str) -> Value:
        own = None if self.adapter is None else self.adapter.weight(name)
        return self.model.leaf(name) if own is None else own

    def embed(self, tokens: Value) -> Value:
        """[B, T] -> [B*T, d]."""
        with scope("token_embd"), at(self.placing and self.placing.cpu):
            ids = tokens.reshape(self.batch * self.length)
            x = ops.get_rows(self.weight("token_embd.weight"), ids)
            more = None if self.adapter is None else self.adapter.embed("token_embd.weight", ids)
            x = x if more is None else x + more
            scale = self.config.embedding_scale
            return x if scale == 1 else ops.scale(x, scale)

    def norm(self, name: str, x: Value) -> Value:
        with scope(name.rpartition(".")[2]), at(self.device_of(name)):
            return ops.rms_norm(x, self.weight(f"{name}.weight"), eps=self.config.rms_eps)

    def linear(self, name: str, x: Value) -> Value:
        """x [N, n_in] -> [N, n_out]."""
        with scope(name.rpartition(".")[2]), at(self.device_of(name)):
            y = ops.matmul(x, self.weight(f"{name}.weight"), transpose_y=True)
            more = None
            if self.adapter is not None:
                more = self.adapter.linear(f"{name}.weight", x, self.batch, self.training)
            if more is not None:
                y = y + more
            return y + self.weight(f"{name}.bias") if f"{name}.bias" in self.model.weights else y

    def _factors(self) -> Value | None:
        """Of queries at each position, f32 [positions, 1]; None where the configuration has no `temperature`."""
        if self.config.temperature is None:
            return None
        slope, period = self.config.temperature
        places = np.arange(self.length if self.caches is None else self.caches.rows, dtype=np.float64)
        return constant((1 + slope * np.log1p(np.floor(places / period))).astype(np.float32)[:, None])

    def device_of(self, name: str) -> str | None:
        """The device for ops on a tensor; None inside a block, which sets its own."""
        return None if self.placing is None or name.startswith("blk.") else self.placing.end

    def layers(self, positions: Value) -> Iterator[Layer]:
        """The blocks. angles: radians per token of each pair that a rotation turns, f32 [dims / 2]; factors: of
        queries. Both are created once, outside of the blocks: they are on no device."""
        ropes = dict.fromkeys(rope for rope in self.config.rope if rope is not None)
        self.angles = {rope: constant(self.model.frequencies(rope, self.longest)) for rope in ropes}
        self.factors = self._factors()
        for i in range(self.config.layers):
            with scope(f"blk.{i}"), at(self.placing and self.placing.block(i)):
                yield Layer(self, i, positions)


class Layer:
    """One block of a Net. Its methods prefix names of tensors with `blk.N.`."""

    def __init__(self, net: Net, number: int, positions: Value) -> None:
        self.net, self.number, self.positions, self.config = net, number, positions, net.config

    def norm(self, name: str, x: Value) -> Value:
        return self.net.norm(f"blk.{self.number}.{name}", x)

    def linear(self, name: str, x: Value) -> Value:
        return self.net.linear(f"blk.{self.number}.{name}", x)

    def heads(self, x: Value, count: int) -> Value:
        """[B*T, heads*D] -> [B, T, heads, D]."""
        return x.reshape(self.net.batch, self.net.length, count, self.config.head_dim)

    def rope(self, x: Value, pairing: Pairing) -> Value:
        """x [B, T, heads, D], rotated as this block does; unchanged in blocks without a rotation."""
        rope = self.config.rope[self.number]
        if rope is None:
            return x
        return ops.rope(x, self.positions, self.net.angles[rope], pairing=pairing, scale=rope.magnitude)

    def tempered(self, q: Value) -> Value:
        """Queries [B, T, H, D], scaled by a factor of their position where the configuration has `temperature`."""
        if self.net.factors is None:
            return q
        return q * ops.get_rows(self.net.factors, self.positions).reshape(*self.positions.shape, 1, 1)

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        scale, window = self.config.attention_scale, self.config.windows[self.number]
        if self.net.caches is not None:
            return self.net.caches.attend(self.number, q, k, v, self.positions, scale, window)
        y, _ = ops.attention(q, k, v, self.positions, scale=scale, window=window)
        return y
