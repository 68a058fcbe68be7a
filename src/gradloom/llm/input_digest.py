"""Digests of the inputs of a run: files, and folders of models, idx files, images, adapters and texts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..base.errors import DataError
from ..data.image_table import holds_images, images_of
from ..files.regular import open_regular

_PIECE = 1 << 20  # bytes read at a time


def digest(path: str | os.PathLike[str]) -> str:
    """ "sha256:..." of a file's bytes; of a folder (a model, idx files, an adapter of PEFT, text data) that of the
    names and digests of the files that are read of it. OSError or FileError where it cannot be read."""
    found = hashlib.sha256()
    if os.path.isdir(path):
        for name, one in _read_of(path).items():
            found.update(os.fsencode(name) + b"\0" + digest(one).encode() + b"\n")
    else:
        with open_regular(path) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    return f"sha256:{found.hexdigest()}"


def _read_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """The files of a folder that a run reads, by the names that count."""
    from ..data.idx import find_idx
    from .adapter_peft import PEFT_CONFIG, PEFT_WEIGHTS
    from .data_files import data_files
    from .hf_folder import files_of_folder

    if model := files_of_folder(folder):
        return {one.name: one for one in model}
    if (idx := sorted(find_idx(folder).values())) or Path(folder, PEFT_CONFIG).exists():
        return {one.name: one for one in idx or [Path(folder, name) for name in sorted((PEFT_CONFIG, PEFT_WEIGHTS))]}
    images = {os.path.relpath(one, folder): one for one in images_of(folder)} if holds_images(folder) else {}
    try:
        texts = [Path(path) for path in data_files(folder).paths]
    except DataError:
        if not images:
            raise
        texts = []
    return images | {one.name: one for one in texts}
