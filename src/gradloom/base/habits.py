"""Errors that name the right call: for missing attributes, unexpected keywords, options and commands.

The names come from the tables of habit_names.py, from the public names of the loaded modules of gradloom, or from
the spelling. Nothing here is called unless a call has failed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .arguments import nearest

P = ParamSpec("P")
R = TypeVar("R")

# Modules whose public names are searched, and how users write them
_MODULES = {
    "gradloom.nn": "gl.nn", "gradloom.optim": "gl.optim", "gradloom.ops": "gl.ops", "gradloom.train": "gl.train",
    "gradloom.losses": "gl.losses", "gradloom.metrics": "gl.metrics",
    "gradloom.optim.schedules": "gl.optim.schedules", "gradloom.data": "gl.data", "gradloom.llm": "gl.llm",
    "gradloom.data.transforms": "gl.data.transforms",
    "gradloom": "gl",
}  # fmt: skip


# ---- missing names ---------------------------------------------------------------------------------------------------


def missing_name(module: str, name: str) -> AttributeError:
    """The error of a module without this name."""
    hint = "" if name.startswith("_") else _name_hint(name, sys.modules[module])
    return _attribute_error(f"module {module!r} has no attribute {name!r}", hint, name)


def _name_hint(name: str, module: Any) -> str:
    from .ggml_names import instruction
    from .habit_names import NAMES

    known, is_of_ggml = _public(module), name.startswith("ggml_")
    name = name.removeprefix("ggml_").removesuffix("_inplace")
    own = f"{module.__name__.rpartition('.')[2]}.{name}"
    of_ggml = instruction(name)
    text = (is_of_ggml and of_ggml) or NAMES.get(own) or NAMES.get(name) or _elsewhere(name) or of_ggml
    return nearest(name, known) if text is None else f"; {text}"


def _elsewhere(name: str) -> str | None:
    """A hint that names the attribute of a loaded module with this name, ignoring case and underscores."""
    found = [
        (known == name, f"use {shown}.{known}")
        for path, shown in _MODULES.items()
        for known in _public(sys.modules.get(path))
        if _plain(known) == _plain(name)
    ]
    return max(found, key=lambda one: one[0])[1] if found else None  # gl.relu: gl.ops.relu before gl.nn.ReLU


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _public(module: Any) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in vars(module) if name[0].isupper()] if module is not None else []
    return list(names)


def missing_attribute(owner: object, name: str, known: Iterable[str]) -> AttributeError:
    """The error of an object that looks attributes up itself: the class's hint, else the nearest of the known names."""
    own = _static(type(owner), name)
    hint = f"; {own.hint}" if isinstance(own, _Missing) else "" if name.startswith("_") else nearest(name, known)
    return _attribute_error(f"{type(owner).__name__!r} object has no attribute {name!r}", hint, name)


def _attribute_error(text: str, hint: str, name: str) -> AttributeError:
    # obj=None: Python would look for a similar name itself and print a second suggestion
    return AttributeError(text + hint, name=name, obj=None)


def not_callable(owner: object, use: str) -> TypeError:
    """The error of a call of an object that is no function."""
    return TypeError(f"{type(owner).__name__!r} object is not callable; use {use}")


class _Missing:
    """An attribute that a class does not have, and what to use in its place."""

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, owner: object, kind: type) -> Any:
        text = f"{kind.__name__!r} object has no attribute {self.name!r}"
        raise _attribute_error(text, f"; {self.hint}", self.name)


class AttributeHints:
    """A class for which the names of other libraries are errors that name the replacement.

    They are descriptors, not a `__getattr__`: a class with one loses CPython's fast access to all attributes (3.11).
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __init_subclass__(cls, **options: Any) -> None:
            from .habit_names import ATTRIBUTES

            super().__init_subclass__(**options)
            section = f"{cls.__module__.removeprefix('gradloom.').partition('.')[0]}.{cls.__name__}"
            hint_attributes(cls, ATTRIBUTES.get(section, {}))

        def __dir__(self) -> list[str]:
            return [name for name in super().__dir__() if not isinstance(_static(type(self), name), _Missing)]


def hint_attributes(kind: type[AttributeHints], hints: Mapping[str, str]) -> None:
    """From now on each of these names that the class does not have is an AttributeError with its instruction."""
    for name, hint in hints.items():
        if _static(kind, name) is None:
            setattr(kind, name, _Missing(name, hint))


def hint_ops(kind: type[AttributeHints], names: Iterable[str]) -> None:
    """The same for the names of ops, which are functions here, and for those of other libraries."""
    from .habit_names import NAMES

    hint_attributes(kind, {name: text for name, text in NAMES.items() if "gl.ops" in text and name.isidentifier()})
    hint_attributes(kind, {name: f"use gl.ops.{name}(x)" for name in names})


def numpy_hint(name: str) -> str:
    """The op in place of a function of NumPy of this name."""
    from .habit_names import NAMES

    text = NAMES.get(name, "")
    known = _public(sys.modules.get("gradloom.ops"))
    return text if "gl.ops" in text else f"use gl.ops.{name}" if name in known else "use the functions of gl.ops"


def _static(kind: type, name: str) -> Any:
    """What a class holds under a name, not bound."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


# ---- unexpected keywords ---------------------------------------------------------------------------------------------


