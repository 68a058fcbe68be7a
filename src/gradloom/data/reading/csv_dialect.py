"""The separator of a CSV file, and whether its first line is a header."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import numpy as np

from .cells import NumberCells, TextCells

SEPARATORS = ",;\t"
_SAMPLE_ROWS = 20  # for the choice of the separator
_YEARS = (1900, 2100)
_SEPARATOR = re.compile(rb'("?)sep=([^\r\n])\1(?=[\r\n]|\Z)', re.IGNORECASE)


def named_separator(begin: bytes) -> tuple[str, bytes]:
    """(separator named by a first line such as sep=;, or ""; the bytes with that line empty)."""
    found = _SEPARATOR.match(begin)
    return ("", begin) if found is None else (found[2].decode("latin-1"), begin[found.end() :])


def separator_of(sample: str, cut: bool) -> str:
    """The separator that cuts the first rows into the most cells, all alike where that is possible.

    sample: the beginning of the file; a row that its end cuts off counts only where it is the first.
    """

    def score(separator: str) -> tuple[bool, bool, int]:
        lines = io.StringIO(sample, newline="")
        counts: list[int] = []
        sound = True
        try:
            for row in csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True):
                if cut and lines.tell() == len(sample):
                    break
                if not _is_blank(row):
                    counts.append(len(row))
                if len(counts) == _SAMPLE_ROWS:
                    break
        except csv.Error:
            sound = cut and lines.tell() == len(sample)
        if cut and not counts:
            lines.seek(0)
            counts = [max(map(len, csv.reader(lines, delimiter=separator, skipinitialspace=True)))]
        alike = len(set(counts)) == 1 and counts[0] > 1
        return alike and sound, alike, max(counts, default=0)

    return max(SEPARATORS, key=score)


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def is_header_of_numbers(first: Sequence[bytes], cells: Sequence[NumberCells | TextCells]) -> bool:
    """Whether the first line is a header although it has numbers, such as 2019,2020,2021 or 0,1,2,3.

    The numbers are increasing or decreasing years, or count all columns from 0 or 1, and most are far from the values
    of their column. Other cells are distinct, and do not occur in their column.
    """
    numbers = {i: int(cell) for i, cell in enumerate(first) if cell.isdigit() and len(cell) <= 9}
    texts = [(cell, cells[i]) for i, cell in enumerate(first) if i not in numbers]
    if len(set(first)) < len(first) or len(numbers) < 2:
        return False
    if any(isinstance(column, TextCells) and cell in column.texts for cell, column in texts):
        return False
    values = list(numbers.values())
    steps = np.diff(values)
    are_years = all(_YEARS[0] <= v <= _YEARS[1] for v in values) and ((steps > 0).all() or (steps < 0).all())
    counts = len(numbers) >= 3 and all(value - i == values[0] - min(numbers) for i, value in numbers.items())
    if not are_years and not (counts and not texts and values[0] in (0, 1)):
        return False
    return 2 * sum(_is_far(value, cells[i]) for i, value in numbers.items()) > len(numbers)


def _is_far(value: int, cells: NumberCells | TextCells) -> bool:
    """Whether an integer is out of the range of its column, or the column has decimals."""
    if isinstance(cells, TextCells):
        numbers, kinds = cells.numbers
        below = numbers[kinds == 0]
    else:
        below = cells.values()
        below = below[np.isfinite(below)]
    if not len(below) or (below != np.rint(below)).any():
        return True
    reach = max(below.max() - below.min(), abs(below).max())
    return bool(value < below.min() - reach or value > below.max() + reach)
