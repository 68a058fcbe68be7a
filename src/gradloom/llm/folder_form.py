"""FolderForm: differences of a family's Hugging Face folders from llama's. Each family declares its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .config import Config
from .hf_settings import FolderSettings
from .net import Pairing

Defaults = Mapping[str, Any]


def all_slide(settings: FolderSettings, layers: int) -> list[bool]:
    """Every block has the window."""
    return [True] * layers


def period_of(key: str, period: int) -> Callable[[FolderSettings, int], list[bool]]:
    """The last of every n blocks sees all; n is the value of a key."""

    def slides(settings: FolderSettings, layers: int) -> list[bool]:
        given = settings.get(key, period)
        if isinstance(given, str) and given and set(given) <= set("LG"):
            return [given[i % len(given)] == "L" for i in range(layers)]
        n = settings.count(key, period)
        return [(i + 1) % n != 0 for i in range(layers)]

    return slides


def _as_read(settings: FolderSettings, config: Config) -> Config:
    return config


def _none(settings: FolderSettings) -> dict[str, float]:
    return {}


def _as_given(settings: FolderSettings, rope: dict[str, Any]) -> dict[str, Any]:
    return rope


@dataclass(frozen=True)
class FolderForm:
    """Differences of a family's folders from llama's.

    types        model_type of config.json -> transformers' defaults of keys that may be absent
    pairing      elements of a head that are rotated together, in the order of rows of q and k in the folder. Where the
                 family's own pairing differs, GGUF files store these rows in another order
    modules      names of norms in a block that differ: Hugging Face's module -> GGUF's tensor
    norm_offset  added to stored weights of norms
    activation   key of config.json with the name of the gate's function
    numbers      GGUF's key -> (key of config.json, its default): the family's own numbers
    computed     returns GGUF's key -> number, for numbers that are computed from keys of config.json
    slides       which blocks have the window, where layer_types is absent
    period       of blocks with a window in GGUF files without a pattern; 0: they contain no windows
    local_base   key with the base of the rotation in blocks with a window, which then is not scaled; "": all blocks
                 have one rotation
    rope         returns the parameters of the rotation as transformers' rope types, from the family's own
    configure    returns the configuration with properties that GGUF's metadata do not contain
    """

    types: Mapping[str, Defaults]
    pairing: Pairing = "half"
    modules: Mapping[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0
    activation: str = "hidden_act"
    numbers: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    computed: Callable[[FolderSettings], dict[str, float]] = _none
    slides: Callable[[FolderSettings, int], list[bool]] = all_slide
    period: int = 0
    local_base: str = ""
    rope: Callable[[FolderSettings, dict[str, Any]], dict[str, Any]] = _as_given
    configure: Callable[[FolderSettings, Config], Config] = _as_read


def late(settings: FolderSettings, layers: int) -> list[bool]:
    """Blocks from max_window_layers on have the window."""
    first = settings.get("max_window_layers", 28)
    if type(first) is not int or not 0 <= first < 1 << 31:
        raise settings.wrong("max_window_layers", first, "a whole number of at least 0")
    return [i >= first for i in range(layers)]


WINDOW = {"use_sliding_window": False, "sliding_window": 4096}  # qwen's defaults
