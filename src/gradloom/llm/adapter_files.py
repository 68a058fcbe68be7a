"""Adapter files: GGUF for llama.cpp (adapter_gguf.py), or a folder for PEFT (adapter_peft.py)."""

from __future__ import annotations

import os
from pathlib import Path

from .adapter_arrays import AdapterArrays
from .adapter_gguf import read_adapter_gguf
from .adapter_peft import PEFT_CONFIG, PEFT_WEIGHTS, in_gguf_order, read_peft
from .model_file import ModelFile


def read_adapter(path: str | os.PathLike[str], base: ModelFile) -> AdapterArrays:
    """Read a .gguf adapter, or a folder (or .safetensors) of PEFT. Raises FileError if it does not fit the base."""
    if os.path.isdir(path) or Path(path).suffix == ".safetensors":
        return read_peft(path, base)
    return in_gguf_order(read_adapter_gguf(path, base), base, back=True)


def files_given(path: str | os.PathLike[str]) -> list[Path]:
    """The paths that read_adapter reads: a file or a folder, or PEFT's two files for its .safetensors."""
    given = Path(path)
    return [given.parent / name for name in (PEFT_WEIGHTS, PEFT_CONFIG)] if given.suffix == ".safetensors" else [given]
