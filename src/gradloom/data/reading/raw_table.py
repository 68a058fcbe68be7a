"""RawTable: rows and targets of a CSV, Parquet or .npz file, or of a folder of idx files, before any statistics."""

from __future__ import annotations

import difflib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...base.arguments import what_is
from ...base.errors import DataError, FileError
from ..idx import find_idx, read_idx, read_idx_folder
from .array_cells import array_columns
from .cell_rules import PLAIN, CellRules
from .cells import NumberCells, composed, number_text
from .columns import MOST_COLUMNS, Columns
from .csv_file import read_csv
from .kinds import numbers_of, reading_notes
from .npz import keys_of, load_npz
from .parquet import is_parquet, read_parquet
from .table_columns import is_table, table_columns
from .text_bytes import SPREADSHEETS, spreadsheet

_TRAIN_KEYS: tuple[tuple[str, str], ...] = (
    ("x_train", "y_train"),
    ("train_x", "train_y"),
    ("x", "y"),
    ("data", "target"),
    ("data", "targets"),
    ("data", "labels"),
    ("images", "labels"),
    ("features", "labels"),
    ("features", "targets"),
)
_TEST_KEYS = (("x_test", "y_test"), ("test_x", "test_y"))
_CLASS_KEYS = ("classes", "class_names", "target_names")
X_KEYS = ("x", "x_test", "test_x", "data", "images", "features", "x_train", "train_x")
Y_KEYS = ("y", "y_test", "test_y", "target", "targets", "labels", "y_train", "train_y")


