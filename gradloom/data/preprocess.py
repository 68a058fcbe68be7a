"""Preprocessing of a table: from the cells of a file to the numbers that a model sees, and from its outputs back.

It is learned from the training rows and saved with the model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

import numpy as np

from ..base.described import Described, parse
from ..base.errors import DataError
from ..base.memory import memory
from .columns import MOST_COLUMNS, Columns, find_column
from .csv_file import SEPARATORS
from .kinds import need_numbers, numbers_of, said_of

MOST_CATEGORIES = 100  # of a text column; the most frequent ones are kept
_LARGE = 1e300


@dataclass
class Column:
    """One input column: a number (imputed, standardised), a text (one-hot), or unused (with the reason)."""

    name: str
    kind: str  # number | text | unused
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    categories: list[str] = field(default_factory=list)
    reason: str = ""

    @classmethod
    def from_described(cls, said: Described) -> Column:
        """What asdict made; DataError otherwise."""
        made = cls(
            name=said.text("name"),
            kind=said.text("kind", ("number", "text", "unused")),
            median=said.number("median"),
            mean=said.number("mean"),
            std=said.number("std", positive=True),
            categories=said.texts("categories"),
            reason=said.text("reason"),
        )
        said.end()
        if bool(made.categories) != (made.kind == "text"):
            raise DataError(
                f"column {made.name!r:.60}: {len(made.categories)} categories of a column of kind {made.kind!r:.60}"
            )
        known = [category.encode() for category in made.categories]
        if known != sorted(known):
            raise DataError(f"column {made.name!r:.60}: its categories are not in order")
        return made

    @property
    def width(self) -> int:
        """How many features it makes."""
        return {"number": 1, "text": len(self.categories), "unused": 0}[self.kind]


@dataclass
class Preprocess:
    """Maps the columns of a file, or arrays, to features, and outputs of the model to predictions.

    kind "columns": CSV columns or the columns of a 2-D array, each encoded by its Column.
    kind "array": images and the like, of shape `shape`; (x - mean) / std is part of the model, the data stay as read.
    """

    kind: str
    task: str
    target: str
    columns: list[Column] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    mean: float = 0.0
    std: float = 1.0
    classes: list[str] = field(default_factory=list)
    target_mean: list[float] = field(default_factory=list)
    target_std: list[float] = field(default_factory=list)
    header: bool = True
    separator: str = ","
    target_index: int | None = None

    @property
    def inputs(self) -> int:
        """Features per row."""
        return math.prod(self.shape) if self.kind == "array" else sum(c.width for c in self.columns)

    @property
    def outputs(self) -> int:
        """Outputs per row: a logit per class, or a number per target."""
        return len(self.classes) if self.task == "classification" else len(self.target_mean)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocess:
        """What to_json wrote; DataError for any other text."""
        return cls.from_described(parse(text, "preprocess"))

    @classmethod
    def from_described(cls, said: Described) -> Preprocess:
        """What asdict made; DataError where a key, a type or a number is not one that fit_* and read_table make."""
        made = cls(
            kind=said.text("kind", ("columns", "array")),
            task=said.text("task", ("classification", "regression")),
            target=said.text("target"),
            columns=[Column.from_described(column) for column in said.parts("columns")],
            shape=said.wholes("shape", 1),
            mean=said.number("mean"),
            std=said.number("std", positive=True),
            classes=said.texts("classes"),
            target_mean=said.numbers("target_mean"),
            target_std=said.numbers("target_std", positive=True),
            header=said.flag("header"),
            separator=said.text("separator", tuple(SEPARATORS)),
            target_index=said.whole_or_none("target_index", 0),
        )
        said.end()
        if bool(made.columns) != (made.kind == "columns") or bool(made.shape) != (made.kind == "array"):
            raise DataError(
                f"preprocess: {len(made.columns)} columns and shape {made.shape} are not of one {made.kind}"
            )
        classes, targets = len(made.classes), len(made.target_mean)
        wrong = (classes < 2 or targets) if made.task == "classification" else (classes or not targets)
        if wrong or targets != len(made.target_std):
            counts = f"{classes} classes, {targets} means and {len(made.target_std)} deviations of targets"
            raise DataError(f"preprocess: {counts} are not those of a {made.task}")
        if not made.header and (made.target_index is None or made.target_index > len(made.columns)):
            raise DataError(
                f"preprocess: target_index is {made.target_index}; need a place among {len(made.columns)} columns"
            )
        if not 0 < made.inputs < 1 << 53:
            raise DataError("preprocess: no feature is made of a row, or too many; need 1 or more")
        if made.kind == "array" and not _usable(made.mean, made.std):
            raise DataError(f"preprocess: mean {made.mean:g} and std {made.std:g} are beyond float32")
        return made

    # -- features ----------------------------------------------------------------------------------------------------

    def apply(self, data: Columns | np.ndarray, order: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """(features, notes on what had to be filled in) for rows of a file or of an array; for these rows in this order
        where it is given. DataError for rows that are not like those of the training."""
        if self.kind == "array":
            if isinstance(data, Columns):
                raise DataError(f"{data.path}: is a table; the model needs arrays of shape {self.shape}")
            return self._apply_array(data, order), []
        if isinstance(data, Columns):
            return self._apply_columns(data, order)
        return self._apply_matrix(data, order)

    def _apply_array(self, data: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        if data.dtype.kind not in "fiub":
            raise DataError(
                f"input: dtype {data.dtype!s:.60}; need numbers of shape [rows, {', '.join(map(str, self.shape))}]"
            )
        if list(data.shape[1:]) != self.shape and list(data.shape[1:]) != [self.inputs]:
            raise DataError(f"input: rows of shape {list(data.shape[1:])}; need {self.shape} as in training")
        rows = np.reshape(data, (len(data), self.inputs))
        rows = rows if rows.dtype in (np.uint8, np.float32) else rows.astype(np.float32)
        for start in range(0, len(rows), 1024):
            bad = np.argwhere(~np.isfinite(rows[start : start + 1024]))
            if len(bad):
                row = start + int(bad[0][0])
                raise DataError(f"input: row {row} holds {rows[row, bad[0][1]]}; need finite numbers within float32")
        return rows if order is None else rows[order]

    def _apply_columns(self, data: Columns, order: np.ndarray | None) -> tuple[np.ndarray, list[str]]:
        notes: list[str] = []
        features = self._empty(data.rows, data.path)
        at = 0
        for index, column in zip(self._positions(data, notes), self.columns, strict=True):
            out = features[:, at : at + column.width]
            at += column.width
            if column.kind == "number":
                values = self._numbers(data, index, column, notes)
                out[:, 0] = values if order is None else values[order]
                _check_narrow(out, [column.name])
            elif column.kind == "text":
                codes, texts = data.texts(index)
                _one_hot(codes if order is None else codes[order], texts, column, out, notes)
        return features, notes

    def _empty(self, rows: int, what: str) -> np.ndarray:
        """Features of 0, f32 [rows, inputs]; DataError when the memory that is free does not hold them."""
        need, there = 4 * rows * self.inputs, memory()
        if there is not None and need > there.available:
            size = f"{rows:,} rows of {self.inputs:,} features take {need:,} bytes"
            raise DataError(f"{what}: {size}; {there.available:,} are free; leave out rows or columns of many texts")
        return np.zeros((rows, self.inputs), np.float32)

    def _positions(self, data: Columns, notes: list[str]) -> list[int]:
        """The index of each input column in this file."""
        if self.header:
            if not data.header:
                raise DataError(
                    f"{data.path}: its first line holds no column names; need {_list([c.name for c in self.columns])}"
                )
            used = [c.name for c in self.columns if c.kind != "unused"]
            lost = [name for name in used if name not in data.names]
            if lost:
                find_column(data.path, data.names, lost[0], True)  # raises, and names the nearest
            known = {c.name for c in self.columns} | {self.target}
            extra = [name for name in data.names if name not in known]
            if extra:
                notes.append(f"not used, because the model does not know them: {_list(extra)}")
            return [data.names.index(c.name) if c.name in data.names else -1 for c in self.columns]
        width = len(data.names)
        assert self.target_index is not None
        if width == len(self.columns) + 1:
            return [i for i in range(width) if i != self.target_index]
        if width == len(self.columns):
            return list(range(width))
        raise DataError(
            f"{data.path}: {width} columns; need {len(self.columns)}, or {len(self.columns) + 1} with the target"
        )

    def _numbers(self, data: Columns, index: int, column: Column, notes: list[str]) -> np.ndarray:
        values = need_numbers(data, index, f"column {column.name!r:.60}")
        _check_finite(values, data, column.name)
        return _standardise(values, column, notes, data.marks(index))

    def _apply_matrix(self, data: np.ndarray, order: np.ndarray | None) -> tuple[np.ndarray, list[str]]:
        data = np.reshape(data, (len(data), -1))
        if data.dtype.kind not in "fiub":
            raise DataError(f"input: dtype {data.dtype!s:.60}; need numbers")
        if data.shape[1] != len(self.columns):
            raise DataError(f"input: {data.shape[1]} columns; need {len(self.columns)} as in training")
        features = self._empty(len(data), "input")
        used = np.array([c.kind == "number" for c in self.columns])
        kept = [c for c in self.columns if c.kind == "number"]
        median, mean, std = (np.array([getattr(c, name) for c in kept]) for name in ("median", "mean", "std"))
        counts = np.zeros(len(kept), np.int64)
        at_once = max((1 << 18) // data.shape[1], 1)
        for start in range(0, len(data), at_once):
            part = slice(start, start + at_once)
            values = (data[part] if order is None else data[order[part]])[:, used].astype(np.float64)
            bad = np.argwhere(np.isinf(values))
            if len(bad):
                row = start + int(bad[0][0])
                name = kept[bad[0][1]].name
                where = row if order is None else order[row]
                raise DataError(f"input: row {where}: column {name!r:.60} is inf; need finite numbers")
            empty = np.isnan(values)
            counts += empty.sum(axis=0)
            features[part] = (np.where(empty, median, values) - mean) / std
            _check_narrow(features[part], [c.name for c in kept])
        notes = []
        if counts.any():
            texts = [f"{c.name} ({n})" for c, n in zip(kept, counts, strict=True) if n]
            notes.append(f"empty cells filled with the training median: {_list(texts)}")
        return features, notes

    # -- targets -----------------------------------------------------------------------------------------------------

    def targets_to_outputs(self, targets: np.ndarray) -> np.ndarray:
        """Regression targets in the units of the model."""
        mean, std = np.array(self.target_mean), np.array(self.target_std)
        outputs = ((targets.reshape(len(targets), -1) - mean) / std).astype(np.float32)
        _check_narrow(outputs, [self.target] * outputs.shape[1])
        return outputs

    def outputs_to_targets(self, outputs: np.ndarray) -> np.ndarray:
        """Regression outputs of the model in the units of the target, f64 [rows, targets]."""
        return outputs.astype(np.float64).reshape(len(outputs), -1) * np.array(self.target_std) + np.array(
            self.target_mean
        )


# -- learning it ----------------------------------------------------------------------------------------------------


def fit_columns(data: Columns, train: np.ndarray, target: int, task: str, notes: list[str]) -> Preprocess:
    """The columns of a table, from its training rows; `notes` takes what a person should know."""
    made = Preprocess(
        "columns", task, data.names[target], header=data.header, separator=data.separator, target_index=target
    )
    for index, name in enumerate(data.names):
        if index == target:
            continue
        if data.missing(index).all():
            raise DataError(
                f"{data.path}: column {name!r:.60} is empty in all {data.rows} rows; remove it from the file"
            )
        values = numbers_of(data, index, f"column {name!r:.60}")
        if values is not None:
            _check_finite(values, data, name)
            made.columns.append(_number_column(name, values[train]))
            notes += said_of(data, index, name)
        else:
            made.columns.append(_text_column(name, *data.texts(index), train))
    return _checked(made, data.path, notes)


def fit_matrix(
    path: str, data: np.ndarray, names: list[str], train: np.ndarray, task: str, target: str, notes: list[str]
) -> Preprocess:
    """The columns of a 2-D array, from its training rows."""
    made = Preprocess("columns", task, target)
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path}: {len(names):,} columns; need at most {MOST_COLUMNS:,}")
    for index, name in enumerate(names):
        values = data[:, index].astype(np.float64)
        if np.isnan(values).all():
            raise DataError(f"{path}: column {name!r:.60} is NaN in all {len(values)} rows; remove it")
        _check_finite(values, path, name)
        made.columns.append(_number_column(name, values[train]))
    return _checked(made, path, notes)


def _usable(mean: float, std: float) -> bool:
    """Whether float32 holds the mean, the deviation and its inverse: the model subtracts and multiplies in float32."""
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        narrow = np.float32(std)
        return bool(np.isfinite([np.float32(mean), narrow, 1 / narrow]).all())


def fit_array(path: str, data: np.ndarray, train: np.ndarray, task: str, target: str) -> Preprocess:
    """One mean and one standard deviation for images and the like, from the training rows, in pieces."""
    total = squares = 0.0
    count = 0
    for start in range(0, len(train), 1024):
        part = data[train[start : start + 1024]].astype(np.float64)
        total += part.sum()
        squares += np.square(part).sum()
        count += part.size
    if not np.isfinite(total + squares):
        raise DataError(f"{path}: some element is NaN or inf; need finite numbers")
    mean = total / count
    std = float(np.sqrt(max(squares / count - mean * mean, 0.0)))
    if std == 0:
        raise DataError(f"{path}: every element of every training row is {mean:g}; need data that differ")
    if not _usable(mean, std):
        raise DataError(
            f"{path}: mean {mean:g} and deviation {std:g} of the elements are beyond float32; scale the data"
        )
    return Preprocess("array", task, target, shape=[int(s) for s in data.shape[1:]], mean=float(mean), std=std)


def _number_column(name: str, values: np.ndarray) -> Column:
    known = values[~np.isnan(values)]
    if known.size == 0:
        return Column(name, "unused", reason="empty in the training rows")
    if known.min() == known.max():
        return Column(name, "unused", reason="constant")
    median = float(np.median(known))
    if not np.isfinite(median):  # of two numbers whose sum is beyond f64
        median = float(np.median(known / 2)) * 2
    filled = np.where(np.isnan(values), median, values)
    return Column(name, "number", median, *_mean_and_deviation(filled))


def _mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Of numbers that differ, also where their squares are beyond f64."""
    mean, std = float(values.mean()), float(values.std())
    if not (np.isfinite(mean) and np.isfinite(std)) or std == 0:
        scale = float(abs(values).max())
        scaled = values / scale
        mean, std = float(scaled.mean()) * scale, float(scaled.std()) * scale
    return mean, std or float(values.max() - values.min())


