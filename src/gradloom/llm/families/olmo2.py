"""olmo2 (OLMo 2, OLMo 3): norms behind the branches, of queries and keys over all heads; OLMo 3: windows in three of
four blocks, whose rotation is not scaled."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import POST_NORMS, Family


def _configure(keys: Keys, c: Config) -> Config:
    windows = keys.windows(c.layers, 4)
    rope = c.rope[0]
    assert rope is not None
    near = replace(rope, scaling="none", factor=1.0, magnitude=1.0)
    return replace(c, windows=windows, rope=tuple(rope if window is None else near for window in windows))


FAMILY = Family(pairing="half", qk_norm="width", norms=("", ""), post_norms=POST_NORMS, configure=_configure)
