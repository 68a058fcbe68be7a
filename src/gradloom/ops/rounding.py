"""What ops that multiply numbers of their own by others round to bf16: exp(x - m), m a multiple of log 2."""

from __future__ import annotations

import math

import numpy as np

from ..base.dtypes import f32
from ..graph.value import Value
from .elementwise import abs as size_of
from .elementwise import cast, less, scale, where

FAR = 1e6  # numbers beyond have no multiple of log 2 near enough in f32


def next_power_array(most: np.ndarray) -> np.ndarray:
    """The multiple of log 2 next to each number: exp(x - m) is rounded to bf16 alike for any such m."""
    power = np.asarray(math.log(2), most.dtype)
    return np.where(np.abs(most) < FAR, np.round(most / power) * power, most)


def next_power(most: Value) -> Value:
    """next_power_array as a graph."""
    power = scale(cast(cast(scale(most, factor=1 / math.log(2)), "i32"), f32), factor=math.log(2))
    return where(less(size_of(most), FAR), power, most)
