"""GpuWalk: a program of a device run one instruction at a time, to hold each value against other runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..base.settings import Switches
from ..graph.value import Value
from ..run.backend import backend, plan_for
from ..run.walk import Stepped, walks
from ..transform.program import Program
from .backend import GpuBackend, GpuExecutable


class GpuWalk(Stepped, GpuExecutable):
    """A compiled program of a device in an arena of its own. place: "gpu", "gpu:1", ..."""

    def __init__(self, program: Program, switches: Switches, place: str = "gpu") -> None:
        made = backend(place, switches)
        assert isinstance(made, GpuBackend), place
        super().__init__(program, plan_for(made, program, switches), switches, made.place, made.allocate(0))

    def run_step(self, k: int) -> None:
        self.run_instruction(k, self.rows)

    def written(self, k: int) -> Iterator[tuple[Value, np.ndarray]]:
        """Without outputs that no instruction reads where dead bytes are poisoned: they are poisoned already."""
        dead = [one[1:] for one in self.plan.bytecode.dead if one[0] == k] if self.switches.poison else []
        for value, segment, offset in self.places(k):
            if not any(s == segment and o < offset + value.bytes and offset < o + size for s, o, size in dead):
                found = self.bytes_of(segment, offset, value.bytes)
                yield value, found.copy().view(value.dtype.numpy).reshape(value.shape)

    def outputs_now(self) -> list[np.ndarray]:
        found = []
        for value, (segment, offset) in zip(self.program.outputs, self.plan.output_places, strict=True):
            place = self.bytes_of(segment, offset, value.bytes) if value.size else np.empty(0, np.uint8)
            found.append(place.copy().view(value.dtype.numpy).reshape(value.shape))
        return found


walks["gpu"] = GpuWalk
