"""gradloom runs: the training runs in a folder: state, length, numbers."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from ..base.clock import utc
from ..base.json_facts import RUNS
from ..base.terminal import in_one_line, plural
from .common import Json, json_text, need_place, print_report
from .parser import Argument
from .saved_settings import SETTINGS

_DEPTH = 6  # of folders; those that begin with a dot are left out
_MOST_FOLDERS = 10_000


HELP = """List the runs in a folder and below it, in the order of their beginning: state, length, numbers."""


def runs(
    folder: Annotated[str, Argument(help="Folder to search, with all folders below it.")] = ".",
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..base.errors import FileError
    from ..base.reasons import unreadable

    need_place("folder", folder)
    if not os.path.isdir(folder):
        raise FileError(f"{folder}: no such folder; need one to look for runs in")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise FileError(f"{folder}: {unreadable(error)}") from None
    found = sorted(_found(Path(folder)), key=lambda run: (run["begun"] or "", run["name"]))
    width = shutil.get_terminal_size((80, 24)).columns
    for run in found:
        print("\n".join(_lines(run, width)), file=sys.stderr if json else None)
    if not found:
        print_report(f"{folder}: no runs")
    if json:
        print(json_text(RUNS, {"folder": folder, "runs": found}))
    return 0


def _found(folder: Path) -> list[dict[str, Any]]:
    """The runs with a run.json, and the older ones of gradloom fit, which have a model and a result only."""
    from ..runs.folder import runs_in

    known = dict(runs_in(folder, _DEPTH))
    made = [_run(folder, path, about) for path, about in known.items()]
    return made + [_run(folder, path, None) for path in _older(folder) if path not in known]


def _older(folder: Path) -> list[Path]:
    """Folders with a model and its result."""
    from .model import MODEL, RESULT

    found, level, seen = [], [folder], 0
    for _ in range(_DEPTH + 1):
        below: list[Path] = []
        for path in level[: _MOST_FOLDERS - seen]:
            seen += 1
            if os.path.isfile(path / MODEL) and os.path.isfile(path / RESULT):
                found.append(path)
            below += _folders(path)
        level = below
    return found


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(
                Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            )
    except OSError:
        return []


# ---- one run ---------------------------------------------------------------------------------------------------------


def _run(folder: Path, path: Path, about: dict[str, Any] | None) -> dict[str, Any]:
    """Facts of a run: times in ISO 8601, seconds, losses and metrics by their names in result.json."""
    from ..files.json_file import json_object

    result = json_object(path / "result.json") or {}
    if about is None:
        about = {"kind": "fit", "state": _state(result), "begun": _changed(path / "result.json"), "ended": None}
        about |= {"step": _count(result.get("steps")), "epoch": _count(result.get("epochs")), "latest": {}}
    elif about["state"] == "running" or (_changed(path / "result.json") or "") < about["begun"]:
        result = {}  # of the run before it
    numbers = {name: value for name, value in (about["latest"] or {}).items() if isinstance(value, (int, float))}
    numbers |= {name: value for name, value in result.items() if name.startswith(("train_", "val_", "test_"))}
    seconds, data = result.get("seconds"), result.get("data")
    return {
        "name": os.path.relpath(path, folder) if path != folder else os.path.basename(os.path.abspath(path)),
        "folder": str(path),
        "kind": about["kind"],
        "state": about["state"],
        "begun": about["begun"],
        "seconds": seconds if _is_number(seconds) else _seconds(about["begun"], about["ended"]),
        "steps": about["step"],
        "epochs": about["epoch"],
        "data": data if isinstance(data, str) else None,
        "settings": SETTINGS if os.path.isfile(path / SETTINGS) else None,
        "numbers": {name: value for name, value in numbers.items() if not name.endswith("_unc")},
    }


def _state(result: dict[str, Any]) -> str:
    """State of a run of an older version, from its result."""
    ending = str(result.get("ending", ""))
    return "interrupted" if result.get("interrupted") else "failed" if ending.startswith("stopped") else "finished"


def _changed(path: Path) -> str | None:
    try:
        return utc(path.stat().st_mtime) or None
    except OSError:
        return None


def _seconds(begun: Any, ended: Any) -> float | None:
    """Between two times; None where one is not known, and where the clock was set back."""
    try:
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
    except (TypeError, ValueError):
        return None
    return seconds if seconds >= 0 else None


# ---- text output ---------------------------------------------------------------------------------------------

_SHOWN = ("test_accuracy", "test_r2", "val_accuracy", "val_loss", "test_loss", "train_loss", "accuracy", "loss")


def _lines(run: dict[str, Any], width: int) -> list[str]:
    """A run in a line, or in several where the terminal is narrow: nothing is cut."""
    from ..train.display import arranged, duration

    when = "" if run["begun"] is None else _local(run["begun"])
    far = [plural(run["epochs"], "epoch")] if run["epochs"] else []
    far += [plural(run["steps"], "step")] if run["steps"] else []
    numbers = [f"{name} {run['numbers'][name]:.4g}" for name in _SHOWN if _is_number(run["numbers"].get(name))][:3]
    took = [duration(run["seconds"])] if _is_number(run["seconds"]) else []
    who = [in_one_line(run["name"]), run["kind"], *filter(None, [when]), run["state"]]
    first, *more = arranged([who, [", ".join(far)] * bool(far) + took, numbers], width)
    return [first, *(f"  {line}" for line in more)]


def _local(begun: str) -> str:
    try:
        return datetime.fromisoformat(begun).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):  # no date, or one before the year 1 here
        return ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and _is_number(value) and value >= 0 else None


def _is_number(value: Any) -> bool:
    """A number that can be shown, of a file with any content."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
