"""Training data: a CSV, a .parquet, an .npz, a folder of idx files, or a DataFrame becomes one Table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.described import LONGEST
from ..base.errors import DataError, FileError, SettingError
from ..base.habits import hinted
from .dataset import IGNORED, Dataset
from .encoding.fitting import fit_array, fit_columns
from .encoding.hints import far_numbers
from .encoding.layout import check_layout, order_of_columns
from .encoding.preprocess import Preprocess
from .encoding.roles import Roles
from .encoding.several import drop_rows_without_targets, known_of_each, read_several, scale_each, targets_of_each
from .encoding.target import Target, taken_labels, task_of
from .encoding.target_encoding import Encoding
from .encoding.targets import (
    check_classes,
    drop_rows_without_target,
    known_targets,
    target_scales,
    targets_of,
    targets_of_column,
)
from .reading.cell_rules import PLAIN, UTF_8, CellRules, missing_words
from .reading.columns import Columns
from .reading.csv_file import read_csv
from .reading.kinds import need_numbers
from .reading.npz import keys_of, load_npz
from .reading.parquet import is_parquet, read_parquet
from .reading.raw_table import Y_KEYS, RawTable, idx_to_predict, key_of_rows
from .reading.table_columns import is_table, table_columns
from .reading.text_bytes import encoding_of, is_text_file
from .row_uses import TEST, TRAIN, VAL, RowUses
from .table_split import TableSplit


@dataclass
class Table:
    """Training data: features, targets, and how they were made.

    task         "classification" or "regression"; "mixed" for several targets of both kinds
    train, test  Dataset; features f32 (n, d), or as in the file (n, d) for images; labels i32 ids (classification) or
                 standardised f32 (n, targets) (regression); of several targets with classes a tuple, for each ids
                 (-100: missing) or standardised f32 (n,) (NaN: missing). The rows of train are in the order
                 of the seed
    test_from    "file" when the file brought its test rows, "folder" when they are a part of a folder of images,
                 "--test" when they are of another one, "held out" when they were taken from the others, "the latest"
                 when these are the latest rows, "" if none
    test_targets in the units of the file (regression); of several targets f64 (n, targets), see Preprocess
    notes        for the user: decisions, columns left out, cells filled in
    val          the latest rows before the test, to validate on, where the rows are split by time
    val_split    the share of the training rows that fit is to validate on (of those before `val` was taken)
    """

    path: str
    task: str
    train: Dataset
    test: Dataset | None
    test_from: str
    preprocess: Preprocess
    test_targets: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)
    val: Dataset | None = None
    val_split: float = 0.0
    uses: RowUses | None = None  # the use of each row of the file

    def take_test(self, features: np.ndarray, targets: np.ndarray) -> None:
        """The test rows that the file brought; targets as in `test_targets`."""
        self.test, self.test_from, self.test_targets = (
            Dataset(features, self.preprocess.labels(targets)),
            "file",
            targets,
        )

    def labels_of(self, rows: Dataset, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(labels of the target k in these rows, ids [rows] or numbers [rows, targets], whether each is known). Of
        several targets numbers are [rows, 1]."""
        labels = rows.labels
        assert labels is not None
        if not self.preprocess.targets:
            return labels, np.ones(rows.n, bool)
        own = labels[k] if isinstance(labels, tuple) else labels[:, k]
        return (own, own != IGNORED) if own.dtype.kind == "i" else (own[:, None], ~np.isnan(own))

    def each_target(self, rows: Dataset) -> list[tuple[Preprocess, np.ndarray]]:
        """(the preprocessing as if it were the only target, its known labels in these rows) of each target."""
        made = [(one, *self.labels_of(rows, k)) for k, (one, _) in enumerate(self.preprocess.each_target)]
        return [(one, labels[known]) for one, labels, known in made]


