"""Checks of arguments: booleans, whole numbers, shares, paths; parts of messages."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from .errors import SettingError


def as_bool(name: str, value: Any, place: str = "") -> bool:
    """The value as a bool; SettingError for anything but a bool of Python or NumPy: "no" would count as true."""
    if value is True or value is False:
        return value
    import numpy as np  # commands check their settings before they import it

    if not isinstance(value, np.bool_):
        raise SettingError(setting=name, seen=value, need="True or False", place=place)
    return bool(value)


def as_whole(name: str, value: Any, least: int, place: str = "") -> int:
    """The value as an int; SettingError unless it is a whole number, of Python or NumPy, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise SettingError(setting=name, seen=value, need=f"a whole number of at least {least}", place=place)
    return int(value)


def as_share(name: str, value: Any, place: str = "") -> float:
    """The value as a float; SettingError unless it is a number of at least 0, below 1, in float32, too."""
    is_number = isinstance(value, (int, float, Real)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1 or in_f32(value) == 1:
        hint = f32_hint(value) if is_number else ""
        raise SettingError(setting=name, seen=value, need=f"at least 0 and below 1{hint}", place=place)
    return float(value)


def in_f32(value: Any) -> float:
    """The number as float32 holds it: inf where it is too large, 0 where it is too small, 1 just below 1."""
    try:
        return array("f", [value])[0]
    except OverflowError:  # a whole number that float64 cannot hold
        return math.inf if value > 0 else -math.inf


def f32_hint(value: Any) -> str:
    """Suffix of a requirement: ", in float32" for a number that rounds to inf, 0 or 1 there."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    rounded = in_f32(value) if is_number else None
    return ", in float32" if rounded in (0.0, 1.0, math.inf) and rounded != value else ""


def nearest(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Suffix of a message about an unknown name: "; did you mean lr?", or `otherwise` if none is similar."""
    import difflib

    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]}?" if near else otherwise and f"; {otherwise}"


def what_is(value: object) -> str:
    """The type of a value: "a dict", "the class Net"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def need_path(path: object, where: str, name: str, hint: str = "") -> None:
    """SettingError, naming the argument, unless it is a path."""
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"{{{name}}} is {what_is(path)}; must be {hint or 'a path'}", setting=name, place=where)


def halves(size: int) -> Iterator[int]:
    """Ever smaller micro-batches, down to 1 row: 12 -> 6, 3, 1."""
    while size > 1:
        size //= 2
        yield size


def listed(names: Sequence[str], between: str = ", ") -> str:
    """The names in one line; of many the first eight, and how many more there are."""
    if len(names) <= 9:
        return between.join(names)
    return f"{between.join(names[:8])}{between}and {len(names) - 8} more"
