"""llama, SmolLM, Mistral. GGUF files store the rows of attn_q and attn_k for rotations of neighbouring elements."""

from __future__ import annotations

from ..family import LINEARS, Family
from ..folder_form import FolderForm

FAMILY = Family(
    pairing="interleaved",
    optional_biases=LINEARS,
    folder=FolderForm(
        {"llama": {}, "mistral": {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}}
    ),
)
