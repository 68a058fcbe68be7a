"""Rows that a program holds: a DataFrame of pandas or polars, an array, a list of rows."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, GradloomError
from .array_cells import cells_of
from .columns import Columns, array_columns
from .encoding import Encoding
from .fitting import fit_columns
from .parquet import arrow_columns, is_arrow
from .preprocess import Preprocess
from .readers import features_of_columns, read_columns, read_features

Read = tuple[np.ndarray, np.ndarray | None, list[str], list[str]]


def is_frame(data: object) -> bool:
    """Whether it has named columns, as a DataFrame of pandas or polars has them."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def has_texts(data: object) -> bool:
    """Whether it is a DataFrame with a column that is not of numbers."""
    frame: Any = data
    return is_frame(data) and any(np.asarray(frame[name].to_numpy()).dtype.kind not in "fiub" for name in frame.columns)


def learned(
    rows: Any, names: list[str] | None, labels: np.ndarray, task: str, **target: Any
) -> tuple[Preprocess, np.ndarray]:
    """(preprocessing learned from these rows, their features f32 [rows, features]).

    rows: an array of numbers [rows, columns], whose columns may have names; or a DataFrame with texts. labels: class
    ids i32 [rows], or targets f64 [rows, targets]. target: what the preprocessing is told of it, such as classes=[...].
    """
    with np.errstate(all="ignore"):
        if is_frame(rows):
            data = frame_columns(rows, "X")
        else:
            data = array_columns("X", rows, names or [f"column {i + 1}" for i in range(rows.shape[1])])
        everything = np.arange(data.rows)
        made = replace(fit_columns(data, everything, -1, task, [], {}), target="y", **target)
        encoding = Encoding(made, data, everything, labels, 0)
        features = made.apply(data)[0]
        encoding.cross_fit(features, everything)
    return made, features


def frame_columns(frame: Any, what: str, made: Preprocess | None = None) -> Columns:
    """The columns of a DataFrame, read as the preprocessing says that was made in training; DataError where two have
    one name. Errors call it `what`."""
    names = [str(name).strip() for name in frame.columns]  # as the names of a file are
    if len(set(names)) < len(names):
        raise DataError(f"{what}: two columns have one name among {', '.join(names):.200}; need different ones")
    return _columns(what, names, [_array_of(frame[name]) for name in frame.columns], True, made)


def _array_of(series: Any) -> np.ndarray:
    """The elements of a column; times with a zone, which polars would give in UTC without it, as objects."""
    if getattr(getattr(series, "dtype", None), "time_zone", None) is not None:
        return np.array(series.to_list(), object)
    return np.asarray(series.to_numpy())


def _columns(
    what: str, names: list[str], arrays: Sequence[np.ndarray], header: bool, made: Preprocess | None
) -> Columns:
    """The arrays, of numbers, texts or objects, as columns whose cells are read as those of a file are."""
    texts, commas = ([], {}) if made is None else (made.texts, made.commas)
    cells = [
        cells_of(array, f"{what}: column {name!r:.60}", name in texts, commas.get(name, False))
        for name, array in zip(names, arrays, strict=True)
    ]
    return Columns(what, names, cells, None, header)


def features_of(data: Any, preprocess: Preprocess) -> Read:
    """(features, targets where the data have them, notes, problems with those targets) for a trained model, as
    read_features gives them.

    data: the path of a file; a DataFrame or a table of pyarrow, whose columns are found by name; or rows in the order
    of the columns of the training: an array, or a list of lists. DataError for rows that are not like those of the
    training.
    """
    if isinstance(data, (str, os.PathLike)):
        return read_features(data, preprocess)
    if is_arrow(data):
        if preprocess.kind != "columns":
            raise DataError("rows: a table of pyarrow; the model needs arrays, as it was trained on")
        return features_of_columns(
            arrow_columns(data, "rows", preprocess.texts, preprocess.commas, preprocess.header), preprocess
        )
    if is_frame(data):
        if preprocess.kind == "columns" and preprocess.header:
            return features_of_columns(frame_columns(data, "rows", preprocess), preprocess)
        columns = [_array_of(data[name]) for name in data.columns]
        array = np.stack(columns, axis=1) if columns else np.zeros((len(data), 0))
    else:
        array = _as_array(data)
    if array.ndim < 2 or not len(array):
        raise DataError(f"rows: an array of shape {list(array.shape)}; need rows along the first axis")
    is_plain = array.dtype.kind in "fiub" and all(
        column.kind not in ("text", "encoded") for column in preprocess.columns
    )
    if preprocess.kind == "array" or is_plain:
        with np.errstate(all="ignore"):
            features, notes = preprocess.apply(array)
        return features, None, notes, []
    array = array.reshape(len(array), -1)
    if array.shape[1] != len(preprocess.columns):
        raise DataError(f"rows: {array.shape[1]} columns; need {len(preprocess.columns)} as in training")
    names = [c.name for c in preprocess.columns]
    return features_of_columns(_columns("rows", names, list(array.T), preprocess.header, preprocess), preprocess)


def _as_array(data: Any) -> np.ndarray:
    """An array of numbers as it is, NaN where elements are masked; rows that hold texts as objects, so that a number
    beside a text stays one."""
    if isinstance(data, np.ma.MaskedArray) and data.dtype.kind in "fiub":
        return np.asarray(np.ma.filled(data.astype(np.float64), np.nan))
    try:
        array = np.asarray(data)
        return np.array(data, dtype=object) if array.dtype.kind in "US" and not isinstance(data, np.ndarray) else array
    except (ValueError, TypeError):
        raise DataError(f"rows: {what_is(data)} of rows of different lengths; need rows of one length") from None


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


def kept_columns(path: str, names: Sequence[str], preprocess: Preprocess) -> dict[str, list[str]]:
    """name -> the cells of that column of a file with column names, as they stand there, for each of its rows.

    DataError for a file without such columns, or without column names.
    """
    where = os.path.basename(path).lower()
    if preprocess.kind != "columns" or not preprocess.header or where.endswith(".npz") or "idx" in where:
        raise DataError(
            f"{path}: has no columns with names to keep; need a .csv file with a header, or a .parquet file"
        )
    data = read_columns(path, [c.name for c in preprocess.columns], texts=names)
    made = {}
    for name in names:
        codes, texts = data.texts(data.find(name))
        decoded = np.array([text.decode("utf-8", "replace") for text in texts], object)
        made[name] = decoded[codes].tolist()
    return made
