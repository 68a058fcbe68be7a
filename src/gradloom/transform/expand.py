"""Expand: where a backend has no kernel for a fused or backward op, the op's composition takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph.composition import composed
from ..graph.value import Node, Value
from .program import Program, rebuild


def expand(program: Program, runs: Callable[[Node], bool]) -> Program:
    """Replace nodes that cannot run by their compositions, and what cannot run in these, until nothing can be replaced.
    A composition that works block by block so has one block in memory at a time.

    runs: whether there is a kernel for a node. Assumes that no composition leads back to its own op (a test of the
    registry holds that). Nodes without a composition stay: the planner reports the missing kernels.
    """

    def replace(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return None if node.op.composition is None or runs(node) else composed(node, inputs)

    while True:
        expanded = rebuild(program, replace, as_made=True)
        if expanded is program:
            return program
        program = expanded
