"""Model files: a GGUF file, or a Hugging Face folder that is read as one."""

from __future__ import annotations

import os

from ..base.errors import FileError
from ..files.gguf import GGUF, open_gguf
from .hf_folder import HFFolder

ModelFile = GGUF | HFFolder


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open a GGUF file or a Hugging Face folder. Raises FileError for neither, and for a damaged one."""
    if not os.path.lexists(path) and not os.fspath(path).endswith((".gguf", ".safetensors")):
        need = "download the model first, and give its folder (config.json, *.safetensors, tokenizer.json) or GGUF file"
        raise FileError(f"{path}: no such file or directory; gradloom downloads nothing: {need}")
    return HFFolder(path) if os.path.isdir(path) else open_gguf(path)
