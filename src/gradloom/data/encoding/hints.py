"""Notes on texts that look like numbers: with a unit, or in another notation."""

from __future__ import annotations

import re

import numpy as np

from ..._cells import read_cell
from ..reading.columns import Columns
from ..reading.kinds import is_missing_text

_LEAST_OTHERS = 8  # numbers that show how far numbers are
_FAR = 1e6  # as a multiple of the median distance
_LOOKED_AT = 100  # different texts of a column
_LEAST = 3
_MOST_ARE = 0.9
# Digits, cut by points, commas, apostrophes, underscores or blanks; with a sign, a currency, brackets, or k, M or x
_LIKE_NUMBER = re.compile(
    r"['\"]?[(+\-−]*\s*([A-Z]{3}\s|[$€£¥])?\s*[+\-−]?[.,]?\d[\d.,'’_\s]*([kKMx%$€£¥]|[A-Z]{3})?[)\-−]?['\"]?\Z"
)
_NUMBER_AND_UNIT = re.compile(r"[-+]?\d[\d.,]*\s*([^\W\d_]{1,12}[.²³]?)\Z")


def hints(data: Columns, index: int) -> list[str]:
    """Notes on a column of texts that look like numbers."""
    name, texts = data.names[index], data.texts(index)[1]
    known = [texts[code].decode() for code in np.flatnonzero(~is_missing_text(data, index))[:_LOOKED_AT]]
    if len(known) < _LEAST:
        return []
    such = f"{name}: texts such as {known[0]!r:.60} look like"
    found = [_NUMBER_AND_UNIT.match(text) for text in known]
    units = {one.group(1).lower() for one in found if one}
    if all(found) and len(units) == 1:
        return [f"{such} numbers with a unit, and are taken as categories; write the numbers without {units.pop()!r}"]
    odd = [text for text in known if not isinstance(read_cell(text, False), float)]
    if odd and sum(_LIKE_NUMBER.match(text) is not None for text in known) >= _MOST_ARE * len(known):
        seen = f"{name}: texts such as {odd[0]!r:.60} look like numbers"
        return [f"{seen}, and are read as texts; write them such as -1234.5 (--categorical {name} if they are names)"]
    return []


def far_numbers(data: Columns, values: np.ndarray, rows: np.ndarray, what: str) -> list[str]:
    """A sentence where a few of a column's numbers, f64, in these rows are so far from all others that little is left
    of these once they are scaled."""
    known = values[rows]
    known = known[~np.isnan(known)] / 2  # whose differences f64 holds
    if not len(known):
        return []
    middle = float(np.median(known))
    distance = np.abs(values[rows] / 2 - middle)
    others = distance[distance > 0]
    if len(others) < _LEAST_OTHERS:
        return []
    far = np.flatnonzero(distance > _FAR * np.median(others))
    if not 0 < len(far) <= max(2, len(known) // 1000):
        return []
    row = int(rows[far[int(distance[far].argmax())]])
    count = "a number is" if len(far) == 1 else f"{len(far)} numbers are"
    return [
        f"{what}: {count} far from all others: {values[row]:g} in {data.where(row)}; is it a slip, or a missing value?"
    ]
