"""Patterns of names, as those of files: * ? [abc]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .arguments import nearest
from .errors import SettingError


def as_patterns(who: str, given: Any) -> tuple[str, ...]:
    """One pattern or several, or SettingError."""
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, (tuple, list)) or not all(isinstance(p, str) and p for p in patterns):
        raise SettingError(f"{who}={given!r} is not usable; need a pattern of names, such as 'embed*', or several")
    return tuple(patterns)


def matched(who: str, patterns: Sequence[str], names: Iterable[str]) -> set[str]:
    """The names that a pattern matches; SettingError, naming the nearest, for a pattern without any."""
    names = list(names)
    matching: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            hint = nearest(pattern, names, f"need one of {', '.join(names[:8]) or 'none'}")
            raise SettingError(f"{who}: {pattern!r} matches no parameter{hint}")
        matching |= hits
    return matching
