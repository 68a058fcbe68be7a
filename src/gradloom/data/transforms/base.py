"""Transform, the base class of image transforms; their random numbers, and checks of their settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ...base.errors import SettingError
from ...base.philox import words_of_rows

Shape = tuple[int, int, int]  # channels, height, width
_STREAM = 0x696D6167 << 32  # of random numbers: not those of dropout
_TRIES = 10  # boxes that are drawn until one fits into the image, as in torchvision
DRAWN = 2 * _TRIES + 2  # numbers of a row for a box: areas, shapes, the place


@dataclass(frozen=True)
class Draws:
    """Random numbers of some rows for one transform.

    rows      i64 [n], of the whole data set
    position  of the transform in the list
    """

    seed: int
    epoch: int
    position: int
    rows: np.ndarray

    def uniform(self, count: int) -> np.ndarray:
        """f64 [n, count] in [0, 1): numbers 0..count-1 of each row."""
        return words_of_rows(self.seed, self.epoch, _STREAM + self.position, self.rows, count) * 2.0**-32


class Transform:
    """Base class; both methods return x unless a subclass defines them."""

    def shape(self, shape: Shape) -> Shape:
        """The shape of a row after the transform; SettingError or ShapeError for one that it does not take."""
        return shape

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        """The rows as a training pass sees them."""
        return self.evaluate(x)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """The rows as validation, test and prediction see them."""
        return x


def as_fractions(x: np.ndarray) -> np.ndarray:
    """f32 in 0..1 of u8; f32 as it is."""
    return np.multiply(x, np.float32(1 / 255), dtype=np.float32) if x.dtype == np.uint8 else x


def fill_of(x: np.ndarray, fill: float) -> Any:
    return round(fill * 255) if x.dtype == np.uint8 else fill


def boxes(
    u: np.ndarray, height: int, width: int, scale: Sequence[float], ratio: Sequence[float], strict: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(top, left, height, width) of a box in each row, i64; height 0 where none of 10 has fitted. u: DRAWN numbers of
    each row. strict: a box is smaller than the image."""
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :_TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = np.exp(low + (high - low) * u[:, _TRIES : 2 * _TRIES])
    wide, tall = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
    fits = (wide > 0) & (tall > 0) & (wide <= width - strict) & (tall <= height - strict)
    pick = np.arange(len(u)), fits.argmax(axis=1)
    good = fits[pick]
    tall, wide = (np.where(good, sides[pick], 0).astype(np.int64) for sides in (tall, wide))
    top = (u[:, DRAWN - 2] * (height - tall + 1)).astype(np.int64)
    left = (u[:, DRAWN - 1] * (width - wide + 1)).astype(np.int64)
    return top, left, tall, wide


def number(owner: object, name: str, value: Any, low: float, high: float, need: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= float(value) <= high:
        raise SettingError(setting=name, seen=value, need=need, place=type(owner).__name__)
    return float(value)


def share(owner: object, name: str, value: Any) -> float:
    return number(owner, name, value, 0, 1, "a number from 0 to 1")


def span(owner: object, name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    need = f"two numbers from {low:g} to {high:g}, the smaller one first"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise SettingError(setting=name, seen=value, need=need, place=type(owner).__name__)
    first, last = (number(owner, name, one, low, high, need) for one in value)
    if first > last:
        raise SettingError(setting=name, seen=value, need=need, place=type(owner).__name__)
    return first, last


def as_size(name: str, value: Any, place: str) -> tuple[int, int]:
    """(height, width) of one whole number or of two; SettingError for anything else."""
    both = value if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(isinstance(n, (int, np.integer)) and n is not True and 1 <= n <= 4096 for n in both):
        need = "a whole number from 1 to 4096, or (height, width)"
        raise SettingError(setting=name, seen=value, need=need, place=place)
    return int(both[0]), int(both[1])
