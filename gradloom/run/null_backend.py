"""Plans programs of any size without computing, exactly as the CPU would run them; nothing is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import KernelNeeds, signature
from ..plan.plan import Plan, make_plan
from ..transform.program import Program
from .cpu_backend import Kernels, choose_isa


class NullExecutable:
    """A proved plan, and nothing that could run. What the CPU has no kernel for needs one part and no scratch."""

    def __init__(self, program: Program, switches: Switches) -> None:
        self.program, self.switches = program, switches
        kernels = Kernels(choose_isa(switches.isa))

        def needs(node: Node, args: np.ndarray) -> KernelNeeds:
            return kernels.needs(node, args) if (node.op.name, signature(node)) in kernels.known else KernelNeeds()

        self.plan: Plan = make_plan(program, needs, switches)

    def __call__(self, **feeds: Any) -> Any:
        """Always a BackendError."""
        raise BackendError("null: it plans and does not run; need backend='cpu' or backend='numpy' to run")
