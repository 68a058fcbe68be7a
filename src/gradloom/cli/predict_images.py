"""gradloom predict with a model of images: classes of image files and folders."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..base.json_tables import PREDICT
from .common import json_text, print_report, warn
from .csv_text import csv_line
from .predict_scores import agreements, print_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ..data.image_rows import ImageRows
    from ..tables.model import Model

_ROWS = 4096  # written at a time


def predict_images(
    model: Model, name: str, paths: list[str], out: str | None, cell: Callable[[str], str], json: bool, views: int,
    options: dict[str, Any],
) -> int:  # fmt: skip
    """Print or write a line for each image: its file, class, and the probability of each class.

    name: of the model's file. views: whose probabilities are averaged: the image, and so it changed at random as in
    the training. options: of gl.compile."""
    from ..data.image_table import images_to_predict
    from ..files import atomic_write
    from .saved_settings import Inputs

    rows, targets, notes, problems = images_to_predict(paths, model.preprocess)
    uses, warnings = None, list[str]()
    if targets is not None and len(paths) == 1:
        digest = Inputs(data=paths[0]).digests()["data"]
        uses, warnings = model.uses_of(paths[0], digest, rows, targets)
    for note in notes:
        (warn if " skipped: " in note else print_report)(note)
    for problem in problems:
        warn(problem)
    shares = _probabilities(model, rows, views, options)
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(text.encode("utf-8", "surrogateescape") for text in _csv(model, rows.files, shares, cell))
        print_report(f"{len(rows):,} predictions in {out}")
    elif not json:
        sys.stdout.writelines(_csv(model, rows.files, shares, cell))
    agreement: dict[str, Any] = {}
    if targets is not None:
        agreement = agreements(shares, targets, model.preprocess, uses)
        print_scores(agreement, warnings, model.preprocess)
        agreement |= {"warnings": warnings} if warnings else {}
    if json:
        answer = {
            "model": name, "data": " ".join(paths), "task": model.task, "target": model.target, "rows": len(rows),
            "out": out, "notes": notes + problems, **agreement, "classes": model.classes, "skipped": dict(rows.skipped),
        }  # fmt: skip
        if out is None:
            predicted = [model.classes[at] for at in shares.argmax(axis=1)]
            answer |= {"kept": {"file": rows.files}, "predictions": predicted, "probabilities": shares.tolist()}
        print(json_text(PREDICT, answer))
    return 0


def _probabilities(model: Model, rows: ImageRows, views: int, options: dict[str, Any]) -> np.ndarray:
    """f64 [images, classes], averaged over the views."""
    from ..data.image_table import View, augmentation

    names = model.about.get("augment")
    names = [one for one in names if isinstance(one, str) and one != "erase"] if isinstance(names, list) else []
    transforms = augmentation(names or ["crop"], rows.size, rows.channels)
    every = [model.probabilities(model.outputs(View(rows, transforms, number), **options)) for number in range(views)]
    return sum(every[1:], every[0]) / views


def _csv(model: Model, files: list[str], shares: np.ndarray, cell: Callable[[str], str]) -> Iterator[str]:
    """A header, and a line for each image, some at a time."""
    yield csv_line([*map(cell, ("file", model.target, *(f"p({name})" for name in model.classes)))])
    for start in range(0, len(files), _ROWS):
        part = shares[start : start + _ROWS]
        lines = zip(files[start : start + _ROWS], part.argmax(axis=1), part.tolist(), strict=True)
        yield "".join(csv_line([cell(file), cell(model.classes[at]), *map(repr, row)]) for file, at, row in lines)
