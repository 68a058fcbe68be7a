"""Settings of a command, derived from records of options (base/options.py), and the check of a value against its type.

msgspec checks types and ranges, of flags and files alike.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ..base.errors import SettingError
from ..base.habits import keyword_hint
from ..base.options import Name, Names, need_of, options_of, without_none
from .parser import Argument, Option

# ---- the declaration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A setting of a command: an option with its flag."""

    name: str
    kind: Any  # its type without None
    default: Any  # ...: none
    help: str | None  # None: a key of settings files only
    parse: Callable[[str], Any] | None = None
    is_saved: bool = True
    is_number: bool = False
    is_argument: bool = False
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """As the command line names it."""
        return self.name.upper() if self.is_argument else f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> Any:
        """Its declaration for the parser, with the default in its help; None: a key of settings files only."""
        if self.help is None:
            return None
        shows = self.default not in (None, ...) and not isinstance(self.default, (bool, list, dict))
        text = f"{self.help} [default: {self.default}]" if shows else self.help
        if self.is_argument:
            return Argument(help=text)
        return Option(*([self.flag] if self.kind is bool else []), help=text, metavar=self.metavar)


def command_settings(command: str, *records: type) -> Any:
    """A dataclass of the options that this command shows, with the defaults of its flags."""
    settings: dict[str, Setting] = {}
    for name, one in options_of(*records).items():
        if (flag := one.flag(command)) is not None:
            default = ... if flag.default is dataclasses.MISSING else flag.default
            settings[name] = Setting(
                name, flag.kind, default, flag.help, flag.parse, one.saved, flag.is_number, flag.is_argument,
                flag.metavar,
            )  # fmt: skip
    fields = [
        (s.name, s.kind, field(default=dataclasses.MISSING if s.default is ... else s.default))
        for s in settings.values()
    ]
    return make_dataclass(f"{command.title()}Settings", fields, frozen=True, namespace={"settings": settings})


def flag_of(record: type, name: str) -> Any:
    """The declaration of an option, for commands without a settings file: its first flag. The parameter's default is
    shown by the parser."""
    one = options_of(record)[name]
    flag = one.flag(one.flags[0].commands.split()[0])
    assert flag is not None
    return Setting(name, flag.kind, None, flag.help, metavar=flag.metavar).parameter


def settings_of(kind: Any) -> dict[str, Setting]:
    """The fields of a dataclass by name, in the order of their declaration."""
    made: dict[str, Setting] = kind.settings if hasattr(kind, "settings") else _settings_of(kind)
    return made


@cache
def _settings_of(kind: Any) -> dict[str, Setting]:
    """Of a plain dataclass: a table of a settings file."""
    hints = get_type_hints(kind, include_extras=True)
    defaults = {
        one.name: ... if one.default is dataclasses.MISSING else one.default for one in dataclasses.fields(kind)
    }
    return {name: Setting(name, without_none(hints[name]), default, None) for name, default in defaults.items()}


# ---- checks ----------------------------------------------------------------------------------------------------------


def checked(value: Any, kind: Any, place: str, name: str) -> Any:
    """The value as this type; SettingError with the requirement: "PLACE: must be ...". name: of the setting."""
    import msgspec

    _check_tables(value, kind, place, name)
    try:
        return msgspec.convert(value, _with_limits(kind), strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError):  # it converts no bytes that the locale does not have
        need = need_of(kind, value)
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
                text = f"{file}[{i}]: key {key} is missing; must be {need_of(setting.kind)}"
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
    return _with_limits(list[Name]) | str if kind == Names else kind


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
