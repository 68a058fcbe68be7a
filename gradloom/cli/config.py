"""The settings of a command, declared once: a dataclass whose fields are the flags, the keys of a settings file (TOML)
and what is saved with a run.

    class Fit:                                                                         $ gradloom fit --epochs 3
        epochs: Annotated[Whole | None, typer.Option(help="...")] = None               epochs = 3      # FILE.toml

msgspec checks types and ranges, of flags and files alike. A flag goes before the file, the file before the default.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from ..base.errors import FileError, SettingError
from .common import join

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator

_LONGEST = 1 << 16  # bytes of a settings file
_MANY_DOTS = re.compile(  # in a key: the time that tomllib takes is that of their number squared
    r"""(?:^|[\[{,])[ \t]*(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""", re.MULTILINE
)
S = TypeVar("S")


@dataclass(frozen=True)
class Limit:
    """Of a value, in words and as msgspec.Meta takes it (ge, gt, le, lt, min_length, pattern)."""

    need: str
    limits: tuple[tuple[str, Any], ...] = ()


Whole = Annotated[int, Limit("a whole number of at least 1", (("ge", 1), ("le", (1 << 63) - 1)))]
Count = Annotated[int, Limit("a whole number of at least 0", (("ge", 0), ("le", (1 << 63) - 1)))]
Rate = Annotated[float, Limit("a finite number above 0", (("gt", 0.0), ("le", sys.float_info.max)))]
Share = Annotated[float, Limit("a number of at least 0 and below 1", (("ge", 0.0), ("lt", 1.0)))]
Decay = Annotated[float, Limit("a finite number of at least 0", (("ge", 0.0), ("le", sys.float_info.max)))]
_TIME, _COUNT = r"\d{1,15}(\.\d{1,15})? ?(s|sec|min|h|d)", r"\d{1,15} ?(steps?|epochs?)"
Duration = Annotated[str, Limit("a duration such as 90s, 5min or 3h", (("pattern", f"^{_TIME}$"),))]
Interval = Annotated[str, Limit("a text such as 5min, 100steps or 1epoch", (("pattern", f"^({_TIME}|{_COUNT})$"),))]
Place = Annotated[str, Limit("the name of a file or folder", (("pattern", r"^[^\0]+\Z"),))]
decided: Any = None  # the default of what the data decide where it is not given


@dataclass(frozen=True)
class Text:
    """A flag whose text makes the value: parse(text), or each text of a flag that may be given more than once."""

    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Unsaved:
    """A setting that another run, which repeats this one, chooses anew: where it writes, how many threads it has."""


UNSAVED = Unsaved()


def commas(text: str) -> list[str]:
    """The parts of a text such as a,b."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


# ---- the declaration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A field of such a dataclass."""

    name: str
    kind: Any  # its type without None
    default: Any  # ...: none
    parameter: Any  # typer's Argument or Option; None: a key of the file alone
    parse: Callable[[str], Any] | None
    is_saved: bool

    @property
    def flag(self) -> str:
        """As the command line names it."""
        if isinstance(self.parameter, typer.models.ArgumentInfo):
            return self.name.upper()
        return f"--{self.name.replace('_', '-')}"


def settings_of(kind: Any) -> dict[str, Setting]:
    """The fields of a dataclass by name, in the order of their declaration."""
    return _settings_of(kind)


@cache
def _settings_of(kind: Any) -> dict[str, Setting]:
    hints = get_type_hints(kind, include_extras=True)
    made = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner, *extras = get_args(hint) if get_origin(hint) is Annotated else [hint]
        for extra in extras:
            if isinstance(extra, Limit):
                inner = Annotated[inner, extra]
        shown = [e for e in extras if isinstance(e, typer.models.ParameterInfo)]
        parse = [e.parse for e in extras if isinstance(e, Text)]
        made[field.name] = Setting(
            field.name, _without_none(inner), _default(field), shown[0] if shown else None,
            parse[0] if parse else None, UNSAVED not in extras,
        )  # fmt: skip
    return made


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        [one] = [part for part in get_args(kind) if part is not type(None)]
        return one
    return kind


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked(Generic[S]):
    """What a user asked for, by name, and the processes that work together."""

    kind: type[S]
    values: Mapping[str, Any]
    ranks: Communicator | None = None

    def settings(self, saved: Mapping[str, Any] | None = None) -> S:
        """All settings: what was asked for, else what is saved, else the defaults; SettingError for a missing one."""
        values = {**(saved or {}), **self.values}
        for setting in settings_of(self.kind).values():
            if setting.name not in values and setting.default is ...:
                more = f", or {setting.name} = in a --config file"
                raise SettingError(f"Missing argument '{setting.name.upper()}'{more}")
        return self.kind(**values)


def command(kind: type[S], run: Callable[[Asked[S]], int], name: str) -> Callable[..., int]:
    """A function as typer takes it, whose parameters are the settings and --config; `run` gets what was asked for."""

    def call(config: str | None = None, **flags: Any) -> int:
        return run(asked(kind, flags, config))

    config = Annotated[
        str | None, typer.Option(help="A settings file (TOML) whose keys are these names, as batch_size.")
    ]
    annotations: dict[str, Any] = {
        s.name: Annotated[_plain(s), _parameter(s)] for s in settings_of(kind).values() if s.parameter
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


def _parameter(setting: Setting) -> Any:
    """typer's, with the default in its help."""
    made = copy.copy(setting.parameter)
    if (
        setting.default is not None
        and setting.default is not ...
        and not isinstance(setting.default, (bool, list, dict))
    ):
        made.help = f"{made.help} [default: {setting.default}]"
    return made


def asked(kind: type[S], flags: Mapping[str, Any], file: str | None) -> Asked[S]:
    """What flags and the settings file ask for, each checked. Where ranks are asked for, this process joins them first:
    then rank 0 alone says what is wrong."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    ranked = ("parallel", "exchange")
    known = settings_of(kind)
    at_once = "parallel" in given or file is None
    if at_once:
        ranks = join(*(given.get(name) for name in ranked))
    values = {} if file is None else read(kind, file)
    if not at_once:
        ranks = join(*(given.get(name, values.get(name)) for name in ranked))
    for name, value in given.items():
        setting = known[name]
        text = f"{setting.flag} {'' if value is True else _told(value):.80}".rstrip()
        if setting.parse is not None:
            value = _parsed(setting, value)
        values[name] = checked(value, setting.kind, text)
    return Asked(kind, values, ranks)


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


# ---- files -----------------------------------------------------------------------------------------------------------


def parse_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file; FileError when it cannot be read, SettingError when it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    from ..files.regular import open_regular

    try:
        with open_regular(path, "need a settings file (TOML)") as file:
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(text) > _LONGEST:
        raise FileError(f"{path}: is longer than {_LONGEST} bytes; need a settings file (TOML)")
    # a byte of a file's name that is no UTF-8 stays what it is, in what a run has saved
    words = text.decode(errors="surrogateescape").removeprefix("\ufeff")
    is_text = not re.search("[\ud800-\udfff]", words)
    if _MANY_DOTS.search(words):
        raise SettingError(f"{path}: has a key of 64 dots or more; need a settings file (TOML)")
    try:
        found = tomllib.loads(words)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        if not is_text:
            raise SettingError(f"{path}: is no text of UTF-8; need a settings file (TOML) in UTF-8") from None
        raise SettingError(f"{path}: is no TOML: {str(error).partition(';')[0] or 'nested too deeply'}") from None
    if not is_text and not isinstance(found.get("run"), dict):
        raise SettingError(f"{path}: is no text of UTF-8; need a settings file (TOML) in UTF-8")
    return found


def read(kind: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a file, checked, by name. A table [run] tells of the run that saved them: no setting.

    SettingError with file, key, value and what is needed; an unknown key names the nearest.
    """
    found = parse_toml(path)
    found.pop("run", None)
    known = settings_of(kind)
    for key in found:
        if key not in known:
            raise SettingError(f"{path}: key {key} is not known{_nearest(key, known)}")
    return {key: checked(value, known[key].kind, f"{path}: {key} = {shown(value)}") for key, value in found.items()}


def save(settings: Any, about: Mapping[str, Any]) -> bytes:
    """A settings file with what was decided, places as whole paths, and the run that it tells of."""
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


# ---- checks ----------------------------------------------------------------------------------------------------------


def checked(value: Any, kind: Any, place: str) -> Any:
    """The value as this type; SettingError with what is needed: "PLACE: need ..."."""
    import msgspec

    _check_tables(value, kind, place)
    try:
        return msgspec.convert(value, _with_limits(kind), strict=True)
    except msgspec.ValidationError:
        large = ", below 2**63" if isinstance(value, int) and value >= 1 << 63 else ""
        unknown = "is not known; " if get_origin(kind) is Literal and isinstance(value, str) else ""
        raise SettingError(f"{place}: {unknown}need {_need(kind)}{large}") from None


def _check_tables(value: Any, kind: Any, place: str) -> None:
    """The tables of a list, each with its own message."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is not list or not isinstance(value, list) or not dataclasses.is_dataclass(get_args(kind)[0]):
        return
    known, file = settings_of(get_args(kind)[0]), place.partition(" = ")[0]
    for i, table in enumerate(value):
        if not isinstance(table, dict):
            raise SettingError(f"{file}[{i}] = {shown(table)}: need a table")
        for key, one in table.items():
            if key not in known:
                raise SettingError(f"{file}[{i}]: key {key} is not known{_nearest(key, known)}")
            checked(one, known[key].kind, f"{file}[{i}].{key} = {shown(one)}")
        for key, setting in known.items():
            if setting.default is ... and key not in table:
                raise SettingError(f"{file}[{i}]: key {key} is missing; need {_need(setting.kind)}")


def _with_limits(kind: Any) -> Any:
    """The type with msgspec's own limits in place of ours."""
    import msgspec

    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        kind = _with_limits(parts[0])
        for part in parts[1:]:
            limits: Any = dict(part.limits)
            kind = Annotated[kind, msgspec.Meta(**limits)] if limits else kind
        return kind
    if origin in (list, dict):
        return origin[tuple(_with_limits(part) for part in parts)]
    return kind


def _need(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        said = [part.need for part in parts[1:] if isinstance(part, Limit)]
        return said[0] if said else _need(parts[0])
    if origin is Literal:
        return " or ".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
    if origin is list:
        return f"a list, each of it {_need(parts[0])}"
    if origin is dict:
        return f"a table of names, each with {_need(parts[1])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names.get(kind, "a table")


def shown(value: Any) -> str:
    """A value of a settings file in a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:  # a date
        text = str(value)
    except ValueError:  # of more digits than Python writes
        text = hex(value) if isinstance(value, int) else "..."
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_").lower(), list(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; need one of {', '.join(known)}"
