"""gemma3 (text): norms around both branches, windows in five of six blocks, with a rotation of their own.

Weights of norms are stored with their offset of 1. The rotation in windows has no scaling.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..config import Config, Keys, windowed
from ..family import POST_NORMS, Family
from ..folder_form import FolderForm, period_of
from ..hf_settings import FolderSettings


def _configure(keys: Keys, c: Config) -> Config:
    cap = keys.number("final_logit_softcapping", 0.0, least=0.0)
    near = keys.number("rope.freq_base_swa", 10000.0)
    return replace(
        windowed(c, keys.windows(c.layers, 6), base=near, scaling="none", factor=1.0),
        attention_scale=(c.width // c.heads if c.layers == 62 else c.head_dim) ** -0.5,  # 62: the 27B model
        embedding_scale=math.sqrt(c.width),
        logit_cap=cap or None,
    )


def _of_folder(settings: FolderSettings, c: Config) -> Config:
    return replace(c, attention_scale=settings.number("query_pre_attn_scalar") ** -0.5)


_DEFAULTS = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0, "sliding_window": 4096, "query_pre_attn_scalar": 256,
}  # fmt: skip
FAMILY = Family(
    pairing="half",
    qk_norm="head",
    post_norms=POST_NORMS,
    activation="gelu",
    configure=_configure,
    folder=FolderForm(
        {"gemma3_text": _DEFAULTS},
        norm_offset=1.0,
        activation="hidden_activation",
        numbers={"final_logit_softcapping": ("final_logit_softcapping", None)},
        slides=period_of("sliding_window_pattern", 6),
        period=6,
        local_base="rope_local_base_freq",
        configure=_of_folder,
    ),
)