def _text_column(name: str, codes: np.ndarray, texts: list[bytes], train: np.ndarray) -> Column:
    counts = np.bincount(codes[train], minlength=len(texts))
    seen = np.flatnonzero(counts)
    if len(seen) == 1:
        return Column(name, "unused", reason="constant")
    if len(seen) > MOST_CATEGORIES and 2 * len(seen) > len(train):
        return Column(name, "unused", reason=f"{len(seen)} different texts in {len(train)} rows")
    ordered = sorted(seen.tolist(), key=lambda code: texts[code])
    most = sorted(sorted(ordered, key=lambda code: -counts[code])[:MOST_CATEGORIES], key=lambda code: texts[code])
    return Column(name, "text", categories=[texts[code].decode() for code in most])


def _checked(made: Preprocess, path: str, notes: list[str]) -> Preprocess:
    unused = [f"{c.name} ({c.reason})" for c in made.columns if c.kind == "unused"]
    if made.inputs == 0:
        raise DataError(f"{path}: no column is left to learn from: {_list(unused) or 'the target is the only one'}")
    if unused:
        notes.append(f"columns left out: {_list(unused)}")
    return made


def _standardise(values: np.ndarray, column: Column, notes: list[str], marks: dict[str, int]) -> np.ndarray:
    """(values - mean) / std, with the median for NaN. marks: what stood in the cells that are NaN, and how often."""
    empty = np.isnan(values)
    if empty.any():
        count = int(empty.sum())
        text = "1 empty cell" if count == 1 else f"{count} empty cells"
        if marks:
            shown = [f"{n} {mark!r}" for mark, n in sorted(marks.items(), key=lambda item: -item[1])]
            text += f" ({_list(shown)} among them)" if sum(marks.values()) < count else f" ({_list(shown)})"
        notes.append(f"{column.name}: {text} filled with the training median {column.median:g}")
        values = np.where(empty, column.median, values)
    if column.std > _LARGE:  # differences might be beyond f64
        return values / column.std - column.mean / column.std
    return (values - column.mean) / column.std


