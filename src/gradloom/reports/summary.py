"""Summary of a run: state, results with uncertainties, baseline, warnings, times, machine, versions, digests."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from ..base.errors import FileError
from ..base.memory import show_bytes
from ..base.terminal import plural
from ..llm.input_digest import digest
from ..tables.model import MODEL
from ..train.display import rate
from ..train.duration import approximate
from ..train.metric import UNCERTAINTY
from ..train.watching import watch_warnings
from .curves import STEP
from .run_files import RunFiles

PARTS = {"train_": "training", "val_": "validation", "test_": "test", "baseline_": "baseline"}
MOMENT = "results"  # the fact of their step, where the log has later ones
_BEFORE = "_before"  # val_loss_before: of a fine-tuning, before its first step
_SAME = 1e-4  # relative difference of a loss in f32 and the log_loss of the same rows
_LARGE = 1 << 28  # bytes of a saved model whose digest is not computed
_PAUSE = 2.0  # seconds
_NO_SCORES = ("classes", "confusion")


@dataclass(frozen=True)
class Score:
    """A number with its uncertainty; nan where that is not known. As text with two digits of the uncertainty."""

    value: float
    spread: float = math.nan

    def __str__(self) -> str:
        if not 0 < self.spread < 1e300:
            return f"{self.value:.5g}"
        decimals = 1 - math.floor(math.log10(self.spread))
        if not -5 < decimals < 10 or abs(self.value) > 1e9:
            return f"{self.value:.5g} ± {self.spread:.2g}"
        value, spread = round(self.value, decimals), round(self.spread, decimals)
        return f"{value:.{max(decimals, 0)}f} ± {spread:.{max(decimals, 0)}f}"


@dataclass(frozen=True)
class Summary:
    """What to read first of a run.

    scores: quantity -> part (training, validation, test, baseline, name of a set) -> Score. facts: (name, text).
    """

    scores: dict[str, dict[str, Score]]
    facts: list[tuple[str, str]]
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def parts(self) -> list[str]:
        """The parts that have scores, in order."""
        found = dict.fromkeys(part for of in self.scores.values() for part in of)
        known = [part for part in ("before training", *PARTS.values()) if part in found]
        return [*known, *(part for part in found if part not in known)]


def summary(run: RunFiles) -> Summary:
    """The summary of a run."""
    baseline = run.result.get("baseline")
    facts = [*_state(run), *_size(run), *_time(run), *_memory(run), *_machine(run), *_digests(run)]
    if isinstance(baseline, str):
        facts.insert(0, ("baseline", baseline))
    warnings = [*run.problems, *_texts(run.result, "warnings"), *watch_warnings(run.lines)]
    return Summary(scores_of(run), facts, warnings, _texts(run.result, "notes"))


def scores_of(run: RunFiles) -> dict[str, dict[str, Score]]:
    """Measured numbers of the saved weights: of the result, else of the newest lines of the log. A loss that is the
    log_loss of the same rows is left out: its uncertainty is the scatter between batches, that of log_loss the
    scatter between rows."""
    found: dict[str, dict[str, Score]] = {}
    numbers = _numbers(run.result)
    placed = {name: _placed(name) for name in numbers if not name.endswith(UNCERTAINTY)}
    if not any(placed.values()):
        numbers = _latest(run)
        placed = {name: _placed(name) or ("training", name) for name in numbers if not name.endswith(UNCERTAINTY)}
    for name, place in placed.items():
        if place is not None:
            part, quantity = place
            found.setdefault(quantity, {})[part] = Score(numbers[name], numbers.get(name + UNCERTAINTY, math.nan))
    for part, score in found.get("log_loss", {}).items():
        loss = found.get("loss", {}).get(part)
        if loss is not None and math.isclose(loss.value, score.value, rel_tol=_SAME):
            del found["loss"][part]
    return {quantity: of for quantity, of in found.items() if of}


def _placed(name: str) -> tuple[str, str] | None:
    """(part, quantity) of a number by its name; None for one that is no score."""
    if name.endswith(_BEFORE) and name.startswith("val_"):
        return "before training", name.removeprefix("val_").removesuffix(_BEFORE)
    for prefix, part in PARTS.items():
        if name.startswith(prefix) and name.removeprefix(prefix) not in _NO_SCORES:
            return part, name.removeprefix(prefix)
    part, dot, quantity = name.rpartition(".")
    return (part, quantity) if dot and quantity != "lr" else None


def _latest(run: RunFiles) -> dict[str, float]:
    """The numbers of run.json, else those of the last epoch of the log."""
    found = _numbers(_part(run.about, "latest"))
    if found:
        return found
    from .curves import is_measure

    for line in reversed(run.lines):
        if line.get("kind") in ("epoch", "evaluation"):
            for name, value in _numbers(line).items():
                if is_measure(name.removesuffix(UNCERTAINTY)):
                    found.setdefault(name, value)
        if line.get("kind") == "epoch":
            break
    return found


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> TypeGuard[int | float]:
    """A number that can be shown, of a file with any content."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _texts(values: Mapping[str, Any], name: str) -> list[str]:
    found = values.get(name)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


# ---- facts -----------------------------------------------------------------------------------------------------------