def keyword_hint(who: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about a keyword that `who` does not take: the replacement, else a similar name, else
    `otherwise`."""
    from .habit_names import KEYWORDS

    known = list(known)
    own, anywhere = KEYWORDS.get(who, {}), KEYWORDS["*"].get(name, "")
    if "gl." not in anywhere and not set(re.findall(r"(\w+)=", anywhere)) <= set(known):
        anywhere = ""
    text = own.get(name) or anywhere or _synonym(name, known, "{}=")
    if text is None:  # another name of one that has an instruction
        text = next((own[other] for other in _same_as(name) if other in own), None)
    return f"; {text}" if text else nearest(name, known, otherwise)


def _synonym(name: str, known: Iterable[str], shown: str) -> str | None:
    return next((f"use {shown.format(other)}" for other in _same_as(name) if other in known), None)


def _same_as(name: str) -> list[str]:
    """The other names of a keyword."""
    from .habit_names import SYNONYMS

    return [other for group in SYNONYMS if name in group for other in group if other != name]


def value_hint(what: str, value: object, known: Iterable[str]) -> str:
    """The end of a message about a value that is not known: the one of gradloom, else a similar one."""
    from .habit_names import VALUES

    known, name = list(known), str(value).lower()
    text = VALUES.get(what, {}).get(name)
    if text is None:
        text = next((f"use {one!r}" for one in known if _plain(one) == _plain(name)), None)
    return f"; {text}" if text else nearest(name, known)


def check_keywords(function: Callable[..., Any], given: Iterable[str], name: str = "") -> None:
    """TypeError, with the replacement, for the first keyword that the function does not take."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [n for n in parameters if n != "self"]
    for one in given:
        if one not in known:
            raise unexpected_keyword(name or function.__name__, one, known)


def _check_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """TypeError, with the replacement, for a call that does not match the function's arguments."""
    from .habit_names import KEYWORDS

    check_keywords(function, kwargs)
    signature, who = inspect.signature(function), function.__name__
    try:
        signature.bind(*args, **kwargs)
        return
    except TypeError as error:
        why, hint = str(error), ""
    if why.startswith("too many"):
        hint = KEYWORDS.get(who, {}).get("*", "")
    else:  # an argument is missing, perhaps given under another name
        for name in kwargs.keys() - signature.parameters.keys():
            hint = keyword_hint(who, name, signature.parameters).removeprefix("; ")
    if hint:
        raise TypeError(f"{who}() {why}; {hint}")


def unexpected_keyword(who: str, name: str, known: Iterable[str]) -> TypeError:
    """The error of a function without this keyword."""
    known = list(known)
    hint = keyword_hint(who, name, known, f"its arguments are {', '.join(known)}" if known else "it takes none")
    return TypeError(f"{who}() got an unexpected keyword argument {name!r}{hint}")


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors of unexpected keywords name the right one. The spellings of NumPy and PyTorch of an
    axis and of keepdims (SPELLINGS) are taken for the function's own."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            respelled = _respelled(function, kwargs)
            if respelled == kwargs:
                _check_call(function, args, kwargs)
                raise
        return call(*args, **respelled)

    return call


def _respelled(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords, with those that the function does not take under its own spelling."""
    from .habit_names import SPELLINGS

    known = inspect.signature(function).parameters
    names = dict(kwargs)
    for name in kwargs.keys() - known.keys():
        own = next((one for group in SPELLINGS if name in group for one in group if one in known), name)
        if own not in names:
            names[own] = names.pop(name)
    return names


class KeywordHints:
    """A class whose constructor reports unexpected keywords with the right one."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if kwargs:
                check_keywords(cls.__init__, kwargs, cls.__name__)
            return super().__new__(cls)


# ---- the command -----------------------------------------------------------------------------------------------------


def option_hint(option: str, options: Iterable[str], arguments: Iterable[str], command: str = "") -> str:
    """The end of a message about an option that a command does not have. options: its own, such as "--lr"; arguments:
    the names of its positional arguments, such as "model"."""
    from .habit_names import OPTIONS

    options, name = list(options), option.lstrip("-").lower().replace("_", "-")
    flags = {one.lstrip("-"): one for one in options}
    for known in arguments:
        if known == name or _synonym(name.replace("-", "_"), [known], "{}"):
            return f"; {known.upper()} is given without an option"
    own, anywhere = OPTIONS.get(command, {}).get(name), OPTIONS["options"].get(name)
    if own is not None:
        return f"; {own}"
    if name in flags:  # written with underscores
        return f"; use {flags[name]}"
    text = _synonym(name.replace("-", "_"), [flag.replace("-", "_") for flag in flags], "{}")
    if text is not None:
        return f"; use {flags[text.removeprefix('use ').replace('_', '-')]}"
    if anywhere is not None and ("gradloom" in anywhere or set(re.findall(r"--[a-z-]+", anywhere)) <= set(options)):
        return f"; {anywhere}"
    near = nearest(name, flags)
    return f"; did you mean {flags[near.removeprefix('; did you mean ').removesuffix('?')]}?" if near else ""


def command_hint(name: str) -> str:
    """The end of a message about a command that there is not."""
    from .habit_names import COMMANDS

    return f"; {COMMANDS[name]}" if name in COMMANDS else ""
