"""Plans programs of any size without computing: one part, no scratch, no workspace, nothing allocated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.plan import Plan, make_plan
from ..plan.tape import KernelNeeds
from ..transform.rewrite import Program


def needs(node: Node, args: np.ndarray) -> KernelNeeds:
    return KernelNeeds()


class NullExecutable:
    """A proved plan, and nothing that could run."""

    def __init__(self, program: Program, switches: Switches) -> None:
        self.program = program
        self.plan: Plan = make_plan(program, needs, switches)

    def __call__(self, **feeds: Any) -> Any:
        """Always a BackendError."""
        raise BackendError("null: it plans and does not run; need backend='cpu' or backend='numpy' to run")
