"""A folder of text data: a training file, and optional validation and test files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DataError

TEXT = (".txt", ".text", ".md")
JSONL = (".jsonl", ".ndjson")
JSON = (".json",)
_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class DataFiles:
    """The files of a folder, or one file."""

    train: str
    valid: str | None = None
    test: str | None = None

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [path for path in (self.train, self.valid, self.test) if path is not None]


def data_files(path: str | os.PathLike[str]) -> DataFiles:
    """train.jsonl (or .json, .txt), valid.jsonl (or validation, val, dev) and test.jsonl of a folder; a file as it is.

    Raises DataError for a folder without a training file, and for two files with the same purpose.
    """
    folder = Path(path)
    if not folder.is_dir():
        return DataFiles(os.fspath(path))
    found: dict[str, str | None] = {}
    for part, names in _NAMES.items():
        files = [folder / (name + suffix) for name in names for suffix in JSONL + JSON + TEXT]
        files = [file for file in files if file.is_file()]
        if len(files) > 1:
            raise DataError(f"{path}: contains {files[0].name} and {files[1].name}; remove one of them")
        found[part] = str(files[0]) if files else None
    if found["train"] is None:
        raise DataError(
            f"{path}: the folder contains no train.jsonl or train.txt, which is required; valid and test are optional"
        )
    return DataFiles(found["train"], found["valid"], found["test"])


def test_file(path: str | os.PathLike[str]) -> str:
    """The test file of a folder; a file as it is. Raises DataError if the folder has none."""
    files = data_files(path)
    if not Path(path).is_dir():
        return files.train
    if files.test is None:
        raise DataError(f"{path}: the folder contains no test.jsonl or test.txt, which evaluation requires")
    return files.test
