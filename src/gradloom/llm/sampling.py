"""Sampling of the next token from logits. Pure functions of logits, settings and position.

The order is that of nucleus sampling's authors (Holtzman et al. 2020): logits / temperature, then the top_k largest,
then the smallest set of them whose probability reaches top_p, renormalised. In float64, with ids of equal logits in
ascending order, so one (seed, position) determines the token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..base.errors import NonFiniteError, SettingError
from ..base.philox import row_words

TOP_K, TOP_P = 40, 0.95  # defaults
STREAM = 0x746F6B656E  # "token": a stream separate from dropout's


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling the next token.

    temperature: 0 takes the largest logit, 1 samples from the model's own distribution. top_k: only the k largest
    logits; 0 for all, by default 40. top_p: only the smallest set with at least this probability; 1 for all, by default
    0.95. seed: random seed for sampling.
    Raises SettingError for a value out of its range, and for top_k or top_p with temperature 0, which does not sample.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not _number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise SettingError(setting="temperature", seen=self.temperature, need="a finite number of at least 0")
        if self.top_k is not None and (not _whole(self.top_k) or self.top_k < 0):
            raise SettingError(setting="top_k", seen=self.top_k, need="a whole number of at least 0 (0: all tokens)")
        if self.top_p is not None and (not _number(self.top_p) or not 0 < self.top_p <= 1):
            raise SettingError(setting="top_p", seen=self.top_p, need="a number above 0 and up to 1 (1: all tokens)")
        if not _whole(self.seed):
            raise SettingError(setting="seed", seen=self.seed, need="a whole number")
        for name, value in (("top_k", self.top_k), ("top_p", self.top_p)):
            if self.temperature == 0 and value is not None:
                raise SettingError(f"{{{name}}} requires {{temperature}} > 0", {name: value, "temperature": ...})


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def candidates(logits: np.ndarray, how: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """(ids, probabilities) of the candidates, the likeliest first; probabilities sum to 1.

    logits: f32 [V]; -inf excludes a token. At least one token remains for any top_k and top_p.
    """
    logits = np.asarray(logits)  # compared in f32; only the selected ones are converted to float64
    if how.temperature == 0:
        return np.array([int(np.argmax(logits))]), np.ones(1)
    top_k, top_p = TOP_K if how.top_k is None else how.top_k, TOP_P if how.top_p is None else how.top_p
    keep = len(logits) if top_k == 0 else min(top_k, len(logits))
    if keep < len(logits):  # the k largest, and all that equal the k-th
        least = np.partition(logits, len(logits) - keep)[len(logits) - keep]
        ids = np.flatnonzero(logits >= least)
    else:
        ids = np.arange(len(logits))
    ids = ids[np.argsort(-logits[ids], kind="stable")][:keep]
    left = logits[ids].astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        share = np.exp((left - left[0]) / how.temperature)
    share /= share.sum()
    if top_p < 1:
        before = np.cumsum(share) - share  # of those that are likelier
        ids, share = ids[before < top_p], share[before < top_p]
        share /= share.sum()
    return ids, share


def uniform(seed: int, position: int) -> float:
    """A random number in [0, 1) of 53 bits, determined by seed and position."""
    high, low = (int(w) for w in row_words(seed, position, STREAM, 0, 1, 2)[0])
    return ((high >> 5) * 2.0**26 + (low >> 6)) * 2.0**-53


def sample(logits: np.ndarray, how: Sampling, position: int) -> int:
    """The id of the next token. position: of that token in the text. Raises NonFiniteError."""
    largest = float(np.max(logits))  # NaN if any is NaN
    if not math.isfinite(largest):
        raise NonFiniteError(
            f"generate: the logits of position {position} contain {largest}; the weights or the adapter are not finite"
        )
    ids, share = candidates(logits, how)
    if len(ids) == 1:
        return int(ids[0])
    drawn = int(np.searchsorted(np.cumsum(share), uniform(how.seed, position), side="right"))
    return int(ids[min(drawn, np.flatnonzero(share)[-1])])  # rounding may leave the last sum below 1
