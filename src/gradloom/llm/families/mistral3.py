"""mistral3 (Ministral 3): queries are scaled by a factor of their position."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import LINEARS, Family


def _configure(keys: Keys, c: Config) -> Config:
    slope = keys.number("attention.temperature_scale", 0.0, least=0.0)
    if not slope:
        return c
    return replace(c, temperature=(slope, keys.count("rope.scaling.original_context_length", c.context_length)))


FAMILY = Family(pairing="interleaved", optional_biases=LINEARS, configure=_configure)
