"""Transforms that mix two rows: MixUp and CutMix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Draws, Transform, as_fractions, number
from .base import share as as_share

_GRID = 4097  # points of a distribution function


@dataclass(frozen=True)
class Mixing(Transform):
    """Base class of MixUp and CutMix: labels become f32 [classes], shares of two rows.

    alpha  of the distribution Beta(alpha, alpha) of the share
    p      probability of a mixture
    The other row is one of the training rows, drawn by the same key as the share, not one of the batch.
    """

    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        number(self, "alpha", self.alpha, 1e-3, 1e3, "a number from 0.001 to 1000")
        as_share(self, "p", self.p)

    def partners(self, draws: Draws, rows: np.ndarray) -> np.ndarray:
        """The other row of each row, i64 [n], of these rows; the row itself where it stays as it is."""
        u = draws.uniform(2)
        other = rows[(u[:, 0] * len(rows)).astype(np.int64)]
        return np.where(u[:, 1] < self.p, other, draws.rows)

    def share(self, draws: Draws) -> np.ndarray:
        """f64 [n]: the share of the row itself, distributed as Beta(alpha, alpha)."""
        return beta(draws.uniform(3)[:, 2], self.alpha)

    def mix(self, x: np.ndarray, other: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """(mixtures, share of x in each f32 [n])."""
        raise NotImplementedError


class MixUp(Mixing):
    """share * x + (1 - share) * other, and labels likewise. Reference: arXiv:1710.09412."""

    def mix(self, x: np.ndarray, other: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        share = self.share(draws).astype(np.float32)
        x, other = as_fractions(x), as_fractions(other)
        return other + share[:, None, None, None] * (x - other), share


class CutMix(Mixing):
    """Replaces a box of the image by that of the other row; labels are shares of the area. Reference: arXiv:1905.04899.

    The box has a share of 1 - share of the area and the shape of the image, about a random pixel; parts outside of
    the image are cut off.
    """

    def mix(self, x: np.ndarray, other: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        height, width = x.shape[2:]
        half = np.sqrt(1 - self.share(draws)) / 2
        place = draws.uniform(5)[:, 3:]
        middle_y, middle_x = (place * (height, width)).astype(np.int64).T
        tall, wide = (half * height).astype(np.int64), (half * width).astype(np.int64)
        top, bottom = np.maximum(middle_y - tall, 0), np.minimum(middle_y + tall, height)
        left, right = np.maximum(middle_x - wide, 0), np.minimum(middle_x + wide, width)
        for row in np.flatnonzero((bottom > top) & (right > left)):
            box = row, slice(None), slice(top[row], bottom[row]), slice(left[row], right[row])
            x[box] = other[box]
        area = (bottom - top) * (right - left)
        return x, (1 - area / (height * width)).astype(np.float32)


def beta(u: np.ndarray, alpha: float) -> np.ndarray:
    """Quantiles u of the distribution Beta(alpha, alpha), f64, to about 1e-4.

    The distribution function is summed over v, where x = v ** (1 / min(alpha, 1)) / 2: its derivative is bounded there.
    """
    least = min(alpha, 1.0)
    v = np.linspace(0, 1, _GRID)
    x: np.ndarray = v ** (1 / least) / 2
    density = v ** (alpha / least - 1) * (1 - x) ** (alpha - 1)
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    is_low = u < 0.5
    found: np.ndarray = np.interp(2 * np.where(is_low, u, 1 - u), total / total[-1], v) ** (1 / least) / 2
    return np.where(is_low, found, 1 - found)
