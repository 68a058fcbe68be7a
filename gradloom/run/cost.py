"""What a node costs, and the table of the times that a run was found to take."""

from __future__ import annotations

from collections.abc import Iterable

from ..graph.declaration import Spec
from ..graph.value import Node


def node_cost(node: Node) -> tuple[float, float]:
    """(flops, bytes) of one node: its op's rule, or one flop per output element and every operand's bytes once."""
    op = node.op
    if op.cost is not None:
        specs = [None if v is None else Spec(v.shape, v.dtype) for v in node.inputs]
        outputs = [Spec(v.shape, v.dtype) for v in node.outputs]
        flops, moved = op.call("cost", dict(node.attrs) | op.bind_inputs(specs) | op.bind_outputs(outputs))
        return float(flops), float(moved)
    read = sum(v.bytes for v in node.inputs if v is not None)
    return float(sum(v.size for v in node.outputs)), float(read + sum(v.bytes for v in node.outputs))


def cost_table(title: str, timed: Iterable[tuple[Node, int, str]]) -> str:
    """Microseconds, GB/s and GFLOP/s of each instruction. timed: (node, nanoseconds, what is said of it)."""
    lines = [f"{'us':>10} {'GB/s':>8} {'GFLOP/s':>8}  {title}"]
    for node, took, what in timed:
        flops, moved = node_cost(node)
        lines.append(f"{took / 1e3:10.2f} {moved / max(took, 1):8.1f} {flops / max(took, 1):8.1f}  {what}")
    return "\n".join(lines)
