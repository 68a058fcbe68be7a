"""smollm3: no rotation in every fourth block."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, Keys
from ..family import Family
from ..folder_form import FolderForm
from ..hf_settings import FolderSettings


def _configure(keys: Keys, c: Config) -> Config:
    return replace(c, rope=tuple(None if i % 4 == 3 else rope for i, rope in enumerate(c.rope)))


def _rotated(settings: FolderSettings, layers: int) -> list[bool]:
    """The blocks that are rotated."""
    given = settings.get("no_rope_layers")
    if given is None:
        n = settings.count("no_rope_layer_interval", 4)
        return [(i + 1) % n != 0 for i in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(one not in (0, 1) for one in given):
        raise settings.wrong("no_rope_layers", given, f"0 or 1 for each of {layers} blocks")
    return [bool(one) for one in given[:layers]]


def _slides(settings: FolderSettings, layers: int) -> list[bool]:
    return [not one for one in _rotated(settings, layers)]


def _of_folder(settings: FolderSettings, c: Config) -> Config:
    pairs = zip(c.rope, _rotated(settings, c.layers), strict=True)
    return replace(c, rope=tuple(rope if one else None for rope, one in pairs))


FAMILY = Family(
    pairing="interleaved",
    configure=_configure,
    folder=FolderForm(
        {
            "smollm3": {
                "use_sliding_window": False, "num_key_value_heads": 4, "max_position_embeddings": 32768,
                "rope_theta": 2000000.0,
            }
        },
        slides=_slides,
        configure=_of_folder,
    ),
)  # fmt: skip
