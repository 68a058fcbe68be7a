"""Schemas of saved state: which values a part of a checkpoint may hold.

A Schema is a function (value, name) that raises DataError where the value does not fit; the name is for the message.
Values are those of files/checkpoint_files.py: None, bool, int, float, str, list, tuple, dict and NumPy arrays. A schema
is checked before any object is built from the values, so it also bounds counts by the data that are present.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import DataError

Schema = Callable[[Any, str], None]
MOST = 2**53 - 1  # of counts: whole numbers that a float holds
_SHOWN = 80  # characters of a value in a message


def shown(value: object) -> str:
    """A value in one line of a message."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return f"a whole number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def shown_name(name: str) -> str:
    """A name in one line of a message: as it is, where it is short and printable."""
    return name if name and name.isprintable() and len(name) <= 2 * _SHOWN else shown(name)


def wrong(name: str, value: object, need: str) -> DataError:
    """The error for a value that does not fit."""
    return DataError(f"{shown_name(name)} is {shown(value)}; need {need}")


# ---- single values ---------------------------------------------------------------------------------------------------


def whole(least: int = 0, most: int = MOST) -> Schema:
    """A whole number from `least` to `most`."""

    def check(value: Any, name: str) -> None:
        if not (type(value) is int or isinstance(value, np.integer)) or not least <= value <= most:
            raise wrong(name, value, f"a whole number from {least} to {most}")

    return check


def number(least: float = -math.inf, most: float = math.inf, finite: bool = True) -> Schema:
    """A float, or a whole number below 2**53, from `least` to `most`. finite=False: also inf; never nan."""

    def check(value: Any, name: str) -> None:
        if not _is_number(value) or not least <= value <= most or (finite and not math.isfinite(value)):
            bounds = "" if math.isinf(least) and math.isinf(most) else f" from {least:g} to {most:g}"
            raise wrong(name, value, f"a {'finite ' * finite}number{bounds}")

    return check


def any_number(value: Any, name: str) -> None:
    """A float of any value, nan and inf included, or a whole number below 2**53."""
    if not _is_number(value):
        raise wrong(name, value, "a number")


def _is_number(value: Any) -> bool:
    if isinstance(value, (np.floating, np.integer)):
        return True
    return type(value) is float or (type(value) is int and abs(value) <= MOST)


def flag(value: Any, name: str) -> None:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise wrong(name, value, "True or False")


def text(value: Any, name: str) -> None:
    """A text."""
    if type(value) is not str:
        raise wrong(name, value, "a text")


def one_of(*values: object) -> Schema:
    """One of these values, of the same type."""

    def check(value: Any, name: str) -> None:
        if not any(type(value) is type(one) and value == one for one in values):
            raise wrong(name, value, " or ".join(map(repr, values)))

    return check


def optional(schema: Schema) -> Schema:
    """None, or a value that the schema accepts."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            schema(value, name)

    return check


def plain(value: Any, name: str) -> None:
    """Any value without arrays: None, bool, int, float, str, and lists, tuples and dicts of these."""
    if isinstance(value, (list, tuple)):
        for one in value:
            plain(one, name)
    elif isinstance(value, dict):
        for key, one in value.items():
            plain(key, name)
            plain(one, name)
    elif not (value is None or type(value) in (bool, int, float, str)):
        raise wrong(name, value, "a plain value")


def anything(value: Any, name: str) -> None:
    """Any value that a checkpoint holds."""


# ---- several values --------------------------------------------------------------------------------------------------


def items(schema: Schema, count: int | None = None, kinds: tuple[type, ...] = (list,)) -> Schema:
    """A list (or another of these kinds) of such values, of length `count` where it is given."""

    def check(value: Any, name: str) -> None:
        if type(value) not in kinds or (count is not None and len(value) != count):
            raise wrong(name, value, f"a {kinds[0].__name__}{f' of {count}' if count is not None else ''}")
        for i, one in enumerate(value):
            schema(one, f"{name}[{i}]")

    return check


def different_texts(value: Any, name: str) -> None:
    """A list of texts, each once."""
    items(text)(value, name)
    if len(set(value)) < len(value):
        raise wrong(name, value, "texts that are all different")


def mapping(schema: Schema, keys: str = "") -> Schema:
    """A dict whose keys are texts, and all values such. keys: a regular expression, which each key matches."""
    pattern = re.compile(keys, re.A | re.S) if keys else None

    def check(value: Any, name: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(name, value, "a dict")
        for key, one in value.items():
            if type(key) is not str or (pattern is not None and pattern.fullmatch(key) is None):
                raise DataError(f"{shown_name(name)}: key {shown(key)} is not known")
            schema(one, f"{name}.{key}")

    return check


def table(
    fields: Mapping[str, Schema], more: Mapping[str, Schema] | None = None, absent: Collection[str] = ()
) -> Schema:
    """A dict with exactly these keys. more: regular expressions of further keys, any number of each; absent: keys that
    may be missing."""
    families = [(re.compile(pattern, re.A | re.S), schema) for pattern, schema in (more or {}).items()]

    def check(value: Any, name: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(name, value, "a dict")
        missing = [key for key in fields if key not in value and key not in absent]
        if missing:
            raise DataError(f"{shown_name(name)}: {', '.join(missing)} is missing")
        for key, one in value.items():
            schema = fields.get(key) if type(key) is str else None
            if schema is None and type(key) is str:
                schema = next((other for pattern, other in families if pattern.fullmatch(key)), None)
            if schema is None:
                raise DataError(f"{shown_name(name)}: key {shown(key)} is not known")
            schema(one, f"{name}.{key}")

    return check


def both(*schemas: Schema) -> Schema:
    """All of these, in their order: a later one may rely on an earlier one."""

    def check(value: Any, name: str) -> None:
        for schema in schemas:
            schema(value, name)

    return check


def either(first: Schema, second: Schema) -> Schema:
    """One of both; the error is that of the second."""

    def check(value: Any, name: str) -> None:
        try:
            first(value, name)
        except DataError:
            second(value, name)

    return check


# ---- arrays ----------------------------------------------------------------------------------------------------------


def array(
    kinds: str | Sequence[str] = (), ndim: int | None = None, shape: tuple[int, ...] | None = None,
    least: float | None = None, most: float | None = None,
) -> Schema:  # fmt: skip
    """An array of one of these dtypes (any, where none is given), axes or shape. least, most: of each element, which is
    then no nan."""
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)

    def check(value: Any, name: str) -> None:
        usable = type(value) is np.ndarray and (not names or (value.dtype.name in names and value.dtype.isnative))
        usable = usable and ndim in (None, value.ndim) and shape in (None, value.shape)
        if not usable:
            axes = f" of {ndim} axis" if ndim == 1 else "" if ndim is None else f" of {ndim} axes"
            axes = f" of shape {list(shape)}" if shape is not None else axes
            raise wrong(name, value, f"an array{axes}{' of ' * bool(names)}{' or '.join(names)}")
        low, high = (least is None or bool((value >= least).all())), (most is None or bool((value <= most).all()))
        if not (low and high):
            raise DataError(f"{shown_name(name)} has elements out of range; need from {least} to {most}")

    return check
