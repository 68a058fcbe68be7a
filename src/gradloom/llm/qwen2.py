"""qwen2: llama's block with biases on queries, keys and values; rotations turn the two halves of a head."""

from __future__ import annotations

from .llama import Llama


class Qwen2(Llama):
    pairing = "half"
    biases = ("attn_q", "attn_k", "attn_v")
    biases_possible = ()
