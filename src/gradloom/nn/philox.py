"""Keys for Philox, NumPy's counter-based generator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class Key(ISeedSequence):
    """The key of a Philox generator. Philox(key=...) makes the same one, after it has asked the system for entropy."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.array(self.words, dtype)
