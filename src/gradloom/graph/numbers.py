"""Numbers of Python and NumPy as the arrays that a graph holds: their dtypes, and the values that are rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ..base.arrays import as_array, check_whole
from ..base.dtypes import DType, dtype, f32, i32, u8
from ..base.errors import DTypeError, ShapeError


def addressable(shape: Sequence[int], item_bytes: int) -> bool:
    """The bytes of an array of this shape, and each offset in it, are below 2^63; axes of 0 elements count as 1."""
    return (math.prod(shape) or math.prod(max(extent, 1) for extent in shape)) * item_bytes < 1 << 63


def kind_of(data: Any) -> DType:
    """The dtype that a user's numbers get: f32 for floats, i32 for whole numbers, u8 for bools; bytes stay bytes.

    One whole number of Python counts as a float; a NumPy one, as a scalar or in an array of any shape, is a whole
    number. In an expression (x * n) each counts as a float: see as_value.
    """
    array = np.asarray(data)
    if array.dtype.kind == "b":
        return u8
    if array.dtype.kind in "iu" and (array.ndim > 0 or isinstance(data, (np.ndarray, np.generic))):
        return i32 if array.dtype.itemsize > 1 else dtype(array.dtype)
    return f32


def in_expression(data: Any) -> Any:
    """Numbers as operands of graph values in an expression: a single whole number, also of NumPy, is a float."""
    if isinstance(data, (np.integer, np.ndarray)) and data.ndim == 0 and data.dtype.kind in "iu":
        return int(data)
    return data


def check_range(name: str, array: np.ndarray, kind: DType) -> None:
    """IndexOutOfRange for whole numbers beyond a whole-number dtype, which NumPy would wrap; DTypeError, naming the
    first one, for finite numbers beyond a float dtype, which would become infinite."""
    if not kind.is_float:
        check_whole(name, array, kind.numpy)
    elif array.size and (most := _most(array.dtype, kind.numpy)) is not None:
        if not any(array.strides):
            array = array[(slice(1),) * array.ndim]  # one number for all
        if -most <= np.minimum.reduce(array, axis=None) and np.maximum.reduce(array, axis=None) <= most:
            return
        with np.errstate(over="ignore"):
            wide = np.isinf(array.astype(kind.numpy)) & np.isfinite(array)
        if wide.any():
            raise DTypeError(f"{name}: {float(array.flat[wide.argmax()]):g} is too large for {kind.name}")


@cache
def _most(given: np.dtype, kind: np.dtype) -> float | None:
    """The largest number of this float dtype; None where all finite numbers of `given` are finite in it."""
    largest = np.iinfo(given).max if given.kind in "iu" else 1 if given.kind == "b" else ml_dtypes.finfo(given).max
    most = float(ml_dtypes.finfo(kind).max)
    return most if float(largest) > most else None


def converted(name: str, array: np.ndarray, kind: DType) -> np.ndarray:
    """A copy as `kind`; errors of check_range."""
    if kind.is_float and kind.numpy.isbuiltin == 1 and _most(array.dtype, kind.numpy) is not None:
        with suppress(FloatingPointError), np.errstate(over="raise"):  # NumPy's own check: no further pass
            return np.array(array, kind.numpy, order="C")
    check_range(name, array, kind)
    return np.array(array, kind.numpy, order="C")


def constant_array(data: Any, kind: str | DType | None = None, name: str = "") -> np.ndarray:
    """A read-only copy of `data` in the dtype that a constant of it gets; see leaves.constant."""
    try:
        array = as_array(f"constant {name}".rstrip(), data)
    except ValueError:
        raise ShapeError(f"constant {name}: rows differ in length; need a rectangular array") from None
    if kind is None:
        kind = kind_of(data)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise DTypeError(f"constant: got {array.dtype} data; need numbers")
    if dtype(kind).is_quantised:
        raise DTypeError(f"constant {name}: numbers do not become {dtype(kind).name}; need Stored.map of its bytes")
    made = converted("constant", array, dtype(kind))
    made.setflags(write=False)
    return made
