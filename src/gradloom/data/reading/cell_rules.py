"""How the cells of a table are read: the same in training and for new rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import SettingError

UTF_8 = "utf-8"


@dataclass(frozen=True)
class CellRules:
    """How the cells of a table are read.

    texts     names of columns whose cells stay texts, numbers among them
    commas    name of a column -> whether commas in its cells are decimal; the separator and the cells decide for others
    missing   words that are missing values, besides "", NA, ? and the like (see missing_words)
    encoding  of the bytes of a text file, unless a byte order mark names another one
    exact     texts keep the blanks at their ends
    """

    texts: Collection[str] = ()
    commas: Mapping[str, bool] = field(default_factory=dict)
    missing: Sequence[str] = ()
    encoding: str = UTF_8
    exact: bool = False


PLAIN = CellRules()


def missing_words(given: Any) -> list[str]:
    """The words without blanks at their ends, each once; a single text is one word. SettingError for anything else."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, Sequence):
        raise SettingError(setting="missing", seen=given, need="a list of words, such as ['unknown']")
    for word in words:
        if not isinstance(word, str) or not word.strip() or not _is_utf_8(word):
            raise SettingError(
                f"{{missing}}: {word!r:.60} is not a word; must be a text such as 'unknown'", missing=...
            )
    return list(dict.fromkeys(word.strip() for word in words))


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # of a lone surrogate
        return False
    return True
