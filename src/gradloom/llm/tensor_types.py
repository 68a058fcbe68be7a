"""The type of each tensor of a quantised model: llama-quantize's mixtures, without an importance matrix.

Source: llama.cpp, src/llama-quant.cpp. Its exceptions for Falcon are not applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..base.errors import SettingError
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import KINDS, NO_WEIGHTS, show_name
from .conversion import whole_blocks
from .head import CLASSIFIER

# types of a file: of most tensors, or a mixture, named as llama-quantize does
TYPES = (
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q4_k_m", "q4_k_s", "q4_1", "q4_0",
    "q3_k_l", "q3_k_m", "q3_k_s", "q2_k",
)  # fmt: skip
# types of a tensor that can be written
TENSOR_TYPES = ("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "q3_k", "q2_k")
ALIASES = {"q5_k": "q5_k_m", "q4_k": "q4_k_m", "q3_k": "q3_k_m"}  # llama-quantize's
_FALLBACKS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}  # of rows of other lengths

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_OUTPUT = "output.weight"
_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
# matrices that keep their type: small, or sensitive
_KEPT_NAMES = ("position_embd.weight", "token_types.weight", CLASSIFIER)
_KEPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
    *(f"time_mix_{one}.weight" for one in (
        "first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2", "lerp_fused",
    )),
)  # fmt: skip


def is_converted(tensor: TensorInfo) -> bool:
    """Whether a quantised model stores this tensor in another type: matrices of weights that are not small."""
    name = tensor.name
    return (
        len(tensor.shape) > 1
        and tensor.kind not in NO_WEIGHTS
        and name.endswith("weight")
        and name not in _KEPT_NAMES
        and not any(part in name for part in _KEPT_PARTS)
    )


class TensorTypes:
    """The types of a model's tensors in a file of this type.

    rules: pattern of names (* ? [abc]) -> type, before the mixture; the first that matches counts. SettingError for a
    pattern that matches no tensor which is converted, and for types that cannot be written.
    """

    def __init__(
        self, kind: str, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, Any], rules: Mapping[str, str]
    ) -> None:
        self.mixture = kind
        self.main = kind if kind in KINDS else kind.rpartition("_")[0]
        self.rules = dict(rules)
        names = sorted((t.name for t in tensors.values() if is_converted(t)), key=_by_layer)
        self._check(names, tensors)
        self.tied = _OUTPUT not in tensors
        self.values = [name for name in names if any(part in name for part in _VALUES)]
        self.downs = [name for name in names if "ffn_down" in name]
        architecture = metadata.get("general.architecture")

        def number(key: str, default: int) -> int:
            value = metadata.get(f"{architecture}.{key}", default)
            return value if isinstance(value, int) else default

        self.layers = number("block_count", len(self.downs))
        self.experts = number("expert_count", 0)
        heads = number("attention.head_count", 1)
        self.share = heads // max(1, number("attention.head_count_kv", heads))
        self.is_70b = architecture == "llama" and self.layers == 80 and self.share > 1

    def _check(self, names: list[str], tensors: Mapping[str, TensorInfo]) -> None:
        for pattern, kind in self.rules.items():
            if kind not in TENSOR_TYPES:
                need = f"{pattern}=TYPE with one of {' '.join(TENSOR_TYPES)}"
                raise SettingError(setting="tensor_type", seen=f"{pattern}={kind}", need=need)
            if not any(fnmatchcase(name, pattern) for name in names):
                kept = [name for name in tensors if fnmatchcase(name, pattern)]
                why = f"matches {show_name(kept[0])}, which keeps its type" if kept else "matches no tensor"
                text = f"{{tensor_type}}: {pattern!r} {why}; converted are {', '.join(names[:3]) or 'none'}, ..."
                raise SettingError(text, setting="tensor_type")

    def of(self, tensor: TensorInfo) -> tuple[str, str]:
        """(type, the reason if it is not that of the rules and the mixture)."""
        if not is_converted(tensor):
            return tensor.kind, ""
        rule = next((kind for pattern, kind in self.rules.items() if fnmatchcase(tensor.name, pattern)), None)
        kind, why = rule or self._of_mixture(tensor), ""
        if kind in _FALLBACKS and tensor.shape[-1] % KINDS[kind][0]:
            why = f"rows are not a multiple of the block of {KINDS[kind][0]} of {kind}"
            kind = _FALLBACKS[kind]
        return whole_blocks(tensor, kind, why)

    def _of_mixture(self, tensor: TensorInfo) -> str:
        name, kind, block = tensor.name, self.main, KINDS[self.main][0]
        if block == 1:
            return kind
        if name == _OUTPUT or (self.tied and name in _EMBEDDINGS):
            return "q8_0" if kind == "q8_0" or tensor.shape[-1] % block else "q6_k"
        if name in self.values:
            return self._of_values(self.values.index(name))
        if "attn_k.weight" in name:
            return "q8_0" if self.experts == 8 else kind
        if "attn_output.weight" in name:
            return self._of_attention_output()
        if name in self.downs:
            return self._of_down(_layer(name) if self.experts > 1 else self.downs.index(name))
        return kind

    def _of_values(self, index: int) -> str:
        mixture, kind = self.mixture, self.main
        if self.experts == 8:
            return "q8_0"
        if mixture == "q2_k":
            kind = "q4_k" if self.share >= 4 else "q3_k"
        elif mixture == "q3_k_m":
            kind = "q5_k" if index < 2 else "q4_k"
        elif mixture == "q3_k_l" or (mixture == "q4_k_s" and index < 4):
            kind = "q5_k"
        elif mixture in ("q4_k_m", "q5_k_m") and _is_sensitive(index, len(self.values)):
            kind = "q6_k"
        return "q5_k" if self.is_70b and kind in ("q3_k", "q4_k") else kind

    def _of_down(self, layer: int) -> str:
        mixture, layers = self.mixture, self.layers
        if mixture == "q2_k":
            return "q3_k"
        if mixture == "q3_k_m":
            return "q5_k" if layer < layers // 16 else "q4_k"
        if mixture == "q3_k_l" or (mixture == "q4_k_s" and layer < layers // 8):
            return "q5_k"
        if mixture in ("q4_k_m", "q5_k_m") and _is_sensitive(layer, layers):
            return "q6_k"
        return self.main

    def _of_attention_output(self) -> str:
        if self.experts == 8:
            return "q5_k" if self.mixture in ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m") else self.main
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(self.mixture, self.main)


def _is_sensitive(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between them."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _by_layer(name: str) -> tuple[int, str]:
    return _layer(name), name
