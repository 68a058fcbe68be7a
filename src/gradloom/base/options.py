"""Options declared once: fields of frozen dataclasses (records), from which everything else is derived.

    @dataclass(frozen=True)
    class StepOptions:
        ema: Share = option(0.0, "the decay of a moving average", Flag("fit finetune", "Decay of a moving average."))

derived from a field           by
-----------------------------  ------------------------------------------
signature and docstring        `takes`
check of an argument           `taken`, by type and limits
flag, help, settings file      `Flag`, cli/setting.py
run identity                   `bits=True`, `bits_of`
memory plan                    a flag of the command `plan`
type stubs and docs/options.md docs/options.py
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .arguments import as_bool, f32_hint, nearest
from .errors import SettingError
from .interval import Interval as Every

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
_F32_MAX = (2 - 2.0**-23) * 2.0**127


# ---- types with limits -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """The limit of a value, in words and as msgspec.Meta takes it (ge, gt, le, lt, min_length, pattern)."""

    need: str
    limits: tuple[tuple[str, Any], ...] = ()

    def allows(self, value: Any) -> bool:
        """Whether the value is within all limits; NaN is not."""
        return all(_ALLOWS[name](value, bound) for name, bound in self.limits)


_ALLOWS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, bound: value >= bound,
    "gt": lambda value, bound: value > bound,
    "le": lambda value, bound: value <= bound,
    "lt": lambda value, bound: value < bound,
    "min_length": lambda value, bound: len(value) >= bound,
    "pattern": lambda value, bound: re.search(bound, value.strip()) is not None,
}


Whole = Annotated[int, Limit("a whole number of at least 1", (("ge", 1), ("le", (1 << 63) - 1)))]
Count = Annotated[int, Limit("a whole number of at least 0", (("ge", 0), ("le", (1 << 63) - 1)))]
# Programs hold these in float32: values that float32 rounds to inf, 0 or 1 are refused
Rate = Annotated[float, Limit("a finite number above 0", (("gt", 2.0**-150), ("le", _F32_MAX)))]
Share = Annotated[float, Limit("a number of at least 0 and below 1", (("ge", 0.0), ("lt", 1 - 2.0**-25)))]
Decay = Annotated[float, Limit("a finite number of at least 0", (("ge", 0.0), ("le", _F32_MAX)))]
_TIME = r"(?!0+(\.0+)? ?[a-z])\d{1,15}(\.\d{1,15})? ?(s|sec|min|h|d)"
_COUNT = r"(?!0+ ?[a-z])\d{1,15} ?(steps?|epochs?)"
Duration = Annotated[str, Limit("a duration such as 90s, 5min or 3h", (("pattern", rf"^{_TIME}\Z"),))]
Often = Annotated[str, Limit("a text such as 100steps or 1epoch", (("pattern", rf"^{_COUNT}\Z"),))]
Interval = Annotated[str, Limit("a text such as 5min, 100steps or 1epoch", (("pattern", rf"^({_TIME}|{_COUNT})\Z"),))]
Name = Annotated[str, Limit("a text that is not empty", (("min_length", 1),))]
Bytes = Annotated[str, Limit("bytes such as 6GiB", (("min_length", 1),))]
BytesOrAuto = Annotated[str, Limit("bytes such as 6GiB, or auto", (("min_length", 1),))]
CountOrAuto = Annotated[str, Limit("a whole number, or auto", (("min_length", 1),))]
Names = str | list[Name]  # one, or several of a flag that is repeated
Place = Annotated[str, Limit("the name of a file or folder", (("pattern", r"^[^\0]+\Z"),))]
decided: Any = None  # the default of a flag whose value follows from the data or the method


def commas(text: str) -> list[str]:
    """The parts of a text such as a,b."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def whole_numbers(text: str) -> list[int | str]:
    """The parts of a text such as 64,128; those that are no whole numbers as texts."""
    return [int(part) if part.isdecimal() and len(part) < 20 else part for part in commas(text)]


# ---- the declaration -------------------------------------------------------------------------------------------------

