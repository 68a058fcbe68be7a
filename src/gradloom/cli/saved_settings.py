"""settings.toml of a run: every setting as it was decided, and a table [run] with all else that affects its bits."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..base.errors import FileError, GradloomError
from ..base.options import Place
from ..base.reasons import unreadable
from .common import command_line
from .config import Asked
from .setting import checked, settings_of, shown
from .settings_file import read, save

SETTINGS = "settings.toml"
S = TypeVar("S")


class Inputs:
    """The files that a run reads, by the name of their setting: a background thread computes their digests.

    To be asked for before the training: what cannot be read is an error, and no run is without them.
    """

    def __init__(self, **paths: str | None) -> None:
        self.paths = {name: path for name, path in paths.items() if path is not None}
        self._found: dict[str, str] = {}
        self._error: GradloomError | None = None
        self._thread = threading.Thread(target=self._take, name="gradloom digests", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        path = next(iter(self.paths.values()), "")
        try:
            from ..llm.input_digest import digest  # reads files, too

            for name, path in self.paths.items():
                self._found[name] = digest(path)
        except OSError as error:
            self._error = FileError(f"{path}: {unreadable(error)}")
        except GradloomError as error:
            self._error = error

    def digests(self) -> dict[str, str]:
        """By the names of the settings. The error of reading a file is raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found


def beside_run(asked: Asked[S], folder: str | os.PathLike[str], *without: str) -> Asked[S]:
    """The given settings; if a run is to be resumed, together with those of the run in this folder, except for those
    that are named, and its output ("out"). All ranks have those of rank 0.

    SettingError where the folder has no settings and those that are given do not make a run.
    """
    from ..base.errors import SettingError
    from ..files.toml_file import parse_toml
    from ..parallel.agree import agreed, is_root
    from ..runs.files import finish_change

    if not asked.values.get("resume"):
        return asked
    found: dict[str, Any] = {}
    file = os.path.join(folder, SETTINGS)
    with agreed(asked.ranks):
        if is_root(asked.ranks):
            finish_change(folder)
        if is_root(asked.ranks) and os.path.exists(file):
            found = read(asked.kind, file)
            out = parse_toml(file).get("run", {}).get("out")
            found["out"] = checked(out, Place, f"{file}: run.out = {shown(out)}", "run.out")
        elif is_root(asked.ranks):
            missing = [s.name.upper() for s in settings_of(asked.kind).values() if s.default is ...]
            missing = [name for name in missing if name.lower() not in asked.values]
            if missing:
                text = f"--resume: {os.fspath(folder)}: {_without_settings(Path(folder), missing)}"
                raise SettingError(text, setting="resume", seen=True)
    found = found if asked.ranks is None else asked.ranks.gather(found)[0]
    return asked.beside({name: value for name, value in found.items() if name not in without}, file)


def _without_settings(folder: Path, missing: list[str]) -> str:
    """The message for a folder without settings.toml. missing: settings that are not given."""
    from ..files.checkpoint_files import manifests

    need = " and ".join(missing)
    found = manifests(folder / "checkpoints")[0] if folder.is_dir() else []
    if found:
        seen = f"holds a run at step {found[0].step}, and no {SETTINGS}"
        return f"{seen}; need {need} and the other arguments of the run, with --resume, to resume it"
    seen = f"has no {SETTINGS}" if folder.is_dir() else "no such folder"
    return f"{seen}, so there is no run to resume; need the folder of a run, or {need} to begin one"


def need_same_inputs(
    file: Path, about: Mapping[str, Any], values: Mapping[str, Any], without: Collection[str] = ()
) -> None:
    """FileError when a file that the run has read holds something else now. without: names that are not compared."""
    from ..llm.input_digest import digest

    digests = about.get("digests")
    for name, then in (digests if isinstance(digests, dict) else {}).items():
        if name in without:
            continue
        setting, _, key = name.partition(".")
        path = values.get(setting)
        path = str(path.get(key) if isinstance(path, dict) else path)
        try:
            now = digest(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            need = f"need it there, or its new place as {name} = in {file}"
            raise FileError(f"{path}: cannot be read: {reason}; {need}") from None
        if now != then and name == "lora" and os.path.realpath(path) == os.path.realpath(str(about.get("out"))):
            need = f"need a copy of that adapter, as lora = in {file}"
            raise FileError(f"{path}: the run has written over the adapter that it began with; {need}")
        if now != then:
            raise FileError(f"{path}: has changed: {now}, at the run {then}; need the {name} of the run")


def environment_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Version and environment that affect the bits of a run with these settings, in addition to its data."""
    import gradloom as gl

    from ..base.settings import switches
    from ..run.cpu_backend import isa_of

    chosen, layers = switches(precision=settings.get("precision")), settings.get("gpu_layers")
    isa = isa_of([settings.get("device") or "cpu", *([] if layers is None else ["cpu"])], chosen.isa)
    return {"gradloom": gl.__version__, **({"isa": isa} if isa else {}), "flush": chosen.flush}


def saved(settings: Any, command: str, inputs: Inputs, ranks: int, **extra: Any) -> bytes:
    """The text of settings.toml. extra: further keys of [run]."""
    about = {
        "command": command,
        "line": shlex.join(["gradloom", *command_line()]),
        "folder": os.getcwd(),
        **environment_settings(vars(settings)),
        "ranks": ranks,
        "digests": inputs.digests(),
        **extra,
    }
    return save(settings, about)
