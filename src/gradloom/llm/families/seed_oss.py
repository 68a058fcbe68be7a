"""seed_oss: biases on queries, keys and values; another name of the second norm."""

from __future__ import annotations

from ..family import FFN, LINEARS, Family
from ..folder_form import FolderForm

FAMILY = Family(
    pairing="half",
    optional_biases=LINEARS,
    unread_biases=("attn_output", *FFN),
    norms=("attn_norm", "post_attention_norm"),
    folder=FolderForm({"seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288}}),
)
