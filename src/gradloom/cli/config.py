"""The settings of a command: flags, keys of a settings file (TOML), and what is saved with a run. They are derived from
records of options (`command_settings`).

A flag takes precedence over the file, the file over the default.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import typer

from ..base.arguments import one_line
from ..base.errors import FileError, GradloomError, SettingError
from ..base.options import Place
from .common import join
from .setting import Setting, checked, settings_of, shown
from .settings_file import read, register

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator

S = TypeVar("S")


@dataclass(frozen=True)
class Asked(Generic[S]):
    """What a user asked for, by name, and the processes that work together.

    files  which settings file a value comes from; the others come from the command line
    """

    kind: type[S]
    values: Mapping[str, Any]
    ranks: Communicator | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def beside(self, saved: Mapping[str, Any], file: str) -> Asked[S]:
        """The same beside what a run has saved in this file."""
        files = dict.fromkeys(saved.keys() - self.values.keys(), file)
        return Asked(self.kind, {**saved, **self.values}, self.ranks, {**self.files, **files})

    def settings(self) -> S:
        """All settings: what was asked for, else the defaults; SettingError for a missing one."""
        for setting in settings_of(self.kind).values():
            if setting.name not in self.values and setting.default is ...:
                more = f", or {setting.name} = in a --config file"
                raise SettingError(f"Missing argument '{setting.name.upper()}'{more}")
        return self.kind(**self.values)

    def place(self, name: str) -> str:
        """Where a setting comes from: "--lr", or "FILE: lr"."""
        return f"{self.files[name]}: {name}" if name in self.files else settings_of(self.kind)[name].flag

    def told(self, name: str) -> str:
        """A setting as it was asked for: "--lr 3", or "FILE: lr = 3"."""
        value = self.values[name]
        if name in self.files:
            return f"{self.place(name)} = {shown(value)}"
        return f"{self.place(name)} {'' if value is True else _told(value):.80}".rstrip()

    @contextlib.contextmanager
    def naming_places(self) -> Iterator[None]:
        """Inside, an error of a setting names where that comes from: its flag, or a settings file and its key."""
        try:
            yield
        except GradloomError as error:
            text = self._with_place(str(error), isinstance(error, FileError))
            if text == str(error):
                raise
            raise type(error)(text) from error.__cause__

    def _with_place(self, text: str, is_of_file: bool) -> str:
        """The message with the place of its setting, where it begins with a flag ("--lr 3: ..."), the name of an
        argument ("lr=3 ...", "Adam: lr: ...") or an input that cannot be read."""
        whole, text = text, re.sub(r"(\S+) \((--([a-z-]+)( [^),]+)?)\)", self._flag_or_key, text)
        is_named = text != whole
        if (found := re.match(r"--([a-z][a-z-]*)(?![\w-])", text)) and found[1].replace("-", "_") in self.files:
            name = found[1].replace("-", "_")
            return self.told(name) + _after(text[found.end() :], [" " + one for one in _forms(self.values[name])])
        for before in ("", r"[A-Za-z]\w*: "):
            found = re.match(rf"{before}([a-z_]+)(?==|: | without |\[\d)", text)
            if found and found[1] in self.values:
                name, rest = found[1], text[found.end() :]
                if rest.startswith("["):
                    return self.place(name) + rest
                return self.told(name) + _after(rest, ["=" + one for one in _forms(self.values[name])])
        return text if is_named else self._with_place_of_path(text, is_of_file)

    def _with_place_of_path(self, text: str, is_of_file: bool) -> str:
        """The message with the place of the path that it begins with. The path of an argument is its own name."""
        known = settings_of(self.kind)
        paths = [(name, v) for name, v in self.values.items() if known[name].kind == Place]
        paths += [(name, v) for name, one in self.values.items() if isinstance(one, dict) for v in one.values()]
        begun = [(len(path), name) for name, path in paths if text.startswith((f"{path}: ", f"{path}{os.sep}"))]
        name = max(begun)[1] if begun else ""
        if name in self.files:
            return f"{self.place(name)} = {text}"
        if name and is_of_file and known[name].is_saved and known[name].flag.startswith("--"):
            return f"{self.place(name)} {text}"
        return text

    def _flag_or_key(self, found: re.Match[str]) -> str:
        """Of "as_chat (--as-chat)": the flag, or the key of the settings file that has it; of "lr=3 (--lr)": the
        setting as it was asked for."""
        name = found[3].replace("-", "_")
        if "=" in found[1] and not found[4] and name in self.values:
            return self.told(name)
        return f"{name} of {self.files[name]}" if name in self.files else found[2]


def _forms(value: Any) -> list[str]:
    """A value as messages show it, the longest first."""
    shown_as = {str(value), f"{value!s:.80}", repr(value), one_line(value), _told(value)}
    if isinstance(value, list):
        shown_as.add(",".join(map(str, value)))
    return sorted(shown_as, key=len, reverse=True)


def _after(text: str, beginnings: list[str]) -> str:
    """The text without the first of these that it begins with."""
    return next((text[len(one) :] for one in beginnings if text.startswith(one)), text)


def command(kind: type[S], run: Callable[[Asked[S]], int], name: str, runs: type | None = None) -> Callable[..., int]:
    """A function as typer takes it, whose parameters are the settings and --config; `run` gets what was asked for.
    runs: the settings of the command whose runs it takes the files of."""

    register(name, kind, runs)

    def call(config: str | None = None, **flags: Any) -> int:
        return run(asked(kind, flags, config))

    config = Annotated[
        str | None, typer.Option(help="A settings file (TOML) whose keys are these names, as batch_size.")
    ]
    annotations: dict[str, Any] = {
        s.name: Annotated[_plain(s), s.parameter] for s in settings_of(kind).values() if s.parameter
    }
    annotations["config"] = config
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    call.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    call.__annotations__ = {**annotations, "return": int}
    call.__name__, call.__doc__ = name, run.__doc__
    return call


def _plain(setting: Setting) -> Any:
    """The type of the flag, None where it is not given."""
    kind = setting.kind
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if setting.parse is not None:
        several = get_origin(kind) is dict
        return (list[str] if several else str) | None
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    if get_origin(kind) is list:
        return list[str] | None
    return kind | None


def asked(kind: type[S], flags: Mapping[str, Any], file: str | None) -> Asked[S]:
    """What flags and the settings file ask for, each checked. Where ranks are asked for, this process joins them first:
    then rank 0 alone says what is wrong."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    at_once = "parallel" in given or file is None
    ranks = _joined(Asked(kind, given)) if at_once else None
    values = {} if file is None else read(kind, file)
    files = {} if file is None else dict.fromkeys(values.keys() - given.keys(), file)
    if not at_once:
        ranks = _joined(Asked(kind, {**values, **given}, None, files))
    for name, value in given.items():
        setting, text = settings_of(kind)[name], Asked(kind, given).told(name)
        if setting.parse is not None:
            value = _parsed(setting, value)
        values[name] = checked(value, setting.kind, text)
    return Asked(kind, values, ranks, files)


def _joined(given: Asked[S]) -> Communicator | None:
    with given.naming_places():
        return join(*(given.values.get(name) for name in ("parallel", "exchange")))


def _told(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parsed(setting: Setting, value: str | list[str]) -> Any:
    assert setting.parse is not None
    if not isinstance(value, list):
        return setting.parse(value)
    made: dict[str, Any] = {}
    for one in value:
        made |= setting.parse(one)
    return made
