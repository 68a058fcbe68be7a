"""save and load: the weights of a module as one safetensors or GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..files import load_arrays, save_arrays
from ..nn.module import Module


def save(module: Module, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write all parameters and buffers to a .safetensors or .gguf file (whole or not at all; FileError)."""
    save_arrays(path, module.state_dict(), dict(metadata or {}))


def load(module: Module, path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the weights that `save` wrote into a module of the same structure; returns the file's metadata.

    Raises FileError for a damaged file, GraphError or ShapeError when the arrays are not this module's.
    """
    arrays, metadata = load_arrays(path)
    module.load_state_dict(arrays)
    return metadata
