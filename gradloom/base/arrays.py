"""Arrays as they come from a caller."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import DTypeError


def as_array(name: str, data: Any) -> np.ndarray:
    """np.asarray, which takes the mask off a masked array in silence: DTypeError where elements are masked.

    Raises ValueError, as NumPy does, for rows of different lengths.
    """
    if data.__class__ is np.ndarray:
        return data
    parts = data if isinstance(data, (list, tuple)) else (data,)
    masked = sum(int(np.ma.count_masked(part)) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        count = "1 element is" if masked == 1 else f"{masked} elements are"
        raise DTypeError(
            f"{name}: {count} masked; need numbers everywhere: array.filled(...), rows of weight 0, or labels of -100"
        )
    return np.asarray(data)
