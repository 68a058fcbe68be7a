"""Lines and cells of CSV that commands write."""

from __future__ import annotations

import contextlib
import re

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # spreadsheets read wide forms as these
_QUOTED = re.compile('[",\r\n]')


def not_a_formula(text: str) -> str:
    """The text, behind an apostrophe where a spreadsheet would run it; numbers stay as they are."""
    if not text.startswith(_FORMULA):
        return text
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}"


def csv_line(cells: list[str]) -> str:
    """A line of CSV. Unlike with Python's csv module, cells with a carriage return are quoted."""
    return ",".join('"' + c.replace('"', '""') + '"' if _QUOTED.search(c) else c for c in cells) + "\n"
