"""olmo2 (OLMo 2, OLMo 3): norms behind the branches, of queries and keys over all heads; OLMo 3: windows in three of
four blocks, whose rotation is not scaled."""

from __future__ import annotations

from ..config import Config, Keys, windowed
from ..family import POST_NORMS, Family
from ..folder_form import FolderForm, period_of


def _configure(keys: Keys, c: Config) -> Config:
    return windowed(c, keys.windows(c.layers, 4), scaling="none", factor=1.0, magnitude=1.0)


FAMILY = Family(
    pairing="half",
    qk_norm="width",
    norms=("", ""),
    post_norms=POST_NORMS,
    configure=_configure,
    folder=FolderForm(
        {
            "olmo2": {"rms_norm_eps": 1e-5},
            "olmo3": {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
        },
        slides=period_of("sliding_window_pattern", 4),
        period=4,
        local_base="rope_theta",
    ),
)
