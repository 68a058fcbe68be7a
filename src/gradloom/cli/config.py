"""The settings of a command: flags, keys of a settings file (TOML), and the settings saved with a run. They are derived
from records of options (`command_settings`).

A flag takes precedence over the file, the file over the default.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

from ..base.errors import FileError, GradloomError, SettingError
from ..base.options import Names, Place, whole_numbers
from .common import OF_PYTHON, join, with_value
from .parser import Option
from .setting import Setting, checked, command_settings, settings_of, shown
from .settings_file import read, register

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator

S = TypeVar("S")


@dataclass(frozen=True)
class Asked(Generic[S]):
    """The settings that a user has given, by name, and the processes that work together.

    files  the settings file of each value that comes from one; the others come from the command line
    """

    kind: type[S]
    values: Mapping[str, Any]
    ranks: Communicator | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def beside(self, saved: Mapping[str, Any], file: str) -> Asked[S]:
        """The same, completed by the settings that a run has saved in this file."""
        files = dict.fromkeys(saved.keys() - self.values.keys(), file)
        return Asked(self.kind, {**saved, **self.values}, self.ranks, {**self.files, **files})

    def settings(self) -> S:
        """All settings: the given values, else the defaults; SettingError for a missing one."""
        for setting in settings_of(self.kind).values():
            if setting.name not in self.values and setting.default is ...:
                text = f"Missing argument '{setting.name.upper()}', or {setting.name} = in a --config file"
                raise SettingError(text, setting=setting.name)
        return self.kind(**self.values)

    def place(self, name: str) -> str:
        """The source of a setting: "--lr", or "FILE: lr"."""
        return f"{self.files[name]}: {name}" if name in self.files else settings_of(self.kind)[name].flag

    def shown(self, name: str) -> str:
        """A setting as the user wrote it: "--lr 3", or "FILE: lr = 3"."""
        value = self.values[name]
        if name in self.files:
            return f"{self.place(name)} = {shown(value)}"
        if settings_of(self.kind)[name].kind == Names and isinstance(value, list):
            return " ".join(with_value(self.place(name), one) for one in value)
        is_parsed = settings_of(self.kind)[name].parse is not None and isinstance(value, list)
        return with_value(self.place(name), ",".join(map(str, value)) if is_parsed else value)

    @contextlib.contextmanager
    def naming_places(self) -> Iterator[None]:
        """Inside, the message of an error names settings by flag, or by settings file and key."""
        try:
            yield
        except GradloomError as error:
            error.name_settings(self._named)
            error.args = (self._with_place_of_path(error, str(error)),)
            raise

    def _named(self, name: str, seen: Any) -> str | None:
        """A setting of Python, with this value, or ... for its name alone; None if the command does not have it."""
        name = OF_PYTHON.get(name, name)
        if name not in settings_of(self.kind):
            return None
        if seen is ...:
            return self.place(name)
        return self.shown(name) if name in self.values else with_value(self.place(name), seen)

    def _with_place_of_path(self, error: GradloomError, text: str) -> str:
        """The message with the setting of the path that it begins with. The path of an argument needs none."""
        known = settings_of(self.kind)
        paths = [(name, v) for name, v in self.values.items() if known[name].kind == Place]
        paths += [(name, v) for name, one in self.values.items() if isinstance(one, dict) for v in one.values()]
        begun = [(len(path), name) for name, path in paths if text.startswith((f"{path}: ", f"{path}{os.sep}"))]
        name = max(begun)[1] if begun else ""
        if name in self.files:
            return f"{self.place(name)} = {text}"
        if name and isinstance(error, FileError) and known[name].is_saved and known[name].flag.startswith("--"):
            return f"{self.place(name)} {text}"
        return text


def command(kind: type[S], run: Callable[[Asked[S]], int], name: str, runs: type | None = None) -> Callable[..., int]:
    """The command function whose parameters are the settings and --config; it calls `run` with the given settings.
    runs: the settings of another command, whose saved files this one accepts."""

    register(name, kind, runs)

    def call(config: str | None = None, **flags: Any) -> int:
        return run(asked(kind, flags, config))

    config = Annotated[str | None, Option(help="A settings file (TOML) whose keys are these names, as batch_size.")]
    _show(call, [*_parameters(kind), _parameter("config", config)])
    call.__name__ = name
    return call


def with_options(*records: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A command without a settings file, whose `**options` become the options of these records that have a flag of the
    command of its name: checked, and the defaults of those that are not given. --help shows them before --json."""

    def add(function: Callable[..., int]) -> Callable[..., int]:
        kind = command_settings(function.__name__, *records)
        known = settings_of(kind)

        @functools.wraps(function)
        def call(**given: Any) -> int:
            own = {name: value for name, value in given.items() if name not in known}
            flags = _given({name: given.get(name) for name in known})
            options = Asked(kind, _of_flags(kind, flags)).settings()
            return function(**own, **vars(options))

        *own, last = [
            p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        _show(call, [*own, *_parameters(kind), last])
        return call

    return add


def _parameters(kind: Any) -> list[inspect.Parameter]:
    return [_parameter(s.name, Annotated[_plain(s), s.parameter]) for s in settings_of(kind).values() if s.parameter]


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _show(call: Any, parameters: list[inspect.Parameter]) -> None:
    """Give a function these parameters, for the parser."""
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    call.__signature__ = inspect.Signature(named, return_annotation=int)
    call.__annotations__ = {p.name: p.annotation for p in named} | {"return": int}


def _plain(setting: Setting) -> Any:
    """The type of the flag, None where it is not given. A list: it adds up where it is repeated."""
    kind = setting.kind
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if setting.parse is not None:
        adds_up = kind == Names or (get_origin(kind) in (dict, list) and setting.parse is not whole_numbers)
        return (list[str] if adds_up else str) | None
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    if get_origin(kind) is list:
        return list[str] | None
    return kind | None


def asked(kind: type[S], flags: Mapping[str, Any], file: str | None) -> Asked[S]:
    """The settings of flags and the settings file, each checked. With --parallel, this process joins the ranks first:
    rank 0 alone reports errors."""
    given = _given(flags)
    at_once = "parallel" in given or file is None
    ranks = _joined(Asked(kind, given)) if at_once else None
    values = {} if file is None else read(kind, file)
    files = {} if file is None else dict.fromkeys(values.keys() - given.keys(), file)
    if not at_once:
        ranks = _joined(Asked(kind, {**values, **given}, None, files))
    return Asked(kind, values | _of_flags(kind, given), ranks, files)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None and value != []}


def _of_flags(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the flags that are given, each checked."""
    values = {}
    for name, value in given.items():
        setting, text = settings_of(kind)[name], Asked(kind, given).shown(name)
        if setting.parse is not None:
            value = _parsed(setting, value)
        if setting.kind == Names and len(value) == 1:
            (value,) = value
        values[name] = checked(value, setting.kind, text, name)
    return values


def _joined(given: Asked[S]) -> Communicator | None:
    with given.naming_places():
        return join(*(given.values.get(name) for name in ("parallel", "exchange")))


def _parsed(setting: Setting, value: str | list[str]) -> Any:
    assert setting.parse is not None
    if not isinstance(value, list):
        return setting.parse(value)
    parts = [setting.parse(one) for one in value]
    if setting.kind == Names:
        return parts
    if all(isinstance(part, dict) for part in parts):
        return {name: each for part in parts for name, each in part.items()}
    return [each for part in parts for each in part]
