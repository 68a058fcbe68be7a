"""qwen2: biases on queries, keys and values."""

from __future__ import annotations

from ..family import Family
from ..folder_form import WINDOW, FolderForm, late

FAMILY = Family(
    pairing="half",
    biases=("attn_q", "attn_k", "attn_v"),
    folder=FolderForm({"qwen2": WINDOW | {"num_key_value_heads": 32, "max_position_embeddings": 32768}}, slides=late),
)
