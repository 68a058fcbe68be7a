"""Blocks: numbers that come piece by piece."""

from __future__ import annotations

import mmap

import numpy as np

_JOINED = 1 << 20  # bytes of pieces that become one block


class Blocks:
    """Arrays, each with the decimals of its numbers; small ones of one kind are joined.

    A joined block is memory of its own, which the machine has back as soon as the block is dropped: thousands of pieces
    on the heap would keep it as large as it was.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, int]] = []
        self._open, self._bytes = 0, 0  # parts[_open:] are of one kind and wait to be joined

    def add(self, array: np.ndarray, decimals: int = 0) -> None:
        if not len(array):
            return
        if self._bytes and not _alike(self.parts[-1], (array, decimals)):
            self._open, self._bytes = len(self.parts), 0
        self.parts.append((array, decimals))
        self._bytes += array.nbytes
        if self._bytes >= _JOINED:
            pieces = [one for one, _ in self.parts[self._open :]]
            joined = np.frombuffer(mmap.mmap(-1, self._bytes), array.dtype)
            self.parts[self._open :] = [(np.concatenate(pieces, out=joined), decimals)]
            self._open, self._bytes = len(self.parts), 0

    def put_first(self, array: np.ndarray, decimals: int) -> None:
        self.parts.insert(0, (array, decimals))
        self._open += 1

    def joined(self, kind: type[np.generic]) -> np.ndarray:
        """All of them, which are of this dtype."""
        return np.concatenate([np.empty(0, kind), *(array for array, _ in self.parts)])


def _alike(one: tuple[np.ndarray, int], other: tuple[np.ndarray, int]) -> bool:
    return one[0].dtype == other[0].dtype and one[1] == other[1]
