"""Initialisations of parameters: functions (generator, shape) -> array, and the key of a generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

Init = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def uniform(bound: float) -> Init:
    """U(-bound, bound)."""
    return partial(_uniform, bound)


def normal(std: float = 1.0) -> Init:
    """N(0, std^2)."""
    return partial(_normal, std)


def filled(value: float | np.ndarray) -> Init:
    """One number everywhere, or these numbers."""
    return partial(_filled, value)


# Functions of the module, so that models can be pickled.


def _uniform(bound: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-bound, bound, shape)


def _normal(std: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * std


def _filled(value: float | np.ndarray, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, value)
