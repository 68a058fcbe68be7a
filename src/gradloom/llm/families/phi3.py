"""phi3 (Phi-3, Phi-4): fused queries, keys and values; fused gate and up; factors of the rotation for long texts.

Its window is not used, as in llama.cpp.
"""

from __future__ import annotations

from ..family import FUSED, Family
from ..folder_form import FolderForm

FAMILY = Family(
    pairing="half",
    modules=FUSED,
    folder=FolderForm(
        {
            "phi3": {
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "partial_rotary_factor": 1.0,
                "sliding_window": None,
            }
        }
    ),
)
