"""granite (3, 4 dense): factors of the embedding, the branches and the logits."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import LINEARS, Family


def _configure(keys: Keys, c: Config) -> Config:
    rotates = keys.get("rope.scaling.finetuned", True)
    if not isinstance(rotates, bool):
        raise keys.wrong("rope.scaling.finetuned", rotates, "true or false")
    return replace(
        c,
        rope=c.rope if rotates else (None,) * c.layers,
        embedding_scale=keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=1 / keys.number("logit_scale"),
    )


FAMILY = Family(pairing="interleaved", optional_biases=LINEARS, configure=_configure)
