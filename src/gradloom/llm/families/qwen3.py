"""qwen3: a norm on each head of queries and keys; the metadata contain the size of a head."""

from __future__ import annotations

from ..family import Family
from ..folder_form import WINDOW, FolderForm, late

FAMILY = Family(
    pairing="half",
    qk_norm="head",
    classifies=True,
    folder=FolderForm(
        {"qwen3": WINDOW | {"num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128}}, slides=late
    ),
)
