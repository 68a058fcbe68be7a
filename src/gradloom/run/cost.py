"""The cost of a node, and the table of measured times of a run."""

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
    """Microseconds, GB/s and GFLOP/s of each instruction. timed: (node, nanoseconds, remark).

    An instruction of 0 nanoseconds has no rates; where all have 0, one line states that no time was measured."""
    lines, timed = [f"{'us':>10} {'GB/s':>8} {'GFLOP/s':>8}  {title}"], list(timed)
    if not any(took for _, took, _ in timed):
        return "\n".join([*lines, "no time was measured; need profile(), and then a run"])
    for node, took, what in timed:
        flops, moved = node_cost(node)
        rates = (f"{moved / took:.1f}", f"{flops / took:.1f}") if took else ("-", "-")
        lines.append(f"{took / 1e3:10.2f} {rates[0]:>8} {rates[1]:>8}  {what}")
    return "\n".join(lines)
