"""JSON files, parsed as untrusted input."""

from __future__ import annotations

import json
import os
from typing import Any

from ..base.errors import FileError
from .regular import open_regular

_BYTES = 1 << 26  # of a file, such as a result.json with the history of a long run


def json_object(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The JSON object of a file of at most 64 MiB; None where there is none that can be read."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _BYTES:
                return None
            found = json.loads(file.read())
    except (OSError, FileError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
