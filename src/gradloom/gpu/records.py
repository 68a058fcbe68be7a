"""Records: downloaded data of each step: its status, then its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plan.bytecode import SETTING_BYTES
from ..plan.plan import Plan
from .memory import parts
from .program import STATUS_BYTES, Layout

AHEAD = 64  # steps in one submission, at most
PAIRS = 2  # submissions that are on their way at once, each with a buffer of records and one of settings
RECORD_BYTES = 1 << 20  # of one submission, unless one step has more


class Records:
    """Offset of each output of a step in its record, after the status.

    recorded: (memory's key, piece, its byte, the record's byte, bytes) of each copy; starts: the byte of each output;
    kept: (output, memory's key, its byte) of those that stay on the device; stride: bytes of a record; ahead: steps in
    one submission; row_bytes: of the settings of a step.
    """

    def __init__(self, plan: Plan, layout: Layout, binding_bytes: int, least: int = 0) -> None:
        """least: bytes of an output that stays on the device; 0: none does."""
        self.recorded: list[tuple[Any, int, int, int, int]] = []
        self.kept: list[tuple[int, Any, int]] = []
        self.starts: list[int] = []
        at = STATUS_BYTES
        sizes = [v.bytes for v in plan.laid.program.outputs]
        for (segment, offset), size in zip(plan.output_places, sizes, strict=True):
            key, start = layout.place(segment, offset)
            if least and size >= least and not (start % 4 or size % 4):
                self.kept.append((len(self.starts), key, start))
                self.starts.append(0)
                continue
            begin = start // 4 * 4
            length = -(-(start + size - begin) // 4) * 4 if size else 0
            for piece, byte, further, some in parts(begin, length, binding_bytes):
                self.recorded.append((key, piece, byte, at + further, some))
            self.starts.append(at + start - begin)
            at += -(-length // 8) * 8  # what follows is aligned for any dtype
        self.stride = at
        self.ahead = max(1, min(AHEAD, RECORD_BYTES // at))
        self.row_bytes = SETTING_BYTES * len(plan.bytecode.settings)


def staged_bytes(plan: Plan, layout: Layout, outputs: Sequence[int]) -> int:
    """Of the buffer through which these outputs come, behind the status (queue.py)."""
    at = STATUS_BYTES
    for i in outputs:
        _, start = layout.place(*plan.output_places[i])
        size = plan.laid.program.outputs[i].bytes
        at += -(-(start + size - start // 4 * 4) // 8) * 8 if size else 0
    return at
