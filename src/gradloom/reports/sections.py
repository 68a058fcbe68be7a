"""Sections of a report of runs: summary, curves, sampled texts, memory, settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import GradloomError, SettingError
from ..base.hooks import plan_of_run, profile_of_run
from .compared import Measured, compared_roc
from .curves import charts_of
from .figures import chart_figures
from .importance import SECONDS
from .language import validation_sections
from .markup import Markup, folded_html, heading_html, list_html, table_html, warnings_html
from .page import Figure, Section
from .plan_page import MEMORY, Programs, programs_of
from .plan_page import sections as plan_sections
from .quality_section import LONGEST, quality_sections
from .run_files import RunFiles, settings_of_runs
from .summary import MOMENT, Summary, summary
from .time_section import time_sections
from .watched import watched_section

_FIRST = (  # the scores to read first, as (part, quantity)
    "accuracy", "roc_auc", "log_loss", "r2", "rmse", "mae", "loss", "rewards_accuracy", "rewards_margin",
)  # fmt: skip
_PARTS = ("test", "validation", "training")
_TEXTS = 200  # sampled texts


def sections_of(
    runs: Sequence[RunFiles], data: str | None, left_out: list[str], measured: list[Measured], profile: bool = False
) -> list[Section]:
    """The sections of one run, or of several that are compared. data: a file in place of the held-out rows. left_out:
    takes a line for each part that cannot be computed; measured: the models that were measured. profile: time a step
    of each run."""
    made = [_summaries(runs) if len(runs) > 1 else _summary(runs[0])]
    made += _curves(runs)
    of_each: list[Section] = []
    for run in runs:
        left_out += run.left_out
        of = f": {run.name}" if len(runs) > 1 else ""
        made += watched_section(run.lines, of)
        if run.samples:
            of_each.append(_texts(run, of))
        of_each += validation_sections(run, of, left_out)
        of_each += quality_sections(run, of, data, SECONDS / len(runs), left_out, measured)
    made += [*compared_roc(measured), *of_each]
    for run in runs if profile else ():
        made += _time(run, f": {run.name}" if len(runs) > 1 else "", left_out)
    for run in runs:
        made += _memory(run, f": {run.name}" if len(runs) > 1 else "", left_out)
    return [*made, *_settings(runs)]


# ---- summary ---------------------------------------------------------------------------------------------------------


def _summary(run: RunFiles) -> Section:
    found = summary(run)
    parts = found.parts
    rows = [(quantity, *(str(of[part]) if part in of else "" for part in parts)) for quantity, of in _ordered(found)]
    notes = [heading_html("Data"), list_html(found.notes)]
    content = [
        warnings_html(found.warnings),
        table_html(("", *parts), rows, "Scores") if rows else Markup(),
        *(notes if found.notes else []),
    ]
    if found.facts:
        facts = table_html(("", ""), found.facts, "Facts", wrapped=True)
        content.append(folded_html("Run, machine, versions, digests", facts))
    return Section("Summary", numbers=_first(run, found), html="".join(content))


def _first(run: RunFiles, found: Summary) -> list[tuple[str, str]]:
    """The numbers to read first."""
    made = [("state", run.state)] if run.state else []
    made += [(f"{part} {quantity}", str(of[part])) for part, quantity, of in _best(found)[:4]]
    baseline = found.scores.get("accuracy", {}).get("baseline") or found.scores.get("rmse", {}).get("baseline")
    made += [("baseline", str(baseline))] if baseline is not None else []
    facts = dict(found.facts)
    return made + [
        (name, facts[name]) for name in ("error", MOMENT, "length", "training and validation") if name in facts
    ]


def _best(found: Summary) -> list[tuple[str, str, dict[str, Any]]]:
    """(part, quantity, scores) in the order of their weight: the test before the validation."""
    made = []
    for part in _PARTS:
        made += [(part, q, found.scores[q]) for q in _FIRST if part in found.scores.get(q, {})]
        if made:
            return made
    return made


def _ordered(found: Summary) -> list[tuple[str, dict[str, Any]]]:
    known = [name for name in ("loss", *_FIRST) if name in found.scores]
    names = dict.fromkeys([*known, *found.scores])
    return [(name, found.scores[name]) for name in names]


def _summaries(runs: Sequence[RunFiles]) -> Section:
    """The results of several runs in one table, a run in each column."""
    found = [summary(run) for run in runs]
    pairs = dict.fromkeys((p, q) for s in found for q, of in _ordered(s) for p in s.parts if p in of)
    order = sorted(pairs, key=lambda pair: _PARTS.index(pair[0]) if pair[0] in _PARTS else len(_PARTS))
    facts = [
        name
        for name in ("state", MOMENT, "length", "training and validation")
        if any(name in dict(s.facts) for s in found)
    ]
    rows = [(name, *(dict(one.facts).get(name, "") for one in found)) for name in facts]
    rows += [(f"{part} {q}", *(str(one.scores.get(q, {}).get(part, "")) for one in found)) for part, q in order]
    content = [table_html(("", *(run.name for run in runs)), rows, "Results of the runs")]
    for run, one in zip(runs, found, strict=True):
        content.append(warnings_html([f"{run.name}: {text}" for text in one.warnings]))
    for run, one in zip(runs, found, strict=True):
        facts_table = table_html(("", ""), one.facts, f"Facts of {run.name}", wrapped=True)
        content.append(folded_html(f"{run.name}: machine, versions, digests", facts_table))
    return Section("Results", html="".join(content))


# ---- curves ----------------------------------------------------------------------------------------------------------


def _curves(runs: Sequence[RunFiles]) -> list[Section]:
    """A figure of each quantity, with the curves of all runs that have it."""
    found: dict[tuple[str, str], list[Any]] = {}
    for run in runs:
        for chart in charts_of(run.lines, run.axis):
            found.setdefault((chart.name, chart.axis), []).append((run.name, chart))
    figures = chart_figures([*found.values()])
    if not figures:
        return []
    text = (
        "Drag over a chart to zoom all charts; the cursor is shared. Bands are one standard error of a value, where "
        "the log has it: of means over batches it is the scatter between batches."
    )
    return [Section("Curves", [text], figures=figures)]


# ---- language models -------------------------------------------------------------------------------------------------


def _texts(run: RunFiles, of: str) -> Section:
    """The sampled texts of a fine-tuning: for each prompt in the order of the steps."""
    rows = [
        (str(one.get("prompt", "")), str(one.get("step", "")), str(one.get("text", "")), str(one.get("ended", "")))
        for one in run.samples
    ]
    prompts = list(dict.fromkeys(row[0] for row in rows))
    content, left = [], max(_TEXTS // max(len(prompts), 1), 2)
    for prompt in prompts[:_TEXTS]:
        own = [row for row in rows if row[0] == prompt]
        kept = own if len(own) <= left else [own[k] for k in np.linspace(0, len(own) - 1, left).astype(int)]
        note = "" if len(kept) == len(own) else f" ({len(kept)} of {len(own):,} samples)"
        content.append(heading_html(f"{prompt}{note}"))
        content.append(
            table_html(("step", "text", "ended"), [row[1:] for row in kept], f"Samples of {prompt}", wrapped=True)
        )
    return Section(f"Sampled texts{of}", html=Markup("".join(content)))


# ---- time and memory -----------------------------------------------------------------------------------------------


def _time(run: RunFiles, of: str, left_out: list[str]) -> list[Section]:
    """The time of a step of a run, measured now; the reason, in one line, where that cannot be done."""
    try:
        if run.settings_file is None:
            raise SettingError("the run has no settings.toml; requires a run of gradloom fit or finetune")
        return time_sections(profile_of_run(run.settings_file), of)
    except GradloomError as error:
        left_out.append(f"time of {run.name}: left out: {error}")
        return [Section(f"Time{of}", [f"Left out: {error}."])]


def _memory(run: RunFiles, of: str, left_out: list[str]) -> list[Section]:
    """The memory maps of a run. Of a fine-tuning its memory plan, too: that in memory, else made again by its settings,
    where the model is still the same."""
    text, found = ["Memory of the programs of the run, as they were planned on its machine."], Programs(run.programs)
    if run.live is not None:
        text, found = [], programs_of(run.live.memory())
    elif run.kind == "finetune" and run.settings_file is not None:
        try:
            found = programs_of(plan_of_run(run.settings_file))
            text = ["Planned again by the settings of the run, on this machine and without its data."]
        except GradloomError as error:
            left_out.append(f"memory plan of {run.name}: left out: {error}")
            text.append(f"The memory plan of the whole run is left out: {error}.")
            if not run.programs:
                return [Section(f"Memory{of}", text[1:])]
    elif run.kind == "finetune":
        reason = "the folder has no settings.toml that can be read; of a run of Python, give its result"
        left_out += [f"{part} of {run.name}: left out: {reason}" for part in ("validation samples", "memory plan")]
        if not run.programs:
            return []
    elif not run.programs:
        return []
    first, *others = plan_sections(found)
    if first.title != MEMORY:
        first, others = Section(MEMORY), [first, *others]
    first = replace(first, text=[*text, *first.text])
    return [replace(one, title=f"{one.title}{of}") for one in (first, *others)]


# ---- settings --------------------------------------------------------------------------------------------------------


def _settings(runs: Sequence[RunFiles]) -> list[Section]:
    """The settings; of several runs those that differ first."""
    differing, equal = settings_of_runs(runs)
    if not differing and not equal:
        return []
    if len(runs) == 1:
        one = [(name, _value(of[0])) for name, of in equal.items()]
        return [Section("Settings", html=table_html(("setting", "value"), one, "Settings"))]
    head = ("setting", *(run.name for run in runs))
    rows = [(name, *map(_value, of)) for name, of in differing.items()]
    same = [(name, _value(of[0])) for name, of in equal.items()]
    content = table_html(head, rows, "Settings that differ") if rows else Markup("<p>No setting differs.</p>")
    folded = folded_html(f"{len(same)} equal settings", table_html(("setting", "value"), same, "Equal settings"))
    return [Section("Settings that differ", html=content + folded)]


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def figures_of(sections: Sequence[Section]) -> list[Figure]:
    """The figures of all sections, in their order."""
    return [figure for section in sections for figure in section.figures]
