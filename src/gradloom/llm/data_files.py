"""Files of text data: their kinds, and folders with a training file and optional validation and test files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DataError, FileError

TEXT = (".txt", ".text", ".md")
JSONL = (".jsonl", ".ndjson")
JSON = (".json",)
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet",)
ARROW = (".arrow", ".feather", ".ipc")
ROWS = JSONL + JSON + CSV + PARQUET + ARROW  # files with a sample in each row
_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(\.parquet|\.arrow)")  # a part of a file, as the Hugging Face hub has them
_SHARDS = re.compile(r"(.*)-\*-of-(\d{5})(\.parquet|\.arrow)")  # all of them
_STATE, _INFO = "state.json", "dataset_info.json"  # of a folder that datasets wrote (save_to_disk)


@dataclass(frozen=True)
class DataFiles:
    """The files of a folder, or one file; see shards."""

    train: str
    valid: str | None = None
    test: str | None = None

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [file for path in (self.train, self.valid, self.test) if path is not None for file in shards(path)]


def data_files(path: str | os.PathLike[str]) -> DataFiles:
    """The files of a folder; a file, and a folder that datasets wrote for one split, as it is.

    train.jsonl (or .json, .txt, .csv, .parquet, ...), valid.jsonl (or validation, val, dev) and test.jsonl; in place of
    a file its shards, train-00000-of-00002.parquet, also in a folder "data", or a folder that datasets wrote.

    Raises DataError for a folder without a training file, and for two files with the same purpose.
    """
    folder = Path(path)
    if not folder.is_dir() or is_saved_dataset(folder):
        return DataFiles(os.fspath(path))
    found: dict[str, str | None] = {}
    for part, names in _NAMES.items():
        files = [file for name in names for file in _of_name(folder, name)]
        if len(files) > 1:
            first, second = (os.path.relpath(file, folder) for file in files[:2])
            raise DataError(f"{path}: contains {first} and {second}; remove one of them")
        found[part] = files[0] if files else None
    if found["train"] is None:
        raise DataError(
            f"{path}: the folder contains no train.jsonl or train.txt, which is required; valid and test are optional"
        )
    return DataFiles(found["train"], found["valid"], found["test"])


def _of_name(folder: Path, name: str) -> list[str]:
    """The files, sets of shards and folders that datasets wrote of this name."""
    files = [folder / (name + suffix) for suffix in ROWS + TEXT]
    found = [str(file) for file in files if file.is_file()]
    for place in (folder, folder / "data"):
        parts = (_SHARD.fullmatch(file.name) for file in sorted(place.glob(f"{name}-*-of-*")))
        sets = {(part[2], part[3]) for part in parts if part is not None and part[1] == name}
        found += [str(place / f"{name}-*-of-{count}{suffix}") for count, suffix in sorted(sets)]
    return found + [str(folder / name)] * is_saved_dataset(folder / name)


def is_saved_dataset(folder: str | os.PathLike[str]) -> bool:
    """Whether datasets wrote this folder for one split (Dataset.save_to_disk)."""
    return all(Path(folder, name).is_file() for name in (_STATE, _INFO))


def shards(path: str) -> list[str]:
    """The files of a path: of NAME-*-of-00002.parquet both, of a folder that datasets wrote its .arrow files; else
    the path itself. Raises FileError for a folder whose list of files cannot be used."""
    several = _SHARDS.fullmatch(path)
    if several is not None and int(several[2]):
        count = int(several[2])
        return [f"{several[1]}-{i:05}-of-{several[2]}{several[3]}" for i in range(count)]
    if not is_saved_dataset(path):
        return [path]
    try:
        listed = json.loads(Path(path, _STATE).read_bytes())["_data_files"]
        names = [one["filename"] for one in listed]
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileError(f"{path}: {_STATE} has no list of files (_data_files); write the folder again") from None
    return [os.path.join(path, name) for name in names]


def test_file(path: str | os.PathLike[str]) -> str:
    """The test file of a folder; a file as it is. Raises DataError if the folder has none."""
    files = data_files(path)
    if not Path(path).is_dir() or is_saved_dataset(path):
        return files.train
    if files.test is None:
        raise DataError(f"{path}: the folder contains no test.jsonl or test.txt, which evaluation requires")
    return files.test
