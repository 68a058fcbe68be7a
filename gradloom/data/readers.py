"""Files as training data: a CSV, an .npz, or a folder of idx files becomes one Table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..base.described import LONGEST
from ..base.errors import DataError, FileError, SettingError
from .columns import Columns
from .csv_file import read_csv
from .dataset import Dataset, split_rows
from .npz import keys_of, load_npz
from .preprocess import Preprocess, fit_array, fit_columns, fit_matrix
from .raw_table import X_KEYS, Y_KEYS, RawTable, idx_to_predict, read_raw
from .targets import check_classes, drop_rows_without_target, hold_out, known_targets, targets_of, targets_of_column


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
    raw = read_raw(Path(path), target)
    raw = drop_rows_without_target(raw)
    task, y, test_y, classes = targets_of(raw, task)
    n = len(y)
    if raw.test_x is None and test_split:
        if n < 2:
            raise DataError(f"{raw.path}: {n} row; need at least 2, one of them for the test")
        rows, held = hold_out(y if task == "classification" else np.zeros(n, np.int32), test_split, seed)
    else:
        rows, held = np.arange(n, dtype=np.int64), np.zeros(0, np.int64)
    known = rows[split_rows(len(rows), val_split, seed)[0]] if val_split else rows
    order = np.concatenate([rows, held]) if len(held) else None
    made, features, test_features = _features(raw, np.sort(known), task, order)
    labels = y if order is None else y[order]
    test_targets = test_y
    if task == "classification":
        made.classes = classes
        check_classes(raw.path, y[rows], classes, raw.notes)
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
    target: int | None = None
    if where.is_dir() or ".idx" in where.name or "-idx" in where.name:
        x, raw_y, note = idx_to_predict(where)
        notes.append(note)
        if x.size == 0:
            raise DataError(f"{where}: {list(x.shape)} images; need at least 1")
        features, more = preprocess.apply(x)
    elif where.name.lower().endswith(".npz"):
        arrays = load_npz(where)
        keys = {k.lower(): k for k in arrays}
        key = next((keys[k] for k in X_KEYS if k in keys), next(iter(arrays)) if len(arrays) == 1 else None)
        if key is None:
            raise DataError(f"{where}: holds {keys_of(arrays)}; need an array called x")
        if arrays[key].size == 0:
            raise DataError(f"{where}: {key!r:.60} of shape {list(arrays[key].shape)} is empty; need at least 1 row")
        y_key = next((keys[k] for k in Y_KEYS if k in keys), None)
        paired = y_key is not None and len(np.atleast_1d(arrays[y_key])) == len(np.atleast_1d(arrays[key]))
        raw_y = arrays[y_key] if y_key is not None and paired else None
        features, more = preprocess.apply(np.atleast_1d(arrays[key]))
    else:
        names = tuple(c.name for c in preprocess.columns) if preprocess.header else ()
        texts = [c.name for c in preprocess.columns if c.kind == "text"]
        data = read_csv(where, names, None if preprocess.header else False, texts)
        features, more = preprocess.apply(data)
        if preprocess.header and preprocess.target in data.names:
            target = data.names.index(preprocess.target)
        elif not preprocess.header and len(data.names) == len(preprocess.columns) + 1:
            target = preprocess.target_index
        if target is not None:
            targets, problems = targets_of_column(data, target, preprocess)
            return features, targets, notes + more, problems
    targets, problems = (None, []) if raw_y is None else known_targets(raw_y, preprocess)
    return features, targets, notes + more, problems


def _features(
    raw: RawTable, known: np.ndarray, task: str, order: np.ndarray | None
) -> tuple[Preprocess, np.ndarray, np.ndarray | None]:
    """(preprocess learned from the known rows, features of all rows in this order, features of the test rows)."""
    if isinstance(raw.x, Columns):
        made = fit_columns(raw.x, known, raw.target_index, task, raw.notes)
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