def _check_narrow(values: np.ndarray, names: list[str]) -> None:
    """DataError where standardised numbers [rows, names] went beyond float32."""
    if not np.isfinite(values).all():
        name = names[int(np.argwhere(~np.isfinite(values))[0][1])]
        raise DataError(f"column {name!r:.60}: a number is too far from those of the training rows; need it in float32")


def _one_hot(codes: np.ndarray, texts: list[bytes], column: Column, out: np.ndarray, notes: list[str]) -> None:
    """Writes a 1 into out, f32 [rows, categories], for each row with a category. codes [rows]: of its text."""
    places = {category.encode(): place for place, category in enumerate(column.categories)}
    of_text = np.array([places.get(text, -1) for text in texts], np.int64)
    place = of_text[codes]
    known = np.flatnonzero(place >= 0)
    out[known, place[known]] = 1
    rows = len(codes) - len(known)
    if rows:
        new = sorted({texts[code] for code in np.unique(codes[place < 0])})
        shown = _list([text.decode("utf-8", "replace") for text in new])
        notes.append(f"{column.name}: {rows} row{'s' * (rows != 1)} with a text unknown from training: {shown}")


def _check_finite(values: np.ndarray, data: Columns | str, name: str) -> None:
    """DataError for an infinite number in a column of a table, or of the array of the file that is named."""
    bad = np.flatnonzero(np.isinf(values))
    if bad.size:
        where = f"{data} row {bad[0]}" if isinstance(data, str) else data.where(int(bad[0]))
        raise DataError(f"{where}: column {name!r:.60} is {values[bad[0]]}; need a finite number or an empty cell")


def _list(texts: list[str], most: int = 6) -> str:
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
