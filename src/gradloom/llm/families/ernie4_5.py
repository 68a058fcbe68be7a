"""ernie4_5 (dense): llama's block."""

from __future__ import annotations

from ..family import FFN, LINEARS, Family
from ..folder_form import FolderForm

FAMILY = Family(
    pairing="interleaved",
    optional_biases=LINEARS,
    unread_biases=FFN,
    folder=FolderForm(
        {
            "ernie4_5": {
                "num_key_value_heads": 2,
                "head_dim": 128,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
            }
        },
        pairing="interleaved",
    ),
)
