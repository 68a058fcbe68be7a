"""exaone4: norms behind the branches and of queries and keys; the 32B model has windows in three of four blocks, which
alone are rotated."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import POST_NORMS, Family
from ..folder_form import FolderForm, period_of
from ..hf_settings import FolderSettings


def _configure(keys: Keys, c: Config) -> Config:
    if c.layers != 64:
        return c
    return _rotated_in_windows(replace(c, windows=keys.windows(c.layers, 4, 4096)))


def _rotated_in_windows(c: Config) -> Config:
    return replace(c, rope=tuple(rope if w else None for rope, w in zip(c.rope, c.windows, strict=True)))


def _of_folder(settings: FolderSettings, c: Config) -> Config:
    return c if settings.get("sliding_window") is None else _rotated_in_windows(c)


FAMILY = Family(
    pairing="half",
    qk_norm="head",
    norms=("", ""),
    post_norms=POST_NORMS,
    configure=_configure,
    folder=FolderForm(
        {"exaone4": {"rms_norm_eps": 1e-5, "sliding_window": 4096}},
        slides=period_of("sliding_window_pattern", 4),
        period=4,
        configure=_of_folder,
    ),
)
