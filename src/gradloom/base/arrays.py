"""Arrays as they come from a caller."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .arguments import what_is
from .errors import DTypeError, IndexOutOfRange, ShapeError


def as_array(name: str, data: Any) -> np.ndarray:
    """np.asarray, which takes the mask off a masked array in silence: DTypeError where elements are masked.

    Raises ValueError, as NumPy does, for rows of different lengths; DTypeError for whole numbers beyond 64 bits.
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
    try:
        array = np.asarray(data)
    except (TypeError, RuntimeError) as error:  # of a tensor of another library
        raise DTypeError(f"{name}: {what_is(data)} is no array: {' '.join(str(error).split())[:120]}") from None
    if array.dtype == object:
        wide = next((x for x in array.flat if isinstance(x, int) and not -(1 << 63) <= x < 1 << 64), None)
        if wide is not None:
            raise DTypeError(f"{name}: {wide:.10g} is out of range; need whole numbers of at most 64 bits")
    return array


def uneven(data: Any) -> str:
    """The reason why nested lists form no array: the first entry whose shape differs from that of entry 0."""
    with contextlib.suppress(TypeError, ValueError):
        shapes = [_shape(entry) for entry in data]
        at = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        if at:
            return f"row {at} has shape {shapes[at]}, row 0 {shapes[0]}"
    return "nested lists of different lengths"


def _shape(entry: Any) -> list[int] | str:
    try:
        return list(np.shape(entry))
    except ValueError:
        return "[uneven]"


def check_no_tuple(name: str, what: object) -> None:
    """ShapeError for a tuple of arrays: (x, y) is no array of two rows."""
    if isinstance(what, tuple) and any(isinstance(one, np.ndarray) and one.ndim for one in what):
        raise ShapeError(
            f"{name}: a tuple of {len(what)} arrays; need one array, and labels as an argument: (x, y) as x, y"
        )


def odd_object(array: np.ndarray) -> str:
    """The first element of an object array that is no number, with its place; "" where there is none."""
    for at in np.ndindex(array.shape):
        if isinstance(array[at], bool) or not isinstance(array[at], (int, float, np.number)):
            return f", {what_is(array[at])} at {list(at)}"
    return ""


def check_whole(name: str, array: np.ndarray, kind: np.dtype | type, need: str = "") -> None:
    """IndexOutOfRange, naming the first one and its position, for whole numbers that this whole-number dtype cannot
    hold. need: the requirement in the message, by default the range."""
    if array.dtype.kind not in "iu" or not array.size:
        return
    unsigned, most = _fitting(array.dtype, np.dtype(kind))
    if unsigned is None or np.maximum.reduce(array.view(unsigned), axis=None) <= most:
        return
    limit = np.iinfo(kind)
    low, high = int(array.min()), int(array.max())
    if low < limit.min or high > limit.max:
        at = int(array.argmin() if low < limit.min else array.argmax())
        need = need or f"need whole numbers in {limit.min}..{limit.max}, {_SHORT.get(limit.dtype.name, limit.dtype)}"
        raise IndexOutOfRange(0, f"{name}: {int(array.flat[at])} at position {at} is out of range; {need}")


@cache
def _fitting(given: np.dtype, kind: np.dtype) -> tuple[np.dtype | None, int]:
    """The dtype in which negative whole numbers of `given` are the largest ones, and up to which number all of them are
    in `kind`; (None, 0) where each one is."""
    if np.can_cast(given, kind):
        return None, 0
    return np.dtype(f"{given.byteorder}u{given.itemsize}"), min(np.iinfo(kind).max, np.iinfo(given).max)


_SHORT = {"uint8": "u8", "int8": "i8", "int32": "i32", "int64": "i64"}


def need_collected(name: str, data: object) -> None:
    """DTypeError for a LazyFrame of polars, which holds no rows yet."""
    if type(data).__name__ == "LazyFrame":
        raise DTypeError(f"{name}: a LazyFrame, which holds no rows yet; need a DataFrame: .collect() makes it")


def not_finite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Describes the first array that holds NaN or infinite numbers; None when all numbers are finite."""
    for name, array in arrays.items():
        bad = 0 if array.dtype.kind in "biu" else array.size - int(np.isfinite(array).sum())
        if bad:
            return f"array {name!r:.60} holds {bad} of {array.size} numbers that are NaN or infinite"
    return None


def place_in(shape: Sequence[int], at: int) -> str:
    """Where the flat element `at` of a shape is: " at [1, 2]"; "" of one number."""
    return f" at {[int(i) for i in np.unravel_index(at, shape)]}" if shape else ""
