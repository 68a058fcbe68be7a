"""Plain records: values by name, in dicts of one level. They describe the properties that two runs must share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SHOWN = 60  # characters of a value in a message


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts of one level as "name.key"."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def difference(name: str, mine: Any, theirs: Any) -> str:
    """ "name is ... and was ...", each value as text of at most 60 characters, the part that differs."""
    texts = [_text(value) for value in (mine, theirs)]
    pairs = enumerate(zip(*texts, strict=False))
    alike = next((i for i, (a, b) in pairs if a != b), min(map(len, texts)))
    first = 0 if alike < 40 else alike - 20
    cut = [("..." if first else "") + text[first:] for text in texts]
    one, other = (text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..." for text in cut)
    return f"{name} is {one} and was {other}"


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """A text for each field in which two records of one level differ."""
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return [difference(name, mine.get(name), theirs.get(name)) for name in names]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def shortened(value: Any, most: int) -> Any:
    """A plain value; one of more than `most` characters as text: its beginning and 16 hex digits of its SHA-256."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= most:
        return value
    return f"{text[: most // 2]}... ({hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]})"
