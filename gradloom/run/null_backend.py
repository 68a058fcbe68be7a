"""Plans programs of any size without computing, exactly as the CPU would run them; nothing is allocated."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import KernelNeeds, signature
from ..plan.plan import Plan
from ..transform.program import Program
from .backend import Buffer
from .cpu_backend import CpuBackend
from .executable import Executable


class NullBackend:
    """The plans of the CPU. What the CPU has no kernel for needs one part and no scratch."""

    name: ClassVar[str] = "null"
    planned: ClassVar[bool] = True
    piece_bytes: ClassVar[int] = 0

    def __init__(self, switches: Switches) -> None:
        self.cpu = CpuBackend(switches)

    def available(self) -> tuple[bool, str]:
        return self.cpu.available()

    def signatures(self) -> None:
        return None

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
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

    __call__ = feed = fed = copy_in = run_many = run_steps = stop = profile = timings = _refuse
