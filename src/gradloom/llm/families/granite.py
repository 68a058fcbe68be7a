"""granite (3, 4 dense): factors of the embedding, the branches and the logits."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys, scaled
from ..family import LINEARS, Family
from ..folder_form import FolderForm


def _configure(keys: Keys, c: Config) -> Config:
    rotates = keys.get("rope.scaling.finetuned", True)
    if not isinstance(rotates, bool):
        raise keys.wrong("rope.scaling.finetuned", rotates, "true or false")
    c = c if rotates else replace(c, rope=(None,) * c.layers)
    return scaled(keys, c, embedding=1.0, residual=1.0, logits=None)


FAMILY = Family(
    pairing="interleaved",
    optional_biases=LINEARS,
    configure=_configure,
    folder=FolderForm(
        {"granite": {}},
        numbers={
            "embedding_scale": ("embedding_multiplier", 1.0),
            "residual_scale": ("residual_multiplier", 1.0),
            "attention.scale": ("attention_multiplier", 1.0),
            "logit_scale": ("logits_scaling", 1.0),
        },
    ),
)
