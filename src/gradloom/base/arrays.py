"""Arrays as they come from a caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import DTypeError


def as_array(name: str, data: Any) -> np.ndarray:
    """np.asarray, which takes the mask off a masked array in silence: DTypeError where elements are masked.

    Raises ValueError, as NumPy does, for rows of different lengths.
    """
    if data.__class__ is np.ndarray:
        return data
    need_collected(name, data)
    parts = data if isinstance(data, (list, tuple)) else (data,)
    masked = sum(int(np.ma.count_masked(part)) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        count = "1 element is" if masked == 1 else f"{masked} elements are"
        raise DTypeError(
            f"{name}: {count} masked; need numbers everywhere: array.filled(...), rows of weight 0, or labels of -100"
        )
    return np.asarray(data)


def need_collected(name: str, data: object) -> None:
    """DTypeError for a LazyFrame of polars, which holds no rows yet."""
    if type(data).__name__ == "LazyFrame":
        raise DTypeError(f"{name}: a LazyFrame, which holds no rows yet; need a DataFrame: .collect() makes it")


def not_finite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """What is wrong with the first array that holds NaN or infinite numbers; None when all numbers are finite."""
    for name, array in arrays.items():
        bad = 0 if array.dtype.kind in "biu" else array.size - int(np.isfinite(array).sum())
        if bad:
            return f"array {name!r:.60} holds {bad} of {array.size} numbers that are NaN or infinite"
    return None


def place_in(shape: Sequence[int], at: int) -> str:
    """Where the flat element `at` of a shape is: " at [1, 2]"; "" of one number."""
    return f" at {[int(i) for i in np.unravel_index(at, shape)]}" if shape else ""
