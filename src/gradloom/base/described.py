"""Descriptions in JSON inside files, read strictly: every key once, of its type, in its range, and no other key."""

from __future__ import annotations

import json
import math
from typing import Any

from .errors import DataError

_NAMED = 20  # known texts in a message

LONGEST = 1 << 24  # characters of a description: parsed, a character takes up to 24 bytes


def parse(text: str, what: str) -> Described:
    """The JSON object in a text, to be read strictly; DataError as for parse_object."""
    return Described(parse_object(text, what), what)


def parse_object(text: str, what: str, longest: int = LONGEST) -> dict[str, Any]:
    """The JSON object in a text.

    DataError when it is none, has more than `longest` characters, is nested too deeply, names a key twice, or holds NaN
    or Infinity.
    """
    if len(text) > longest:
        raise DataError(f"{what} has {len(text)} characters; need at most {longest}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise DataError(f"{what} is nested too deeply; need a JSON object") from None
    except ValueError as error:
        raise DataError(f"{what}: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{what} is {_shown(value)}; need an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}; need finite numbers")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key!r:.60} is there twice")
        made[key] = value
    return made


class Described:
    """A JSON object whose keys are read one by one; `end` rejects unread keys. All errors are DataErrors."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise DataError(f"{what} is {_shown(value)}; need an object")
        self._left, self._what = dict(value), what

    def end(self) -> None:
        """All keys are taken."""
        if self._left:
            raise DataError(f"{self._what}: key {next(iter(self._left))!r:.60} is not known")

    def names(self) -> list[str]:
        """The unread keys."""
        return list(self._left)

    def has(self, key: str) -> bool:
        """Whether there is such a key, still unread."""
        return key in self._left

    def is_text(self, key: str) -> bool:
        """Whether there is such a key, still unread, whose value is a text."""
        return isinstance(self._left.get(key), str)

    def text(self, key: str, among: tuple[str, ...] | None = None) -> str:
        """A text that UTF-8 can hold, one of `among` where that is given."""
        return self._text(key, self._take(key), among)

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def whole(self, key: str, least: int) -> int:
        """A whole number of at least `least`, below 2**53."""
        return self._whole(key, self._take(key), least)

    def whole_or_none(self, key: str, least: int) -> int | None:
        """A whole number of at least `least`, below 2**53, or null."""
        value = self._take(key)
        return None if value is None else self._whole(key, value, least)

    def number(self, key: str, positive: bool = False) -> float:
        """A finite number, above 0 where `positive`."""
        return self._number(key, self._take(key), positive)

    def texts(self, key: str) -> list[str]:
        """A list of texts that are all different."""
        made = [self._text(key, value, None) for value in self._list(key)]
        if len(set(made)) < len(made):
            raise DataError(f"{self._what}: {key} names one text twice; need different ones")
        return made

    def wholes(self, key: str, least: int) -> list[int]:
        """A list of whole numbers of at least `least`, below 2**53."""
        return [self._whole(key, value, least) for value in self._list(key)]

    def numbers(self, key: str, positive: bool = False) -> list[float]:
        """A list of finite numbers, above 0 where `positive`."""
        return [self._number(key, value, positive) for value in self._list(key)]

    def part(self, key: str) -> Described:
        """An object."""
        return Described(self._take(key), key)

    def plain(self, key: str) -> dict[str, Any]:
        """An object of any keys and values."""
        value = self._take(key)
        if not isinstance(value, dict):
            raise self._bad(key, value, "an object")
        return value

    def parts(self, key: str) -> list[Described]:
        """A list of objects."""
        return [Described(value, f"{key}[{i}]") for i, value in enumerate(self._list(key))]

    def _take(self, key: str) -> Any:
        if key not in self._left:
            raise DataError(f"{self._what}: key {key!r} is missing")
        return self._left.pop(key)

    def _list(self, key: str) -> list[Any]:
        value = self._take(key)
        if not isinstance(value, list):
            raise self._bad(key, value, "a list")
        return value

    def _text(self, key: str, value: object, among: tuple[str, ...] | None) -> str:
        if not isinstance(value, str) or (among is not None and value not in among):
            named = " or ".join(repr(name) for name in (among or ())[:_NAMED])
            named += f" or one of {len(among) - _NAMED} others" if among is not None and len(among) > _NAMED else ""
            raise self._bad(key, value, named or "a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._bad(key, value, "a text that UTF-8 can hold") from None
        return value

    def _whole(self, key: str, value: object, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 53:
            raise self._bad(key, value, f"a whole number of at least {least}, below 2**53")
        return value

    def _number(self, key: str, value: object, positive: bool) -> float:
        try:
            made = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:
            made = math.inf
        if not math.isfinite(made) or (positive and made <= 0):
            raise self._bad(key, value, "a finite number" + " above 0" * positive)
        return made

    def _bad(self, key: str, value: object, need: str) -> DataError:
        return DataError(f"{self._what}: {key} is {_shown(value)}; need {need}")


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return f"a whole number of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