def _state(run: RunFiles) -> list[tuple[str, str]]:
    found = []
    step = run.about.get("step", run.result.get("steps"))
    if run.state:
        at = f" at step {step:,}" if isinstance(step, int) and run.state != "finished" else ""
        found.append(("state", f"{run.state}{at}"))
    newest = max((line["step"] for line in run.lines if _is_number(line.get("step"))), default=0)
    if run.axis == STEP and isinstance(step, int) and not run.result and newest > step:
        of = "of the log" if not _numbers(_part(run.about, "latest")) else f"of step {step:,}"
        found.append((MOMENT, f"{of}; run.json was last written at step {step:,}, the curves end at step {newest:,}"))
    if isinstance(run.about.get("error"), str):
        found.append(("error", run.about["error"]))
    ending = run.result.get("ending")
    if isinstance(ending, str) and ending != "done":
        found.append(("ending", ending))
    found += [("resumed", text) for text in _texts(run.about, "went_on")]
    found += [("paused", f"after step {step:,} for {approximate(gap)}") for step, gap in pauses(run.lines)]
    saved = run.result.get("saved_epoch")
    if isinstance(saved, int):
        found.append(("saved weights", f"of epoch {saved:,}"))
    return found


def pauses(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(step, seconds) of each pause of a training: it was resumed later, or the machine was suspended. The clock moved
    on meanwhile, and the seconds of the run did not."""
    found, before = [], None
    for line in lines:
        if not (_is_number(line.get("time")) and _is_number(line.get("seconds")) and isinstance(line.get("step"), int)):
            continue
        gap = line["time"] - line["seconds"]
        if before is not None and gap - before[1] > _PAUSE:
            found.append((before[0], gap - before[1]))
        before = line["step"], gap
    return found


def _size(run: RunFiles) -> list[tuple[str, str]]:
    result, found = run.result, []
    for name, label in (("task", "task"), ("target", "target"), ("objective", "objective"), ("method", "method")):
        if isinstance(result.get(name), str):
            found.append((label, result[name]))
    rows = [
        f"{result[f'rows_{name}']:,} for {label}"
        for name, label in (("train", "training"), ("val", "validation"), ("test", "the test"))
        if isinstance(result.get(f"rows_{name}"), int) and result[f"rows_{name}"]
    ]
    found += [("rows", ", ".join(rows))] * bool(rows)
    for name, label in (("parameters", "parameters"), ("parameters_trained", "trained parameters")):
        if isinstance(result.get(name), int):
            found.append((label, f"{result[name]:,}"))
    epoch, step = run.about.get("epoch"), run.about.get("step")
    length = [plural(epoch, "epoch")] if isinstance(epoch, int) and epoch else []
    length += [plural(step, "step")] if isinstance(step, int) and step else []
    return [*found, *[("length", ", ".join(length))] * bool(length)]


def _time(run: RunFiles) -> list[tuple[str, str]]:
    found = [(name, run.about[name]) for name in ("begun", "ended") if isinstance(run.about.get(name), str)]
    seconds = run.result.get("seconds")
    if not _is_number(seconds):
        seconds = next((line["seconds"] for line in reversed(run.lines) if _is_number(line.get("seconds"))), None)
    if _is_number(seconds):
        found.append(("training and validation", approximate(seconds)))
    for unit in ("rows", "tokens"):
        speed = run.result.get(f"{unit}_per_second")
        found += [("speed", f"{rate(speed)} {unit}/s")] if _is_number(speed) else []
    return found


def _memory(run: RunFiles) -> list[tuple[str, str]]:
    planned, peak = run.result.get("planned_bytes"), run.result.get("peak_bytes")
    found = []
    if _is_number(planned):
        found.append(
            ("planned memory of a step", f"{show_bytes(int(planned))}; the plan was proved before the first step")
        )
    if not _is_number(peak):
        held = [line["memory_peak_bytes"] for line in run.lines if _is_number(line.get("memory_peak_bytes"))]
        peak = max(held, default=None)
    return [*found, *([("peak memory of the process", show_bytes(int(peak)))] if _is_number(peak) else [])]


def _machine(run: RunFiles) -> list[tuple[str, str]]:
    known = run.environment
    found = [("machine", run.about["host"])] if isinstance(run.about.get("host"), str) else []
    found += [("instruction set", known["isa"])] if isinstance(known.get("isa"), str) else []
    device, precision = run.settings.get("device"), run.settings.get("precision", run.result.get("precision"))
    found += [("device", device)] if isinstance(device, str) else []
    found += [("precision", precision)] if isinstance(precision, str) else []
    versions = run.about.get("versions")
    if isinstance(versions, Mapping):
        found.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return found


def _digests(run: RunFiles) -> list[tuple[str, str]]:
    """The digests of the files that the run has read, and of the model or adapter that it has written."""
    known = run.environment.get("digests")
    found = [(f"digest of {name}", str(value)) for name, value in known.items()] if isinstance(known, Mapping) else []
    with contextlib.suppress(OSError, FileError):  # a file is removed meanwhile, or cannot be read
        written = [path for path in _written(run) if path.stat().st_size <= _LARGE]
        found += [(f"digest of {path.name}", digest(path)) for path in written]
    line = run.environment.get("line")
    return [*([("command", line)] if isinstance(line, str) else []), *found]


def _written(run: RunFiles) -> list[Path]:
    if run.folder is None:
        return []
    out = run.environment.get("out")
    beside = [Path(out)] if isinstance(out, str) and os.path.isfile(out) else []
    return [path for path in [run.folder / MODEL, *beside] if path.is_file()]
