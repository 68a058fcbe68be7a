"""Whole numbers that are codes: zip codes, identifiers, whose order and size mean nothing."""

from __future__ import annotations

import re

import numpy as np

from ..reading.columns import LEADING_ZERO, ROUNDED, Columns

_NAMES = {
    "zip", "zipcode", "postcode", "postalcode", "postal", "plz", "fips", "id", "ids", "code", "codes", "sku", "isbn",
    "ean", "upc", "naics", "sic", "icd", "iban", "msa",
}  # fmt: skip
_LEAST_DIGITS = 4
_LEAST_TIMES = 4  # that each code of equal length is there, on average


def code_of(data: Columns, index: int, values: np.ndarray) -> str | None:
    """Why the numbers of a column are codes; None where they are numbers."""
    first = values[:1000]
    if (first != np.rint(first))[~np.isnan(first)].any():  # most columns with decimals
        return None
    known = values[~np.isnan(values)]
    if not len(known) or (known != np.rint(known)).any():
        return None
    if data.has_leading_zeros(index):
        return LEADING_ZERO
    if data.merges(index):
        return f"{ROUNDED}, which makes different ones the same"
    word = next((word for word in _words(data.names[index]) if word in _NAMES), None)
    if word is not None and data.header:
        return f"the name says {word!r}"
    digits = _digits(known)
    if digits and len(np.unique(known)) * _LEAST_TIMES <= len(known):
        return f"all have {digits} digits"
    return None


def _words(name: str) -> list[str]:
    """The words of a name such as zip_code, ZipCode or zip."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return [name.lower(), *(part.lower() for part in parts)]


def _digits(known: np.ndarray) -> int:
    """The number of digits that all have, where they fill the numbers of that length as few quantities do; else 0."""
    low, high = float(known.min()), float(known.max())
    digits = len(str(int(low))) if low > 0 and high < 1e15 else 0
    step = 10.0 ** (digits - 1)
    if digits < _LEAST_DIGITS or digits != len(str(int(high))) or low >= 1.5 * step or high < 9 * step:
        return 0
    return digits