@dataclass
class RawTable:
    """A file before any statistics: training rows, and test rows if the file has them."""

    path: str
    x: Columns | np.ndarray
    y: np.ndarray  # texts (bytes or str), whole numbers or floats; of a table whose target holds texts, their codes
    target: str
    test_x: np.ndarray | None = None
    test_y: np.ndarray | None = None
    target_index: int = -1
    names: list[str] | None = None  # of the columns of a 2-D array
    classes: list[str] | None = None
    texts: list[bytes] | None = None  # of the codes in y
    notes: list[str] = field(default_factory=list)
    picked: np.ndarray | None = None  # the selected rows of an array; None: all
    array: str = ""  # of a file of arrays: that of the rows, and that of its test rows
    test_array: str = ""
    targets: list[int] = field(default_factory=list)  # the columns of several targets

    @property
    def target_places(self) -> list[int]:
        """The columns that are targets."""
        return self.targets or [self.target_index] * (self.target_index >= 0)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Which rows of the file these rows are."""
        picked = self.x.picked if isinstance(self.x, Columns) else self.picked
        return rows if picked is None else picked[rows]

    def names_of(self) -> list[str]:
        """The names of the columns."""
        return self.x.names if isinstance(self.x, Columns) else self.names or []


def read_raw(data: Any, target: str | None, rules: CellRules = PLAIN, expect: Sequence[str] = ()) -> RawTable:
    """The table, or the file or folder by its suffix, as it is, numbers in two axes as columns; arguments as for
    read_table. expect: further names of columns, as for read_csv."""
    if is_table(data, "data"):
        return _with_target(table_columns(data, "data", rules), target)
    if not isinstance(data, (str, os.PathLike)):
        raise DataError(f"read_table: got {what_is(data)}; need a path, or a DataFrame; gl.data.Dataset takes arrays")
    raw = _read_raw(Path(data), target, rules, (*expect, *([] if target is None else [target])))
    if isinstance(raw.x, np.ndarray):
        if raw.x.ndim <= 2 and raw.x.dtype.kind != "b" and raw.x.dtype != np.uint8:
            raw.x = array_columns(raw.path, raw.x, raw.names, rules.missing)
        elif raw.x.dtype.kind == "b" or raw.x.dtype.name in ("int16", "uint16", "uint32", "uint64"):
            kind = np.uint8 if raw.x.dtype.kind == "b" else np.float32
            raw.x, raw.test_x = raw.x.astype(kind), None if raw.test_x is None else raw.test_x.astype(kind)
    return raw


def _read_raw(path: Path, target: str | None, rules: CellRules, expect: Sequence[str]) -> RawTable:
    if not path.exists():
        raise FileError(f"{path}: no such file or folder")
    name = path.name.lower()
    if path.is_dir():
        return _read_idx(path, target)
    if name.endswith(".npz"):
        return _read_npz(path, target)
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".data")):
        return _with_target(read_csv(path, expect, rules=rules), target)
    if is_parquet(path):
        return _with_target(read_parquet(path, rules=rules), target)
    if "idx" in name or name.endswith("ubyte"):
        raise DataError(f"{path}: is one idx file; need the folder that holds images and labels: {path.parent}")
    if name.endswith(SPREADSHEETS):
        raise spreadsheet(path, "a spreadsheet")
    raise DataError(
        f"{path}: suffix {path.suffix or '(none)'} is not known;"
        " need .csv, .csv.gz, .parquet, .npz or a folder of idx files"
    )


def _with_target(data: Columns, target: str | None) -> RawTable:
    """The table whose target is the column of this name, or the last one."""
    if len(data.names) < 2:
        how = "" if data.lines is None else ", separated by a comma, a semicolon or a tab"
        raise DataError(f"{data.path}: 1 column; need at least 2{how}")
    try:
        index = len(data.names) - 1 if target is None else data.find(target)
    except DataError as error:
        raise DataError(f"{error}; see {{target}}", target=...) from None
    notes = []
    if target is None:
        notes.append(
            f"target: the last column, {data.names[index]!r:.60}" + (" (--target names another)" if data.header else "")
        )
    return of_columns(data, index, notes)


def of_columns(data: Columns, index: int, notes: list[str]) -> RawTable:
    """A table whose target is the column of this index."""
    texts = None
    y = numbers_of(data, index, f"target {data.names[index]!r:.60}", True)
    cells = data.cells[index]
    if isinstance(cells, NumberCells):
        notes += reading_notes(data, index, f"target {data.names[index]!r:.60}")
    if y is None or data.merges(index) or data.has_leading_zeros(index):
        y, texts = data.texts(index)
    return RawTable(data.path, data, y, data.names[index], target_index=index, texts=texts, notes=notes)


def _read_npz(path: Path, target: str | None) -> RawTable:
    arrays = load_npz(path)
    keys = {k.lower(): k for k in arrays}
    if target is not None:
        if target not in arrays:
            near = difflib.get_close_matches(target, list(arrays), n=1, cutoff=0.0)
            nearest = f"the nearest is {near[0]!r:.60} (arrays: {keys_of(arrays)})"
            raise DataError(f"{path}: no array {target!r:.60}; {nearest}; see {{target}}", target=...)
        inputs = [k for k in X_KEYS if k in keys and keys[k] != target]
        if not inputs:
            raise DataError(
                f"{path}: holds {keys_of(arrays)}; need an array called x next to the target {target!r:.60}"
            )
        pair = (keys[inputs[0]], target)
    else:
        conventional = next(((keys[a], keys[b]) for a, b in _TRAIN_KEYS if a in keys and b in keys), None)
        if conventional is None:
            raise DataError(
                f"{path}: holds {keys_of(arrays)}; need arrays x and y, or x_train y_train (and x_test y_test)"
            )
        pair = conventional
    x, y = arrays[pair[0]], arrays[pair[1]]
    _check_pair(path, pair, x, y)
    raw = RawTable(str(path), x, y, pair[1], array=pair[0])
    test = next(((keys[a], keys[b]) for a, b in _TEST_KEYS if a in keys and b in keys), None)
    if test is not None and pair[0] not in test:
        _check_pair(path, test, arrays[test[0]], arrays[test[1]])
        raw.test_array = test[0]
        raw.test_x, raw.test_y = (
            _like(path, name, arrays[name], needed, array)
            for name, needed, array in zip(test, pair, (x, y), strict=True)
        )
        if raw.test_y.dtype.kind == "f" and not np.isfinite(raw.test_y).all():
            raise DataError(f"{path}: {test[1]!r:.60} is NaN or inf in some row; need finite numbers")
    named = next((keys[k] for k in _CLASS_KEYS if k in keys), None)
    if named is not None:
        raw.classes = _list_of_names(path, named, arrays[named])
    if "feature_names" in keys:
        names = _list_of_names(path, keys["feature_names"], arrays[keys["feature_names"]])
        raw.names = names if x.ndim == 2 and len(names) == x.shape[1] else None
    return raw


def _like(path: Path, name: str, test: np.ndarray, needed: str, train: np.ndarray) -> np.ndarray:
    """The test rows; DataError unless they have the shape of the training rows, and are numbers where those are."""
    if test.shape[1:] != train.shape[1:]:
        raise DataError(f"{path}: {name} has rows of shape {list(test.shape[1:])}; need {list(train.shape[1:])}")
    if (test.dtype.kind in "fiub") != (train.dtype.kind in "fiub"):
        raise DataError(f"{path}: {name} is {test.dtype!s:.60}, {needed} {train.dtype!s:.60}; need both of one kind")
    return test


def _list_of_names(path: Path, key: str, array: np.ndarray) -> list[str]:
    """The texts (or numbers) of an array that names classes or columns."""
    array = np.atleast_1d(array)
    if array.ndim > 1 or array.dtype.kind not in "USiuf":
        raise DataError(
            f"{path}: {key!r:.60} is {array.dtype!s:.60} of shape {list(array.shape)}; need a list of texts"
        )
    if len(array) > MOST_COLUMNS:
        raise DataError(f"{path}: {key!r:.60} holds {len(array):,} names; need at most {MOST_COLUMNS:,}")
    return [class_name(value) for value in array]


def _read_idx(path: Path, target: str | None) -> RawTable:
    if target is not None:
        raise DataError(f"{path}: is a folder of idx files, whose labels are the target; omit {{target}}", target=...)
    arrays = read_idx_folder(path)
    raw = RawTable(str(path), arrays["training images"], arrays["training labels"], "label", array="training images")
    if "test images" in arrays:
        raw.test_array = "test images"
        raw.test_x, raw.test_y = arrays["test images"], arrays["test labels"]
    return raw


def idx_to_predict(path: Path) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """(images, labels where there are such, of a folder a note on which file they are)."""
    if path.is_file():
        return read_idx(path), None, []
    files = find_idx(path)
    images = array_to_predict(path)
    part = images.removesuffix(" images")
    if images not in files:
        raise DataError(f"{path}: no idx file of images; need one such as t10k-images-idx3-ubyte, .gz or not")
    x = read_idx(files[f"{part} images"])
    y = read_idx(files[f"{part} labels"]) if f"{part} labels" in files else None
    return x, y if y is not None and len(y) == len(x) else None, [f"rows: {files[f'{part} images'].name}"]


def key_of_rows(keys: Mapping[str, str]) -> str | None:
    """The array of an .npz that predict reads, among its keys by their lower case; None where none is named so."""
    return next((keys[key] for key in X_KEYS if key in keys), next(iter(keys.values())) if len(keys) == 1 else None)


def array_to_predict(path: Path) -> str:
    """The array of a file, or of a folder of idx files, that predict reads; "" of a table."""
    if path.is_dir():
        return "test images" if "test images" in find_idx(path) else "training images"
    if path.name.lower().endswith(".npz"):
        with zipfile.ZipFile(path) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
        return key_of_rows({name.lower(): name for name in names}) or ""
    return ""


def _check_pair(path: Path, keys: tuple[str, str], x: np.ndarray, y: np.ndarray) -> None:
    for key, array in zip(keys, (x, y), strict=True):
        if array.ndim == 0:
            raise DataError(f"{path}: {key!r:.60} is a single value; need an array whose first axis counts the rows")
        if len(array) == 0:
            raise DataError(f"{path}: {key!r:.60}: 0 rows; need at least {1 if 'test' in key.lower() else 2}")
        if array.size == 0:
            raise DataError(f"{path}: {key!r:.60} has rows of shape {list(array.shape[1:])}, which hold nothing")
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: {keys[0]!r:.60} is {x.dtype!s:.60}; need numbers")
    if y.dtype.kind not in "fiubSU":
        raise DataError(f"{path}: {keys[1]!r:.60} is {y.dtype!s:.60}; need numbers or texts")
    if len(x) != len(y):
        raise DataError(
            f"{path}: {len(x)} rows in {keys[0]!r:.60}, {len(y)} in {keys[1]!r:.60}; need one target for each row"
        )


def class_name(value: object) -> str:
    """How a class is written: 3 for 3.0."""
    if isinstance(value, bytes):
        return composed(value.decode("utf-8", "replace"))
    return number_text(float(value)) if isinstance(value, (float, np.floating)) else composed(str(value))
