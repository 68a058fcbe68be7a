"""minicpm: as granite; older files contain no factors."""

from __future__ import annotations

from ..config import Config, Keys, scaled
from ..family import LINEARS, Family
from ..folder_form import FolderForm
from ..hf_settings import FolderSettings


def _configure(keys: Keys, c: Config) -> Config:
    return scaled(keys, c, embedding=12.0, residual=1.4 * c.layers**-0.5, logits=256 / c.width)


def _computed(settings: FolderSettings) -> dict[str, float]:
    return {
        "embedding_scale": settings.number("scale_emb", 1.0),
        "residual_scale": settings.number("scale_depth", 1.0) * settings.count("num_hidden_layers") ** -0.5,
        "logit_scale": settings.count("hidden_size") / settings.number("dim_model_base", 1.0),
    }


FAMILY = Family(
    pairing="interleaved",
    optional_biases=LINEARS,
    configure=_configure,
    folder=FolderForm({"minicpm": {"max_position_embeddings": 4096}}, computed=_computed),
)
