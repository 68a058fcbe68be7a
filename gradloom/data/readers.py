"""Files as training data: a CSV, an .npz, or a folder of idx files becomes one Table."""

from __future__ import annotations

import difflib
import json
import math
import os
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from ..base.described import LONGEST
from ..base.errors import DataError, FileError, GradloomError, SettingError
from .csv_file import MOST_COLUMNS, CsvColumns, is_missing, parse_numbers, read_csv
from .dataset import Dataset, split_rows
from .idx import find_idx, read_idx, read_idx_folder
from .preprocess import Preprocess, fit_array, fit_csv, fit_matrix
from .unpacked import most_unpacked, too_much

MOST_INTEGER_CLASSES = 20  # a whole-number target with more different values is a regression, unless told
_MEMORY = 4  # bytes of memory that reading a byte of an array may take
_TEST = 3  # the stream of the seed that holds rows out for the test
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
_X_KEYS = ("x", "x_test", "test_x", "data", "images", "features", "x_train", "train_x")
_Y_KEYS = ("y", "y_test", "test_y", "target", "targets", "labels", "y_train", "train_y")


@dataclass
class Table:
    """Training data out of a file: features, targets, and how they were made.

    train, test  Dataset; features f32 (n, d), or as in the file (n, d) for images; labels i32 ids (classification) or
                 standardised f32 (n, targets) (regression); the rows of train are in the order of the seed
    test_from    "file" when the file brought its test rows, "held out" when they were taken from the others, "" if none
    test_targets in the units of the file (regression)
    notes        what a person should know: decisions, columns left out, cells filled in
    """

    path: str
    task: str
    train: Dataset
    test: Dataset | None
    test_from: str
    preprocess: Preprocess
    test_targets: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class _Raw:
    """A file before any statistics are taken: rows for training, and rows for the test where the file has them."""

    path: str
    x: CsvColumns | np.ndarray
    y: np.ndarray  # texts (bytes or str), whole numbers or floats
    target: str
    test_x: np.ndarray | None = None
    test_y: np.ndarray | None = None
    target_index: int = -1
    names: list[str] | None = None  # of the columns of a 2-D array
    classes: list[str] | None = None
    notes: list[str] = field(default_factory=list)


@np.errstate(all="ignore")  # what overflows is looked for and refused
def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    task: str | None = None,
    test_split: float = 0.2,
    val_split: float = 0.0,
    seed: int = 0,
) -> Table:
    """Read a .csv, .csv.gz or .npz file, or a folder of idx files, for training.

    target      the column (CSV) or array (.npz) to predict; None: the last column, or the conventional name
    task        "classification" or "regression"; None: decided from the target
    test_split  share of the rows (of each class) held out for the test when the file brings no test rows; 0: none
    val_split   the validation share that fit will take from the training rows: they are kept out of the statistics
    """
    if task not in (None, "classification", "regression"):
        raise SettingError(f"task={task!r:.60} is not known; need classification or regression")
    raw = _read(Path(path), target)
    raw = _drop_rows_without_target(raw)
    task, y, test_y, classes = _targets(raw, task)
    n = len(y)
    if raw.test_x is None and test_split:
        if n < 2:
            raise DataError(f"{raw.path}: {n} row; need at least 2, one of them for the test")
        rows, held = _hold_out(y if task == "classification" else np.zeros(n, np.int32), test_split, seed)
    else:
        rows, held = np.arange(n, dtype=np.int64), np.zeros(0, np.int64)
    known = rows[split_rows(len(rows), val_split, seed)[0]] if val_split else rows
    order = np.concatenate([rows, held]) if len(held) else None
    made, features, test_features = _features(raw, np.sort(known), task, order)
    labels = y if order is None else y[order]
    test_targets = test_y
    if task == "classification":
        made.classes = classes
        _check_classes(raw.path, y[rows], classes, raw.notes)
    else:
        values = np.reshape(y, (n, -1)).astype(np.float64)
        made.target_mean = values[known].mean(axis=0).tolist()
        made.target_std = values[known].std(axis=0).tolist()
        if not np.isfinite(made.target_std).all():
            raise DataError(
                f"{raw.path}: target {raw.target!r:.60} has numbers as large as {abs(values).max():g}; scale it"
            )
        if min(made.target_std) == 0:
            raise DataError(
                f"{raw.path}: target {raw.target!r:.60} is {values[known][0][0]:g} in every training row; need values"
            )
        labels = made.targets_to_outputs(labels)
    _check_described(raw.path, made)
    if raw.test_x is None:
        test = Dataset(features[len(rows) :], labels[len(rows) :]) if len(held) else None
        test_targets = y[held]
        test_from = "held out" if len(held) else ""
        train = Dataset(features[: len(rows)], labels[: len(rows)])
    else:
        assert test_features is not None and test_y is not None
        test = Dataset(test_features, test_y if task == "classification" else made.targets_to_outputs(test_y))
        train, test_from = Dataset(features, labels), "file"
    return Table(raw.path, task, train, test, test_from, made, None if test is None else test_targets, raw.notes)