@np.errstate(all="ignore")  # overflow is checked explicitly
@hinted
def read_table(
    data: Any,
    target: str | Sequence[str] | None = None,
    task: str | None = None,
    test_split: float = 0.2,
    val_split: float | None = 0.0,
    seed: int = 0,
    *,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    time: str | None = None,
    weight: str | None = None,
    test: Any = None,
    missing: Sequence[str] = (),
    encoding: str | None = None,
) -> Table:
    """Read a table for training.

    data        the path of a .csv, .csv.gz, .parquet or .npz file, or of a folder of idx files; or a DataFrame of
                pandas or polars, or a table of pyarrow, which is read as a file with these columns is (the index of a
                DataFrame is no column)
    target      the column (CSV, Parquet) or array (.npz) to predict; None: the last column, or the conventional name.
                A list of columns: several targets; a row in which some are empty trains the others
    task        "classification" or "regression", of all targets; None: decided from each target
    test_split  share of the rows (of each class) held out for the test when the file brings no test rows; 0: none
    val_split   the validation share that fit will take from the training rows: they are kept out of the statistics.
                None: 0.15 of a table of at least 100 training rows, else none (Table.val_split)
    drop        columns that are not used; categorical, numeric: columns that are texts, or numbers, whatever they hold
    time        a column of dates or times, or of numbers that stand for times: it becomes features, the test rows are
                the latest, and `val` of the table the latest of the others
    weight      a column of how much each row weighs in training: numbers of at least 0
    test        test rows with their targets, a path or a table; then none are held out
    missing     words that are missing values in every column, such as ["unknown", "-999"], besides "", NA, ? and the
                like; a word that is a number stands for all spellings of it
    encoding    of the text files, data and test, such as "cp1252"; None: UTF-8. A byte order mark goes before it. The
                preprocessing keeps missing and encoding for new rows

    DataError for a column that is not there, SettingError for one that is named for two things.
    """
    _check_arguments(task, encoding, data, test)
    words, name = missing_words(missing), UTF_8 if encoding is None else encoding_of(encoding)
    raw = read_several(data, target, CellRules(missing=words, encoding=name))
    roles = Roles(drop, categorical, numeric, time, weight)
    _check_columns(raw, words, roles, test)
    uses = RowUses(np.zeros(len(raw.y), np.uint8), raw.array, raw.test_array)
    raw = drop_rows_without_targets(raw) if raw.targets else drop_rows_without_target(raw)
    found = roles.of(raw.x, raw.target_places) if isinstance(raw.x, Columns) else {}
    weights = _weights(raw, found)
    if weights is not None and not weights.all():
        weights = _without_weightless(raw, weights)
    targets, task, y, test_y, classes = _targets(raw, task)
    n = len(y)
    split = TableSplit(raw, found, val_split, seed)
    if raw.test_x is None and test is None and test_split:
        split.hold_out_test(y if y.dtype == np.int32 else np.zeros(n, np.int32), test_split)
    split.choose_validation()
    rows, val_rows, held, known = split.rows, split.val_rows, split.held, split.known()
    by_time, val_split, in_fit = split.by_time, split.val_split, split.in_fit
    del split
    # A large table has no room for wide numbers of rows, and for second copies of them and of the targets
    number = np.int32 if n < 1 << 31 else np.int64
    order: np.ndarray = np.concatenate([rows, val_rows, held], dtype=number)
    known = known.astype(number)
    rows, val_rows, held = np.split(order, [len(rows), len(rows) + len(val_rows)])
    for part_of, use in ((rows, VAL if in_fit else TRAIN), (val_rows, VAL), (held, TEST), (known, TRAIN)):
        uses.uses[raw.places(part_of)] = use
    scales = None if targets or task == "classification" else _scales(raw, y, known)
    known.sort()
    scale_each(raw, targets, y, known)
    raw.y = y
    raw.notes += _on_missing(raw, words)
    made, features, test_features = _features(raw, known, (task, targets), order, y, found, seed, (words, name), uses)
    if scales is not None:
        made.target_mean, made.target_std = scales
    elif not targets:
        made.classes = classes
        check_classes(raw.path, y[rows], classes, raw.notes)
    labels = taken_labels(made.labels(y), order)
    _check_described(raw.path, made)

    records = made.records()

    def part(start: int, stop: int, weigh: bool = False) -> Dataset:
        weighed = weights[order[start:stop]] if weigh and weights is not None else None
        rows = Dataset(features[start:stop], taken_labels(labels, slice(start, stop)), weights=weighed)
        rows.records = records
        return rows

    end = len(rows) + len(val_rows)
    table = Table(raw.path, task, part(0, len(rows), True), None, "", made, None, raw.notes)
    table.val = part(len(rows), end) if len(val_rows) else None
    table.val_split, table.uses = val_split, uses
    if test is not None:
        table.test, table.test_targets = labelled(test, table, "test on")
        table.test_from = "--test"
    elif test_features is not None:
        assert test_y is not None
        table.take_test(test_features, test_y)
    elif len(held):
        table.test, table.test_targets = part(end, n), y[held]
        table.test_from = "held out" if by_time is None else "the latest"
    return table


