"""minicpm: as granite; older files contain no factors."""

from __future__ import annotations

from ..config import Config, Keys, scaled
from ..family import LINEARS, Family


def _configure(keys: Keys, c: Config) -> Config:
    return scaled(keys, c, embedding=12.0, residual=1.4 * c.layers**-0.5, logits=256 / c.width)


FAMILY = Family(pairing="interleaved", optional_biases=LINEARS, configure=_configure)