def _check_described(path: str, made: Preprocess) -> None:
    """DataError where the file of the model could not be read again: names that are no text, too much of them."""
    text = made.to_json()
    if len(json.dumps(text)) > LONGEST - (1 << 20):
        raise DataError(f"{path}: names, texts and classes take {len(text):,} characters; need fewer or shorter ones")
    try:
        Preprocess.from_json(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


@np.errstate(all="ignore")
def read_features(
    path: str | os.PathLike[str], preprocess: Preprocess
) -> tuple[np.ndarray, np.ndarray | None, list[str], list[str]]:
    """(features, targets where the file has them, notes, problems with those targets) for a trained model.

    The targets are class ids (-100 for a class that the model does not know) or floats in the units of the file.
    """
    where = Path(path)
    if not where.exists():
        raise FileError(f"{where}: no such file or folder")
    raw_y: np.ndarray | None = None
    notes: list[str] = []
    if where.is_dir() or ".idx" in where.name or "-idx" in where.name:
        x, raw_y, note = _idx_to_predict(where)
        notes.append(note)
        if x.size == 0:
            raise DataError(f"{where}: {list(x.shape)} images; need at least 1")
        features, more = preprocess.apply(x)
    elif where.name.lower().endswith(".npz"):
        arrays = _load_npz(where)
        keys = {k.lower(): k for k in arrays}
        key = next((keys[k] for k in _X_KEYS if k in keys), next(iter(arrays)) if len(arrays) == 1 else None)
        if key is None:
            raise DataError(f"{where}: holds {_keys(arrays)}; need an array called x")
        if arrays[key].size == 0:
            raise DataError(f"{where}: {key!r:.60} of shape {list(arrays[key].shape)} is empty; need at least 1 row")
        y_key = next((keys[k] for k in _Y_KEYS if k in keys), None)
        paired = y_key is not None and len(np.atleast_1d(arrays[y_key])) == len(np.atleast_1d(arrays[key]))
        raw_y = arrays[y_key] if y_key is not None and paired else None
        features, more = preprocess.apply(np.atleast_1d(arrays[key]))
    else:
        names = tuple(c.name for c in preprocess.columns) if preprocess.header else ()
        data = read_csv(where, expect=names, header=None if preprocess.header else False)
        features, more = preprocess.apply(data)
        if preprocess.header and preprocess.target in data.names:
            raw_y = data.columns[data.names.index(preprocess.target)]
        elif not preprocess.header and len(data.names) == len(preprocess.columns) + 1:
            assert preprocess.target_index is not None
            raw_y = data.columns[preprocess.target_index]
    targets, problems = (None, []) if raw_y is None else _known_targets(raw_y, preprocess)
    return features, targets, notes + more, problems


# -- the three kinds of file -----------------------------------------------------------------------------------------


def _read(path: Path, target: str | None) -> _Raw:
    if not path.exists():
        raise FileError(f"{path}: no such file or folder")
    name = path.name.lower()
    if path.is_dir():
        return _read_idx(path, target)
    if name.endswith(".npz"):
        return _read_npz(path, target)
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".data")):
        return _read_csv(path, target)
    if "idx" in name or name.endswith("ubyte"):
        raise DataError(f"{path}: is one idx file; need the folder that holds images and labels: {path.parent}")
    raise DataError(
        f"{path}: suffix {path.suffix or '(none)'} is not known; need .csv, .csv.gz, .npz or a folder of idx files"
    )


