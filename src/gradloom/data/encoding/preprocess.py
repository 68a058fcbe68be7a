"""Preprocessing of a table: cells of a file to features, and outputs of the model to predictions.

It is learned from the training rows and saved with the model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ...base.described import Described, parse
from ...base.errors import DataError, SettingError
from ...base.memory import memory
from ...base.record import shortened
from ..reading.array_cells import array_columns
from ..reading.cell_rules import UTF_8, CellRules, missing_words
from ..reading.cells import composed
from ..reading.columns import Columns, find_column
from ..reading.csv_dialect import SEPARATORS
from ..reading.text_bytes import encoding_of
from .column import Column
from .features import check_narrow, grouped, is_usable, listed, write_features
from .side_by_side import side_by_side
from .target import MIXED, TASKS, Labels, Target, as_ids, task_of

_DEFAULTS: dict[str, object] = {"missing": [], "encoding": UTF_8, "targets": []}  # left out of the description

_LEARNED = ("mean", "std", "target_mean", "target_std")
_MOST_TEXT, _LEAST_TEXT = 400, 60  # characters of a column in a record; of one among many columns
_MANY_COLUMNS = 1000
CHANNELS, LEAST_SIDE = (1, 3, 4), 8  # of arrays that are images
LARGEST = 4096  # pixels of a side of an image


class OneTarget(NamedTuple):
    """One target of a table: the preprocessing as if it were the only one, and its columns among the outputs."""

    preprocess: Preprocess
    outputs: slice


@dataclass
class Preprocess:
    """Maps the columns of a file, or arrays, to features, and outputs of the model to predictions.

    kind "columns": CSV columns or the columns of a 2-D array, each encoded by its Column.
    kind "array": images and the like, of shape `shape`; (x - mean) / std is part of the model, the data stay as read.
    kind "images": image files, as pixels in 0..1 of shape `shape`, [channels, height, width]; likewise.
    targets: several of a table, each with its task, classes and scale, which are then empty here; `target` lists their
    names, and `task` may be "mixed". With several, an array of targets is f64 [rows, targets]: numbers in the units of
    the data, class ids, NaN where the target is missing or a class is unknown.
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
    target_grouped: bool = False  # as Column.grouped, of a target of numbers
    missing: list[str] = field(default_factory=list)  # words that are missing values
    encoding: str = UTF_8  # of text files, unless a reader is given another one
    targets: list[Target] = field(default_factory=list)  # where there are several

    @property
    def each_target(self) -> list[OneTarget]:
        """Every target by itself, in the order of the outputs; of a single one, this preprocessing."""
        if not self.targets:
            return [OneTarget(self, slice(0, self.outputs))]
        made, at = [], 0
        for one in self.targets:
            is_number = one.task == "regression"
            alone = replace(
                self, task=one.task, target=one.name, classes=one.classes, target_mean=[one.mean] * is_number,
                target_std=[one.std] * is_number, target_index=one.index, target_grouped=one.grouped, targets=[],
            )  # fmt: skip
            made.append(OneTarget(alone, slice(at, at + one.width)))
            at += one.width
        return made

    @property
    def target_names(self) -> list[str]:
        """The names of the targets."""
        return [one.name for one in self.targets] or [self.target]

    @property
    def target_places(self) -> list[int]:
        """The columns of the targets in the training file, ascending."""
        places = [one.index for one in self.targets] or [self.target_index]
        return sorted(place for place in places if place is not None)

    @property
    def inputs(self) -> int:
        """Features per row."""
        return sum(c.width for c in self.columns) if self.kind == "columns" else math.prod(self.shape)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of image files, and of arrays [height, width, channels] or [channels, height,
        width] with 1, 3 or 4 channels and 8 pixels or more on each side; None of other data."""
        if self.kind == "columns" or len(self.shape) != 3:
            return None
        first, middle, last = self.shape
        if self.kind == "images" or (first in CHANNELS and min(middle, last) >= LEAST_SIDE):
            return first, middle, last
        return (last, first, middle) if last in CHANNELS and min(first, middle) >= LEAST_SIDE else None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row of features."""
        return tuple(self.shape) if self.kind == "images" else (self.inputs,)

    @property
    def outputs(self) -> int:
        """Outputs per row: a logit per class, or a number per target."""
        if self.targets:
            return sum(one.width for one in self.targets)
        return len(self.classes) if self.task == "classification" else len(self.target_mean)

    @property
    def texts(self) -> list[str]:
        """The names of the columns whose cells are read as texts, numbers among them."""
        return [c.name for c in self.columns if c.kind in ("text", "encoded")]

    @property
    def commas(self) -> dict[str, bool]:
        """For the name of each column of numbers, the target among them, whether commas in its cells are decimal, as in
        training."""
        numbers = {c.name: c.grouped for c in self.columns if c.kind in ("number", "time")}
        for one, _ in self.each_target:
            if one.task == "regression" and one.kind == "columns":
                numbers[one.target] = one.target_grouped
        return {name: self.separator != "," and not is_grouped for name, is_grouped in numbers.items()}

    @property
    def rules(self) -> CellRules:
        """The rules for reading cells, as in training."""
        return CellRules(frozenset(self.texts), self.commas, self.missing, self.encoding)

    def to_json(self) -> str:
        entry = {item.name: getattr(self, item.name) for item in fields(self)}
        entry["targets"] = [one.described() for one in self.targets]
        entry = {name: value for name, value in entry.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        entry["columns"] = [column.described() for column in self.columns]
        return json.dumps(entry, ensure_ascii=False, allow_nan=False)

    def records(self) -> dict[str, dict[str, Any]]:
        """Every field as a plain value: "table", with a text for each column; "scaling", the numbers learned from the
        training rows. A resumed run must have the same."""
        most = _MOST_TEXT if len(self.columns) <= _MANY_COLUMNS else _LEAST_TEXT
        texts = {f"column {i}": column.record(most) for i, column in enumerate(self.columns, 1)}
        table: dict[str, Any] = {"columns": len(self.columns)} | {name: named for name, (named, _) in texts.items()}
        scaling: dict[str, Any] = {name: learned for name, (_, learned) in texts.items()}
        for item in fields(self):
            if item.name == "targets":
                table |= {f"target {i}": shortened(str(one), _MOST_TEXT) for i, one in enumerate(self.targets, 1)}
            elif item.name != "columns":
                record = scaling if item.name in _LEARNED else table
                record[item.name] = shortened(getattr(self, item.name), 100 * _MOST_TEXT)
        return {"table": table, "scaling": scaling}

    @classmethod
    def from_json(cls, text: str) -> Preprocess:
        """The result of to_json; DataError for any other text."""
        return cls.from_described(parse(text, "preprocess"))

    @classmethod
    def from_described(cls, entry: Described) -> Preprocess:
        """From parsed JSON; DataError for keys, types or numbers that fit_* and read_table do not produce."""
        made = cls(
            kind=entry.text("kind", ("columns", "array", "images")),
            task=entry.text("task", (*TASKS, MIXED)),
            target=composed(entry.text("target")),
            columns=[Column.from_described(column) for column in entry.parts("columns")],
            shape=entry.wholes("shape", 1),
            mean=entry.number("mean"),
            std=entry.number("std", positive=True),
            classes=entry.texts("classes"),
            target_mean=entry.numbers("target_mean"),
            target_std=entry.numbers("target_std", positive=True),
            header=entry.flag("header"),
            separator=entry.text("separator", tuple(SEPARATORS)),
            target_index=entry.whole_or_none("target_index", 0),
            target_grouped=entry.flag("target_grouped") if entry.has("target_grouped") else False,
            missing=entry.texts("missing") if entry.has("missing") else [],
            encoding=entry.text("encoding") if entry.has("encoding") else UTF_8,
            targets=list(map(Target.from_described, entry.parts("targets"))) if entry.has("targets") else [],
        )
        entry.end()
        if bool(made.columns) != (made.kind == "columns") or bool(made.shape) == (made.kind == "columns"):
            raise DataError(
                f"preprocess: {len(made.columns)} columns and shape {made.shape} are not of one {made.kind}"
            )
        try:
            if missing_words(made.missing) != made.missing or encoding_of(made.encoding) != made.encoding:
                raise DataError(f"preprocess: missing {made.missing!r:.60} and encoding {made.encoding!r:.60} are odd")
        except SettingError as error:
            raise DataError(f"preprocess: {error}") from None
        made._check_targets()
        if not 0 < made.inputs < 1 << 53:
            raise DataError("preprocess: no feature is made of a row, or too many; need 1 or more")
        if made.kind == "images" and not (
            len(made.shape) == 3 and made.shape[0] in (1, 3) and max(made.shape) <= LARGEST and not made.target_mean
        ):
            raise DataError(f"preprocess: shape {made.shape} of a {made.task}; need [1 or 3, height, width] of classes")
        if made.kind != "columns" and not is_usable(made.mean, made.std):
            raise DataError(f"preprocess: mean {made.mean:g} and std {made.std:g} are beyond float32")
        return made

    def _check_targets(self) -> None:
        """DataError for targets that fit_* and read_table do not produce."""
        if self.targets:
            names = {one.name for one in self.targets}
            is_bare = not (self.classes or self.target_mean or self.target_std or self.target_grouped)
            if not is_bare or len(names) < max(len(self.targets), 2) or self.task != task_of(self.targets):
                raise DataError(f"preprocess: {len(self.targets)} targets are not those of one {self.task} table")
        for one, _ in self.each_target:
            classes, numbers = len(one.classes), len(one.target_mean)
            wrong = (classes < 2 or numbers) if one.task == "classification" else (classes or not numbers)
            if wrong or numbers != len(one.target_std):
                counts = f"{classes} classes, {numbers} means and {len(one.target_std)} deviations of targets"
                raise DataError(f"preprocess: {counts} are not those of a {one.task}")
            if one.target_grouped and (one.task != "regression" or one.separator == "," or one.kind != "columns"):
                raise DataError("preprocess: target_grouped is of a number in a file whose separator is no comma")
            width = len(self.columns) + len(self.targets or [self])
            if not one.header and (one.target_index is None or one.target_index >= width):
                raise DataError(
                    f"preprocess: target_index is {one.target_index}; need a place among {len(self.columns)} columns"
                )

    # -- features ----------------------------------------------------------------------------------------------------

    def apply(self, data: Columns | np.ndarray, order: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """(features, notes on filled cells) of the rows of a file or an array. order: indices of the rows to return.
        DataError for rows that do not match the training data."""
        if self.kind == "images":
            raise DataError("input: the model needs image files, or folders of such")
        data = data if isinstance(data, Columns) else np.asarray(data)
        if self.kind == "array":
            if isinstance(data, Columns):
                raise DataError(f"{data.path}: is a table; the model needs arrays of shape {self.shape}")
            return self._apply_array(data, order), []
        if not isinstance(data, Columns):
            data = array_columns("input", data, missing=self.missing)
        notes: list[str] = []
        features = self._empty(data.rows, data.path)
        used, at = [], 0
        for index, column in zip(self._positions(data, notes), self.columns, strict=True):
            if column.width:
                used.append((index, column, features[:, at : at + column.width]))
                at += column.width
        for more in side_by_side(lambda one: write_features(data, *one, order), used, data.rows):
            notes += more
        return features, grouped(notes)

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

    def _empty(self, rows: int, what: str) -> np.ndarray:
        """Features of 0, f32 [rows, inputs]; DataError when the memory that is free does not hold them."""
        need, there = 4 * rows * self.inputs, memory()
        if there is not None and need > there.available:
            size = f"{rows:,} rows of {self.inputs:,} features take {need:,} bytes"
            raise DataError(f"{what}: {size}; {there.available:,} are free; leave out rows or columns of many texts")
        return np.zeros((rows, self.inputs), np.float32)

    def _positions(self, data: Columns, notes: list[str]) -> list[int]:
        """The index of each input column in this file."""
        if not data.is_named:
            if len(data.names) != len(self.columns):
                raise DataError(f"{data.path}: {len(data.names)} columns; need {len(self.columns)} as in training")
            return list(range(len(data.names)))
        if self.header:
            if not data.header:
                raise DataError(
                    f"{data.path}: its first line holds no column names; need {listed([c.name for c in self.columns])}"
                )
            used = [c.name for c in self.columns if c.kind != "unused"]
            lost = [name for name in used if name not in data.names]
            if lost:
                find_column(data.path, data.names, lost[0], True)  # raises, and names the nearest
            known = {c.name for c in self.columns} | set(self.target_names)
            extra = [name for name in data.names if name not in known]
            if extra:
                notes.append(f"not used, because the model does not know them: {listed(extra)}")
            return [data.names.index(c.name) if c.name in data.names else -1 for c in self.columns]
        width = len(data.names)
        targets = self.target_places
        if width == len(self.columns) + len(targets):
            return [i for i in range(width) if i not in targets]
        if width == len(self.columns):
            return list(range(width))
        all_of = f"{len(self.columns) + len(targets)} with the target{'s' * (len(targets) > 1)}"
        raise DataError(f"{data.path}: {width} columns; need {len(self.columns)}, or {all_of}")

    # -- targets -----------------------------------------------------------------------------------------------------

    def labels(self, targets: np.ndarray) -> Labels:
        """Targets in the units of the model: class ids i32 [rows], or standardised numbers f32 [rows, targets]. Of
        several with classes a tuple, for each ids, -100 where they are unknown, or numbers f32 [rows]; a missing number
        is NaN."""
        if not self.targets:
            return targets if self.task == "classification" else self.targets_to_outputs(targets)
        made = tuple(
            as_ids(column) if one.task == "classification" else one.targets_to_outputs(column)[:, 0]
            for (one, _), column in zip(self.each_target, targets.T, strict=True)
        )
        return np.stack(made, axis=1) if self.task == "regression" else made

    def targets_to_outputs(self, targets: np.ndarray) -> np.ndarray:
        """Regression targets in the units of the model."""
        mean, std = np.array(self.target_mean), np.array(self.target_std)
        outputs = ((targets.reshape(len(targets), -1) - mean) / std).astype(np.float32)
        check_narrow(outputs[~np.isnan(targets.reshape(outputs.shape))], self.target)
        return outputs

    def outputs_to_targets(self, outputs: np.ndarray) -> np.ndarray:
        """Regression outputs of the model in the units of the target, f64 [rows, targets]."""
        return outputs.astype(np.float64).reshape(len(outputs), -1) * np.array(self.target_std) + np.array(
            self.target_mean
        )
