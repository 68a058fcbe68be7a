"""seed_oss: biases on queries, keys and values; another name of the second norm."""

from __future__ import annotations

from ..family import LINEARS, Family

FAMILY = Family(pairing="half", optional_biases=LINEARS, norms=("attn_norm", "post_attention_norm"))
