"""The sizes of a model from a GGUF file's metadata; defaults and names as in llama.cpp.

Counts are checked against the file's tensors, which are bounded by the size of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import FileError


@dataclass(frozen=True)
class Rope:
    """Rotation of queries and keys.

    dims              the number of rotated elements of a head, from the first on
    base, scaling, factor, context, slow, fast
                      as ops.rope_frequencies takes them (slow and fast: low and high, of yarn)
    magnitude         by which rotated elements are multiplied
    short, long       names of tensors [dims / 2] with divisors of the frequencies: for texts of at most `context`
                      tokens, and for longer ones
    """

    dims: int
    base: float
    scaling: str = "none"
    factor: float = 1.0
    context: int = 0
    slow: float = 1.0
    fast: float = 32.0
    magnitude: float = 1.0
    short: str | None = None
    long: str | None = None


@dataclass(frozen=True)
class Config:
    """Configuration of a transformer of the llama family. Widths are in elements.

    rope, windows     per block: its rotation, None for none; the most keys that a query attends to, None for all
    fused_qkv         attn_qkv holds the rows of attn_q, attn_k and attn_v
    embedding_scale   factor of the embedding's rows; residual_scale: of the branches of a block; logit_scale: of logits
    logit_cap         logits become cap * tanh(logit / cap); None: as they are
    temperature       (a, n): queries at position p are multiplied by 1 + a * log(1 + floor(p / n)); None: not
    """

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
    rope: tuple[Rope | None, ...]
    windows: tuple[int | None, ...]
    attention_scale: float
    fused_qkv: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    temperature: tuple[float, int] | None = None

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim}" + (
            f", {self.kv_heads} key-value heads" if self.kv_heads != self.heads else ""
        )
        return (
            f"{self.architecture}, {self.layers} layers, width {self.width}, {heads}, feed-forward {self.ffn_width}, "
            f"vocabulary {self.vocab_size}, context {self.context_length}"
        )


def windowed(c: Config, windows: tuple[int | None, ...], **near: Any) -> Config:
    """The configuration with these windows; rotations of blocks that have one differ by the fields `near`."""
    pairs = zip(c.rope, windows, strict=True)
    rope = tuple(one if one is None or window is None else replace(one, **near) for one, window in pairs)
    return replace(c, windows=windows, rope=rope)


def scaled(keys: Keys, c: Config, embedding: float, residual: float, logits: float | None) -> Config:
    """The configuration with the factors of the embedding, the branches and the logits, and these defaults; None: the
    file must have it."""
    return replace(
        c,
        embedding_scale=keys.number("embedding_scale", embedding),
        residual_scale=keys.number("residual_scale", residual),
        logit_scale=1 / keys.number("logit_scale", logits),
    )


def read_config(keys: Keys, shapes: Mapping[str, tuple[int, ...]]) -> Config:
    """The configuration of a file of a supported architecture. Raises FileError, naming the key, for a
    value that is missing, malformed, or larger than the file.

    shapes: of the file's tensors, by name; includes token_embd.weight [vocabulary, width].
    """
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
        ("attn_qkv", head_key, (heads + 2 * kv_heads) * head_dim, f"{heads} and 2 x {kv_heads} heads of {head_dim}"),
        ("ffn_gate", "feed_forward_length", ffn_width, f"feed-forward {ffn_width}"),
    ):
        held = shapes.get(f"blk.0.{name}.weight", (rows,))[0]
        if held != rows:
            need = f"the rows of blk.0.{name}.weight, {held}, not {rows} ({product})"
            raise keys.wrong(key, keys.get(key), need)
    if keys.get("expert_count", 0):
        raise keys.wrong("expert_count", keys.get("expert_count"), "none: mixtures of experts are not supported")
    if keys.get("attention.causal", True) is False:
        raise keys.wrong("attention.causal", False, "a causal model")
    name = keys.metadata.get("general.name", "")
    context = keys.count("context_length")
    return Config(
        architecture=keys.architecture,
        name=name if isinstance(name, str) else "",
        vocab_size=vocab_size,
        context_length=context,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=ffn_width,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=(_rope(keys, head_dim, context, shapes),) * layers,
        windows=(None,) * layers,
        attention_scale=keys.number("attention.scale", head_dim**-0.5),
        fused_qkv="blk.0.attn_qkv.weight" in shapes,
    )


def _rope(keys: Keys, head_dim: int, context: int, shapes: Mapping[str, tuple[int, ...]]) -> Rope:
    """The rotation of all blocks, as llama.cpp reads it."""
    dims = keys.count("rope.dimension_count", head_dim)
    if dims > head_dim or dims % 2:
        raise keys.wrong("rope.dimension_count", dims, f"an even number up to {head_dim}")
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        need = "none, linear, yarn or longrope (llama3's scaling comes as rope_freqs.weight)"
        raise keys.wrong("rope.scaling.type", kind, need)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    rope = Rope(
        dims=dims,
        base=keys.number("rope.freq_base", 10000.0),
        scaling="none" if kind == "longrope" else kind,
        factor=factor if kind in ("linear", "yarn") else 1.0,
        context=keys.count("rope.scaling.original_context_length", context),
        magnitude=keys.number("rope.scaling.attn_factor", 1.0),
    )
    if "rope_freqs.weight" in shapes:
        return replace(rope, short="rope_freqs.weight", long="rope_freqs.weight")
    if kind == "yarn":
        by_log = keys.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0)
        grown = 0.1 * math.log(factor) if factor > 1 else 0.0
        return replace(
            rope,
            slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            magnitude=rope.magnitude * (1 + grown) / (1 + by_log * grown),
        )
    short, long = (
        name if name in shapes else None for name in ("rope_factors_short.weight", "rope_factors_long.weight")
    )
    return replace(rope, short=short, long=long)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class Keys:
    """Reads `<architecture>.<key>` of a file's metadata, checked."""

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

    def number(self, key: str, default: float | None = None, least: float | None = None) -> float:
        """A finite number: above 0, or of at least `least`."""
        value = self._need(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not value < math.inf or not (value > 0 if least is None else value >= least):
            raise self.wrong(key, value, "a positive number" if least is None else f"a number of at least {least:g}")
        return float(value)

    def windows(self, layers: int, period: int, default: int | None = None) -> tuple[int | None, ...]:
        """Of each block, from attention.sliding_window, or `default`, and its pattern: a truth value per block, or a
        number n, of which the last of n blocks sees all; `period` where the file has none."""
        if not self.get("attention.sliding_window", default):
            return (None,) * layers
        window = self.count("attention.sliding_window", default)
        pattern = self.get("attention.sliding_window_pattern", period)
        if isinstance(pattern, list):
            if len(pattern) < layers or not all(isinstance(slides, bool) for slides in pattern):
                raise self.wrong(
                    "attention.sliding_window_pattern", pattern, f"a truth value for each of {layers} blocks"
                )
            return tuple(window if slides else None for slides in pattern[:layers])
        period = self.count("attention.sliding_window_pattern", period)
        return tuple(None if i % period == period - 1 else window for i in range(layers))
