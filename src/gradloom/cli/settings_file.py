"""Settings files (TOML): read and checked for a command, and written with a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

from ..base.errors import SettingError
from ..base.hooks import Hook
from ..base.options import Count, Names, Place, Whole
from .setting import Setting, checked, nearest_key, settings_of, shown

load_commands: Hook[[], None] = Hook()  # imports all commands, which register their settings: a process runs one
load_commands.connect(lambda: import_module(".main", __package__).load_all)
_kinds: dict[str, type] = {}  # of the commands that take a settings file: the dataclass of their settings


_runs: dict[type, type] = {}  # the settings of a command that looks at what another one saves: those of that one


def _all_kinds() -> dict[str, type]:
    load_commands()
    return _kinds


def register(command: str, kind: type, runs: type | None = None) -> None:
    """These are the settings of this command. runs: of another one, some of whose settings these are: the files that
    its runs have saved are taken, too."""
    _kinds[command] = kind
    if runs is not None:
        _runs[kind] = runs


@dataclass(frozen=True)
class About:
    """The table [run]: description of the run that saved the file."""

    command: str
    line: str | None = None
    folder: str | None = None
    gradloom: str | None = None
    isa: str | None = None
    flush: bool | None = None
    ranks: Whole | None = None
    digests: dict[str, str] | None = None
    out: Place | None = None
    task: str | None = None
    target: Names | None = None
    exchange: str | None = None
    rows_val: Count | None = None


def read(kind: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a file, checked, by name. A table [run] describes the run that saved them: no setting. From a run
    of another command (`register`) the common settings are taken.

    SettingError with file, key, value and requirement; for an unknown key also the command that has it, or the nearest
    key.
    """
    from ..files.toml_file import parse_toml

    found, known = parse_toml(path), settings_of(kind)
    if isinstance(found.get("run"), dict):
        _check_about(found.pop("run"), kind, path)
        known = settings_of(_runs.get(kind, kind))
    for key in found:
        if key not in known:
            others = sorted(name for name, other in _all_kinds().items() if key in settings_of(other))
            have = f"; {' and '.join(others)} {'has' if len(others) == 1 else 'have'} it"
            why = have if others else nearest_key(key, known)
            raise SettingError(f"{path}: key {key} is not known{_to(kind) if others else ''}{why}", setting=key)
    values = {
        key: checked(_as_text(value, known[key]), known[key].kind, f"{path}: {key} = {shown(value)}", key)
        for key, value in found.items()
    }
    return {key: value for key, value in values.items() if key in settings_of(kind)}


def _as_text(value: Any, setting: Setting) -> Any:
    """The value as on the command line: a whole number as its digits, for a setting that is a text or a number."""
    is_number = setting.is_number and type(value) is int and abs(value) < 1 << 63
    return str(value) if is_number else value


def _to(kind: type) -> str:
    return "".join(f" to {name}" for name, one in _kinds.items() if one is kind)


def _check_about(about: dict[str, Any], kind: type, path: str | os.PathLike[str]) -> None:
    """SettingError unless this is the table [run] of a run of the same command."""
    known = settings_of(About)
    for key, value in about.items():
        if key in settings_of(kind) and key not in known:
            text = f"{path}: key run.{key} is not known; move the setting {key} above all tables"
            raise SettingError(text, setting=key)
        if key not in known:
            raise SettingError(f"{path}: key run.{key} is not known{nearest_key(key, known)}", setting=f"run.{key}")
        checked(value, known[key].kind, f"{path}: run.{key} = {shown(value)}", f"run.{key}")
    if "command" not in about:
        raise SettingError(
            f"{path}: key run.command is missing; [run] must be that of a saved run", setting="run.command"
        )
    kind = _runs.get(kind, kind)
    kinds = _all_kinds()
    if about["command"] in kinds and kind in kinds.values() and kinds[about["command"]] is not kind:
        text = f"{path}: run.command = {shown(about['command'])}: must be{_to(kind).removeprefix(' to')}"
        raise SettingError(text, setting="run.command", seen=about["command"])


def save(settings: Any, about: Mapping[str, Any]) -> bytes:
    """A settings file with the settings as decided, places as whole paths, and a description of the run."""
    import tomli_w

    kept = {
        setting.name: _absolute(getattr(settings, setting.name), setting.kind)
        for setting in settings_of(type(settings)).values()
        if setting.is_saved
    }
    tables = {name: _table(value) for name, value in {**kept, "run": about}.items() if value not in (None, {})}
    return tomli_w.dumps(tables).encode(errors="surrogateescape")


def _absolute(value: Any, kind: Any) -> Any:
    """A place as it is named from every folder."""
    if value is not None and kind == Place:
        return os.path.abspath(value)
    if isinstance(value, dict) and get_args(kind)[1:] == (Place,):
        return {name: os.path.abspath(one) for name, one in value.items()}
    return value


def _table(value: Any) -> Any:
    """As TOML holds it: None is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: _table(one) for name, one in value.items() if one is not None}
    return [_table(one) for one in value] if isinstance(value, (list, tuple)) else value
