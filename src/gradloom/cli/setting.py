"""A setting of a command: its name, its type with limits, its flag; the check of a value against it.

msgspec checks types and ranges, of flags and files alike.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from ..base.arguments import f32_hint
from ..base.errors import SettingError
from ..base.habits import keyword_hint

_F32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class Limit:
    """Of a value, in words and as msgspec.Meta takes it (ge, gt, le, lt, min_length, pattern)."""

    need: str
    limits: tuple[tuple[str, Any], ...] = ()


Whole = Annotated[int, Limit("a whole number of at least 1", (("ge", 1), ("le", (1 << 63) - 1)))]
Count = Annotated[int, Limit("a whole number of at least 0", (("ge", 0), ("le", (1 << 63) - 1)))]
# Programs hold these in float32: what that makes inf, 0 or 1 of is refused
Rate = Annotated[float, Limit("a finite number above 0", (("gt", 2.0**-150), ("le", _F32_MAX)))]
Share = Annotated[float, Limit("a number of at least 0 and below 1", (("ge", 0.0), ("lt", 1 - 2.0**-25)))]
Decay = Annotated[float, Limit("a finite number of at least 0", (("ge", 0.0), ("le", _F32_MAX)))]
_TIME = r"(?!0+(\.0+)? ?[a-z])\d{1,15}(\.\d{1,15})? ?(s|sec|min|h|d)"
_COUNT = r"(?!0+ ?[a-z])\d{1,15} ?(steps?|epochs?)"
Duration = Annotated[str, Limit("a duration such as 90s, 5min or 3h", (("pattern", rf"^{_TIME}\Z"),))]
Often = Annotated[str, Limit("a text such as 100steps or 1epoch", (("pattern", rf"^{_COUNT}\Z"),))]
Interval = Annotated[str, Limit("a text such as 5min, 100steps or 1epoch", (("pattern", rf"^({_TIME}|{_COUNT})\Z"),))]
Name = Annotated[str, Limit("a text that is not empty", (("min_length", 1),))]
Place = Annotated[str, Limit("the name of a file or folder", (("pattern", r"^[^\0]+\Z"),))]
decided: Any = None  # the default of what the data decide where it is not given


@dataclass(frozen=True)
class Text:
    """A flag whose text makes the value: parse(text), or each text of a flag that may be given more than once."""

    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Number:
    """A text that is often a number: a file may say it as a whole number, too."""


NUMBER = Number()


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
    is_number: bool

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
            parse[0] if parse else None, UNSAVED not in extras, NUMBER in extras,
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


# ---- checks ----------------------------------------------------------------------------------------------------------


def checked(value: Any, kind: Any, place: str, name: str) -> Any:
    """The value as this type; SettingError with the requirement: "PLACE: must be ...". name: of the setting."""
    import msgspec

    _check_tables(value, kind, place, name)
    try:
        return msgspec.convert(value, _with_limits(kind), strict=True)
    except msgspec.ValidationError:
        large = ", below 2**63" if isinstance(value, int) and value >= 1 << 63 else f32_hint(value)
        need = f"{_need(kind)}{large}"
        raise SettingError(f"{place}: must be {need}", setting=name, seen=value, need=need) from None


def _check_tables(value: Any, kind: Any, place: str, name: str) -> None:
    """The tables of a list, each with its own message."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is not list or not isinstance(value, list) or not dataclasses.is_dataclass(get_args(kind)[0]):
        return
    known, file = settings_of(get_args(kind)[0]), place.partition(" = ")[0]
    for i, table in enumerate(value):
        if not isinstance(table, dict):
            raise SettingError(f"{file}[{i}] = {shown(table)}: must be a table", setting=name, seen=table)
        for key, one in table.items():
            if key not in known:
                text = f"{file}[{i}]: key {key} is not known{nearest_key(key, known)}"
                raise SettingError(text, setting=name, seen=table)
            checked(one, known[key].kind, f"{file}[{i}].{key} = {shown(one)}", f"{name}[{i}].{key}")
        for key, setting in known.items():
            if setting.default is ... and key not in table:
                text = f"{file}[{i}]: key {key} is missing; must be {_need(setting.kind)}"
                raise SettingError(text, setting=f"{name}[{i}].{key}")


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
    """A value of a settings file in a message, in at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:  # a date
        text = str(value)
    except ValueError:  # of more digits than Python writes
        text = hex(value) if isinstance(value, int) else "..."
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest_key(key: str, known: Iterable[str]) -> str:
    """Suffix of a message about an unknown key."""
    return keyword_hint("", key.replace("-", "_").lower(), known, f"keys: {', '.join(known)}")