def _targets(raw: RawTable, task: str | None) -> tuple[list[Target], str, np.ndarray, np.ndarray | None, list[str]]:
    """(several targets, else none; task, targets, test targets and class names as of targets_of)."""
    if not raw.targets:
        return [], *targets_of(raw, task)
    targets, values = targets_of_each(raw, task)
    return targets, task_of(targets), values, None, []


def _check_arguments(task: str | None, encoding: str | None, data: Any, test: Any) -> None:
    if task not in (None, "classification", "regression"):
        raise SettingError(setting="task", seen=task, need="classification or regression")
    if encoding is not None and not (is_text_file(data) or is_text_file(test)):
        raise SettingError("{encoding} requires .csv or another text file; omit it", encoding=encoding)


def _check_columns(raw: RawTable, words: Sequence[str], roles: Roles, test: Any) -> None:
    """SettingError for settings of columns where there are none, and for test rows where the file has its own."""
    if not isinstance(raw.x, Columns):
        if words:
            raise SettingError(f"{raw.path}: holds arrays without columns; omit {{missing}}", missing=...)
        if roles:
            raise roles.refused(f"{raw.path}: holds arrays without columns")
    if test is not None and raw.test_x is not None:
        raise SettingError(f"{raw.path}: has its own test rows; omit {{test}}", test=...)


def labelled(data: Any, table: Table, use: str = "validate on") -> tuple[Dataset, np.ndarray]:
    """(encoded rows of another file or table, their targets in the units of the data). Rows without a known target are
    left out, with a note in the table; DataError if none remains."""
    made = table.preprocess
    features, targets, notes, problems = read_features(data, made)
    path = data if isinstance(data, (str, os.PathLike)) else "test"
    if targets is None:
        raise DataError(f"{path}: has no {made.target!r:.60} to {use}; need rows with their targets")
    known = known_rows(targets, made)
    if not known.any():
        raise DataError(f"{path}: no row has a {made.target!r:.60} that the training rows have")
    left_out = int((~known).sum())
    lost = [f"{left_out:,} rows without a usable target left out"] * bool(left_out)
    table.notes += [f"{path}: {note}" for note in [*notes, *problems, *lost]]
    is_class = made.task == "classification" and not made.targets
    targets = targets[known].astype(np.int32) if is_class else targets[known]
    return Dataset(features[known], made.labels(targets)), targets


