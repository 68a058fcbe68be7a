"""Transforms of the values of pixels: colours, erasing, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import SettingError
from .base import DRAWN, Draws, Shape, Transform, as_fractions, boxes, fill_of, number, share, span

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue, in this order, each by a factor of 1 - amount .. 1 + amount.

    hue  the largest shift in either direction, as a share of the colour circle: at most 0.5
    Saturation and hue require 3 channels.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            share(self, name, getattr(self, name))
        number(self, "hue", self.hue, 0, 0.5, "a number from 0 to 0.5")
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise SettingError(
                "ColorJitter: {brightness}, contrast, saturation and hue are 0: it would change nothing", brightness=...
            )

    def shape(self, shape: Shape) -> Shape:
        for name in ("saturation", "hue"):
            if getattr(self, name) and shape[0] != 3:
                text = f"ColorJitter: {{{name}}} requires images of 3 channels; these have {shape[0]}"
                raise SettingError(text, {name: getattr(self, name)})
        return shape

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        u = (2 * draws.uniform(4) - 1) * (self.brightness, self.contrast, self.saturation, self.hue)
        factors = (1 + u).astype(np.float32)[:, :, None, None, None]
        x = np.ascontiguousarray(as_fractions(x))
        if self.brightness:
            x = np.clip(x * factors[:, 0], 0, 1)
        if self.contrast:
            means = _grey(x).reshape(len(x), -1).mean(axis=1, dtype=np.float64).astype(np.float32)
            means = means[:, None, None, None]
            x = np.clip((x - means) * factors[:, 1] + means, 0, 1)
        if self.saturation:
            grey = _grey(x)[:, None]
            x = np.clip((x - grey) * factors[:, 2] + grey, 0, 1)
        return _hue_shifted(x, u[:, 3].astype(np.float32)) if self.hue else x


def _grey(x: np.ndarray) -> np.ndarray:
    """f32 [n, height, width]: the luminance."""
    if x.shape[1] == 1:
        return x[:, 0]
    red, green, blue = (np.float32(share) for share in _LUMA)
    return red * x[:, 0] + green * x[:, 1] + blue * x[:, 2]


def _hue_shifted(x: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Hue of HSV, in 0..1, plus the shift of each row f32 [n]."""
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    value, low = x.max(axis=1), x.min(axis=1)
    chroma = value - low
    safe = np.where(chroma > 0, chroma, np.float32(1))
    hue = np.where(
        value == red, (green - blue) / safe,
        np.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )  # fmt: skip
    hue = hue + 6 * shifts[:, None, None]
    made = np.empty_like(x)
    for channel, offset in enumerate((5, 3, 1)):  # f(n) = v - v s max(0, min(k, 4 - k, 1)), k = (n + h / 60) mod 6
        k = np.mod(offset + hue, np.float32(6))
        made[:, channel] = value - chroma * np.clip(np.minimum(k, 4 - k), 0, 1)
    return made


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Fills a box of a random area and shape with `value`, with probability p. Reference: arXiv:1708.04896.

    scale  the area of the box, as shares of the image's: smallest, largest
    ratio  height / width of the box: smallest, largest; drawn on a logarithmic scale
    value  0 black .. 1 white; after Normalize a number in its units, where 0 is the mean
    Of 10 boxes that are drawn, the first that fits is taken; else nothing is erased.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float = 0.0

    def __post_init__(self) -> None:
        share(self, "p", self.p)
        span(self, "scale", self.scale, 1e-6, 1)
        span(self, "ratio", self.ratio, 1e-3, 1e3)
        share(self, "value", self.value)

    def train(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        ratio = (1 / self.ratio[1], 1 / self.ratio[0])  # width / height
        u = draws.uniform(DRAWN + 1)
        top, left, tall, wide = boxes(u, x.shape[2], x.shape[3], self.scale, ratio, strict=True)
        value = fill_of(x, self.value)
        for row in np.flatnonzero((u[:, DRAWN] < self.p) & (tall > 0)):
            x[row, :, top[row] : top[row] + tall[row], left[row] : left[row] + wide[row]] = value
        return x


@dataclass(frozen=True)
class Normalize(Transform):
    """(x - mean) / std, of x in 0..1.

    mean, std  a number for each channel, or one for all; None: those of all pixels of the folder
    """

    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name, low in (("mean", -1e6), ("std", 1e-6)):
            given = getattr(self, name)
            for one in given if isinstance(given, (tuple, list)) else [] if given is None else [given]:
                number(self, name, one, low, 1e6, "finite numbers" + " above 0" * (name == "std"))

    def of(self, mean: Sequence[float], std: Sequence[float]) -> Normalize:
        """With these in place of None."""
        return replace(
            self, mean=tuple(mean) if self.mean is None else self.mean, std=tuple(std) if self.std is None else self.std
        )

    def shape(self, shape: Shape) -> Shape:
        for name in ("mean", "std"):
            given = getattr(self, name)
            if isinstance(given, (tuple, list)) and len(given) != shape[0]:
                need = f"one number, or {shape[0]}, one for each channel"
                raise SettingError(setting=name, seen=given, need=need, place="Normalize")
        return shape

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        if self.mean is None or self.std is None:
            raise SettingError("Normalize: {mean} and std of None are those of an ImageFolder", mean=None)
        mean, scale = np.asarray(self.mean, np.float64), 1 / np.asarray(self.std, np.float64)
        factor = scale / 255 if x.dtype == np.uint8 else scale
        made: np.ndarray = np.empty(x.shape, np.float32)
        np.multiply(x, self._per_channel(x, factor), out=made)
        made += self._per_channel(x, -mean * scale)
        return made

    @staticmethod
    def _per_channel(x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.broadcast_to(numbers, x.shape[1]).astype(np.float32)[:, None, None]
