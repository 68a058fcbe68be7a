"""Transforms of the places of pixels: flips, crops, rotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import SettingError, ShapeError
from .base import DRAWN, Draws, Shape, Transform, as_size, boxes, fill_of, number, share, span


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Mirrors left and right with probability p. Not for digits and letters, which it changes."""

    p: float = 0.5

    def __post_init__(self) -> None:
        share(self, "p", self.p)

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        picked = draws.uniform(1)[:, 0] < self.p
        x[picked] = x[picked][..., ::-1]
        return x


@dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """Mirrors top and bottom with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        share(self, "p", self.p)

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        picked = draws.uniform(1)[:, 0] < self.p
        x[picked] = x[picked][:, :, ::-1]
        return x


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Cuts out `size` at a random place, after `padding` pixels of `fill` are added on each side.

    size     height and width, one number or two; None: those of the image, which `padding` then shifts
    padding  pixels
    fill     0 black .. 1 white
    Evaluation takes the middle.
    """

    size: int | tuple[int, int] | None = None
    padding: int = 0
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.size is not None:
            as_size("size", self.size, "RandomCrop")
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or not 0 <= self.padding <= 4096:
            need = "a whole number from 0 to 4096"
            raise SettingError(setting="padding", seen=self.padding, need=need, place="RandomCrop")
        if self.size is None and not self.padding:
            raise SettingError(
                "RandomCrop: {size} is None and {padding} is 0: it would change nothing", size=..., padding=...
            )
        share(self, "fill", self.fill)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return (height, width) if self.size is None else as_size("size", self.size, "RandomCrop")

    def shape(self, shape: Shape) -> Shape:
        channels, *there = shape
        height, width = self._size(*there)
        if height > there[0] + 2 * self.padding or width > there[1] + 2 * self.padding:
            seen = f"size {height} x {width} of images of {there[0]} x {there[1]} with padding {self.padding}"
            raise ShapeError(f"RandomCrop: {seen}; need at most the size of the padded image")
        return channels, height, width

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        height, width = self._size(*x.shape[2:])
        wide = _padded(x, self.padding, self.fill)
        room = np.array([wide.shape[2] - height + 1, wide.shape[3] - width + 1])
        at = (draws.uniform(2) * room).astype(np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(wide, (height, width), axis=(2, 3))
        return windows[np.arange(len(x)), :, at[:, 0], at[:, 1]]

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        height, width = self._size(*x.shape[2:])
        if (height, width) == x.shape[2:]:
            return x
        wide = _padded(x, self.padding, self.fill)
        top, left = (wide.shape[2] - height) // 2, (wide.shape[3] - width) // 2
        return wide[:, :, top : top + height, left : left + width]


def _padded(x: np.ndarray, padding: int, fill: float) -> np.ndarray:
    if not padding:
        return x
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return np.pad(x, sides, constant_values=fill_of(x, fill))


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Cuts out a box of a random area and shape, and resizes it to `size`, bilinearly with antialiasing.

    size   height and width, one number or two; None: those of the image
    scale  the area of the box, as shares of the image's: smallest, largest
    ratio  width / height of the box: smallest, largest; drawn on a logarithmic scale
    Of 10 boxes that are drawn, the first that fits is taken; else the largest in the middle. Evaluation resizes the
    whole image so that it covers `size`, and takes the middle.
    """

    size: int | tuple[int, int] | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if self.size is not None:
            as_size("size", self.size, "RandomResizedCrop")
        span(self, "scale", self.scale, 1e-6, 1)
        span(self, "ratio", self.ratio, 1e-3, 1e3)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return (height, width) if self.size is None else as_size("size", self.size, "RandomResizedCrop")

    def shape(self, shape: Shape) -> Shape:
        return (shape[0], *self._size(*shape[1:]))

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        height, width = x.shape[2:]
        top, left, tall, wide = boxes(draws.uniform(DRAWN), height, width, self.scale, self.ratio)
        ratio = width / height
        for row in np.flatnonzero(tall == 0):  # none has fitted
            low, high = self.ratio
            tall[row] = height if low <= ratio else round(width / low)
            wide[row] = round(height * high) if ratio > high else width
            tall[row], wide[row] = min(tall[row], height), min(wide[row], width)
            top[row], left[row] = (height - tall[row]) // 2, (width - wide[row]) // 2
        return resized(x, np.stack([left, top, left + wide, top + tall], 1).tolist(), self._size(height, width))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        height, width = x.shape[2:]
        size = self._size(height, width)
        return x if size == (height, width) else resized(x, [covering(height, width, size)] * len(x), size)


def covering(height: int, width: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest box (left, top, right, bottom) in the middle of an image that has the shape of `size`: to resize it
    is to resize the image until it covers `size`, and to cut out the middle."""
    scale = min(height / size[0], width / size[1])
    tall, wide = size[0] * scale, size[1] * scale
    left, top = max(width - wide, 0) / 2, max(height - tall, 0) / 2  # rounded, a side may exceed that of the image
    return left, top, min(left + wide, width), min(top + tall, height)


def resized(x: np.ndarray, boxes: Sequence[Any], size: tuple[int, int]) -> np.ndarray:
    """Each row's box (left, top, right, bottom) at this size."""
    from PIL import Image

    made = np.empty((len(x), x.shape[1], *size), x.dtype)
    for row, box in enumerate(boxes):
        for channel in range(x.shape[1]):
            plane = Image.fromarray(np.ascontiguousarray(x[row, channel]))
            made[row, channel] = plane.resize(size[::-1], Image.Resampling.BILINEAR, box)
    return made


@dataclass(frozen=True)
class RandomRotation(Transform):
    """Rotates about the middle, bilinearly, by an angle in degrees, counter-clockwise.

    degrees  the largest angle in either direction, or (smallest, largest)
    fill     of the corners, 0 black .. 1 white
    """

    degrees: float | tuple[float, float]
    fill: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.degrees, (tuple, list)):
            span(self, "degrees", self.degrees, -360, 360)
        else:
            number(self, "degrees", self.degrees, 0, 360, "a number from 0 to 360, or (smallest, largest)")
        share(self, "fill", self.fill)

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        low, high = self.degrees if isinstance(self.degrees, (tuple, list)) else (-self.degrees, self.degrees)
        return rotated(x, np.deg2rad(low + (high - low) * draws.uniform(1)[:, 0]), self.fill)


