"""config.json of a Hugging Face folder as GGUF's metadata, tensor names and configuration.

One table of keys for all families; a family's differences are in its FolderForm. Where transformers and llama.cpp
differ (windows, blocks without rotation), transformers decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import FileError, one_line
from ..files.gguf_fields import Field, field
from . import families
from .config import Config, Keys, read_config
from .family import FFN, LINEARS, QKV, Family
from .hf_rope import FULL, SLIDING, rope_form, rope_parameters
from .hf_settings import FolderSettings

# GGUF's key after the architecture's name -> key of config.json
_KEYS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.value_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta", "rope.dimension_count": "partial_rotary_factor",
}  # fmt: skip
_ACTIVATIONS = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh", "gelu_new")}
_MODELS = ("ForCausalLM", "ForConditionalGeneration")
_DEFAULTS: dict[str, Any] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0}
TIED = "tie_word_embeddings"
_BIASES = {  # keys of config.json -> linear layers whose bias they state; the first one that is there counts
    "attention_out_bias": ("attn_output",), "attention_bias": (*QKV, "attn_qkv", "attn_output"), "mlp_bias": FFN,
    "use_bias": LINEARS,
}  # fmt: skip


class FolderConfig:
    """The translated config.json of a folder.

    settings  its keys; family: the declared family, with the order of rows of folders
    fields    GGUF's metadata of the model, without the tokenizer's
    tensors   f32 arrays by GGUF's name that a folder describes in config.json: factors of rotations
    layers    the number of blocks
    """

    def __init__(self, path: str, given: Mapping[str, Any]) -> None:
        self.settings, self.declared = _settings(path, given)
        form = self.declared.folder
        self.family: Family = replace(self.declared, pairing=form.pairing)
        s = self.settings
        _check_kind(s, self.declared)
        self.layers = s.count("num_hidden_layers")
        heads, width = s.count("num_attention_heads"), s.count("hidden_size")
        self.heads, self.kv_heads = heads, s.count("num_key_value_heads", heads)
        if s.get("head_dim") is None and width % heads:
            raise s.wrong("num_attention_heads", heads, f"a divisor of hidden_size, {width}, or head_dim")
        head_dim = s.count("head_dim", width // heads)
        context = s.count("max_position_embeddings")
        whole, near = rope_parameters(s, form.local_base)
        whole = form.rope(s, whole)
        self._rope = rope_form(s, whole, head_dim, context)
        self._near = None if near is None else rope_form(s, near, head_dim, context)
        if self._near is not None and near["rope_type"] != "default":  # type: ignore[index]
            raise s.wrong(f"rope_type of {SLIDING}", near["rope_type"], "default")  # type: ignore[index]
        self.tensors = self._rope.tensors
        self.windows = _windows(s, form.slides, self.layers)
        values: dict[str, Any] = {
            "context_length": context, "embedding_length": width, "block_count": self.layers,
            "feed_forward_length": s.count("intermediate_size"), "attention.head_count": heads,
            "attention.head_count_kv": self.kv_heads, "attention.key_length": head_dim,
            "attention.value_length": head_dim, "attention.layer_norm_rms_epsilon": s.number("rms_norm_eps"),
        } | self._rope.keys  # fmt: skip
        for key, (name, default) in form.numbers.items():
            found = s.get(name, default)
            if found is not None:
                values[key] = s.checked(name, found)
        values |= form.computed(s)
        values |= self._windows_as_keys()
        if form.local_base == "rope_local_base_freq" and self._near is not None:
            values["rope.freq_base_swa"] = self._near.base
        arch = families.name_of(self.declared)
        self.fields: dict[str, Field] = {"general.architecture": field("string", arch)}
        self.fields |= {f"{arch}.{key}": _field(value) for key, value in values.items()}

    def _windows_as_keys(self) -> dict[str, Any]:
        """The windows for GGUF, where the family's files contain them."""
        window = next((w for w in self.windows if w is not None), None)
        period = self.declared.folder.period
        if window is None or not period:
            return {}
        slides = [w is not None for w in self.windows]
        usual = [i % period != period - 1 for i in range(self.layers)]
        return {"attention.sliding_window": window} | (
            {} if slides == usual else {"attention.sliding_window_pattern": slides}
        )

    def configure(self, keys: Keys, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """The configuration, as transformers computes."""
        plain = read_config(keys, shapes)
        c = self.family.configure(keys, plain)
        near = plain.rope[0]
        if self._near is not None and near is not None:
            near = replace(
                near, dims=self._near.dims, base=self._near.base, scaling="none", factor=1.0, magnitude=1.0, short=None,
                long=None,
            )  # fmt: skip
        rope = tuple(plain.rope[0] if window is None else near for window in self.windows)
        return self.declared.folder.configure(self.settings, replace(c, windows=self.windows, rope=rope))

    def check_bias(self, known: str, shown: str) -> None:
        """Raise FileError for a bias, by GGUF's name, that the folder's keys exclude: transformers would ignore it."""
        linear = known.removesuffix(".bias").rpartition(".")[2]
        key = next((key for key, linears in _BIASES.items() if linear in linears and key in self.settings.values), "")
        if key and self.settings.get(key) is False:
            raise self.settings.wrong(key, False, f"true, or no tensor {shown}")

    def modules(self) -> dict[str, str]:
        """Modules of a block -> GGUF's tensors, norms too."""
        family, form = self.declared, self.declared.folder
        before, behind = family.norms, family.post_norms
        made = dict(family.modules)
        made["input_layernorm"] = before[0]
        made["post_attention_layernorm"] = behind[0] or before[1]
        made["pre_feedforward_layernorm"] = before[1] if behind[0] else ""
        made["post_feedforward_layernorm"] = behind[1]
        if family.qk_norm:
            made |= {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
        taken = set(form.modules.values())
        return {m: t for m, t in made.items() if t and t not in taken} | dict(form.modules)


def _settings(path: str, given: Mapping[str, Any]) -> tuple[FolderSettings, Family]:
    """The keys of the text model with their defaults, and its family. Raises FileError for an unknown model_type."""
    whole = FolderSettings(path, given, {})
    values = dict(given) | whole.table("text_config")
    if TIED in given:  # transformers ties the embeddings of a model of several parts by the outer key
        values[TIED] = given[TIED]
    kind = values.get("model_type")
    known = families.model_types()
    if not isinstance(kind, str) or kind not in known:
        seen = "is missing" if kind is None else f"is {one_line(kind)}, which is not supported"
        raise FileError(f"{path}: model_type {seen}; must be one of {', '.join(sorted(known))}")
    family = known[kind]
    defaults = _DEFAULTS | dict(family.folder.types[kind])
    if values.get("rope_scaling") is not None:  # the earlier form
        defaults.pop("rope_parameters", None)
    if values.get("rope_parameters") is None:
        values.pop("rope_parameters", None)
    return FolderSettings(path, values, defaults), family


def _check_kind(s: FolderSettings, family: Family) -> None:
    """Raise FileError for models that differ from the family in ways that are not supported."""
    names = s.get("architectures", [])
    if not isinstance(names, list) or (names and not any(str(name).endswith(_MODELS) for name in names)):
        raise s.wrong("architectures", names, "a causal language model (...ForCausalLM)")
    if s.get("quantization_config") is not None:
        method = s.table("quantization_config").get("quant_method", "unknown")
        raise s.wrong("quantization_config", method, "weights in bf16, f16 or f32 (quantised models: as GGUF files)")
    given, allowed = (
        s.get(family.folder.activation, _ACTIVATIONS[family.activation][0]),
        _ACTIVATIONS[family.activation],
    )
    if given not in allowed:
        raise s.wrong(family.folder.activation, given, " or ".join(allowed))
    for key in ("attn_logit_softcapping", "use_bidirectional_attention", "num_experts", "num_local_experts"):
        if s.get(key):
            raise s.wrong(key, s.get(key), "none: it is not supported")
    if s.get("is_causal") is False:
        raise s.wrong("is_causal", False, "true: a model that predicts the next token")


def _windows(s: FolderSettings, slides: Any, layers: int) -> tuple[int | None, ...]:
    """Of each block: the most keys that a query attends to, None for all. transformers ignores the keys of windows for
    model types without windows."""
    if not {"sliding_window", "use_sliding_window"} & set(s.defaults):
        return (None,) * layers
    if s.get("sliding_window") is None or not s.flag("use_sliding_window", True):
        return (None,) * layers
    window, kinds = s.count("sliding_window"), s.get("layer_types")
    if layers > 1 << 16:
        raise s.wrong("num_hidden_layers", layers, f"at most {1 << 16}")
    if kinds is None:
        which = slides(s, layers)
    else:
        if not isinstance(kinds, list) or len(kinds) < layers or any(kind not in (FULL, SLIDING) for kind in kinds):
            raise s.wrong("layer_types", kinds, f"{FULL} or {SLIDING} for each of {layers} blocks")
        which = [kind == SLIDING for kind in kinds[:layers]]
    return tuple(window if one else None for one in which)


def _field(value: Any) -> Field:
    if isinstance(value, list):
        return field("array", np.array(value, bool), "bool")
    if isinstance(value, str):
        return field("string", value)
    return field("u32" if isinstance(value, int) else "f32", value)


class FolderKeys(Keys):
    """Keys whose messages name config.json and its keys."""

    def __init__(self, path: str, metadata: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """names: GGUF's tensors -> the folder's."""
        super().__init__(path, metadata)
        self._names = names

    def wrong(self, key: str, seen: Any, need: str) -> FileError:
        for name in sorted(self._names, key=len, reverse=True):
            need = need.replace(name, self._names[name])
        for short, long in (("head_count", "num_attention_heads"), ("embedding_length", "hidden_size")):
            need = need.replace(short, long)
        name = self._folder_key(key)
        return FileError(f"{self.path}: {name} is {one_line(seen)}; need {need}")

    def _folder_key(self, key: str) -> str:
        family = families.find(self.architecture)
        own = {} if family is None else {k: name for k, (name, _) in family.folder.numbers.items()}
        return (_KEYS | own).get(key, key)
