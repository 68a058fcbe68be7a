"""Text on a terminal: no text of a file, a model or a user steers it."""

from __future__ import annotations

import codecs
import re
import sys
from typing import Any

# C0 but for tab and line feed, DEL, C1, line separators, marks of direction, halves of pairs (bytes that are not UTF-8)
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")


_BYTES = re.compile("[\udc80-\udcff]+")  # bytes of a name that the locale's encoding does not have
_SHOWN_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])")  # such a byte in a repr
BYTES_AS_THEY_ARE = "gradloom.bytes"  # a handler of errors of encoding


def _encoded(error: UnicodeError) -> tuple[str | bytes, int]:
    """For a stream: a byte of a name as this byte, another character as an escape."""
    assert isinstance(error, UnicodeEncodeError)
    one = error.object[error.start]
    if _BYTES.match(one):
        return bytes([ord(one) - 0xDC00]), error.start + 1
    return codecs.backslashreplace_errors(
        UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    )


codecs.register_error(BYTES_AS_THEY_ARE, _encoded)


def printable(text: str) -> str:
    """The text with escapes such as \\x1b in place of control characters, line separators and marks of direction; tabs
    and line feeds stay. Bytes that the locale does not have (of ü in the locale C) stay where they are printable UTF-8.
    """
    if text.isprintable():
        return text
    parts = _BYTES.split(text)
    between = [_utf8_or_escapes(found) for found in _BYTES.findall(text)]
    return "".join(_escaped(part) + more for part, more in zip(parts, [*between, ""], strict=True))


def _escaped(text: str) -> str:
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _utf8_or_escapes(text: str) -> str:
    parts = [
        f"\\x{ord(one) - 0xDC00:02x}" if _BYTES.match(one) else _escaped(one)
        for one in text.encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")
    ]
    return "".join(one if one.isascii() else one.encode().decode("ascii", "surrogateescape") for one in parts)


def in_one_line(text: str, most: int | None = None) -> str:
    """printable, with tabs and line feeds escaped as well. most: the largest number of characters that is kept."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 3]}..."
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def plural(count: int, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{count:,} {noun}" + "s" * (count != 1)


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
    """Print a text, or the `str` of an object, to stderr. Bytes of names in a repr (\\udcff) are bytes again."""
    text = _SHOWN_BYTE.sub(lambda found: found[1] + chr(0xDC00 + int(found[2], 16)), str(what))
    print(shown_on(sys.stderr, text), file=sys.stderr, flush=True)
