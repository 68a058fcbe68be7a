"""settings.toml of a run: every setting as it was decided, and a table [run] with what else decides its bits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import threading
from typing import Any, TypeVar

from ..base.errors import GradloomError
from .common import command_line
from .config import Asked
from .setting import Place, checked, settings_of, shown
from .settings_file import parse_toml, read, save

SETTINGS = "settings.toml"
S = TypeVar("S")
_PIECE = 1 << 20  # bytes read at a time


def digest(path: str | os.PathLike[str]) -> str:
    """ "sha256:..." of a file's bytes; of a folder of idx files, that of their names and digests. OSError where it
    cannot be read."""
    from ..data.idx import find_idx

    found = hashlib.sha256()
    if os.path.isdir(path):
        for one in sorted(find_idx(path).values()):
            found.update(os.fsencode(one.name) + b"\0" + digest(one).encode() + b"\n")
    else:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    return f"sha256:{found.hexdigest()}"


class Inputs:
    """The files that a run reads, by the name of their setting: their digests are taken by a thread beside its work."""

    def __init__(self, **paths: str | None) -> None:
        self.paths = {name: path for name, path in paths.items() if path is not None}
        self._found: dict[str, str] = {}
        self._thread = threading.Thread(target=self._take, name="gradloom digests", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError, GradloomError):  # what cannot be read is the reader's to say
            for name, path in self.paths.items():
                self._found[name] = digest(path)

    def digests(self) -> dict[str, str]:
        """By the names of the settings."""
        self._thread.join()
        return self._found


def beside_run(asked: Asked[S], folder: str | os.PathLike[str], *without: str) -> Asked[S]:
    """What is asked for, where a run is to be resumed beside the settings of the run in this folder, except for those
    that are named, and the place that it writes to ("out"). All ranks have those of rank 0.

    SettingError where the folder has no settings and those that are given do not make a run.
    """
    from ..base.errors import SettingError
    from ..parallel.agree import agreed, is_root

    if not asked.values.get("resume"):
        return asked
    found: dict[str, Any] = {}
    file = os.path.join(folder, SETTINGS)
    with agreed(asked.ranks):
        if is_root(asked.ranks) and os.path.exists(file):
            found = read(asked.kind, file)
            out = parse_toml(file).get("run", {}).get("out")
            found["out"] = checked(out, Place, f"{file}: run.out = {shown(out)}")
        elif is_root(asked.ranks):
            missing = [s.name.upper() for s in settings_of(asked.kind).values() if s.default is ...]
            missing = [name for name in missing if name.lower() not in asked.values]
            if missing:
                seen = f"has no {SETTINGS}" if os.path.isdir(folder) else "no such folder"
                need = f"the folder of a run, or {' and '.join(missing)} to begin one"
                raise SettingError(
                    f"--resume: {os.fspath(folder)}: {seen}, so there is no run to go on with; need {need}"
                )
    found = found if asked.ranks is None else asked.ranks.gather(found)[0]
    return asked.beside({name: value for name, value in found.items() if name not in without}, file)


def saved(settings: Any, command: str, inputs: Inputs, ranks: int, **told: Any) -> bytes:
    """The text of settings.toml. told: what else [run] has."""
    import gradloom as gl

    from ..base.settings import switches
    from ..run import machine

    about = {
        "command": command,
        "line": shlex.join(["gradloom", *command_line()]),
        "folder": os.getcwd(),
        "gradloom": gl.__version__,
        "isa": machine.choose_isa(switches().isa),
        "ranks": ranks,
        "digests": inputs.digests(),
        **told,
    }
    return save(settings, about)