_SAME: Any = "same"  # a flag with the default of its field


@dataclass(frozen=True)
class Flag:
    """How commands show an option.

    commands   their names, such as "fit finetune"; "plan": the option affects the memory plan
    help       None: no flag, a key of settings files only
    kind       the type with limits, by default that of the field
    default    by default that of the field; None: without the flag the function's default applies
    parse      text of the flag -> value (or each text of a flag that may be repeated)
    is_number  a text that is often a number, which a settings file may hold as a whole number
    """

    commands: str
    help: str | None
    kind: Any = None
    default: Any = _SAME
    parse: Callable[[str], Any] | None = None
    is_number: bool = False
    is_argument: bool = False
    metavar: str | None = None


@dataclass(frozen=True)
class Option:
    """A field of a record.

    bits         a resume compares the value by name
    compared_as  documentation: the name of the derived state that a resume compares instead (runs/identity.py)
    saved        written to a run's settings.toml
    typed        the annotation for type checkers, where the field's own is less precise
    """

    doc: str
    default: Any
    flags: tuple[Flag, ...] = ()
    bits: bool = False
    compared_as: str = ""
    saved: bool = True
    typed: str = ""
    name: str = ""
    kind: Any = None

    def flag(self, command: str) -> Flag | None:
        """The flag of a command, with kind and default filled in."""
        for flag in self.flags:
            if command in flag.commands.split():
                default = self.default if flag.default is _SAME else flag.default
                return dataclasses.replace(flag, kind=flag.kind or without_none(self.kind), default=default)
        return None

    @property
    def annotation(self) -> Any:
        """The type for signatures and stubs."""
        return self.typed or _plain(self.kind)


def option(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *flags: Flag,
    bits: bool = False,
    compared_as: str = "",
    saved: bool = True,
    typed: str = "",
) -> Any:
    """A field of a record; see Option and Flag."""
    made = Option(" ".join(doc.split()), default, flags, bits, compared_as, saved, typed)
    return dataclasses.field(default=default, metadata={"option": made})


def command_option(commands: str, help: str | None, default: Any = None, saved: bool = True, **flag: Any) -> Any:
    """An option that only commands have; see Flag."""
    return option(default, "", Flag(commands, help, **flag), saved=saved)


def options_of(*records: type) -> dict[str, Option]:
    """The options of records by name, those of a class before those that it inherits. A later record replaces fields
    of an earlier one."""
    return {name: one for record in records for name, one in _options_of(record).items()}


@cache
def _options_of(record: type) -> dict[str, Option]:
    hints = get_type_hints(record, include_extras=True)
    fields = {field.name: field.metadata["option"] for field in dataclasses.fields(record)}
    order = dict.fromkeys(name for part in record.__mro__ for name in vars(part).get("__annotations__", ()))
    return {n: dataclasses.replace(fields[n], name=n, kind=hints[n]) for n in order}


def without_none(kind: Any) -> Any:
    """X of X | None."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    is_optional = get_origin(kind) is not Annotated and type(None) in get_args(kind)
    return functools.reduce(operator.or_, parts) if is_optional else kind


def _plain(kind: Any) -> Any:
    """The type without limits."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    inner = without_none(kind)
    return kind if inner is kind else _plain(inner) | None


