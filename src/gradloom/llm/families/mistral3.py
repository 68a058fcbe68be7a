"""mistral3 (Ministral 3): queries are scaled by a factor of their position."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import LINEARS, Family
from ..folder_form import FolderForm
from ..hf_settings import FolderSettings


def _configure(keys: Keys, c: Config) -> Config:
    slope = keys.number("attention.temperature_scale", 0.0, least=0.0)
    if not slope:
        return c
    return replace(c, temperature=(slope, keys.count("rope.scaling.original_context_length", c.context_length)))


def _computed(settings: FolderSettings) -> dict[str, float]:
    rope = FolderSettings(settings.path, settings.table("rope_scaling") | settings.table("rope_parameters"), {})
    slope = rope.number("llama_4_scaling_beta", 0.0, least=0.0)
    if not slope:
        return {}
    context = rope.count("original_max_position_embeddings", settings.count("max_position_embeddings"))
    return {"attention.temperature_scale": slope, "rope.scaling.original_context_length": context}


_ROPE = {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
FAMILY = Family(
    pairing="interleaved",
    optional_biases=LINEARS,
    configure=_configure,
    folder=FolderForm(
        {
            "ministral3": {
                "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
                "sliding_window": None, "rope_parameters": _ROPE,
            }
        },
        computed=_computed,
    ),
)  # fmt: skip