def _between(x: np.ndarray, at: np.ndarray, share: np.ndarray) -> np.ndarray:
    """f32: (1 - share) * x.flat[at] + share * x.flat[at + 1]."""
    first = x.take(at, mode="clip").astype(np.float32)
    step = x.take(at + 1, mode="clip").astype(np.float32)
    step -= first
    step *= share
    first += step
    return first


def rotated(x: np.ndarray, angles: np.ndarray, fill: float) -> np.ndarray:
    """Each row rotated by its angle in radians, counter-clockwise."""
    n, channels, height, width = x.shape
    y, z = np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    sin, cos = np.sin(angles)[:, None, None], np.cos(angles)[:, None, None]
    # the place in the image from which a pixel of the result comes; beyond one pixel outside, all is `fill`
    from_y = np.clip(cos * y[:, None] + sin * z + (height - 1) / 2, -1, height)
    from_x = np.clip(cos * z - sin * y[:, None] + (width - 1) / 2, -1, width)
    top, left = np.floor(from_y), np.floor(from_x)
    down, right = (from_y - top).astype(np.float32), (from_x - left).astype(np.float32)
    wide = np.full((n, channels, height + 3, width + 3), fill_of(x, fill), x.dtype)
    wide[:, :, 1 : height + 1, 1 : width + 1] = x
    at = (top.astype(np.int64) + 1) * (width + 3) + left.astype(np.int64) + 1
    at += (np.arange(n) * (channels * (height + 3) * (width + 3)))[:, None, None]
    made = np.empty_like(x, order="C")
    for channel in range(channels):
        above, below = (
            _between(wide, at + channel * (height + 3) * (width + 3) + line * (width + 3), right) for line in (0, 1)
        )
        below -= above
        below *= down
        above += below
        made[:, channel] = np.rint(above, out=above) if x.dtype == np.uint8 else above
    return made
