"""What a report reads of one run: its folder, or a History, a fine-tuning or a model in memory, as plain records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.arguments import what_is
from ..base.errors import FileError, GradloomError, SettingError
from ..base.record import flat
from ..files.json_file import json_object
from ..files.lock import is_locked
from ..files.toml_file import parse_toml
from ..llm.finetune import Run
from ..llm.sample_texts import SAMPLES
from ..plan.memory_map import ProgramMap
from ..runs.files import PLACES
from ..runs.folder import read_run
from ..runs.log_files import LINES, read_metrics
from ..runs.plan_file import PLANS, read_plan_file
from ..tables.model import MODEL, Model, read_model
from ..train.history import History
from .curves import EPOCH, STEP, lines_of

RESULT, SETTINGS, ABOUT = "result.json", "settings.toml", "run.json"
ENDED = "ended without a word: its process was killed, or the machine stopped"
_MOST_SAMPLES = 1 << 24  # bytes of samples.jsonl


@dataclass
class RunFiles:
    """The contents of a run. Texts and numbers of files are unchecked: any type, any text.

    name      for headings: the name of the folder
    kind      fit, finetune, loop, dp_train; history or model for one in memory
    state     finished, interrupted, failed, running; "" where it is not known
    about     run.json. result: result.json, or the numbers of a fine-tuning in memory
    lines     of metrics.jsonl, and the axis of their steps (curves.py)
    settings  of settings.toml; environment: its table [run]
    samples   sampled texts: step, prompt, text, ended
    problems  a line for each file that cannot be read
    programs  memory maps of its programs
    live      the fine-tuning in memory
    settings_file  settings.toml
    no_model  why a run that saves a model of a table has none; "" for other runs
    left_out  a line for each part whose file is damaged or missing
    """

    name: str
    kind: str
    folder: Path | None = None
    state: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    lines: Sequence[Mapping[str, Any]] = ()
    axis: str = STEP
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    model: Model | None = None
    problems: list[str] = field(default_factory=list)
    programs: Sequence[ProgramMap] = ()
    live: Run | None = None
    settings_file: Path | None = None
    no_model: str = ""
    left_out: list[str] = field(default_factory=list)

    def lost(self, line: str) -> None:
        """A part that is left out because its file is damaged: the page shows the line, too."""
        self.left_out.append(line)
        self.problems.append(line)


def run_files(what: Any, name: str = "") -> RunFiles:
    """The contents of a run: the path of its folder (or of the model or adapter that it saved), a History, a
    fine-tuning (llm.Run), or a Model. name: for headings, where the run has none.

    FileError for a path without a run, SettingError for other objects and for a history without epochs.
    """
    if isinstance(what, (str, os.PathLike)):
        return read_run_files(what)
    if isinstance(what, Run):
        return _of_fine_tuning(what, name)
    if isinstance(what, History):
        if not what:
            raise SettingError("report: the history has no epoch; need at least one")
        lines, axis = lines_of(what)
        return RunFiles(name or "training", "history", lines=lines, axis=axis, programs=what.programs)
    if isinstance(what, Model):
        numbers = {str(key): value for key, value in what.metrics.items()}
        return RunFiles(
            name or f"model of {what.target}", "model", result=numbers, settings=dict(what.about), model=what
        )
    need = "the folder of a run, a History of gl.fit, a run of gl.llm.finetune, or a Model"
    raise SettingError(f"report: got {what_is(what)}; need {need}")


def _of_fine_tuning(run: Run, name: str) -> RunFiles:
    lines, axis = lines_of(run.history)
    settings = {key: value for key, value in vars(run.settings).items() if isinstance(value, (str, int, float, bool))}
    state = "interrupted" if run.interrupted or not run.history else "finished"
    samples = [one.as_dict() for one in run.samples]
    named = name or f"fine-tuning of {os.path.basename(os.path.normpath(run.model.path))}"
    if run.before is not None and run.before.batches and axis == STEP:
        first = {f"val_{key}": value for key, value in run.before.numbers().items()}
        lines = [{"kind": "evaluation", "step": 0, "epoch": 1, **first}, *lines]
    return RunFiles(
        named, "finetune", state=state, result=run.report, lines=lines, axis=axis, settings=settings, samples=samples,
        live=run,
    )  # fmt: skip


# ---- a folder --------------------------------------------------------------------------------------------------------


def folder_of(path: str | os.PathLike[str]) -> Path:
    """The folder of the run that a path names: the folder, or the model or adapter that the run has saved. FileError
    where there is none."""
    if not os.fspath(path):
        raise FileError("RUN is an empty text; need the folder of a run")
    given = Path(path)
    if given.is_dir():
        return given
    beside = [given.with_suffix(".run"), given.with_name(f"{given.name}.run")]  # of finetune --out
    found = next((folder for folder in beside if folder.is_dir()), None)
    if found is not None:
        return found
    if given.name in (MODEL, RESULT, LINES, SETTINGS, ABOUT) and given.exists():
        return given.parent
    seen = "holds no run" if given.exists() else "no such file or folder"
    raise FileError(f"{given}: {seen}; need the folder of a run")


def read_run_files(path: str | os.PathLike[str]) -> RunFiles:
    """The contents of the folder of a run.

    FileError where there is no run, where its metrics cannot be read, where a run that still trains has none yet, and
    where the model of a table that the path names cannot be read.
    """
    folder = folder_of(path)
    shown, (place, about) = os.fspath(path), _place(folder)
    has_model = (folder / MODEL).exists()
    if about is None and not has_model and not any((folder / name).exists() for name in (LINES, ABOUT)):
        raise FileError(f"{shown}: holds no run (no run.json); need the folder of a run, which gradloom runs lists")
    found = RunFiles(folder.name or os.path.basename(os.path.abspath(folder)), "fit", folder)
    if about is not None:
        found.kind, found.about, found.state = str(about["kind"]), about, str(about["state"])
        if found.state == "running" and not is_locked(folder, True):
            found.state = "interrupted"
            found.problems.append(f"the run {ENDED}")
    elif (folder / ABOUT).exists():
        found.lost(f"state of {found.name}: left out: {folder / ABOUT}: is damaged; no run.json that can be read")
    is_older = _read_result(found, folder)
    _read_settings(found, place)
    _read_samples(found, place)
    _read_programs(found, place)
    _read_lines(found, place, shown)
    _read_model(found, place, has_model and not is_older)
    if Path(path).name == MODEL and not Path(path).is_dir() and found.no_model:
        raise FileError(found.no_model)
    return found


def _place(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """(the folder with the files of the run, the content of its run.json)."""
    for name in PLACES:
        about = read_run(folder / name)
        if about is not None:
            return folder / name, about
    return folder, None


def _read_result(run: RunFiles, folder: Path) -> bool:
    """Read result.json; returns whether it, and the model, are of an earlier run in the folder."""
    path, about = folder / RESULT, run.about
    if not path.exists():
        return bool(about)
    result = json_object(path)
    is_older = bool(about) and (about["state"] == "running" or path.stat().st_mtime + 1 < _begun(about))
    if result is None and not is_older:
        run.lost(f"results of {run.name}: left out: {path}: is damaged; no JSON object of at most 64 MiB")
    run.result = {} if is_older else result or {}
    return is_older


def _begun(about: Mapping[str, Any]) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(about["begun"]).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _read_lines(run: RunFiles, place: Path, shown: str) -> None:
    """Read the lines of the log. Runs of older versions have the history in their result. A run that ended before its
    first line has none."""
    if (place / LINES).exists() and (lines := read_metrics(place)):
        run.lines = lines
        return
    history = run.result.get("history")
    epochs = [line for line in history if isinstance(line, dict)] if isinstance(history, list) else []
    missing = "no epoch, evaluation or interval of the log has ended"
    if epochs:
        run.lines, run.axis = [{**line, "kind": "epoch", "step": line.get("epoch")} for line in epochs], EPOCH
    elif run.state not in ("failed", "interrupted", "finished"):
        raise FileError(f"{shown}: has no metrics{' yet' * (run.state == 'running')}: {missing}")
    else:
        run.left_out.append(f"curves of {run.name}: left out: {missing.replace('has ended', 'ended')}")


def _read_settings(run: RunFiles, place: Path) -> None:
    """Read settings.toml and its table [run]; a run of Python has none."""
    path = place / SETTINGS
    if not path.exists():
        return
    try:
        run.settings = parse_toml(path)
    except GradloomError as error:
        run.lost(f"settings of {run.name}: left out: {error}")
        return
    about = run.settings.pop("run", {})
    run.environment = about if isinstance(about, dict) else {}
    run.settings_file = path


def _read_model(run: RunFiles, place: Path, is_own: bool) -> None:
    """Read the model of a table that `gradloom fit` has saved, or the reason why there is none."""
    assert run.folder is not None
    path = run.folder / MODEL
    if is_own:
        try:
            model = read_model(path)
            run.model = model if isinstance(model, Model) else None
        except GradloomError as error:
            run.no_model = str(error)
    elif run.kind == "fit" and ((place / SETTINGS).exists() or run.result):  # of the command
        missing = run.folder / (RESULT if path.exists() else MODEL)
        run.no_model = {
            "running": "the run has no model yet: it still trains",
            "finished": f"{missing}: no such file",
        }.get(run.state, "the run ended before it saved a model")


def _read_samples(run: RunFiles, place: Path) -> None:
    """Read the sampled texts of a fine-tuning."""
    path = place / SAMPLES
    if not path.exists():
        return
    try:
        if path.stat().st_size > _MOST_SAMPLES:
            raise FileError(f"{path}: is larger than {_MOST_SAMPLES >> 20} MiB")
        run.samples = read_metrics(path)
    except GradloomError as error:
        run.lost(f"sampled texts of {run.name}: left out: {error}")


def _read_programs(run: RunFiles, place: Path) -> None:
    """Read the memory maps that the run has stored; a run of an earlier version, or a loop of your own, has none."""
    if not (place / PLANS).exists():
        return
    try:
        run.programs = read_plan_file(place / PLANS)
    except GradloomError as error:
        run.lost(f"memory maps of {run.name}: left out: {error}")


def settings_of_runs(runs: Sequence[RunFiles]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """(settings that differ, settings that are equal): by name, the value in each run, None where it is not set."""
    records = [_plain(run) for run in runs]
    names = dict.fromkeys(name for record in records for name in record)
    values = {name: [record.get(name) for record in records] for name in names}
    differing = {name: of for name, of in values.items() if any(one != of[0] for one in of)}
    return differing, {name: of for name, of in values.items() if name not in differing}


def _plain(run: RunFiles) -> dict[str, Any]:
    """The settings of a run in one level, with the environment that its bits depend on, and digests of its inputs."""
    environment: dict[str, Any] = {
        name: run.environment[name] for name in ("gradloom", "isa", "flush", "ranks") if name in run.environment
    }
    digests = run.environment.get("digests")
    known = {f"digest of {name}": value for name, value in digests.items()} if isinstance(digests, dict) else {}
    return {**flat(run.settings), **environment, **known}
