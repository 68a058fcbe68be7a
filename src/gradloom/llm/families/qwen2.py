"""qwen2: biases on queries, keys and values."""

from __future__ import annotations

from ..family import Family

FAMILY = Family(pairing="half", biases=("attn_q", "attn_k", "attn_v"))
