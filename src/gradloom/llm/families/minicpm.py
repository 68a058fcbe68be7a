"""minicpm: as granite; older files contain no factors."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import LINEARS, Family


def _configure(keys: Keys, c: Config) -> Config:
    return replace(
        c,
        embedding_scale=keys.number("embedding_scale", 12.0),
        residual_scale=keys.number("residual_scale", 1.4 * c.layers**-0.5),
        logit_scale=1 / keys.number("logit_scale", 256 / c.width),
    )


FAMILY = Family(pairing="interleaved", optional_biases=LINEARS, configure=_configure)
