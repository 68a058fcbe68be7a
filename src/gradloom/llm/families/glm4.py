"""glm4: norms around both branches, fused gate and up, a part of each head rotated."""

from __future__ import annotations

from ..family import FUSED_FFN, POST_NORMS, QKV, Family
from ..folder_form import FolderForm

FAMILY = Family(
    pairing="interleaved",
    optional_biases=QKV,
    post_norms=POST_NORMS,
    modules=FUSED_FFN,
    folder=FolderForm(
        {
            "glm4": {
                "num_key_value_heads": 2,
                "head_dim": 128,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1.5625e-7,
                "partial_rotary_factor": 0.5,
            }
        },
        pairing="interleaved",
        modules={
            "post_attention_layernorm": "ffn_norm",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
    ),
)