def _read_csv(path: Path, target: str | None) -> _Raw:
    data = read_csv(path, expect=() if target is None else (target,))
    if len(data.names) < 2:
        raise DataError(f"{path}: 1 column; need at least 2, separated by a comma, a semicolon or a tab")
    index = len(data.names) - 1 if target is None else data.find(target)
    notes = []
    if target is None:
        notes.append(
            f"target: the last column, {data.names[index]!r:.60}" + (" (--target names another)" if data.header else "")
        )
    return _Raw(str(path), data, data.columns[index], data.names[index], target_index=index, notes=notes)


def _read_npz(path: Path, target: str | None) -> _Raw:
    arrays = _load_npz(path)
    keys = {k.lower(): k for k in arrays}
    if target is not None:
        if target not in arrays:
            near = difflib.get_close_matches(target, list(arrays), n=1, cutoff=0.0)
            raise DataError(
                f"{path}: no array {target!r:.60}; the nearest is {near[0]!r:.60} (arrays: {_keys(arrays)})"
            )
        inputs = [k for k in _X_KEYS if k in keys and keys[k] != target]
        if not inputs:
            raise DataError(f"{path}: holds {_keys(arrays)}; need an array called x beside the target {target!r:.60}")
        pair = (keys[inputs[0]], target)
    else:
        found = next(((keys[a], keys[b]) for a, b in _TRAIN_KEYS if a in keys and b in keys), None)
        if found is None:
            raise DataError(
                f"{path}: holds {_keys(arrays)}; need arrays x and y, or x_train y_train (and x_test y_test)"
            )
        pair = found
    x, y = arrays[pair[0]], arrays[pair[1]]
    _check_pair(path, pair, x, y)
    raw = _Raw(str(path), x, y, pair[1])
    test = next(((keys[a], keys[b]) for a, b in _TEST_KEYS if a in keys and b in keys), None)
    if test is not None and pair[0] not in test:
        _check_pair(path, test, arrays[test[0]], arrays[test[1]])
        raw.test_x, raw.test_y = (
            _like(path, name, arrays[name], needed, array)
            for name, needed, array in zip(test, pair, (x, y), strict=True)
        )
        if raw.test_y.dtype.kind == "f" and not np.isfinite(raw.test_y).all():
            raise DataError(f"{path}: {test[1]!r:.60} is NaN or inf in some row; need finite numbers")
    named = next((keys[k] for k in _CLASS_KEYS if k in keys), None)
    if named is not None:
        raw.classes = _names(path, named, arrays[named])
    if "feature_names" in keys:
        names = _names(path, keys["feature_names"], arrays[keys["feature_names"]])
        raw.names = names if x.ndim == 2 and len(names) == x.shape[1] else None
    return raw


def _like(path: Path, name: str, test: np.ndarray, needed: str, train: np.ndarray) -> np.ndarray:
    """The rows of the test, which are such as the training rows: of their shape, texts or numbers."""
    if test.shape[1:] != train.shape[1:]:
        raise DataError(f"{path}: {name} has rows of shape {list(test.shape[1:])}; need {list(train.shape[1:])}")
    if (test.dtype.kind in "fiub") != (train.dtype.kind in "fiub"):
        raise DataError(f"{path}: {name} is {test.dtype!s:.60}, {needed} {train.dtype!s:.60}; need both of one kind")
    return test


def _names(path: Path, key: str, array: np.ndarray) -> list[str]:
    """The texts (or numbers) of an array that names classes or columns."""
    array = np.atleast_1d(array)
    if array.ndim > 1 or array.dtype.kind not in "USiuf":
        raise DataError(
            f"{path}: {key!r:.60} is {array.dtype!s:.60} of shape {list(array.shape)}; need a list of texts"
        )
    if len(array) > MOST_COLUMNS:
        raise DataError(f"{path}: {key!r:.60} holds {len(array):,} names; need at most {MOST_COLUMNS:,}")
    return [class_name(value) for value in array]


def _read_idx(path: Path, target: str | None) -> _Raw:
    if target is not None:
        raise DataError(f"{path}: is a folder of idx files, whose target is their labels; leave --target out")
    arrays = read_idx_folder(path)
    raw = _Raw(str(path), arrays["training images"], arrays["training labels"], "label")
    if "test images" in arrays:
        raw.test_x, raw.test_y = arrays["test images"], arrays["test labels"]
    return raw


