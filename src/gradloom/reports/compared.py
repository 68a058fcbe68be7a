"""Runs that are compared on the same held-out rows: their ROC curves in one drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .figures import roc_figure
from .held_out import HeldOut
from .page import Section
from .quality import Classes, Numbers, Roc, mean_curve

TITLE = "ROC of the runs"


@dataclass(frozen=True)
class Measured:
    """The quality of the model of a run on its held-out rows. name: of the run; target: of its model; found: None of
    several targets; facts: for --json."""

    name: str
    target: str
    rows: HeldOut
    found: Classes | Numbers | None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for runs whose curves can be compared: the same rows of the same data with the same classes."""
        rows, found = self.rows, self.found
        assert isinstance(found, Classes)
        answers = rows.rows.tobytes(), rows.targets.astype("<i8").tobytes()
        return rows.digest, rows.part, self.target, tuple(found.names), *answers


def compared_roc(measured: Sequence[Measured]) -> list[Section]:
    """A section with one drawing of the ROC curves of each two or more runs with the same held-out rows; none where
    there are no such runs."""
    usable = [one for one in measured if isinstance(one.found, Classes) and one.found.roc]
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for one in usable:
        groups.setdefault(one.key, []).append(one)
    together = [group for group in groups.values() if len(group) > 1]
    if not together:
        return []
    text, figures = [], []
    for group in together:
        first = group[0]
        names = ", ".join(one.name for one in group)
        text.append(f"Measured on the same {first.rows.described()}: {names}. {_definition(first.found)}")
        of = " of the compared runs" if len(together) == 1 else f" of {names}"
        figures.append(roc_figure([_curve(one) for one in group], "run", of))
    alone = [group[0].name for group in groups.values() if len(group) == 1]
    if alone:
        text.append(f"Not in the drawing, because no other run has the same held-out rows: {', '.join(alone)}.")
    return [Section(TITLE, text, figures=figures)]


def _curve(one: Measured) -> Roc:
    found = one.found
    assert isinstance(found, Classes)
    if len(found.names) > 2:
        return mean_curve(found.roc, one.name)
    (roc,) = found.roc
    return Roc(one.name, roc.false_positive, roc.true_positive, roc.threshold, roc.area)


def _definition(found: Classes | Numbers | None) -> str:
    assert isinstance(found, Classes)
    if len(found.names) == 2:
        return f"Positive is {found.names[1]!r:.60}."
    some = "" if len(found.roc) == len(found.names) else f" {len(found.roc)} classes with the most rows of the"
    return f"Each curve is the mean over the{some} {len(found.names):,} classes, of each against the others."
