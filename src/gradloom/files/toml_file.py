"""Settings files (TOML), parsed as untrusted input."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from ..base.errors import FileError, SettingError
from ..base.reasons import unreadable
from .regular import open_regular

_LONGEST = 1 << 16  # bytes of a settings file
_MANY_DOTS = re.compile(  # in a key: the time that tomllib takes is that of their number squared
    r"""(?:^|[\[{,])[ \t]*(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""", re.MULTILINE
)


def parse_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file; FileError when it cannot be read, SettingError when it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with open_regular(path, "need a settings file (TOML)") as file:
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    if len(text) > _LONGEST:
        raise FileError(f"{path}: is longer than {_LONGEST} bytes; must be a settings file (TOML)")
    # a byte of a file's name that is no UTF-8 is kept in settings saved by a run
    words = text.decode(errors="surrogateescape").removeprefix("\ufeff")
    is_text = not re.search("[\ud800-\udfff]", words)
    if _MANY_DOTS.search(words):
        raise SettingError(f"{path}: has a key of 64 dots or more; must be a settings file (TOML)")
    try:
        found = tomllib.loads(words)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        if not is_text:
            raise SettingError(f"{path}: is not UTF-8 text; must be a settings file (TOML) in UTF-8") from None
        raise SettingError(f"{path}: is not TOML: {str(error).partition(';')[0] or 'nested too deeply'}") from None
    if not is_text and not isinstance(found.get("run"), dict):
        raise SettingError(f"{path}: is not UTF-8 text; must be a settings file (TOML) in UTF-8")
    return found