def known_rows(targets: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """The rows whose target is known, bool [rows]; of several targets one at least. targets: as read_features has
    them."""
    if preprocess.targets:
        return ~np.isnan(targets).all(axis=1)
    return targets >= 0 if preprocess.task == "classification" else np.isfinite(targets).all(axis=1)


def _on_missing(raw: RawTable, words: Sequence[str]) -> list[str]:
    """A note with the number of cells of each word that is declared missing."""
    if not words or not isinstance(raw.x, Columns):
        return []
    found = dict.fromkeys(words, 0)
    for index in range(len(raw.x.names)):
        marks = raw.x.cells[index].marks
        for word in words:
            found[word] += marks.get(word, 0)
    counts = ", ".join(f"{word!r:.60} in {count:,} cell{'s' * (count != 1)}" for word, count in found.items())
    return [f"missing values: {counts}"]


def _weights(raw: RawTable, roles: Mapping[int, str]) -> np.ndarray | None:
    """The weight of each row; None without a weight column."""
    index = next((index for index, role in roles.items() if role == "weight"), None)
    if index is None:
        return None
    assert isinstance(raw.x, Columns)
    name = raw.x.names[index]
    values = need_numbers(raw.x, index, f"weight column {name!r:.60}")
    narrow = values.astype(np.float32)  # as training takes them
    bad = np.flatnonzero(~(np.isfinite(narrow) & (values >= 0)) | ((narrow == 0) & (values > 0)))
    if len(bad):
        value = values[bad[0]]
        seen = "missing" if np.isnan(value) else f"{value:g}"
        need = "a number of at least 0" if not value > 0 or np.isinf(value) else "one that float32 holds"
        raise DataError(f"{raw.x.where(int(bad[0]))}: weight column {name!r:.60} is {seen}; need {need}")
    raw.notes.append(f"row weights in training: {name!r:.60}")
    return values


def _without_weightless(raw: RawTable, weights: np.ndarray) -> np.ndarray:
    """The weights above 0; removes the other rows from the table."""
    rows = np.flatnonzero(weights)
    assert isinstance(raw.x, Columns)
    if not len(rows):
        raise DataError(f"{raw.path}: all {len(weights)} rows weigh 0; need some above 0")
    count = len(weights) - len(rows)
    raw.notes.append(f"{count:,} of {len(weights):,} rows left out: they weigh 0")
    raw.x, raw.y = raw.x.keep(rows), raw.y[rows]
    return weights[rows]


def _scales(raw: RawTable, y: np.ndarray, known: np.ndarray) -> tuple[list[float], list[float]]:
    """(mean, deviation) of each target over the known rows."""
    values = np.reshape(y, (len(y), -1))[known].astype(np.float64)
    if isinstance(raw.x, Columns) and y.ndim == 1:
        raw.notes += far_numbers(raw.x, y.astype(np.float64), known, f"target {raw.target!r:.60}")
    mean, std = target_scales(values, f"{raw.path}: target {raw.target!r:.60}")
    if min(std) == 0:
        raise DataError(
            f"{raw.path}: target {raw.target!r:.60} is {values[0][0]:g} in every training row; need different values"
        )
    return mean.tolist(), std.tolist()


def _check_described(path: str, made: Preprocess) -> None:
    """DataError if a saved model could not be read: names that are not texts, or too long."""
    text = made.to_json()
    if len(json.dumps(text)) > LONGEST - (1 << 20):
        raise DataError(f"{path}: names, texts and classes take {len(text):,} characters; need fewer or shorter ones")
    try:
        Preprocess.from_json(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


@np.errstate(all="ignore")
def read_features(data: Any, preprocess: Preprocess) -> tuple[np.ndarray, np.ndarray | None, list[str], list[str]]:
    """(features, targets where the data have them, notes, problems with those targets) for a trained model.

    data: the path of a file, or a table whose columns are found by name (see is_table).
    The targets are class ids (-100 for a class that the model does not know) or floats in the units of the file.
    """
    if not isinstance(data, (str, os.PathLike)):
        if not is_table(data):
            raise DataError(f"read_features: got {what_is(data)}; need a path, or a DataFrame")
        return features_of_columns(table_columns(data, "rows", preprocess.rules, preprocess.header), preprocess)
    where = Path(data)
    if not where.exists():
        raise FileError(f"{where}: no such file or folder")
    raw_y: np.ndarray | None = None
    notes: list[str] = []
    if where.is_dir() or ".idx" in where.name or "-idx" in where.name:
        x, raw_y, notes = idx_to_predict(where)
        if x.size == 0:
            raise DataError(f"{where}: {list(x.shape)} images; need at least 1")
        features, more = preprocess.apply(x)
    elif where.name.lower().endswith(".npz"):
        arrays = load_npz(where)
        keys = {k.lower(): k for k in arrays}
        key = key_of_rows(keys)
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
        header = None if preprocess.header else False
        columns = read_columns(where, names, header, preprocess.rules)
        return features_of_columns(columns, preprocess)
    targets, problems = (None, []) if raw_y is None else known_targets(raw_y, preprocess)
    return features, targets, notes + more, problems


def read_columns(
    path: str | os.PathLike[str],
    expect: Sequence[str] = (),
    header: bool | None = None,
    rules: CellRules = PLAIN,
) -> Columns:
    """The columns of a .parquet file or, by any other name, of a CSV file; arguments as for read_csv."""
    if is_parquet(path):
        return read_parquet(Path(path), header is not False, rules)
    return read_csv(path, expect, header, rules)


@np.errstate(all="ignore")
def features_of_columns(
    data: Columns, preprocess: Preprocess
) -> tuple[np.ndarray, np.ndarray | None, list[str], list[str]]:
    """read_features of a table."""
    notes: list[str] = []
    if not preprocess.header and data.is_named and data.lines is None:  # a table, whose columns have names of their own
        order, notes = order_of_columns(data.path, data.names, preprocess)
        data = replace(data, names=[data.names[i] for i in order], cells=[data.cells[i] for i in order])
    notes += check_layout(data, preprocess)
    features, more = preprocess.apply(data)
    notes += more
    if preprocess.targets:
        targets, problems = known_of_each(data, preprocess)
        return features, targets, notes, problems
    target: int | None = None
    if preprocess.header and preprocess.target in data.names:
        target = data.names.index(preprocess.target)
    elif not preprocess.header and len(data.names) == len(preprocess.columns) + 1:
        target = preprocess.target_index
    targets, problems = (None, []) if target is None else targets_of_column(data, target, preprocess)
    return features, targets, notes, problems


def _features(
    raw: RawTable,
    known: np.ndarray,
    task: tuple[str, list[Target]],
    order: np.ndarray,
    y: np.ndarray,
    roles: Mapping[int, str],
    seed: int,
    reading: tuple[list[str], str],
    uses: RowUses,
) -> tuple[Preprocess, np.ndarray, np.ndarray | None]:
    """(preprocess learned from the known rows, features of all rows in this order, features of the test rows).

    task: of the table, with its targets where there are several; y: the targets, class ids or numbers, of all rows;
    reading: the words that are missing values, and the encoding;
    uses: gets a sample of the training rows."""
    order_or_none = None if np.array_equal(order, np.arange(len(y))) else order
    if isinstance(raw.x, Columns):
        made = fit_columns(raw.x, known, raw.target_places, task[0], raw.notes, roles)
        made.targets = task[1]
        made.target, (made.missing, made.encoding) = raw.target, reading
        encoding = Encoding(made, raw.x, known, y, seed)
        features, notes = made.apply(raw.x, order_or_none)
        uses.take_sample(features, y, order, known)
        encoding.cross_fit(features, order)
    else:
        made = fit_array(raw.path, raw.x, known, task[0], raw.target)
        features, notes = made.apply(raw.x, order_or_none)
        uses.take_sample(features, y, order, known)
    test_features = None
    if raw.test_x is not None:
        test_features, more = made.apply(raw.test_x)
        notes += [f"test rows: {note}" for note in more]
    raw.notes += notes
    return made, features, test_features
