"""The models of `gradloom fit` as files."""

from __future__ import annotations

import os

from ..base.errors import FileError
from ..tables.model import MODEL, Model, read_model

RESULT = "result.json"  # next to the model in the folder of a `gradloom fit`


def files_of_model(path: str | os.PathLike[str]) -> list[str]:
    """The files of a model, given its file or folder."""
    return [os.fspath(path), os.path.join(os.path.dirname(path), RESULT)]


def load_model(path: str | os.PathLike[str]) -> Model:
    """The model of a file or folder that `gradloom fit` wrote; FileError for any other, a network alone included."""
    read = read_model(path)
    if not isinstance(read, Model):
        raise FileError(f"{path}: holds a network without the preprocessing of its rows; need a model of gradloom fit")
    return read


__all__ = ["MODEL", "RESULT", "Model", "files_of_model", "load_model"]