def _idx_to_predict(path: Path) -> tuple[np.ndarray, np.ndarray | None, str]:
    if path.is_file():
        return read_idx(path), None, f"rows: {path.name}"
    found = find_idx(path)
    part = "test" if "test images" in found else "training"
    if f"{part} images" not in found:
        raise DataError(f"{path}: no idx file of images; need one such as t10k-images-idx3-ubyte, .gz or not")
    x = read_idx(found[f"{part} images"])
    y = read_idx(found[f"{part} labels"]) if f"{part} labels" in found else None
    return x, y if y is not None and len(y) == len(x) else None, f"rows: {found[f'{part} images'].name}"


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; what their heads say is held against the bytes of the file before it is believed."""
    arrays: dict[str, np.ndarray] = {}
    try:
        size = path.stat().st_size
        if size == 0:
            raise FileError(f"{path}: is empty (0 bytes); need an .npz file")
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about Python text
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                raise DataError(f"{path}: holds one array without a name; need np.savez(path, x=..., y=...)")
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                most = most_unpacked(size, _MEMORY)
                if sum(member.file_size for member in members) > most:
                    raise too_much(path, size, most)
                for member in members:
                    key = member.filename.removesuffix(".npy")
                    if key in arrays or key == member.filename:
                        what = "is there twice" if key in arrays else "is no array (.npy)"
                        raise DataError(f"{path}: {member.filename!r:.60} {what}; need what np.savez(path, ...) writes")
                    with archive.open(member) as stream:
                        arrays[key] = _read_npy(path, key, cast(BinaryIO, stream), member.file_size)
    except (GradloomError, MemoryError):
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, NotImplementedError, ValueError) as error:
        raise FileError(
            f"{path}: is truncated or damaged, or no .npz file ({_one_line(error)}); write it again"
        ) from None
    except Exception as error:  # NumPy parses the head of each array as Python text: damage can end anywhere
        raise FileError(f"{path}: is damaged ({_one_line(error)}); write it again") from None
    if not arrays:
        raise DataError(f"{path}: holds no arrays; need x and y")
    return arrays


def _read_npy(path: Path, key: str, file: BinaryIO, size: int) -> np.ndarray:
    """The array of a member of `size` bytes, in native byte order and in C order, no wider than f64."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{path}: {key!r:.60} is written in version {version} of .npy; need one without Unicode fields")
    read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read_head(file)
    if kind.hasobject:
        raise DataError(f"{path}: some array holds Python objects; save numbers or texts")
    need, have = math.prod(shape) * kind.itemsize, size - file.tell()
    if need != have or any(n < 0 for n in shape) or kind.itemsize == 0:
        seen = f"{kind!s:.60} of shape {list(shape)!s:.60}"
        raise FileError(f"{path}: {key!r:.60} has {have} bytes; its head needs {need} ({seen}); write it again")
    held = np.empty(need, np.uint8)
    at = 0
    while at < need:
        piece = file.read(min(need - at, 1 << 20))
        if not piece:
            raise EOFError(f"{key!r:.60} ends after {at} of {need} bytes")
        held[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    array = held.view(kind).reshape(shape, order="F" if fortran else "C")
    if kind.kind == "f" and kind.itemsize > 8:
        array = array.astype(np.float64)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(shape)


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


# -- targets ---------------------------------------------------------------------------------------------------------


def _drop_rows_without_target(raw: _Raw) -> _Raw:
    y = raw.y
    if isinstance(raw.x, CsvColumns):
        numbers = raw.x.numbers(raw.target_index)[0]
        missing = is_missing(y)
        empty = missing if numbers is not None or missing.all() else y == b""
    elif y.dtype.kind == "f":
        empty = np.isnan(y.reshape(len(y), -1)).any(axis=1)
    else:
        return raw
    if empty.all():
        raise DataError(
            f"{raw.path}: target {raw.target!r:.60} is empty in all {len(y)} rows; name another with --target"
        )
    if empty.any():
        rows = np.flatnonzero(~empty)
        raw.notes.append(f"{int(empty.sum())} of {len(y)} rows left out: their target {raw.target!r:.60} is empty")
        raw.y = y[rows]
        raw.x = raw.x.keep(rows) if isinstance(raw.x, CsvColumns) else raw.x[rows]
    return raw


def _targets(raw: _Raw, task: str | None) -> tuple[str, np.ndarray, np.ndarray | None, list[str]]:
    """(task, targets, test targets, class names); ids i32 when they are classes, else f64."""
    y, test_y = raw.y, raw.test_y
    if isinstance(raw.x, CsvColumns):
        values, bad = raw.x.numbers(raw.target_index)
        if values is None and task == "regression":
            row = int(np.flatnonzero(bad)[0])
            where = f"{raw.path} line {raw.x.lines[row]}"
            raise DataError(
                f"{where}: target {raw.target!r:.60} is {y[row].decode()!r:.60}; need numbers for a regression"
            )
        y = y if values is None else values
    elif y.dtype.kind in "SU" and test_y is not None and test_y.dtype.kind != y.dtype.kind:
        y, test_y = (np.char.decode(a, "utf-8", "replace") if a.dtype.kind == "S" else a for a in (y, test_y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
        test_y = None if test_y is None else np.reshape(test_y, len(test_y))
    if y.ndim == 2 and y.dtype.kind in "fiub" and task != "regression" and _is_one_hot(y):
        raw.notes.append(f"target {raw.target!r:.60}: rows with a single 1 are taken as class ids")
        names = raw.classes or [str(i) for i in range(y.shape[1])]
        ids = y.argmax(axis=1).astype(np.int32)
        test_ids = None if test_y is None else np.asarray(test_y).argmax(axis=1).astype(np.int32)
        return "classification", ids, test_ids, names
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise DataError(f"{raw.path}: target {raw.target!r:.60} is inf in some row; need finite numbers")
    if task is None:
        task, why = _decide(y)
        raw.notes.insert(0, f"task: {task}, because the target {raw.target!r:.60} {why}")
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise DataError(
                f"{raw.path}: target {raw.target!r:.60} holds texts such as {class_name(y.flat[0])!r:.60}; need numbers"
            )
        return task, y.astype(np.float64), None if test_y is None else np.asarray(test_y, np.float64), []
    if y.ndim != 1:
        raise DataError(f"{raw.path}: target {raw.target!r:.60} has shape {list(y.shape)}; need one class for each row")
    return task, *_class_ids(raw, y, test_y)


def _class_ids(raw: _Raw, y: np.ndarray, test_y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    if raw.classes is not None and y.dtype.kind in "iu":
        for values, what in ((y, raw.target), (test_y, "the test target")):
            bad = (
                np.flatnonzero((values < 0) | (values >= len(raw.classes))) if values is not None else np.zeros(0, int)
            )
            if values is not None and bad.size:
                need = f"need 0..{len(raw.classes) - 1}, the {len(raw.classes)} classes that the file names"
                raise DataError(f"{raw.path}: row {bad[0]}: {what!r:.60} is {values[bad[0]]}; {need}")
        return y.astype(np.int32), None if test_y is None else test_y.astype(np.int32), raw.classes
    different, ids = np.unique(y, return_inverse=True)
    if len(different) > max(MOST_INTEGER_CLASSES, len(y) // 2):
        raise DataError(
            f"{raw.path}: target {raw.target!r:.60} has {len(different)} classes in {len(y)} rows; need far fewer"
        )
    names = [class_name(v) for v in different]
    test_ids = None
    if test_y is not None:
        place = np.clip(np.searchsorted(different, test_y), 0, len(different) - 1)
        bad = np.flatnonzero(different[place] != test_y)
        if bad.size:
            seen = class_name(test_y[bad[0]])
            raise DataError(f"{raw.path}: row {bad[0]} of the test has class {seen!r:.60}, which no training row has")
        test_ids = place.astype(np.int32)
    return ids.reshape(-1).astype(np.int32), test_ids, names


def class_name(value: object) -> str:
    """How a class is written: 3 for 3.0."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _is_one_hot(y: np.ndarray) -> bool:
    return y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(axis=1) == 1).all())


def _decide(y: np.ndarray) -> tuple[str, str]:
    if y.dtype.kind in "USO":
        return "classification", "holds texts"
    if y.dtype.kind == "b":
        return "classification", "is true or false"
    if y.ndim > 1:
        return "regression", f"holds {y.shape[1]} numbers a row"
    if y.dtype.kind == "f" and not (y == np.floor(y)).all():
        return "regression", "holds numbers with decimals"
    count = len(np.unique(y))
    if count <= MOST_INTEGER_CLASSES:
        return "classification", f"has {count} whole-number value{'s' * (count != 1)}"
    return "regression", f"has {count} different numbers"


def _check_classes(path: str, ids: np.ndarray, classes: list[str], notes: list[str]) -> None:
    count = np.bincount(ids, minlength=len(classes))
    if len(classes) < 2 or (count > 0).sum() < 2:
        name = classes[int(count.argmax())]
        raise DataError(f"{path}: a single class, {name!r:.60}, in all {len(ids)} training rows; need at least 2")
    absent = [name for name, c in zip(classes, count, strict=True) if c == 0]
    if absent:
        notes.append(f"no training row of class {', '.join(absent[:6])}")


def _known_targets(y: np.ndarray, preprocess: Preprocess) -> tuple[np.ndarray | None, list[str]]:
    """Targets of a file to predict on, as the model counts them; None when they are of another kind."""
    if preprocess.task == "classification":
        if y.ndim == 2 and y.shape[1] == len(preprocess.classes) and y.dtype.kind in "fiub":
            return y.argmax(axis=1), []
        if y.ndim != 1:
            return None, []
        ids = {name: i for i, name in enumerate(preprocess.classes)}
        different, place = np.unique(y, return_inverse=True)
        texts = [_as_class(v) for v in different]
        known = np.array([ids.get(t, -100) for t in texts])
        found = known[place.reshape(-1)]
        if (found < 0).all() and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < len(ids):
            return y.astype(np.int64), []  # ids into the names that the file gave
        new = sorted({t for t, i in zip(texts, known, strict=True) if i < 0 and t})
        return found, [f"classes that the model does not know: {', '.join(new[:6])}"] if new else []
    if y.dtype.kind in "SO":
        values = parse_numbers(y, preprocess.separator)[0] if y.ndim == 1 and preprocess.outputs == 1 else None
        return (None, []) if values is None else (values.reshape(len(y), -1), [])
    if y.dtype.kind not in "fiub":
        return None, []
    values = y.astype(np.float64).reshape(len(y), -1)
    return (values, []) if values.shape[1] == preprocess.outputs else (None, [])


def _as_class(value: object) -> str:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        try:
            return class_name(float(text)) if text not in ("nan", "inf") else text
        except ValueError:
            return text
    return class_name(value)


def _hold_out(ids: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows): one permutation by the seed, of which each class gives its last share to the test."""
    order = np.concatenate(split_rows(len(ids), share, seed, stream=_TEST))
    total = min(max(round(len(ids) * share), 1), len(ids) - 1)
    want = np.bincount(ids) * share
    take = np.floor(want).astype(np.int64)
    take[np.argsort(take - want, kind="stable")[: total - take.sum()]] += 1  # the largest remainders
    held = np.zeros(len(ids), bool)
    for label, count in enumerate(take):
        if count:
            held[np.flatnonzero(ids[order] == label)[-count:]] = True
    return order[~held], order[held]


# -- features --------------------------------------------------------------------------------------------------------


def _features(
    raw: _Raw, known: np.ndarray, task: str, order: np.ndarray | None
) -> tuple[Preprocess, np.ndarray, np.ndarray | None]:
    """(preprocess learned from the known rows, features of all rows in this order, features of the test rows)."""
    if isinstance(raw.x, CsvColumns):
        made = fit_csv(raw.x, known, raw.target_index, task, raw.notes)
        features, notes = made.apply(raw.x, order)
        raw.notes += notes
        return made, features, None
    x = raw.x
    if x.dtype.kind == "b" or x.dtype.name in ("int16", "uint16", "uint32", "uint64"):
        x = x.astype(np.uint8 if x.dtype.kind == "b" else np.float32)
        raw.test_x = None if raw.test_x is None else raw.test_x.astype(x.dtype)
    if x.ndim > 2 or x.dtype == np.uint8:
        made = fit_array(raw.path, x, known, task, raw.target)
    else:
        x = x.reshape(len(x), -1)
        names = raw.names or [f"column {i + 1}" for i in range(x.shape[1])]
        made = fit_matrix(raw.path, x, names, known, task, raw.target, raw.notes)
    features, notes = made.apply(x, order)
    test_features = None
    if raw.test_x is not None:
        test_features, more = made.apply(raw.test_x)
        notes += [f"test rows: {note}" for note in more]
    raw.notes += notes
    return made, features, test_features


def _keys(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join(f"{k} {list(v.shape)}" for k, v in list(arrays.items())[:6]) + (", ..." if len(arrays) > 6 else "")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
