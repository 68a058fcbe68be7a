"""Origins of the characters of a rendered chat; part of the process of template_worker.py.

Before a template renders a chat, characters of its messages are replaced by marks, one for one. Marks are symbols (no
letters, no blanks) that occur neither in the chat nor in the template. A template trims, splits, slices, joins and
filters marks like other characters, so each mark in the rendered text is a character of a message. With the marks
replaced by their characters, the text must equal that of the original messages. If it differs, the template depends on
the marked characters, and the origins are unknown.

All punctuation of control tokens is marked. A control token without a mark therefore has its punctuation from the
template: no text of a message can be cut or joined into one. String literals of the template, such as </think>, are not
marked in messages, because templates search for them, unless a control token would have no mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# Symbols that texts rarely contain: Braille patterns, hexagrams, dominoes
_SYMBOLS = [chr(c) for block in ((0x2801, 0x2900), (0x4DC0, 0x4E00), (0x1F030, 0x1F094)) for c in range(*block)]


class Origins:
    """Creates marks for chats of a template.

    control   texts of the control tokens; without any, no chat requires marks
    source    the template
    literals  its string literals
    """

    def __init__(self, control: Sequence[str], source: str, literals: Iterable[str]) -> None:
        self._source = source
        self._control = _any_of(control, before="(?=", after=")")  # also overlapping ones
        self.words = _any_of([text for text in control if not _punctuation(text)], flags=re.IGNORECASE)
        found = {_punctuation(text) for text in control} - {frozenset()}
        self._sets = [one for one in found if not any(other < one for other in found)]
        # an entity of HTML begins with "&"
        self.punctuation = {c for one in found for c in one} | {"&"}
        letters = {c for text in control if not _punctuation(text) for c in text.lower() + text.upper() + text}
        self._characters = sorted(self.punctuation | letters)
        kept = [text for text in set(literals) if any(map(str.isalnum, text)) and self.punctuation & {*text}]
        self.kept = _any_of([text for text in kept if self.find(text) is None])
        self._has_entities = "striptags" in source or "unescape" in source

    def find(self, text: str) -> str | None:
        """The first control token that a text contains."""
        found = None if self._control is None else self._control.search(text)
        return None if found is None else found[1]

    def places(self, text: str) -> list[tuple[int, int]]:
        """(start, stop) of all control tokens in a text; for each start the longest."""
        return [] if self._control is None else [found.span(1) for found in self._control.finditer(text)]

    def marks(self, *values: Any) -> Marks | None:
        """Marks for a chat of these values; None if its texts cannot contain a control token."""
        if self._control is None:
            return None
        text = "".join(_texts(values))
        if not (
            any(all(c in text for c in one) for one in self._sets)
            or (self.words is not None and self.words.search(text))
            or (self._has_entities and "&" in text)
        ):
            return None
        free = (c for c in _SYMBOLS if c not in text and c not in self._source)
        table = dict(zip(self._characters, free, strict=False))
        return Marks(self, table, self.find(text), len(table) == len(self._characters))


class Marks:
    """Marks for one chat.

    table     character -> mark
    control   a control token that the chat's texts contain, or None
    complete  each character that requires a mark has one
    """

    def __init__(self, origins: Origins, table: dict[str, str], control: str | None, complete: bool) -> None:
        self._origins, self.control, self.complete = origins, control, complete
        self._all = str.maketrans(table)
        self._punctuation = str.maketrans({c: mark for c, mark in table.items() if c in origins.punctuation})
        self._back = str.maketrans({mark: c for c, mark in table.items()})
        self._marks = frozenset(table.values())

    def put(self, value: Any) -> Any:
        """A JSON value with marks in all of its texts."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (list, tuple)):
            return [self.put(one) for one in value]
        if isinstance(value, dict):
            return {self.put(key): self.put(one) for key, one in value.items()}
        return value

    def _text(self, text: str) -> str:
        kept = self._origins.kept
        if kept is not None:
            marked = "".join(part if i % 2 else self._replaced(part) for i, part in enumerate(kept.split(text)))
            if self._origins.find(marked) is None:
                return marked
        return self._replaced(text)

    def _replaced(self, text: str) -> str:
        words = self._origins.words
        if words is not None:
            text = words.sub(lambda found: found[1].translate(self._all), text)
        return text.translate(self._punctuation)

    def removed(self, text: str) -> str:
        """The text with marks replaced by their characters."""
        return text.translate(self._back)

    def places(self, text: str) -> list[int]:
        """The index of the first mark in each control token of the text without marks."""
        marked = (
            next((k for k in range(start, stop) if text[k] in self._marks), None)
            for start, stop in self._origins.places(self.removed(text))
        )
        return sorted({k for k in marked if k is not None})


def _punctuation(text: str) -> frozenset[str]:
    return frozenset(c for c in text if not c.isalnum() and not c.isspace() and c != "_")


def _any_of(texts: Iterable[str], before: str = "", after: str = "", flags: int = 0) -> re.Pattern[str] | None:
    """A pattern whose group 1 is one of these texts, the longest first; None if there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(f"{before}({'|'.join(map(re.escape, longest_first))}){after}", flags)


def _texts(values: Any) -> Iterator[str]:
    """All texts of JSON values, including names, in order."""
    left = [values]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [one for pair in reversed(value.items()) for one in reversed(pair)]
        elif isinstance(value, (list, tuple)):
            left += reversed(value)
