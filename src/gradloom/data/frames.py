"""Rows that a program holds: a table (see table_columns.py), an array, a list of rows."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, GradloomError, SettingError
from ..base.terminal import printable
from .encoding.fitting import fit_columns
from .encoding.layout import order_of_columns
from .encoding.preprocess import Preprocess
from .encoding.target_encoding import Encoding
from .image_table import images_to_predict
from .reading.array_cells import array_columns
from .reading.cell_rules import CellRules
from .reading.columns import Lines, names_of
from .reading.parquet import is_arrow
from .reading.table_columns import arrays_of, columns_of_arrays, is_table, table_columns
from .reading.text_bytes import encoding_of, is_text_file
from .table import features_of_columns, read_columns, read_features

Read = tuple[Any, np.ndarray | None, list[str], list[str]]


def learned(
    rows: Any, names: list[str] | None, labels: np.ndarray, task: str, **target: Any
) -> tuple[Preprocess, np.ndarray]:
    """(preprocessing learned from these rows, their features f32 [rows, features]).

    rows: an array of numbers [rows, columns], whose columns may have names; or a table (see is_table). labels: class
    ids i32 [rows], or targets f64 [rows, targets]. target: fields of Preprocess, such as classes=[...].
    """
    with np.errstate(all="ignore"):
        if is_table(rows):
            data = table_columns(rows, "X")
        else:
            data = array_columns("X", rows, names or [f"column {i + 1}" for i in range(rows.shape[1])])
        everything = np.arange(data.rows)
        name = ", ".join(one.name for one in target.get("targets", ())) or "y"
        made = replace(fit_columns(data, everything, (), task, [], {}), target=name, **target)
        encoding = Encoding(made, data, everything, labels, 0)
        features = made.apply(data)[0]
        encoding.cross_fit(features, everything)
    return made, features


def features_of(data: Any, preprocess: Preprocess) -> Read:
    """(features, targets where the data have them, notes, problems with those targets) for a trained model, as
    read_features gives them.

    data: the path of a file; a DataFrame or a table of pyarrow, whose columns are found by name (see order_of_columns
    for a model without column names); or rows in the order of the columns of the training: an array, or a list of
    lists. For a model of images the paths of files and folders, one or a list: rows are ImageRows. DataError for rows
    that are not like those of the training.
    """
    if preprocess.kind == "images":
        if not isinstance(data, (str, os.PathLike)) and not (isinstance(data, (list, tuple)) and data):
            raise DataError(f"rows: {what_is(data)}; need the path of an image or of a folder, or a list of such")
        return images_to_predict(data, preprocess)
    if isinstance(data, (str, os.PathLike)):
        return read_features(data, preprocess)
    if is_table(data) and (is_arrow(data) or preprocess.kind == "columns"):
        return read_features(data, preprocess)
    order_notes: list[str] = []
    if is_table(data) and len(data.columns):
        order, order_notes = order_of_columns("rows", names_of("rows", map(str, data.columns)), preprocess)
        array = np.stack(arrays_of(data), axis=1)[:, order]
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
        return features, None, order_notes + notes, []
    array = array.reshape(len(array), -1)
    if array.shape[1] != len(preprocess.columns):
        raise DataError(f"rows: {array.shape[1]} columns; need {len(preprocess.columns)} as in training")
    names = [c.name for c in preprocess.columns]
    return features_of_columns(
        columns_of_arrays("rows", names, list(array.T), preprocess.header, preprocess.rules), preprocess
    )


def with_encoding(preprocess: Preprocess, encoding: str | None, data: Any) -> Preprocess:
    """The preprocessing, for rows in a file of this encoding; None: that of the training. SettingError for an encoding
    that is not known, and for rows that are no text file."""
    if encoding is None:
        return preprocess
    name = encoding_of(encoding)
    if not is_text_file(data):
        raise SettingError("{encoding} requires .csv or another text file; omit it", encoding=encoding)
    return replace(preprocess, encoding=name)


def features_with_warnings(data: Any, preprocess: Preprocess) -> np.ndarray:
    """The features of features_of; notes become warnings at the caller of the calling function."""
    features, _, notes, _ = features_of(data, preprocess)
    for note in notes:
        warnings.warn(printable(note), stacklevel=3)
    return features


def _as_array(data: Any) -> np.ndarray:
    """Numbers as an array, NaN where elements are masked; rows with texts as objects, which keeps numbers."""
    if isinstance(data, np.ma.MaskedArray) and data.dtype.kind in "fiub":
        return np.asarray(np.ma.filled(data.astype(np.float64), np.nan))
    try:
        array = np.asarray(data)
        return np.array(data, dtype=object) if array.dtype.kind in "US" and not isinstance(data, np.ndarray) else array
    except (ValueError, TypeError):
        raise DataError(f"rows: {what_is(data)} of rows of different lengths; need rows of one length") from None


@contextlib.contextmanager
def as_file(data: BinaryIO, what: str) -> Iterator[str]:
    """The path of a temporary .csv file with these bytes; errors inside the block name it `what`."""
    with tempfile.TemporaryDirectory(prefix="gradloom-") as folder:
        path = os.path.join(folder, "rows.csv")
        with open(path, "wb") as file:
            shutil.copyfileobj(data, file)
        try:
            yield path
        except GradloomError as error:
            raise error.edited(lambda text: text.replace(path, what)) from None


def kept_columns(path: str, names: Sequence[str], preprocess: Preprocess) -> dict[str, list[str]]:
    """name -> the unchanged cells of that column, for each row of a file with column names.

    DataError for a file without such columns, or without column names.
    """
    where = os.path.basename(path).lower()
    if preprocess.kind != "columns" or not preprocess.header or where.endswith(".npz") or "idx" in where:
        raise DataError(
            f"{path}: has no columns with names to keep; need a .csv file with a header, or a .parquet file"
        )
    return cells_of(path, names, preprocess)[0]


def cells_of(path: str, names: Sequence[str], preprocess: Preprocess) -> tuple[dict[str, list[str]], Lines | None]:
    """(name -> the unchanged cells of that column, for each row of a file of a table; the line on which each row ends,
    counted from 1, None for a file without lines). names: of columns, such as "column 3" in a file without header.

    DataError for a file without such columns.
    """
    rules = CellRules(names, encoding=preprocess.encoding, exact=True)
    expected = [c.name for c in preprocess.columns] if preprocess.header else []
    data = read_columns(path, expected, None if preprocess.header else False, rules)
    made = {}
    for name in names:
        codes, texts = data.texts(data.find(name))
        decoded = np.array([text.decode() for text in texts], object)
        made[name] = decoded[codes].tolist()
    return made, data.lines
