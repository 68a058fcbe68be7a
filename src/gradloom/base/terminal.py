"""Text on a terminal: no text of a file, a model or a user steers it."""

from __future__ import annotations

import re
import sys
from typing import Any

# C0 but for tab and line feed, DEL, C1, line separators, marks of direction, halves of pairs (bytes that are not UTF-8)
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with escapes such as \\x1b in place of control characters, line separators and marks of direction; tabs
    and line feeds stay."""
    if text.isprintable():
        return text
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str, most: int | None = None) -> str:
    """printable, with tabs and line feeds escaped as well. most: the largest number of characters that is kept."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 3]}..."
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def shown_on(stream: Any, text: str) -> str:
    """The text as it is written to a stream: printable on a terminal, unchanged elsewhere."""
    return printable(text) if is_terminal(stream) else text


def is_terminal(stream: Any) -> bool:
    """Whether the stream is a terminal; False for a closed or missing stream."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def controls(stream: Any) -> Any:
    """The stream for a program's own control characters: those of a command write escapes in place of others'."""
    return getattr(stream, "controls", stream)


def to_stderr(what: object) -> None:
    """Print a text, or the `str` of an object, to stderr."""
    print(shown_on(sys.stderr, str(what)), file=sys.stderr, flush=True)
