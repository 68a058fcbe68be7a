"""smollm3: no rotation in every fourth block."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import Family


def _configure(keys: Keys, c: Config) -> Config:
    return replace(c, rope=tuple(None if i % 4 == 3 else rope for i, rope in enumerate(c.rope)))


FAMILY = Family(pairing="interleaved", configure=_configure)
