"""qwen3: llama's block with a norm on each head of queries and keys; the head's size is the metadata's own."""

from __future__ import annotations

from ..graph.value import Shape, Value
from .config import Config
from .llama import Llama
from .net import Layer


class Qwen3(Llama):
    pairing = "half"
    biases_possible = ()

    def shapes(self, c: Config) -> dict[str, Shape]:
        head = (c.head_dim,)
        return super().shapes(c) | {"attn_q_norm.weight": head, "attn_k_norm.weight": head}

    def queries(self, layer: Layer, q: Value) -> Value:
        return layer.norm("attn_q_norm", q)

    def keys(self, layer: Layer, k: Value) -> Value:
        return layer.norm("attn_k_norm", k)
