"""Patterns of names, as those of files: * ? [abc]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .arguments import nearest
from .errors import SettingError


def as_patterns(name: str, given: Any, place: str = "") -> tuple[str, ...]:
    """One pattern or several, or SettingError."""
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, (tuple, list)) or not all(isinstance(p, str) and p for p in patterns):
        need = "a pattern of names, such as 'embed*', or several"
        raise SettingError(setting=name, seen=given, need=need, place=place)
    return tuple(patterns)


def matched(setting: str, patterns: Sequence[str], names: Iterable[str], part: str = "", place: str = "") -> set[str]:
    """The names that a pattern matches; SettingError, with the nearest name, for a pattern that matches none. part: of
    the setting, such as "[0]"."""
    names = list(names)
    matching: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            hint = nearest(pattern, names, f"parameters: {', '.join(names[:8]) or 'none'}")
            text = f"{{{setting}}}{part}: {pattern!r} matches no parameter{hint}"
            raise SettingError(text, setting=setting, place=place)
        matching |= hits
    return matching
