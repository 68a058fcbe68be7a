"""Rows that a program holds: a DataFrame of pandas or polars, an array, a list of rows."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, GradloomError
from .csv_file import read_csv
from .preprocess import Preprocess, fit_matrix
from .readers import read_features, read_table

Read = tuple[np.ndarray, np.ndarray | None, list[str], list[str]]


def is_frame(data: object) -> bool:
    """Whether it has named columns, as a DataFrame of pandas or polars has them."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def has_texts(data: object) -> bool:
    """Whether it is a DataFrame with a column that is not of numbers."""
    frame: Any = data
    return is_frame(data) and any(np.asarray(frame[name].to_numpy()).dtype.kind not in "fiub" for name in frame.columns)


def learned(rows: Any, names: list[str] | None, task: str, **target: Any) -> tuple[Preprocess, np.ndarray]:
    """(preprocessing learned from these rows, their features f32 [rows, features]).

    rows: an array of numbers [rows, columns], whose columns may have names; or a DataFrame with texts. target: what the
    preprocessing is told of the target, such as classes=[...].
    """
    with np.errstate(all="ignore"):
        if not is_frame(rows):
            known = names or [f"column {i + 1}" for i in range(rows.shape[1])]
            made = fit_matrix("X", rows, known, np.arange(len(rows)), task, "y", [])
            return replace(made, **target), made.apply(rows)[0]
    names = [str(name) for name in rows.columns]
    last = next(name for name in ("y", "y of fit", "".join(names) + "y") if name not in names)
    columns = [*(np.asarray(rows[name].to_numpy()) for name in rows.columns), np.arange(len(rows))]
    with _as_file([*names, last], columns, ",", "X") as path:
        table = read_table(path, last, "regression", test_split=0.0)
    made = replace(table.preprocess, **{"task": task, "target_mean": [], "target_std": [], **target})
    return made, np.asarray(table.train.data)


def features_of(data: Any, preprocess: Preprocess) -> Read:
    """(features, targets where the data have them, notes, problems with those targets) for a trained model, as
    read_features gives them.

    data: the path of a file; a DataFrame, whose columns are found by name; or rows in the order of the columns of the
    training: an array, or a list of lists. DataError for rows that are not like those of the training.
    """
    if isinstance(data, (str, os.PathLike)):
        return read_features(data, preprocess)
    if is_frame(data):
        names = [str(name) for name in data.columns]
        if len(set(names)) < len(names):
            raise DataError(f"rows: two columns have one name among {', '.join(names):.200}; need different ones")
        columns = [np.asarray(data[name].to_numpy()) for name in data.columns]
        if preprocess.kind == "columns" and preprocess.header:
            return _as_table(names, columns, preprocess)
        array = np.stack(columns, axis=1) if columns else np.zeros((len(data), 0))
    else:
        array = _as_array(data)
    if array.ndim < 2 or not len(array):
        raise DataError(f"rows: an array of shape {list(array.shape)}; need rows along the first axis")
    is_plain = array.dtype.kind in "fiub" and all(column.kind != "text" for column in preprocess.columns)
    if preprocess.kind == "array" or is_plain:
        with np.errstate(all="ignore"):
            features, notes = preprocess.apply(array)
        return features, None, notes, []
    array = array.reshape(len(array), -1)
    if array.shape[1] != len(preprocess.columns):
        raise DataError(f"rows: {array.shape[1]} columns; need {len(preprocess.columns)} as in training")
    return _as_table([c.name for c in preprocess.columns], list(array.T), preprocess)


def _as_array(data: Any) -> np.ndarray:
    """An array of numbers as it is; rows that hold texts as objects, so that a number beside a text stays one."""
    try:
        array = np.asarray(data)
        return np.array(data, dtype=object) if array.dtype.kind in "US" and not isinstance(data, np.ndarray) else array
    except (ValueError, TypeError):
        raise DataError(f"rows: {what_is(data)} of rows of different lengths; need rows of one length") from None


def _as_table(names: Sequence[str], columns: Sequence[np.ndarray], preprocess: Preprocess) -> Read:
    """The columns as a table that is read like a file: a cell means here what it means there."""
    head = names if preprocess.header else None
    with _as_file(head, columns, preprocess.separator, "rows") as path:
        return read_features(path, preprocess)


@contextlib.contextmanager
def _as_file(names: Sequence[str] | None, columns: Sequence[np.ndarray], separator: str, what: str) -> Iterator[str]:
    """The path of a CSV file of these columns, which goes with the block; errors of the block call it `what`."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    if names is not None:
        writer.writerow(names)
    writer.writerows(zip(*(_cells(column) for column in columns), strict=True))
    with as_file(io.BytesIO(text.getvalue().encode("utf-8", "surrogatepass")), what) as path:
        yield path


@contextlib.contextmanager
def as_file(data: BinaryIO, what: str) -> Iterator[str]:
    """The path of a .csv file with these bytes, which goes with the block; errors of the block call it `what`."""
    with tempfile.TemporaryDirectory(prefix="gradloom-") as folder:
        path = os.path.join(folder, "rows.csv")
        with open(path, "wb") as file:
            shutil.copyfileobj(data, file)
        try:
            yield path
        except GradloomError as error:
            raise type(error)(str(error).replace(path, what)) from None


def _cells(column: np.ndarray) -> list[str]:
    return ["" if value is None or value != value else _cell(value) for value in column.tolist()]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def kept_columns(path: str, names: Sequence[str], preprocess: Preprocess) -> dict[str, list[str]]:
    """name -> the cells of that column of a CSV file, as they stand there, for each of its rows.

    DataError for a file without such columns, or without column names.
    """
    where = os.path.basename(path).lower()
    if preprocess.kind != "columns" or not preprocess.header or where.endswith(".npz") or "idx" in where:
        raise DataError(f"{path}: has no columns with names to keep; need a .csv file with a header")
    data = read_csv(path, [c.name for c in preprocess.columns], texts=names)
    made = {}
    for name in names:
        codes, texts = data.texts(data.find(name))
        decoded = np.array([text.decode("utf-8", "replace") for text in texts], object)
        made[name] = decoded[codes].tolist()
    return made
