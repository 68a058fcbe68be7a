"""Sections Model quality and Worst rows of a report, and the same numbers for --json."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.errors import GradloomError
from ..data.frames import cells_of
from ..data.reading.columns import Lines
from ..tables.model import Model
from ..train.metric import UNCERTAINTY
from .compared import Measured
from .figures import class_figures, importance_figure, number_figures, shown
from .held_out import HeldOut, held_out
from .images import image_url, is_image
from .importance import Importance, importance
from .markup import Markup, folded_html, heading_html, image_html, list_html, table_html, warnings_html
from .page import Section
from .quality import MOST_CURVES, Classes, Numbers, quality
from .run_files import RunFiles
from .summary import Score, scores_of

LONGEST = 400  # characters of a cell
_CELLS = 8  # columns of a table of worst rows
_CLASSES = 50  # rows of a table of classes
_TARGETS = 20  # of several targets, with a section of their own


@dataclass(frozen=True)
class Cells:
    """Cells of the most important columns of a file, name -> the cell of each row; and the line on which each row ends,
    from 1. Empty, and None, for a file without columns or lines."""

    of: Mapping[str, list[str]] = field(default_factory=dict)
    lines: Lines | None = None


def quality_sections(
    run: RunFiles, of: str, data: str | None, seconds: float, left_out: list[str], measured: list[Measured]
) -> list[Section]:
    """Model quality on the held-out rows of a table or of images; the reason, in one line, where there are none; no
    section for a run of another kind.

    data: a file in place of the held-out rows. seconds: for the importance. left_out: takes the reason; measured: the
    result.
    """
    title = f"Model quality{of}"
    if run.model is None:
        reason = run.no_model or ("data requires a model of a table or of images" if data is not None else "")
        return _without(title, run, reason, left_out) if reason else []
    try:
        places = run.settings or {"data": run.result.get("data")}  # a folder without settings.toml
        rows = held_out(run.model, places, data)
        each = [_OneTarget(*one) for one in _targets_of(run.model, rows)]
        columns = importance(run.model, rows, seconds=seconds)
    except GradloomError as error:
        return _without(title, run, str(error), left_out)
    cells = _cells(run.model, rows, columns)
    if not run.model.preprocess.targets:
        (one,) = each
        facts = quality_facts(run.model, rows, one.found, columns, cells)
        measured.append(Measured(run.name, run.model.target, rows, one.found, facts))
        return _sections(run, title, bool(of), one, columns, cells)
    facts = _facts_of_targets(run.model, rows, each, columns, cells)
    measured.append(Measured(run.name, run.model.target, rows, None, facts))
    made = [_overview(title, rows, each, columns)]
    for one in each[:_TARGETS]:
        made += _sections(run, f"{title}: {one.model.target}", True, one, None, cells)
    return made


@dataclass(frozen=True)
class _OneTarget:
    """A model as if this were its only target, the rows in which it is known, and its quality on these."""

    model: Model
    rows: HeldOut
    found: Classes | Numbers


def _targets_of(model: Model, rows: HeldOut) -> list[tuple[Model, HeldOut, Classes | Numbers]]:
    """The targets that some row has."""
    if not model.preprocess.targets:
        return [(model, rows, quality(model, rows))]
    each = [(one, rows.of_target(one, k, at)) for k, (one, at) in enumerate(model.of_targets())]
    return [(one, known, quality(one, known)) for one, known in each if known.count]


def _sections(
    run: RunFiles, title: str, is_one_of_many: bool, one: _OneTarget, columns: Importance | None, cells: Cells
) -> list[Section]:
    """The section of one target; of a single run and target, and one more with its worst rows."""
    model, rows, found = one.model, one.rows, one.found
    is_several = bool(run.model and run.model.preprocess.targets)
    sentences = [f"Measured on {rows.described()}.", rows.relation * (not is_several), "Each row counts once."]
    text = [" ".join(filter(None, sentences)), *_selections(found), *_undefined(found)]
    figures = class_figures(found) if isinstance(found, Classes) else number_figures(found, model.target)
    recorded = {} if is_several else scores_of(run)
    numbers = [
        (name, str(_recorded(score, recorded.get(name, {}).get(rows.part)))) for name, score in _scores(found).items()
    ]
    if columns is not None:
        figures.append(importance_figure(columns))
        text.append(_importance_text(columns))
    remarks = Markup("") if is_several else _remarks(rows)
    content = [_worst_html(model, rows, found, cells)]
    content += [_classes_html(found)] if isinstance(found, Classes) else []
    if is_one_of_many:
        html = remarks + folded_html("Worst rows", content[0]) + "".join(content[1:])
        return [Section(title, text, numbers, figures=figures, html=html)]
    first = Section(title, text, numbers, figures=figures, html=remarks)
    return [first, Section("Worst rows", html="".join(content))]


def _remarks(rows: HeldOut) -> Markup:
    remarks = warnings_html(rows.warnings)
    return Markup(remarks + heading_html("Cells of the file") + list_html(rows.notes)) if rows.notes else remarks


def _importance_text(columns: Importance) -> str:
    return (
        f"Permutation importance: {columns.described()} A line on a bar is the larger one of the deviation between "
        "the shuffles and the standard error of the rows; bars within two of them are grey. Columns that hold the "
        "same information share their importance."
    )


def _overview(title: str, rows: HeldOut, each: list[_OneTarget], columns: Importance | None) -> Section:
    """The scores of several targets, and the importance of the columns for their mean."""
    text = [" ".join(filter(None, [f"Measured on {rows.described()}.", rows.relation, "Each row counts once."]))]
    if len(each) > _TARGETS:
        text.append(f"The first {_TARGETS} of {len(each)} targets have a section of their own.")
    head = ("target", "rows", "accuracy", "ROC AUC", "R2", "rmse", "mae")
    lines = [(one.model.target, one.rows.count, *_cells_of_scores(one.found)) for one in each]
    figures = [] if columns is None else [importance_figure(columns)]
    text += [] if columns is None else [_importance_text(columns)]
    means = [(f"mean {name}", f"{value:.4g}") for name, value in _means(each).items()]
    html = Markup(_remarks(rows) + table_html(head, lines, "Scores of each target"))
    return Section(title, text, means, figures=figures, html=html)


def _cells_of_scores(found: Classes | Numbers) -> list[str]:
    scores = _scores(found)
    return [str(scores[name]) if name in scores else "" for name in ("accuracy", "roc_auc", "r2", "rmse", "mae")]


def _means(each: list[_OneTarget]) -> dict[str, float]:
    """The mean of each score over the targets for which it is defined."""
    found: dict[str, list[float]] = {}
    for one in each:
        for name, score in _scores(one.found).items():
            found.setdefault(name, []).append(score.value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _without(title: str, run: RunFiles, reason: str, left_out: list[str]) -> list[Section]:
    left_out.append(f"model quality of {run.name}: left out: {reason}")
    return [Section(title, [f"Left out: {reason}."])]


def _scores(found: Classes | Numbers) -> dict[str, Score]:
    """The scores that are defined for these rows."""
    known = {
        name: value for name, value in found.scores.items() if not (name.endswith(UNCERTAINTY) or math.isnan(value))
    }
    return {name: Score(value, found.scores.get(name + UNCERTAINTY, math.nan)) for name, value in known.items()}


def _recorded(score: Score, known: Score | None) -> Score:
    """The score; with the uncertainty that the run recorded, if its value is the same: earlier versions drew their
    resamplings in another order."""
    return known if known is not None and math.isclose(known.value, score.value, rel_tol=1e-5) else score


def _selections(found: Classes | Numbers) -> list[str]:
    """Which classes the figures show, where they do not show all."""
    if not isinstance(found, Classes) or len(found.names) <= MOST_CURVES:
        return []
    names = ", ".join(f"{curve.name!r:.60}" for curve in found.roc)
    return [
        f"The ROC chart shows the {len(found.roc)} classes with the most rows of {len(found.names):,}, each against "
        f"the others: {names}."
    ]


def _undefined(found: Classes | Numbers) -> list[str]:
    """Why scores are left out."""
    made = []
    if math.isnan(found.scores.get("roc_auc", 0.0)):
        made.append("The area under the ROC curve is not defined: all rows are of one class.")
    if math.isnan(found.scores.get("r2", 0.0)):
        made.append("R2 is not defined: all rows have the same target.")
    return made


def _classes_html(found: Classes) -> Markup:
    of = list(found.of_class.items())[:_CLASSES]
    rows = [(name, *(f"{one[key]:.4f}" for key in ("precision", "recall", "f1")), int(one["rows"])) for name, one in of]
    more = "" if len(rows) == len(found.of_class) else f" ({len(rows)} of {len(found.of_class):,} classes)"
    return folded_html(
        f"Scores of each class{more}", table_html(("class", "precision", "recall", "F1", "rows"), rows, "Classes")
    )


# ---- worst rows ------------------------------------------------------------------------------------------------------


def _worst_html(model: Model, rows: HeldOut, found: Classes | Numbers, cells: Cells) -> Markup:
    """The rows whose predictions are the worst, with their cells or images."""
    made_of, shape = model.preprocess.kind, model.preprocess.shape
    if made_of == "images":
        shape = [*shape[1:], shape[0]]
    shows_images = made_of != "columns" and is_image(shape)
    head = ["row" if cells.lines is None else "line", *(["image"] if shows_images else []), "true", "predicted"]
    files = rows.features.files if made_of == "images" else []
    head += ["file"] * bool(files) + ["probability of the true class"] if isinstance(found, Classes) else ["residual"]
    made = []
    for k in found.worst.tolist():
        at = int(rows.rows[k])
        row: list[object] = [f"{at + 1 if cells.lines is None else cells.lines[at]:,}"]
        if shows_images:
            pixels = rows.features[k]
            if made_of == "images":
                pixels = np.rint(255 * pixels.transpose(1, 2, 0)).astype(np.uint8)
            row.append(image_html(image_url(pixels, shape), f"row {at + 1}"))
        made.append(
            [
                *row,
                *_answers(found, rows, k)[:2],
                *files[k : k + 1],
                *_answers(found, rows, k)[2:],
                *(of[at][:LONGEST] for of in cells.of.values()),
            ]
        )
    kind = "the least probability of their true class" if isinstance(found, Classes) else "the largest residuals"
    which = "The row" if len(made) == 1 else f"The {len(made)} rows"
    counted = "Rows are counted from 1."
    if cells.lines is not None:
        counted = "Lines of the file are counted from 1, its header among them."
        counted = counted if model.preprocess.header else "Lines of the file are counted from 1."
    return Markup(f"<p>{which} with {kind}. {counted}</p>{table_html([*head, *cells.of], made, 'Worst rows')}")


def _answers(found: Classes | Numbers, rows: HeldOut, k: int) -> list[object]:
    if isinstance(found, Classes):
        own = int(rows.targets[k])
        return [found.names[own], found.names[int(found.predicted[k])], f"{found.probabilities[k, own]:.2e}"]
    return [", ".join(shown(float(v), 6) for v in of[k]) for of in (found.true, found.predicted, found.residuals)]


def _cells(model: Model, rows: HeldOut, columns: Importance | None) -> Cells:
    """The cells of the most important columns of the file; the first ones where the importance is not defined."""
    if model.preprocess.kind != "columns":
        return Cells()
    names = [column.name for column in model.preprocess.columns if column.width]
    if columns is not None:
        names = [columns.names[k] for k in columns.order()]
    with contextlib.suppress(GradloomError):  # a file of arrays, or one that was removed meanwhile
        return Cells(*cells_of(rows.path, names[:_CELLS], model.preprocess))
    return Cells()


# ---- for --json ------------------------------------------------------------------------------------------------------


def quality_facts(
    model: Model, rows: HeldOut, found: Classes | Numbers, columns: Importance | None, cells: Cells
) -> dict[str, Any]:
    """The numbers of the sections, as --json has them: see base/json_facts.py."""
    scores = {}
    for name, score in _scores(found).items():
        scores[name] = score.value
        scores |= {} if math.isnan(score.spread) else {name + UNCERTAINTY: score.spread}
    made: dict[str, Any] = {
        "file": os.fspath(rows.path), "part": rows.part, "rows": rows.count, "warnings": list(rows.warnings),
        "notes": list(rows.notes), "scores": scores,
        "worst": [_worst_fact(rows, found, cells, k) for k in found.worst.tolist()],
    }  # fmt: skip
    if isinstance(found, Classes):
        made |= {"classes": list(found.names), "confusion": found.confusion.tolist()}
    if columns is not None:
        made["importance"] = [_importance_fact(columns, k) for k in columns.order().tolist()]
    return made


def _facts_of_targets(
    model: Model, rows: HeldOut, each: list[_OneTarget], columns: Importance | None, cells: Cells
) -> dict[str, Any]:
    """quality_facts of several targets: the means of the scores, and the facts of each."""
    made: dict[str, Any] = {
        "file": os.fspath(rows.path), "part": rows.part, "rows": rows.count, "warnings": list(rows.warnings),
        "notes": list(rows.notes), "scores": _means(each), "worst": [],
    }  # fmt: skip
    facts = {one.model.target: quality_facts(one.model, one.rows, one.found, None, cells) for one in each}
    shown = ("rows", "scores", "worst", "classes", "confusion")
    made["targets"] = {name: {key: of[key] for key in shown if key in of} for name, of in facts.items()}
    if columns is not None:
        made["importance"] = [_importance_fact(columns, k) for k in columns.order().tolist()]
    return made


def _worst_fact(rows: HeldOut, found: Classes | Numbers, cells: Cells, k: int) -> dict[str, Any]:
    at = int(rows.rows[k])
    made: dict[str, Any] = {"row": at + 1} | ({} if cells.lines is None else {"line": cells.lines[at]})
    if isinstance(found, Classes):
        own = int(rows.targets[k])
        answers = {"true": found.names[own], "predicted": found.names[int(found.predicted[k])]}
        made |= {**answers, "probability": float(found.probabilities[k, own])}
    else:
        made |= {"true": found.true[k].tolist(), "predicted": found.predicted[k].tolist()}
    return made | ({"cells": {name: of[at] for name, of in cells.of.items()}} if cells.of else {})


def _importance_fact(columns: Importance, k: int) -> dict[str, Any]:
    made = {"column": columns.names[k], "score": columns.score, "mean": float(columns.mean[k])}
    error = float(columns.error[k])
    return made | {"deviation": float(columns.spread[k])} | ({} if np.isnan(error) else {"error": error})
