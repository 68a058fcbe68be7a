"""gemma3 (text): norms around both branches, windows in five of six blocks, with a rotation of their own.

Weights of norms are stored with their offset of 1. The rotation in windows has no scaling.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..config import Config, Keys, windowed
from ..family import POST_NORMS, Family


def _configure(keys: Keys, c: Config) -> Config:
    cap = keys.number("final_logit_softcapping", 0.0, least=0.0)
    near = keys.number("rope.freq_base_swa", 10000.0)
    return replace(
        windowed(c, keys.windows(c.layers, 6), base=near, scaling="none", factor=1.0),
        attention_scale=(c.width // c.heads if c.layers == 62 else c.head_dim) ** -0.5,  # 62: the 27B model
        embedding_scale=math.sqrt(c.width),
        logit_cap=cap or None,
    )


FAMILY = Family(pairing="half", qk_norm="head", post_norms=POST_NORMS, activation="gelu", configure=_configure)