# ---- checks ----------------------------------------------------------------------------------------------------------

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def need_of(kind: Any, value: Any = None) -> str:
    """The requirement of a type, in words that complete "must be". value: one that does not meet it, for a hint."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        needs = [part.need for part in parts[1:] if isinstance(part, Limit)]
        need = needs[0] if needs else need_of(parts[0])
    elif origin is Literal:
        need = " or ".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
        need += _word_hint(value, [part for part in parts if isinstance(part, str)])
    elif origin is list:
        need = f"a list, each of it {need_of(parts[0])}"
    elif origin is dict:
        need = f"a table of names, each with {need_of(parts[1])}"
    elif kind == Names:
        need = "a text, or a list of texts that are not empty"
    else:
        need = _WORDS.get(kind, "a table")
    large = isinstance(value, int) and value >= 1 << 63
    return f"{need}{', below 2**63' if large else f32_hint(value)}"


def _word_hint(value: Any, words: list[str]) -> str:
    """A word that the value is a part of, such as f1_macro for f1, else a similar one; "" without any."""
    if not isinstance(value, str):
        return ""
    longer = [word for word in words if value.lower() in word.split("_")]
    return f"; did you mean {' or '.join(longer)}?" if longer else nearest(value, words)


def within(name: str, value: Any, kind: Any, place: str = "") -> Any:
    """The value, numbers as those of Python; SettingError unless it is within the limits of the type. Types without
    limits, and objects other than numbers and texts, are checked where they are used."""
    inner = without_none(kind)
    if value is None and inner is not kind:
        return None
    plain, *limits = get_args(inner) if get_origin(inner) is Annotated else (inner,)
    if plain is bool:
        return as_bool(name, value, place)
    if plain in (int, float) and limits:
        is_right = isinstance(value, Integral if plain is int else Real) and not isinstance(value, bool)
    elif get_origin(plain) is Literal:
        is_right = isinstance(value, str) and value in get_args(plain)
    elif plain is str and limits and not isinstance(value, Every):
        is_right = isinstance(value, str)
    else:
        return value
    if not is_right or not all(limit.allows(value) for limit in limits):
        raise SettingError(setting=name, seen=value, need=need_of(inner, value), place=place)
    return plain(value) if plain in (int, float) else value


# ---- derived from records --------------------------------------------------------------------------------------------


def takes(*records: type) -> Callable[[F], F]:
    """Replace **settings in a function's signature and annotations by the options, and {options} in its docstring by
    their documentation. Of a class: in its constructor and its docstring."""

    def derive(target: F) -> F:
        function: Any = target.__init__ if inspect.isclass(target) else target
        every = options_of(*records).values()
        signature = inspect.signature(function)
        own = list(signature.parameters.values())
        more = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.annotation)
            for one in every
        ]
        kept = [p for p in own if p.kind is not p.VAR_KEYWORD]
        rest = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation=Any)
        function.__signature__ = signature.replace(parameters=[*kept, *more, rest])
        shown = {p.name: p.annotation for p in [*kept, *more, rest] if p.annotation is not p.empty}
        function.__annotations__ = shown | {"return": signature.return_annotation}
        target.__doc__ = "\n".join(_documented(target.__doc__ or "", list(every)))
        return target

    return derive


def _documented(text: str, every: list[Option]) -> Iterator[str]:
    for line in text.split("\n"):
        if line.strip() != "{options}":
            yield line
            continue
        width = max(len(one.name) for one in every) + 2
        indent = line[: len(line) - len(line.lstrip())]
        for one in every:
            yield textwrap.fill(
                one.doc, 120, initial_indent=f"{indent}{one.name:<{width}}", subsequent_indent=indent + " " * width,
                break_on_hyphens=False, break_long_words=False,
            )  # fmt: skip


def taken(record: type[R], given: Mapping[str, Any]) -> tuple[R, dict[str, Any]]:
    """(the record of the arguments that are its options, the other arguments). SettingError for a value beyond the
    limits of its field."""
    names = options_of(record)
    made = record(**{name: within(name, value, names[name].kind) for name, value in given.items() if name in names})
    return made, {name: value for name, value in given.items() if name not in names}


def values_of(settings: Any, *records: type) -> dict[str, Any]:
    """The options of these records that `settings`, another record, has too, with its values."""
    return {name: getattr(settings, name) for name in options_of(*records) if hasattr(settings, name)}


def bits_of(settings: Any, *records: type) -> dict[str, Any]:
    """The values that a resume compares by name."""
    return {name: getattr(settings, name) for name, one in options_of(*records).items() if one.bits}


def default_bits(*records: type) -> dict[str, Any]:
    """Likewise of a run without any of these options, as one that an earlier version has saved."""
    defaults = {name: one.default for name, one in options_of(*records).items() if one.bits}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
