"""What texts look like that were taken as categories: times, or numbers with a unit."""

from __future__ import annotations

import re

import numpy as np

from .columns import Columns
from .kinds import is_missing_text
from .times import are_times

_LOOKED_AT = 100  # different texts of a column
_LEAST = 3
_NUMBER_AND_UNIT = re.compile(r"[-+]?\d[\d.,]*\s*([^\W\d_]{1,12}[.²³]?)\Z")


def hints(data: Columns, index: int) -> list[str]:
    """What to say of a column of texts; nothing where they look like names."""
    name, texts = data.names[index], data.texts(index)[1]
    known = [texts[code].decode() for code in np.flatnonzero(~is_missing_text(data, index))[:_LOOKED_AT]]
    if len(known) < _LEAST:
        return []
    such = f"{name}: texts such as {known[0]!r:.60} look like"
    if are_times(known):
        return [f"{such} times, and are taken as categories (--time {name})"]
    found = [_NUMBER_AND_UNIT.match(text) for text in known]
    units = {one.group(1).lower() for one in found if one}
    if all(found) and len(units) == 1:
        return [f"{such} numbers with a unit, and are taken as categories; write the numbers without {units.pop()!r}"]
    return []
