"""The sizes of a model from a GGUF file's metadata; defaults and names as in llama.cpp.

Counts are checked against the file's tensors, which are bounded by the size of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import FileError


@dataclass(frozen=True)
class Config:
    """Configuration of a transformer of the llama family. Widths are in elements."""

    architecture: str
    name: str
    vocab_size: int  # rows of the embedding
    context_length: int
    width: int  # of the residual stream: d
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    rms_eps: float
    rope_dims: int  # the number of rotated elements of a head, from the first on
    rope_base: float
    rope_factor: float  # linear scaling: positions are divided by it
    attention_scale: float

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim}" + (
            f", {self.kv_heads} key-value heads" if self.kv_heads != self.heads else ""
        )
        return (
            f"{self.architecture}, {self.layers} layers, width {self.width}, {heads}, feed-forward {self.ffn_width}, "
            f"vocabulary {self.vocab_size}, context {self.context_length}"
        )


def read_config(path: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Config:
    """The configuration of a file of a supported architecture. Raises FileError, naming the key, for a
    value that is missing, malformed, or larger than the file.

    shapes: of the file's tensors, by name; includes token_embd.weight [vocabulary, width].
    """
    keys = _Keys(path, metadata)
    vocab_size, held_width = shapes["token_embd.weight"]
    blocks = len({name.split(".", 2)[1] for name in shapes if name.startswith("blk.")})
    layers = keys.count("block_count")
    if layers > blocks:
        raise keys.wrong("block_count", layers, f"at most {blocks}, the number of blocks with tensors in the file")
    heads, width = keys.count("attention.head_count"), keys.count("embedding_length")
    if width != held_width:
        raise keys.wrong("embedding_length", width, f"{held_width}, the number of columns of token_embd.weight")
    if "attention.key_length" not in keys and width % heads:
        raise keys.wrong("attention.head_count", heads, f"a divisor of embedding_length, {width}")
    head_dim = keys.count("attention.key_length", width // heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise keys.wrong("attention.value_length", keys.get("attention.value_length"), f"key_length, {head_dim}")
    kv_heads = keys.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise keys.wrong("attention.head_count_kv", kv_heads, f"a divisor of head_count, {heads}")
    ffn_width = keys.count("feed_forward_length")
    head_key = "attention.key_length" if "attention.key_length" in keys else "attention.head_count"
    kv_key = "attention.head_count_kv" if "attention.head_count_kv" in keys else head_key
    for name, key, rows, product in (
        ("attn_q", head_key, heads * head_dim, f"{heads} heads of {head_dim}"),
        ("attn_k", kv_key, kv_heads * head_dim, f"{kv_heads} key-value heads of {head_dim}"),
        ("ffn_gate", "feed_forward_length", ffn_width, f"feed-forward {ffn_width}"),
    ):
        held = shapes.get(f"blk.0.{name}.weight", (rows,))[0]
        if held != rows:
            need = f"the rows of blk.0.{name}.weight, {held}, not {rows} ({product})"
            raise keys.wrong(key, keys.get(key), need)
    rope_dims = keys.count("rope.dimension_count", head_dim)
    if rope_dims > head_dim or rope_dims % 2:
        raise keys.wrong("rope.dimension_count", rope_dims, f"an even number up to {head_dim}")
    if keys.get("expert_count", 0):
        raise keys.wrong("expert_count", keys.get("expert_count"), "none: mixtures of experts are not supported")
    if keys.get("attention.causal", True) is False:
        raise keys.wrong("attention.causal", False, "a causal model")
    name = metadata.get("general.name", "")
    return Config(
        architecture=keys.architecture,
        name=name if isinstance(name, str) else "",
        vocab_size=vocab_size,
        context_length=keys.count("context_length"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=ffn_width,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_dims=rope_dims,
        rope_base=keys.number("rope.freq_base", 10000.0),
        rope_factor=_rope_factor(keys),
        attention_scale=keys.number("attention.scale", head_dim**-0.5),
    )


def _rope_factor(keys: _Keys) -> float:
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise keys.wrong("rope.scaling.type", kind, "none or linear (llama3's scaling comes as rope_freqs.weight)")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    return factor if kind == "linear" else 1.0


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class _Keys:
    """Reads `<architecture>.<key>`, checked."""

    def __init__(self, path: str, metadata: Mapping[str, Any]) -> None:
        self.path, self.metadata = path, metadata
        self.architecture = str(metadata["general.architecture"])

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.metadata

    def get(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return value.tolist() if isinstance(value, np.ndarray) else value

    def wrong(self, key: str, seen: Any, need: str) -> FileError:
        return FileError(f"{self.path}: metadata {self.architecture}.{key} is {_shown(seen)}; need {need}")

    def _need(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise FileError(
                f"{self.path}: metadata {self.architecture}.{key} is missing; need it for the architecture "
                f"{self.architecture}; convert the model again"
            )
        if isinstance(value, (list, tuple)) and len(value):  # some converters write one number per layer
            if any(not isinstance(v, (bool, int, float)) or v != value[0] for v in value):
                raise self.wrong(key, list(value[:4]), "one number for all layers")
            value = value[0]
        return value.item() if isinstance(value, np.generic) else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self._need(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise self.wrong(key, value, "a whole number of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._need(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.wrong(key, value, "a positive number")
        return float(value)
