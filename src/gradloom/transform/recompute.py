"""Recompute: nodes computed again directly before their late readers, so that their bytes are free in between.

A clone is a node like any other: planned, proved, profiled. It computes the very bits of its original: it has the same
op, attributes (of a random op the stream, so the mask) and inputs, or clones of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from ..base.errors import GraphError
from ..graph.graph import view_base
from ..graph.value import Node, Value, same_values
from .program import Program, copy_node, needed


def may_recompute(node: Node) -> bool:
    """Whether a node may be computed twice: no leaf, and none that writes, stops the run, calls Python or follows
    another node."""
    return not (node.op.leaf or node.op.updates or node.op.guard or node.op.python or node.after)


def recompute(program: Program, until: Mapping[Node, int]) -> Program:
    """The program with a clone of each of these nodes that something reads later. until: node -> the position of the
    last node of the program that reads the original; those behind it read the clone, which stands before the first of
    them. Clones read clones where their inputs have such; views of clones follow."""
    clones: dict[Value, Value] = {}  # of nodes in `until` and of views of them
    new: dict[Value, Value] = {}
    placed: dict[Node, None] = {}
    place = {node: i for i, node in enumerate(program.nodes)}

    def missing(node: Node, position: int) -> list[Node]:
        """The nodes whose clones a reader at this position reads and that have none yet."""
        values = [v for v in node.inputs if v is not None and v not in clones]
        return [v.node for v in values if until.get(view_base(v).node, position) < position]

    def read(node: Node) -> list[Value | None]:
        return [None if v is None else clones.get(v, new.get(v, v)) for v in node.inputs]

    for position, node in enumerate(program.nodes):
        todo, found = missing(node, position), set[Node]()
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += missing(one, position)
        for one in sorted(found, key=place.__getitem__):
            clone = one.with_inputs(read(one), ())
            placed[clone] = None
            clones.update(zip(one.outputs, clone.outputs, strict=True))
        copy = copy_node(node, read(node), new)
        placed[copy] = None
        if copy is not node:
            new.update(zip(node.outputs, copy.outputs, strict=True))
        if node.op.view is not None and node.inputs[0] in clones:  # a view that is itself late
            clones.update(zip(node.outputs, copy.outputs, strict=True))
    outputs, effects = (tuple([new.get(v, v) for v in values]) for values in (program.outputs, program.effects))
    made = Program(needed(placed, (*outputs, *effects)), outputs, effects)
    check_recomputed(program, made)
    return made


def check_recomputed(program: Program, made: Program) -> dict[Node, Node]:
    """GraphError unless `made` computes what `program` computes: each of its nodes is a node of the program by op,
    attributes and, traced back, inputs; what may not be computed twice is there once; outputs and effects are the same.
    Returns of each node of `made` the node of the program that it computes.

    This is the proof of the pass: it looks at the result alone."""
    known: dict[Hashable, Node] = {}
    for node in program.nodes:
        known.setdefault(_key(node, node.inputs, node.after), node)
    origin: dict[Value, Value] = {}
    count: Counter[Node] = Counter()
    computed: dict[Node, Node] = {}
    for node in made.nodes:
        inputs = [None if v is None else origin.get(v) for v in node.inputs]
        after = [origin[b.outputs[0]].node for b in node.after]
        old = known.get(_key(node, inputs, after))
        if old is None:
            raise GraphError(f"recompute: {node.op.name} {node.label} computes what no node of the program computes")
        count[old] += 1
        if count[old] > 1 and not may_recompute(old):
            raise GraphError(f"recompute: {node.op.name} {node.label} is there twice; it may be carried out once only")
        computed[node] = old
        origin.update(zip(node.outputs, old.outputs, strict=True))
    for before, after_ in ((program.outputs, made.outputs), (program.effects, made.effects)):
        if not same_values(before, [origin.get(v) for v in after_]):
            raise GraphError("recompute: outputs or updates are not those of the program")
    return computed


def _key(node: Node, inputs: Sequence[Value | None], after: Sequence[Node]) -> Hashable:
    """What a node computes, given the values of the program that it reads."""
    leaf = id(node) if node.op.leaf else 0
    return node.op.name, id(node.attrs), leaf, tuple(map(id, inputs)), tuple(map(id, after)), len(node.outputs)
