"""hunyuan-dense: queries and keys are normalised after their rotation."""

from __future__ import annotations

from typing import Any

from ..family import FFN, LINEARS, Family
from ..folder_form import FolderForm
from ..hf_settings import FolderSettings


def _rope(settings: FolderSettings, rope: dict[str, Any]) -> dict[str, Any]:
    """With alpha, "dynamic" does not depend on the text: alpha stretches the base."""
    if rope["rope_type"] != "dynamic" or not rope.get("alpha"):
        return rope
    read = FolderSettings(settings.path, rope, {})
    dims = settings.count("head_dim", settings.count("hidden_size") // settings.count("num_attention_heads"))
    if dims < 4:
        raise settings.wrong("head_dim", dims, "at least 4")
    base = read.number("rope_theta") * read.number("alpha") ** (dims / (dims - 2))
    return {"rope_type": "default", "rope_theta": base}


FAMILY = Family(
    name="hunyuan-dense",
    pairing="half",
    optional_biases=LINEARS,
    unread_biases=("attn_output", *FFN),
    qk_norm="head",
    rotates_first=True,
    folder=FolderForm(
        {"hunyuan_v1_dense": {"rms_norm_eps": 1e-5}},
        modules={"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
        rope=_rope,
    ),
)
