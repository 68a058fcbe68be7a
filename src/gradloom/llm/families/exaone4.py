"""exaone4: norms behind the branches and of queries and keys; the 32B model has windows in three of four blocks, which
alone are rotated."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import POST_NORMS, Family


def _configure(keys: Keys, c: Config) -> Config:
    if c.layers != 64:
        return c
    windows = keys.windows(c.layers, 4)
    return replace(c, windows=windows, rope=tuple(r if w else None for r, w in zip(c.rope, windows, strict=True)))


FAMILY = Family(pairing="half", qk_norm="head", norms=("", ""), post_norms=POST_NORMS, configure=_configure)
