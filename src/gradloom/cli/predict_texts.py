"""gradloom predict for a language model: scores of texts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.json_tables import PREDICT
from ..base.terminal import plural
from .common import json_text, print_report
from .csv_text import csv_line

if TYPE_CHECKING:
    from ..llm.predict import Predictions

TASKS = {"classify": "classification", "regress": "regression", "reward": "reward"}
SEVERAL = ";"  # between the labels of a text in a cell


@dataclass(frozen=True)
class TextUse:
    """The options of the command."""

    model: str
    data: str
    lora: str | None
    out: str | None
    keep: list[str]
    encoding: str | None
    cell: Any  # how texts are written
    json: bool
    label: str  # key of the label in the data
    reading: Mapping[str, Any]  # of the texts
    options: Mapping[str, Any]  # context, and those of gl.compile


def predict_texts(use: TextUse) -> int:
    """Run the command; returns its exit code."""
    from ..base.errors import DataError, SettingError
    from ..files import atomic_write
    from ..llm.model import load
    from ..llm.predict import predict
    from ..llm.text_rows import text_rows
    from .language import load_adapter

    loaded = load(use.model)
    adapter = load_adapter(loaded, use.lora)
    rows = text_rows(use.data, use.encoding)
    for name in use.keep:
        if any(name not in row for row in rows):
            raise DataError(f"{use.data}: has no {name!r:.60} in each row; {{keep}} requires one", keep=name)
    kept = {name: [_cell(row[name]) for row in rows] for name in use.keep}
    found = predict(loaded, rows, adapter, data_options=use.reading, **use.options)
    for name in (name for name in use.keep if name in _columns(found, use, kept)):
        raise SettingError(f"{{keep}}: {name!r:.60} is the name of a column of predictions", keep=name)
    notes = [text for text in str(found.report).split("\n")[1:] if text.startswith(("cut", "names of"))]
    for note in notes:
        print_report(note)
    if use.out is not None:
        with atomic_write(use.out) as file:
            file.writelines(text.encode() for text in _csv(found, use, kept))
        print_report(f"{len(found):,} predictions in {use.out}")
    elif not use.json:
        sys.stdout.writelines(_csv(found, use, kept))
    scores, unknown = _agreement(found, [row.get(use.label) for row in rows])
    if scores is not None:
        print_report(_shown(scores, use.label))
    if unknown:
        notes.append(f"not compared: {plural(unknown, 'row')} with another {use.label!r} than the model knows")
        print_report(notes[-1])
    if use.json:
        print(json_text(PREDICT, _answer(found, use, kept, notes, scores or {})))
    return 0


def _answer(
    found: Predictions, use: TextUse, kept: dict[str, list[str]], notes: list[str], scores: dict[str, Any]
) -> dict[str, Any]:
    """The object that --json prints."""
    answer: dict[str, Any] = {
        "model": use.model, "data": use.data, "task": TASKS[found.head.kind], "target": _target(found, use),
        "rows": len(found), "out": use.out, "notes": notes, "lora": use.lora, **scores,
    }  # fmt: skip
    if found.head.labels:
        answer["classes"] = list(found.head.labels)
    if use.out is None:
        answer |= ({"kept": kept} if kept else {}) | {"predictions": found.values}
        shares = found.probabilities
        answer |= {} if shares is None else {"probabilities": shares.tolist()}
    return answer


def _target(found: Predictions, use: TextUse) -> str:
    return "reward" if found.head.kind == "reward" else use.label


def _columns(found: Predictions, use: TextUse, kept: Mapping[str, Any]) -> list[str]:
    """The names of the columns that are not kept ones."""
    target = _target(found, use)
    return [f"predicted {target}" if target in kept else target, *(f"p({name})" for name in found.head.labels)]


def _csv(found: Predictions, use: TextUse, kept: dict[str, list[str]]) -> Iterator[str]:
    """A header, and a line for each text. Several labels of a text are separated by ;."""
    head = _columns(found, use, kept)
    shares = found.probabilities
    yield csv_line([*map(use.cell, (*kept, *head))])
    for i, value in enumerate(found.values):
        if found.head.several:
            shown = use.cell(SEVERAL.join(value))
        else:
            shown = use.cell(value) if isinstance(value, str) else repr(value)
        numbers = [] if shares is None else [*map(repr, shares[i].tolist())]
        yield csv_line([*(use.cell(cells[i]) for cells in kept.values()), shown, *numbers])


def _cell(value: Any) -> str:
    """The text of a kept value: labels of a list separated by ;, other values as JSON."""
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return SEVERAL.join(value)
    if value is None or isinstance(value, str):
        return value or ""
    return repr(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)


def _agreement(found: Predictions, labels: list[Any]) -> tuple[dict[str, Any] | None, int]:
    """(scores of the predictions against the labels of the data, as --json prints them; None where there are none,
    labels that are not of the model)."""
    if found.head.kind == "reward" or all(label is None for label in labels):
        return None, 0
    scores = (_of_numbers if found.head.kind == "regress" else _of_classes)(found, labels)
    is_given = [label is not None and (label != "" or found.head.several) for label in labels]
    return scores, sum(is_given) - scores["rows_with_target"]


def _of_classes(found: Predictions, labels: list[Any]) -> dict[str, Any]:
    known = set(found.head.labels)
    right = []
    for value, label in zip(found.values, labels, strict=True):
        if found.head.several and isinstance(label, str):  # of a .csv
            label = label.split(SEVERAL) if label else []
        listed = isinstance(label, (list, tuple))
        names = {str(one) for one in label} if listed else {str(label)}
        if label is not None and names <= known and listed == found.head.several:
            right.append(names == (set(value) if listed else {value}))
    if not right:
        return {"rows_with_target": 0}
    share = sum(right) / len(right)
    unc = math.sqrt(share * (1 - share) / (len(right) - 1)) if len(right) > 1 else math.nan
    return {"rows_with_target": len(right), "accuracy": share, "accuracy_unc": unc}


def _of_numbers(found: Predictions, labels: list[Any]) -> dict[str, Any]:
    import numpy as np

    from ..tables.scores import regression_scores

    true = np.array([_number(label) for label in labels])
    there = np.isfinite(true)
    if not there.any():
        return {"rows_with_target": 0}
    return {"rows_with_target": int(there.sum()), **regression_scores(np.array(found.values)[there], true[there])}


def _number(label: Any) -> float:
    """The number of a label, also of the text in a CSV cell; nan for anything else."""
    if label is None or isinstance(label, bool):
        return math.nan
    try:
        return float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _shown(scores: dict[str, Any], label: str) -> str:
    count = scores["rows_with_target"]
    if not count:
        return f"no row has a {label!r} that the model knows"
    if "accuracy" in scores:
        unc = scores["accuracy_unc"]
        shown = f"accuracy {scores['accuracy']:.4f}" + ("" if math.isnan(unc) else f" +- {unc:.4f}")
    else:
        r2 = "" if math.isnan(scores["r2"]) else f"R2 {scores['r2']:.6g}, "
        shown = f"{r2}rmse {scores['rmse']:.6g}"

    return f"{shown} on {plural(count, 'row')} that {'has' if count == 1 else 'have'} a {label!r}"
