"""The tape: records of arguments, and a uniform of each dispatch, as words that never change."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ..graph.opspec import MAX_RANK
from .calls import Arg
from .source import CALL_BYTES, CALL_WORDS, RECORD_WORDS

ABSENT = 0xFFFFFFFF
WORD = 1 << 32


class Tape:
    """Words that are being written. Equal lists of arguments stand on it once."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self._known: dict[tuple[int, ...], int] = {}
        self.calls: list[bytes] = []

    def arguments(self, args: Sequence[Arg], places: Sequence[tuple[int, int] | None]) -> int:
        """The word at which the records of a dispatch begin. places: (slot, bytes from the slot's start) of each."""
        made: list[int] = []
        for arg, place in zip(args, places, strict=True):
            made += record(arg, place)
        key = tuple(made)
        if key not in self._known:
            self._known[key] = len(self.words)
            self.words += made
        return self._known[key]

    def call(self, args: int, node: int, groups: int, words: Sequence[int | float | bool]) -> int:
        """Add a dispatch; returns the byte offset of its uniform."""
        assert len(words) <= CALL_WORDS, f"{len(words)} words; a dispatch takes {CALL_WORDS}"
        bits = [args, node, groups, 0, *[word_of(w) for w in words]]
        self.calls.append(struct.pack(f"<{len(bits)}I", *bits).ljust(CALL_BYTES, b"\0"))
        return CALL_BYTES * (len(self.calls) - 1)

    def arrays(self) -> tuple[np.ndarray, bytes]:
        """(the tape, the uniforms)."""
        return np.array(self.words or [0], np.uint32), b"".join(self.calls) or bytes(CALL_BYTES)


def word_of(value: int | float | bool) -> int:
    """A whole number as it is (negative ones as in two's complement), a float as the bits of its f32."""
    if isinstance(value, float):
        return int(np.float32(value).view(np.uint32))
    return int(value) % WORD


def record(arg: Arg, place: tuple[int, int] | None) -> list[int]:
    """An argument's words, in the order of wgsl/prelude.wgsl."""
    pad = MAX_RANK - len(arg.shape)
    slot, at = (ABSENT, 0) if place is None else place
    kind = 0 if arg.dtype is None else arg.dtype.code
    made = [slot, kind, len(arg.shape), arg.size, at // 4, at % 4, int(arg.dense), 0]
    made += [*arg.shape, *[1] * pad, *arg.strides, *[0] * pad]
    return made + [0] * (RECORD_WORDS - len(made))
