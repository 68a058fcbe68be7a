"""Arrays that start on a cache line."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np

ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An uninitialised array that starts on a cache line."""
    return _aligned(np.empty, shape, kind)


def aligned_zeros(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Zeros that start on a cache line; untouched pages take no memory."""
    return _aligned(np.zeros, shape, kind)


def _aligned(make: Callable[..., np.ndarray], shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    bytes_needed = math.prod(shape) * kind.itemsize
    raw = make(bytes_needed + ALIGNMENT, np.uint8)
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + bytes_needed].view(kind).reshape(shape)


def address_of(array: np.ndarray) -> int:
    """The address of a C-contiguous array; array.ctypes.data takes three times as long."""
    if array.flags.writeable and array.size and array.dtype.kind in "fiu":
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    return array.ctypes.data
