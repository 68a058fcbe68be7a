"""gradloom rerun: repeat a run from the settings that were saved with it, to the bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from ..base.options import Place
from .common import Exchange, Json, Parallel, Threads, join, need_place, need_whole, to_paste, warn
from .config import Asked
from .finetune import run as run_finetune
from .finetune_settings import FinetuneSettings, run_beside
from .fit import run as run_fit
from .fit_settings import FitSettings
from .parser import Argument, Option
from .saved_settings import SETTINGS, environment_settings, need_same_inputs
from .setting import checked
from .settings_file import read

_COMMANDS: dict[str, tuple[Any, Any]] = {
    "fit": (FitSettings, run_fit),
    "finetune": (FinetuneSettings, run_finetune),
}


HELP = """Repeat a fit or a finetune from its saved settings: the same bits, on the same instruction set and version.

Data and model are those of the run, whose contents are compared. The run itself stays as it is.
"""


def rerun(
    run: Annotated[str, Argument(help="The folder of a run, with its settings.toml.")],
    out: Annotated[
        str | None, Option(help="Output folder or file. [default: next to the run, with -again in its name]")
    ] = None,
    threads: Threads = None,
    parallel: Parallel = None,
    exchange: Exchange = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    ranks = join(parallel, exchange)
    need_place("out", out)
    need_whole("threads", threads)
    file = Path(run) / SETTINGS if os.path.isdir(run) else Path(run)
    need_settings(file)
    kind, command, about, values = read_saved(file)
    Asked(kind, values).settings()  # none is missing
    to = checked(out or _beside(file, kind, about), Place, "--out", "out")
    _need_another_place(to, file, kind, about)
    _need_finished(to, kind)
    need_same_inputs(file, about, values)
    about = {"flush": False} | about  # a run of before there was a choice: False
    warn_of_differences(about, values, file.parent)
    here = {"out": to, "threads": threads, "exchange": exchange, "json": json}
    given = {name: value for name, value in here.items() if value is not None}
    return int(command(Asked(kind, given, ranks).beside(values, str(file))))


def need_settings(file: Path) -> None:
    """FileError for what a run has written in place of the run, naming the folder of the run where there is one."""
    from ..base.errors import FileError

    if file.suffix in (".gguf", ".safetensors"):
        folder = Path(run_beside(str(file))) if file.suffix == ".gguf" else file.parent
        there = (folder / SETTINGS).exists()
        need = f"use gradloom rerun {to_paste([str(folder)])}" if there else "need the folder of its run"
        raise FileError(f"{file}: is what a run has written; {need}")


def read_saved(file: Path) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """(the settings' class, the command, the table [run], the settings) of a file that a run has saved."""
    from ..base.errors import FileError
    from ..files.toml_file import parse_toml
    from ..runs.folder import read_run

    if not file.exists():
        if read_run(file.parent) is not None:
            need = "run the program again, or save its compiled programs with gl.capsule"
            raise FileError(f"{file.parent}: is a run of a Python program, without a {SETTINGS}; {need}")
        raise FileError(f"{file}: no such file; need the folder of a run, which has its {SETTINGS}")
    about = parse_toml(file).get("run")
    command = about.get("command") if isinstance(about, dict) else None
    if not isinstance(about, dict) or command not in _COMMANDS:
        what = "has no table [run]" if about is None else f"is of the command {command!r:.40}"
        raise FileError(f"{file}: {what}; need the {SETTINGS} of a fit or a finetune (others are for --config)")
    kind, run = _COMMANDS[command]
    return kind, run, about, read(kind, file)


def _need_another_place(out: str, file: Path, kind: Any, about: dict[str, Any]) -> None:
    """SettingError where the run would replace the one that it repeats."""
    from ..base.errors import SettingError

    is_fit = kind is FitSettings
    folder = out if is_fit else run_beside(out)
    same = os.path.realpath(folder) == os.path.dirname(os.path.realpath(file))
    if same or (not is_fit and os.path.realpath(out) == os.path.realpath(str(about.get("out")))):
        raise SettingError("{out}: is the place of the repeated run; must be another one", out=out)


def _need_finished(out: str, kind: Any) -> None:
    """FileError if the folder holds an unfinished run that can be resumed, perhaps a stopped rerun."""
    from ..base.errors import FileError
    from ..files.checkpoint_files import manifests
    from ..files.lock import is_locked
    from ..runs.folder import read_run

    command, folder = ("fit", out) if kind is FitSettings else ("finetune", run_beside(out))
    there = read_run(folder)
    if there is None or there["state"] == "finished" or is_locked(Path(folder), True):
        return
    if manifests(Path(folder) / "checkpoints")[0]:
        line = to_paste(["gradloom", command, "--out", os.path.abspath(out), "--resume"])
        need = f"need another --out; {line} resumes it"
        raise FileError(f"{folder}: holds a run that has not finished (at step {there['step']}); {need}")


def warn_of_differences(about: dict[str, Any], values: dict[str, Any], folder: Path) -> None:
    """Warn if the same bits are not promised. folder: of the run, with its run.json."""
    from ..runs.folder import read_run

    now = environment_settings(values)
    other = [f"{name} {about.get(name)} then, {value} now" for name, value in now.items() if about.get(name) != value]
    if about.get("exchange") == "fast":
        other.append("gradients were exchanged with --exchange fast")
    other += [f"the run went on {text}" for text in (read_run(folder) or {}).get("went_on", ())]
    if other:
        warn(f"the same bits are not promised: {'; '.join(other)}")


def _beside(file: Path, kind: Any, about: dict[str, Any]) -> str:
    """The default output, next to the run as it is named now. The settings name no place of it: the file may come from
    elsewhere."""
    run = Path(os.path.abspath(file))
    run = run.parent if run.name == SETTINGS else run.with_suffix("")
    if not run.name:
        return str(run / "again")
    if kind is FitSettings:
        return str(run.with_name(f"{run.name}-again"))
    name = run.stem if run.suffix == ".run" else run.name
    return str(run.with_name(f"{name}-again{'.gguf' * str(about.get('out')).endswith('.gguf')}"))
