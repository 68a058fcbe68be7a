"""Stored: an array that outlives a run (a parameter, an optimiser moment, running statistics).

It lives once, in memory of its own, and every executable compiled for the CPU reads and writes it there.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.dtypes import DType, dtype
from ..base.errors import DTypeError, ShapeError

ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An uninitialised array that starts on a cache line."""
    bytes_needed = math.prod(shape) * kind.itemsize
    raw = np.empty(bytes_needed + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + bytes_needed].view(kind).reshape(shape)


class Stored:
    """A named array with a fixed shape and dtype. `version` counts the assignments from outside a run."""

    __slots__ = ("array", "dtype", "name", "trainable", "version")

    def __init__(self, name: str, data: object, kind: str | DType = "f32", trainable: bool = False) -> None:
        given = _numbers(name, data, kind)
        self.name = name
        self.dtype = dtype(kind)
        self.trainable = trainable
        self.version = 0
        self.array = aligned_empty(given.shape, self.dtype.numpy)
        self.array[...] = given

    @classmethod
    def wrap(cls, name: str, array: np.ndarray) -> Stored:
        """Stand for an array that exists already, without copying it (a data set, a mapped file)."""
        if not array.flags.c_contiguous or not array.flags.aligned:
            raise ShapeError(f"{name}: an array with gaps cannot be read in place; need a C-contiguous one")
        stored = cls.__new__(cls)
        stored.name, stored.dtype, stored.trainable, stored.version = name, dtype(array.dtype), False, 0
        stored.array = array
        return stored

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def assign(self, data: object) -> None:
        """Replace the contents; ShapeError when the shape differs, DTypeError when the data are not numbers."""
        given = _numbers(self.name, data, self.dtype)
        if given.shape != self.shape:
            raise ShapeError(f"parameter {self.name}: got shape {list(given.shape)}; need {list(self.shape)}")
        self.array[...] = given
        self.version += 1

    def __repr__(self) -> str:
        return f"Stored({self.name}, {self.dtype.name}{list(self.shape)})"


def _numbers(name: str, data: object, kind: str | DType) -> np.ndarray:
    """The data as an array; DTypeError when they are no numbers, ShapeError when rows differ in length."""
    try:
        given = np.asarray(data)
    except ValueError:
        raise ShapeError(f"parameter {name}: rows differ in length; need a rectangular array") from None
    if given.dtype.kind not in "fiub" and given.dtype.name != "bfloat16":
        raise DTypeError(f"parameter {name}: got {given.dtype}; need numbers for {dtype(kind).name}")
    return given
