"""Pairs of texts that belong together: rows of JSON as samples, {"anchor", "positive"} or with a "negative"."""

from __future__ import annotations

import os
from typing import Any

from ..base.errors import DataError, GradloomError
from .data_files import data_files
from .data_options import OF_EMBEDDED, check_effective
from .json_rows import BadRow, Source, is_samples
from .row_readers import reader_of
from .sample_lines import Keys, Line, keys_of, text_of

ANCHOR, POSITIVE, NEGATIVE = "anchor", "positive", "negative"  # keys of a line


class Pairs:
    """Reads lines with an anchor, a positive text and, where parts is 3, a negative one.

    kind, counts, used: for the report; chats: whether the chat template is required.
    """

    counts = "one embedding of each text"
    chats = False

    def __init__(self, row: dict[str, Any], where: str, first: str, keys: Keys, asked: set[str], parts: int) -> None:
        self.first = first
        names = (keys.anchor or ANCHOR, keys.positive or POSITIVE, keys.negative or NEGATIVE)
        self.used, self.other = [*names[:parts]], names[parts:]
        if any(key not in row for key in self.used):
            raise DataError(
                f"{where}: the keys are {keys_of(row)}; need {' and '.join(self.used)}; name others by anchor_key=,"
                " positive_key=, negative_key= (--anchor-key, ...)"
            )
        if any(key in row for key in self.other):
            raise DataError(
                f"{where}: has {self.other[0]}, and the training data has not; need it in both or in neither"
            )
        check_effective(where, "is a pair of texts", asked, OF_EMBEDDED)
        self.kind = f"{'triplets' if parts == 3 else 'pairs'} ({', '.join(self.used)})"

    def take(self, row: dict[str, Any]) -> Line | None:
        """A sample; None if the anchor or the negative is identical to the positive. Raises BadRow for a line that is
        none."""
        for key in self.other:
            if key in row:
                raise BadRow(f"has {key}, which {self.first} does not have; need it in all lines or in none")
        texts = [text_of(row, key, self.first) for key in self.used]
        for key, text in zip(self.used, texts, strict=True):
            if not text:
                raise BadRow(f"{key} is empty; need a text")
        if texts[1] in (texts[0], *texts[2:]):
            return None
        return Line([([text], [True]) for text in texts])


def has_negatives(data: Source, key: str | None) -> bool:
    """Whether the first row of data has a negative. Files that cannot be read have none: reading them raises."""
    if not isinstance(data, (str, os.PathLike)) and not is_samples(data):
        return False
    try:
        rows = reader_of(data_files(data).train if isinstance(data, (str, os.PathLike)) else data)
        first: Any = next((row for _, row in rows if not isinstance(row, BadRow)), {})
    except (GradloomError, OSError, UnicodeDecodeError):
        return False
    return first.get(key or NEGATIVE) is not None
