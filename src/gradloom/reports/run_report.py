"""report: a page about runs, in files or in memory."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..base.arguments import as_bool, need_path
from ..base.errors import FileError, SettingError
from ..base.habits import hinted
from ..base.html import html_table, html_text
from ..train.history import History
from ..train.metric import UNCERTAINTY
from .compared import Measured
from .page import Section, page, write_page
from .pictures import save_pictures
from .plan_page import framed
from .run_files import RunFiles, run_files
from .sections import figures_of, sections_of
from .summary import scores_of


class Report:
    """A report of one run or of several: `save` writes it as one HTML file, a notebook shows it."""

    def __init__(
        self, runs: Sequence[RunFiles], sections: Sequence[Section], left_out: Sequence[str],
        measured: Sequence[Measured] = (),
    ) -> None:  # fmt: skip
        names = [run.name for run in runs]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        self.title = f"{'Run' if len(runs) == 1 else 'Runs'} {shown}"
        if len(runs) == 1 and runs[0].folder is None:  # training, fine-tuning of NAME, model of TARGET
            self.title = shown[:1].upper() + shown[1:]
        self.subtitle = f"gradloom {', '.join(dict.fromkeys(run.kind for run in runs))}"
        self.sections, self.left_out, self._runs = list(sections), list(left_out), list(runs)
        self._measured = {one.name: one for one in measured}

    @property
    def warnings(self) -> list[str]:
        """Training rows among those that models were measured on, and rows that count in no score."""
        return [
            f"model quality of {name}: {text}" for name, one in self._measured.items() for text in one.rows.warnings
        ]

    @cached_property
    def html(self) -> str:
        """The page: one HTML document that loads nothing."""
        return page(self.title, self.sections, self.subtitle)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page, whole or not at all. FileError where it cannot be written."""
        need_path(path, "Report.save", "path")
        write_page(path, self.title, self.sections, self.subtitle)

    def save_figures(self, folder: str | os.PathLike[str], kind: str = "png") -> list[Path]:
        """Write the charts and plots as pictures for slides, drawn by matplotlib from the numbers of the page; returns
        the files. kind: png, svg or pdf. BackendError without the extra plot, FileError where a file cannot be written.
        """
        need_path(folder, "Report.save_figures", "folder")
        return save_pictures(figures_of(self.sections), folder, kind)

    @property
    def facts(self) -> dict[str, Any]:
        """The runs with their results, the titles of the sections, parts that are left out: for --json."""
        return {
            "runs": [_facts(run, self._measured.get(run.name)) for run in self._runs],
            "sections": [section.title for section in self.sections],
            "left_out": self.left_out,
            "warnings": self.warnings,
        }

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.sections)} sections)"

    def _repr_html_(self) -> str:
        return framed(self.html, self.title)


def _facts(run: RunFiles, measured: Measured | None) -> dict[str, Any]:
    scores = [
        {"part": part, "quantity": quantity, "value": one.value}
        | ({} if math.isnan(one.spread) else {"value_unc": one.spread})
        for quantity, of in scores_of(run).items()
        for part, one in of.items()
    ]
    made = {"name": run.name, "folder": str(run.folder or ""), "kind": run.kind, "state": run.state, "scores": scores}
    return made if measured is None else made | {"quality": measured.facts}


@hinted
def report(*runs: Any, data: str | os.PathLike[str] | None = None, profile: bool = False) -> Report:
    """A report of a run, or of several that are compared: report.save("report.html"), or shown by a notebook.

    runs   for each the folder of a run (or the model or adapter that it saved), the History of gl.fit, the result of
           gl.llm.finetune, or a Model of a table
    data   a file with rows to measure the models on, in place of the held-out rows of their runs
    profile  time a step of each run now, for the section Time: of folders of runs of commands, whose data is present

    The sections: summary with results, uncertainties, baseline and warnings; curves; sampled texts; losses of tokens or
    rewards on validation samples, model quality on the held-out rows, both computed now; time; memory maps; settings,
    of several runs those that differ. Raises FileError for a path without a run, or of one that still trains and has no
    metrics yet, and for data that are missing; SettingError for other objects, and for data where no run has a model to
    measure.
    """
    if not runs:
        raise SettingError("report: no run; requires one or more")
    if data is not None:
        need_path(data, "report", "data")
        if not os.path.exists(data):
            raise FileError(f"{os.fspath(data)}: cannot be read: no such file or folder")
    where = None if data is None else os.fspath(data)
    found = [run_files(run, f"run {k}" if len(runs) > 1 else "") for k, run in enumerate(runs, 1)]
    if where is not None and all(run.model is None for run in found):
        reasons = [run.no_model for run in found if run.no_model] or ["of the given runs none has one"]
        raise SettingError(f"{{data}} requires a model of a table or of images; {reasons[0]}", {"data": ...})
    _name_apart(found)
    left_out: list[str] = []
    measured: list[Measured] = []
    sections = sections_of(found, where, left_out, measured, as_bool("profile", profile))
    return Report(found, sections, left_out, measured)


def _name_apart(runs: Sequence[RunFiles]) -> None:
    """Give runs of the same name longer ones: with the folder above, then the whole path, then a number."""
    for parts in (2, 0):
        counts = Counter(run.name for run in runs)
        for run in runs:
            if counts[run.name] > 1 and run.folder is not None:
                whole = Path(os.path.abspath(run.folder))
                run.name = os.path.join(*whole.parts[-parts:]) if parts else str(whole)
    counts = Counter(run.name for run in runs)
    for k, run in enumerate(runs, 1):
        if counts[run.name] > 1:
            run.name = f"{run.name} ({k})"


def run_page(run: Any) -> str:
    """A History or a fine-tuning as a notebook shows it: its report, and for viewers that run no scripts a table."""
    history = run if isinstance(run, History) else run.history
    if not history:
        return html_text(repr(run))
    columns = {n: v for n, v in history.to_dict().items() if not n.endswith(UNCERTAINTY) and n != "grad_norm_mean"}
    shown = [[f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in zip(*columns.values(), strict=True)]
    table = html_table(list(columns), shown)
    return f"{report(run)._repr_html_()}<details><summary>Table</summary>{table}</details>"
