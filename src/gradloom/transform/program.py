"""Program: the nodes to be computed in an explicit order, and how a pass rebuilds them.

A pass is a function Program -> Program. It visits the nodes in order, answers with the outputs that stand for those of
each node, and never sorts: a replacement takes the position of the node that it replaces.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.errors import GraphError
from ..graph.graph import is_unwritten, reachable, show, update_target
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Value, same_values


@dataclass(frozen=True)
class Program:
    """The nodes to compute.

    nodes    all that outputs and effects need and nothing else, each behind its inputs
    outputs  the values that the caller reads
    effects  outputs of update nodes: the persistent results of a run
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    effects: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return show(self.nodes)


def gather(outputs: Sequence[Value], effects: Sequence[Value] = ()) -> Program:
    """The program of these outputs and updates, and of the updates that belong to nodes on the way (running
    statistics). Its order is the one in which the nodes were made: forward first, backward after it."""
    for value in outputs:
        if is_unwritten(value):
            node = value.node
            raise GraphError(
                f"{node.op.name}: output {value.index} of {node.label} is never written: its input is absent"
            )
    nodes = reachable((*outputs, *effects), effects=True)
    wanted = dict.fromkeys(effects)
    for node in nodes:
        wanted.update(dict.fromkeys(node.effects))
    updates = tuple([v for v in wanted if update_target(v) is not None])
    return Program(needed(nodes, (*outputs, *updates)), tuple(outputs), updates)


Replace = Callable[[Node, Sequence["Value | None"]], "Sequence[Value] | None"]


def rebuild(program: Program, replace: Replace, as_made: bool = False) -> Program:
    """Visit the nodes in order; `replace` sees a node and its new inputs, answers new outputs or None (keep). as_made:
    new nodes are placed in the order in which they were made, by default each behind the inputs that it needs."""
    new: dict[Value, Value] = {}  # of the values that changed only
    placed: dict[Node, None] = {}
    for node in program.nodes:
        inputs = [v if v is None else new.get(v, v) for v in node.inputs] if new else node.inputs
        outputs = replace(node, inputs)
        if outputs is None:
            copy = copy_node(node, inputs, new)
            outputs, placed[copy] = copy.outputs, None
        elif as_made:
            placed.update(dict.fromkeys(_unplaced(outputs, placed)))
        else:
            for value in outputs:
                if value.node not in placed:
                    _place(value.node, placed)
        if outputs is not node.outputs:
            new.update(zip(node.outputs, outputs, strict=True))
    if not new:
        return program
    outputs, effects = (tuple([new.get(v, v) for v in values]) for values in (program.outputs, program.effects))
    return Program(needed(placed, (*outputs, *effects)), outputs, effects)


def _unplaced(values: Sequence[Value], placed: dict[Node, None]) -> list[Node]:
    """The nodes that the values need and that are not placed, in the order in which they were made."""
    found: set[Node] = set()
    todo = [v.node for v in values]
    while todo:
        node = todo.pop()
        if node not in placed and node not in found:
            found.add(node)
            todo.extend([v.node for v in node.inputs if v is not None])
            todo.extend(node.after)
    return sorted(found, key=operator.attrgetter("id"))


def _place(node: Node, placed: dict[Node, None]) -> None:
    """Append a node that is not placed, behind the new nodes that it needs."""
    for value in node.inputs:
        if value is not None and value.node not in placed:
            _place(value.node, placed)
    for before in node.after:
        if before not in placed:
            _place(before, placed)
    placed[node] = None


def needed(nodes: Sequence[Node] | dict[Node, None], values: Sequence[Value]) -> tuple[Node, ...]:
    """Those of the nodes that the values need, in the same order."""
    reached = {v.node for v in values}
    kept = []
    for node in reversed(nodes):
        if node in reached:
            kept.append(node)
            for value in node.inputs:
                if value is not None:
                    reached.add(value.node)
            reached.update(node.after)
    return tuple(kept[::-1])


def copy_node(node: Node, inputs: Sequence[Value | None], new: Mapping[Value, Value]) -> Node:
    """The node with other inputs; itself where nothing changes. new: the values before it that changed."""
    after = node.after and tuple([new.get(b.outputs[0], b.outputs[0]).node for b in node.after])
    if after == node.after and (inputs is node.inputs or same_values(inputs, node.inputs)):
        return node
    return node.with_inputs(inputs, after)


def make(name: str, inputs: Sequence[Value | None], attrs: Mapping[str, Any], like: Node) -> Node:
    """A node of the op of this name, named after another one and assigned to its device."""
    made = REGISTRY[name].node(inputs, attrs, like.name, like.where)
    made.device = like.device
    return made
