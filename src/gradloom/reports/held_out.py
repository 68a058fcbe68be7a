"""Held-out rows of a run with a table or images: the test rows, or else validation rows, and their predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import FileError, GradloomError
from ..base.reasons import unreadable
from ..base.terminal import plural
from ..data.encoding.target import of_target
from ..data.frames import features_of
from ..data.row_uses import TEST, TRAIN, VAL
from ..data.table import known_rows
from ..llm.input_digest import digest
from ..tables.model import Model

_PARTS = {TEST: "test", VAL: "validation"}
GIVEN = "given"  # rows of a file whose use in the training is not recorded
_OF_PART = {
    "test": "They were held out of the training.",
    "validation": "They were held out of the training and chose its best epoch.",
}


@dataclass(frozen=True)
class HeldOut:
    """Rows that a model is measured on, with their targets and the outputs of the model.

    path      the data file or folder
    part      "test" or "validation", which the training held out; "given" for the rows of another file
    rows      i64 [rows], their positions in the file, from 0
    features  as gl.predict takes them, [rows, features], or ImageRows
    targets   class ids i [rows], or numbers f64 [rows, targets] in the units of the data; several: see Preprocess
    outputs   f32 [rows, outputs] of the network
    digest    of the data file or folder
    relation  to the training, as far as it is known: one sentence; "" where a warning states it
    warnings  on training rows among them, and on rows that are left out
    notes     on cells of the file, such as unknown categories
    """

    path: str
    part: str
    rows: np.ndarray
    features: Any
    targets: np.ndarray
    outputs: np.ndarray
    digest: str = ""
    relation: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.rows)

    def of_target(self, model: Model, k: int, at: slice) -> HeldOut:
        """The rows in which one of several targets is known. model: as if it were the only one; at: its outputs."""
        known = np.flatnonzero(~np.isnan(self.targets[:, k]))
        targets = of_target(self.targets[known], k, model.task)
        outputs = np.ascontiguousarray(self.outputs[known][:, at])
        return replace(self, rows=self.rows[known], features=self.features[known], targets=targets, outputs=outputs)

    def described(self) -> str:
        """Such as: 300 test rows of churn.csv."""
        kind = "row" if self.part == GIVEN else f"{self.part} row"
        return f"{plural(self.count, kind)} of {os.path.basename(os.path.normpath(self.path))}"


def held_out(model: Model, settings: Mapping[str, Any], data: str | None = None) -> HeldOut:
    """The held-out rows of a run. settings: those of the run, with the paths of its files: data, test, val.

    data: another file or folder in place of these; of one that the training used, its held-out rows. FileError, with
    the reason in one line, where there are no such rows: no file, a changed one, a run without held-out rows.
    """
    if data is not None:
        return _of_file(model, data, None)
    if model.uses is None:
        raise FileError("the model does not hold which rows it was trained on")
    paths = _paths(settings)
    if not paths:
        raise FileError("the place of its data file is not recorded; need it as data")
    digests = {name: found for name, found in model.uses.digests.items() if name in paths}
    validation: HeldOut | None = None
    problems: list[str] = []
    for name in sorted(digests, key=lambda name: (name != "test", name != "data")):
        try:
            found = _of_file(model, paths[name], digests[name])
        except GradloomError as error:
            problems.append(str(error))
            continue
        if found.part == _PARTS[TEST]:
            return found
        validation = validation or found
    if validation is not None:
        return validation
    raise FileError(problems[0] if problems else "the run has no held-out rows")


def _paths(settings: Mapping[str, Any]) -> dict[str, str]:
    """The files of a run by the names of their digests: data, test, val.NAME. A model in memory has digests alone."""
    given = {name: settings.get(name) for name in ("data", "test")}
    found = {name: path for name, path in given.items() if isinstance(path, str) and not path.startswith("sha256:")}
    sets = settings.get("val")
    if isinstance(sets, Mapping):
        found |= {f"val.{name}": path for name, path in sets.items() if isinstance(path, str)}
    return found


def _of_file(model: Model, path: str, then: str | None) -> HeldOut:
    """The held-out rows of one file. then: its digest at the training, None for any file."""
    try:
        now = digest(path)
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    if then not in (None, now):
        raise FileError(f"{path}: has changed since the training: its digest was {then:.19} and is now {now:.19}")
    features, targets, notes, problems = features_of(path, model.preprocess)
    if targets is None:
        raise FileError(f"{path}: has no {model.target!r:.60} to compare predictions with")
    uses, warnings = model.uses_of(path, now, features, targets)
    if uses is None and then is not None and warnings:
        raise FileError(f"{path}: {warnings[0]}")
    usable = known_rows(targets, model.preprocess)
    parts = {GIVEN: np.full(len(usable), True)} if uses is None else {part: uses == use for use, part in _PARTS.items()}
    for part, chosen in parts.items():
        rows = np.flatnonzero(chosen & usable)
        if not len(rows):
            continue
        lost = int((chosen & ~usable).sum())
        if lost:
            count = f"{lost:,} of {plural(int(chosen.sum()), 'row')}"
            problems = [f"{count} count in no score: no {model.target!r:.60} that the model knows", *problems]
        kept = np.ascontiguousarray(features[rows]) if isinstance(features, np.ndarray) else features.subset(rows)
        of_all = chosen.all()  # else the notes are those of training rows, too
        return HeldOut(
            path, part, rows, kept, targets[rows], model.outputs(kept), now,
            _OF_PART.get(part, "" if warnings else _compared(model)), (*warnings, *problems) if of_all or lost else (),
            tuple(notes) if of_all else (),
        )  # fmt: skip
    missing = f"no row has a {model.target!r:.60} that the model knows" if uses is None else "the run held no rows out"
    raise FileError(f"{path}: {missing}")


def _compared(model: Model) -> str:
    """Whether training rows are among those of a file that the training did not read as a whole, if this is known."""
    if model.uses is None:
        return "Training rows may be among them: the model does not hold which rows it was trained on."
    if not len(model.uses.sample):
        return "Training rows may be among them: too many training rows equal one another to recognise them."
    trained, count = int((model.uses.uses == TRAIN).sum()), len(model.uses.sample)
    if count < trained:
        return f"None of {count:,} of the {trained:,} training rows, which were compared, is among them."
    return f"None of the {plural(trained, 'training row')} is among them."
