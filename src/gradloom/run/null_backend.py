"""Plans programs of any size without computing, exactly as the CPU, or another backend, would run them; nothing is
allocated."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import numpy as np

from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import KernelNeeds, signature
from ..plan.plan import Plan
from ..transform.program import Program
from .backend import Backend, Buffer
from .cpu_backend import CpuBackend
from .executable import Executable

PLANNED = "null:"  # prefix of a device that is planned for, but does not run


class NullBackend:
    """The plans of the CPU, or of the given backend. An op without a kernel on the CPU needs one part and no
    scratch."""

    name: ClassVar[str] = "null"
    planned: ClassVar[bool] = True

    def __init__(self, switches: Switches, other: Backend | None = None) -> None:
        self.switches, self.other = switches, other
        self.cpu = CpuBackend(switches)

    @property
    def piece_bytes(self) -> int:
        return 0 if self.other is None else self.other.piece_bytes

    @property
    def calls_python(self) -> bool:
        return self.other is None or getattr(self.other, "calls_python", False)

    def available(self) -> tuple[bool, str]:
        return self.cpu.available() if self.other is None else self.other.available()

    def signatures(self) -> Collection[tuple[str, str]] | None:
        return None if self.other is None else self.other.signatures()

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        if self.other is not None:
            return self.other.needs(node, args)
        known = (node.op.name, signature(node)) in self.cpu.signatures()
        return self.cpu.needs(node, args) if known else KernelNeeds()

    def allocate(self, bytes: int) -> Buffer:
        raise _does_not_run()

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> NullExecutable:
        return NullExecutable(program, plan, self.cpu.switches)


def _does_not_run() -> BackendError:
    return BackendError("null: it plans and does not run; need backend='cpu' or backend='numpy' to run")


class NullExecutable(Executable):
    """A proved plan, and nothing that could run: whatever needs a run is a BackendError."""

    steps_run = 0

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise _does_not_run()

    __call__ = feed = fed = copy_in = run_many = run_steps = stop = profile = watch = _refuse
    collect_times = timings = timed_nodes = report = denormals = _refuse
