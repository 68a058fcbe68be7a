"""Merging of neighbours by score, for vocabularies whose scores no ranks express."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

import numpy as np

_WORDS_CACHED = 1 << 18  # words whose tokens are cached


class ScoreMerger:
    """Merges the pair of the highest score first, the leftmost of equal ones; ranks cannot express such ties."""

    def __init__(self, ids: Mapping[str, int], scores: np.ndarray, to_bytes: Callable[[str], list[int]]) -> None:
        self._ids = ids
        self._scores = scores
        self._to_bytes = to_bytes
        self._cached: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        done = self._cached.get(text)
        if done is None:
            done = [i for piece in self.merge(text) for i in self.ids_of(piece)]
            if len(self._cached) >= _WORDS_CACHED:
                self._cached.clear()
            self._cached[text] = done
        return done

    def ids_of(self, piece: str) -> list[int]:
        i = self._ids.get(piece)
        return self._to_bytes(piece) if i is None else [i]

    def merge(self, text: str) -> list[str]:
        pieces: list[str] = list(text)  # "" once it is merged into its left neighbour
        before, after = list(range(-1, len(text) - 1)), [*range(1, len(text)), -1]
        queue: list[tuple[float, int, int, int]] = []  # (-score, left, right, length)

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                i = self._ids.get(pieces[left] + pieces[right])
                if i is not None:
                    heapq.heappush(queue, (-float(self._scores[i]), left, right, len(pieces[left] + pieces[right])))

        for k in range(len(text) - 1):
            offer(k, k + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [p for p in pieces if p]
