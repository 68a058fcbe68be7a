"""Rotations of Hugging Face's config.json as GGUF's metadata and tensors.

Both forms are read: `rope_parameters`, also one per kind of block, and the earlier `rope_theta` with `rope_scaling`.
Formulas: transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops
from .hf_settings import FolderSettings

FULL, SLIDING = "full_attention", "sliding_attention"
_PARTIAL = "partial_rotary_factor"
_KINDS = ("default", "linear", "yarn", "llama3", "longrope")


@dataclass
class RopeForm:
    """A rotation: GGUF's keys after the architecture's name -> values; its tensors f32 [dims / 2]."""

    dims: int
    base: float
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)


def rope_parameters(settings: FolderSettings, local_base: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The parameters for all blocks, and those for blocks with a window, if they differ."""
    given, older = settings.table("rope_parameters"), settings.table("rope_scaling")
    nested = {kind: given[kind] for kind in (FULL, SLIDING) if given.get(kind) is not None}
    if nested:
        for kind, value in nested.items():
            if not isinstance(value, dict):
                raise settings.wrong(f"rope_parameters.{kind}", value, "an object")
        whole = _with_base(settings, nested.get(FULL, {}) | older, settings.get("rope_theta"))
        if SLIDING not in nested and not local_base:
            return whole, None
        local = settings.get(local_base) if local_base else settings.get("rope_theta")
        return whole, _with_base(settings, nested.get(SLIDING, {}), local)
    whole = _with_base(settings, given | older, settings.get("rope_theta"))
    if not local_base:
        return whole, None
    return whole, _with_base(settings, {}, settings.get(local_base))


def _with_base(settings: FolderSettings, given: dict[str, Any], base: Any) -> dict[str, Any]:
    made = {"rope_theta": 10000.0 if base is None else base} | {k: v for k, v in given.items() if v is not None}
    if _PARTIAL in settings.defaults:
        made.setdefault(_PARTIAL, settings.get(_PARTIAL, 1.0))
    else:  # transformers rotates whole heads
        made.pop(_PARTIAL, None)
    kind = made.get("rope_type", made.get("type", "default"))
    made["rope_type"] = {"su": "longrope"}.get(kind, kind) if isinstance(kind, str) else kind
    return made


def rope_form(settings: FolderSettings, given: dict[str, Any], head_dim: int, context: int) -> RopeForm:
    """A rotation of these parameters. Raises FileError for an unknown rope type and unsuitable numbers."""
    kind = given["rope_type"]
    if kind not in _KINDS:
        raise settings.wrong("rope_type", kind, f"one of {', '.join(_KINDS)}: others are not supported")
    read = FolderSettings(settings.path, given, {})
    share = read.number(_PARTIAL, 1.0)
    dims = int(head_dim * share)
    if not 2 <= dims <= head_dim or dims % 2:
        raise read.wrong(_PARTIAL, share, f"an even number of {head_dim} elements to rotate")
    base = read.number("rope_theta")
    form = RopeForm(dims, base, {"rope.dimension_count": dims, "rope.freq_base": base})
    if kind == "default":
        return form
    original = settings.get("original_max_position_embeddings")
    old = FolderSettings(settings.path, given | ({} if original is None else {_ORIGINAL: original}), {})
    if kind == "linear":
        form.keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": read.number("factor")}
    elif kind == "llama3":
        form.tensors["rope_freqs.weight"] = _llama3(old, dims, base, context)
    elif kind == "yarn":
        form.keys |= _yarn(old, context)
    else:
        _longrope(old, form, context)
    return form


_ORIGINAL = "original_max_position_embeddings"


def _yarn(read: FolderSettings, context: int) -> dict[str, Any]:
    original = read.count(_ORIGINAL, context)
    factor = read.number("factor", context / original)
    if not read.flag("truncate", True):
        raise read.wrong("truncate", False, "true: yarn without it is not supported")
    grown = 0.1 * math.log(factor) if factor > 1 else 0.0
    up, down = read.number("mscale", 0.0, least=0.0), read.number("mscale_all_dim", 0.0, least=0.0)
    wanted = (1 + up * grown) / (1 + down * grown) if up and down else 1 + grown
    wanted = read.number("attention_factor", wanted)
    by_log = down if up else 0.0
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": read.number("beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": read.number("beta_slow", 1.0),
    }  # fmt: skip
    if by_log:
        keys["rope.scaling.yarn_log_multiplier"] = by_log
    more = wanted * (1 + by_log * grown) / (1 + grown)
    return keys if math.isclose(more, 1, rel_tol=1e-9) else keys | {"rope.scaling.attn_factor": more}


def _llama3(read: FolderSettings, dims: int, base: float, context: int) -> np.ndarray:
    """Divisors of the frequencies, f32 [dims / 2]."""
    factor, low, high = (read.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise read.wrong("low_freq_factor", low, f"less than high_freq_factor, {high:g}")
    plain = ops.rope_frequencies(dims, base)
    scaled = ops.rope_frequencies(
        dims, base, "llama3", factor, context=read.count(_ORIGINAL, context), low=low, high=high
    )
    return _finite(read, "factor", factor, plain / scaled)


def _longrope(read: FolderSettings, form: RopeForm, context: int) -> None:
    for key, name in (("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")):
        values = read.get(key)
        known = isinstance(values, list) and len(values) == form.dims // 2
        if not known or not all(type(v) in (int, float) and 0 < v < 1e30 for v in values):
            raise read.wrong(key, values, f"a list of {form.dims // 2} positive numbers")
        form.tensors[name] = _finite(read, key, values, np.array(values, np.float64))
    original = read.count(_ORIGINAL, context)
    factor = read.number("factor", context / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    form.keys |= {
        "rope.scaling.type": "longrope", "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": read.number("attention_factor", grown),
    }  # fmt: skip


def _finite(read: FolderSettings, key: str, seen: Any, values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        array = values.astype(np.float32)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise read.wrong(key, seen, "numbers of which f32 holds the factors of frequencies")
    return array
