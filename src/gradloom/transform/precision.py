"""Precision: what products read, rounded to bf16 where it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.dtypes import bf16, f32
from ..base.errors import GradloomError
from ..graph.value import Node, Value
from .program import Program, copy_node, make, needed


def round_products(program: Program, runs: Callable[[Node], bool]) -> Program:
    """Round to bf16 what products read: the inputs that an op declares as `rounds`.

    runs: whether there is a kernel for a node. Assumes that gradients and fusion are done, and that no pass behind it
    merges nodes. A value is rounded once, after the node that computes it, and views of it become views of the
    bf16 numbers: where products are the last to read it, only these are kept for them. What stays in f32 anyway, a
    leaf, a cache behind its update, or a value that others read later, is rounded in front of each product, a leaf or a
    cache also by the product's kernel. Where there is no kernel for bf16 operands, they are widened to f32 again in
    front of the product. Products that only updates read (of an optimiser) stay as they are.
    """
    products = rounded_products(program)
    return _Rounder(program, products, runs).rounded() if products else program


def rounded_products(program: Program) -> set[Node]:
    """The products that lead to an output or a guard; in a program without a guard, also to an update."""
    guards = [node for node in program.nodes if node.op.guard]
    ends = [*program.outputs, *(node.outputs[0] for node in guards), *(() if guards else program.effects)]
    return {node for node in needed(program.nodes, ends) if node.op.rounds}


def _read_last(program: Program, products: set[Node]) -> set[Value]:
    """The computed values that products read, and that nothing else reads later."""
    rounding: dict[Value, int] = {}
    others = {_producer(v): len(program.nodes) for v in (*program.outputs, *program.effects)}
    for i, node in enumerate(program.nodes):
        if node.op.view is not None and _viewed(node.outputs[0]) is not None:
            continue  # those who read the view count
        operands = _operands(node) if node in products else {}
        for at, value in enumerate(node.inputs):
            if value is not None:
                (rounding if at in operands else others)[_producer(value)] = i
    return {v for v, at in rounding.items() if not v.node.op.leaf and at > others.get(v, -1)}


def _viewed(value: Value) -> Value | None:
    """The value that a view shows, all of it; None where it is no view or shows a part."""
    x = value.node.inputs[0] if value.node.op.view is not None else None
    return None if x is None or x.size > value.size else x


def _producer(value: Value) -> Value:
    """The value that a chain of such views shows; itself where it is none."""
    while (x := _viewed(value)) is not None:
        value = x
    return value


def _stored(value: Value) -> bool:
    """Whether a value is stored in memory that outlives the run."""
    return value.node.op.leaf or value.node.op.outputs[value.index].name in value.node.op.updates


class _Rounder:
    """Makes the new program node by node. `new`: the values that changed; `narrow`: values in bf16."""

    def __init__(self, program: Program, products: set[Node], runs: Callable[[Node], bool]) -> None:
        self.program, self.products, self.runs = program, products, runs
        self.placed: dict[Node, None] = {}
        self.new: dict[Value, Value] = {}
        self.narrow: dict[Value, Value] = {}
        self.kept = _read_last(program, products)

    def rounded(self) -> Program:
        for node in self.program.nodes:
            inputs = [v if v is None else self.new.get(v, v) for v in node.inputs]
            made = self.product(node, inputs) if node in self.products else copy_node(node, inputs, self.new)
            self.place(made)
            for old, now in zip(node.outputs, made.outputs, strict=True):
                if now is not old:
                    self.new[old] = now
                if old in self.kept:
                    self.narrow[old] = self.in_bf16(old)
        outputs, effects = (
            tuple([self.new.get(v, v) for v in vs]) for vs in (self.program.outputs, self.program.effects)
        )
        return Program(needed(self.placed, (*outputs, *effects)), outputs, effects)

    def place(self, node: Node) -> Value:
        """Append a node whose inputs are placed; its first output."""
        self.placed[node] = None
        return node.outputs[0]

    def product(self, node: Node, inputs: Sequence[Value | None]) -> Node:
        """The product of rounded operands, preceded by the nodes that it needs."""
        operands = _operands(node)
        first = next(iter(operands))
        stored = {at: v for at, v in operands.items() if at != first and _stored(_producer(v))}
        given = dict(enumerate(inputs)) | {at: self.in_bf16(v) for at, v in operands.items() if at not in stored}
        if stored and (made := self.taken(node, given)) is not None:
            return made
        given |= {at: self.in_bf16(v) for at, v in stored.items()}
        wide = [at for at in operands if bf16 not in node.op.dtypes[node.op.inputs[at].name]]
        given |= {at: self.widened(given[at]) for at in wide}
        if first not in wide and (made := self.taken(node, given)) is not None:
            return made
        given |= {at: self.widened(given[at]) for at in operands if at not in wide}
        return copy_node(node, list(given.values()), self.new)

    def taken(self, node: Node, given: Mapping[int, Value | None]) -> Node | None:
        """The product of these inputs; None where its op does not take their dtypes, or there is no kernel for them."""
        for slot, value in zip(node.op.inputs, given.values(), strict=True):
            if value is not None and value.dtype not in node.op.dtypes[slot.name]:
                return None
        try:
            made = make(node.op.name, list(given.values()), node.attrs, node)
        except GradloomError:  # these dtypes do not go together
            return None
        made.after = tuple([self.new.get(b.outputs[0], b.outputs[0]).node for b in node.after])
        return made if self.runs(made) else None

    def widened(self, value: Value | None) -> Value:
        """A value in bf16 as f32."""
        assert value is not None
        return self.place(_like(value.node, "cast", value, dtype=f32))

    def in_bf16(self, value: Value) -> Value:
        """A value of the old program in bf16."""
        known = self.narrow.get(value)
        if known is not None:
            return known
        x, now = _viewed(value), self.new.get(value, value)
        if now.dtype is bf16:
            return now
        if x is not None:
            made = self.place(_like(value.node, value.node.op.name, self.in_bf16(x), **value.node.attrs))
            if _producer(value) in self.kept:
                self.narrow[value] = made
            return made
        if now.dtype is not f32:  # halves and quantised leaves
            now = self.place(_like(value.node, "cast", now, dtype=f32))
        return self.place(_like(value.node, "round_bf16", now))


def _operands(node: Node) -> dict[int, Value]:
    """The inputs that a product rounds, by position."""
    places = [at for at, slot in enumerate(node.op.inputs) if slot.name in node.op.rounds]
    return {at: value for at in places if (value := node.inputs[at]) is not None}


def _like(node: Node, name: str, value: Value | None, **attrs: Any) -> Node:
    """A node of the op of this name on one value, called after another one."""
    return make(name, [value], attrs, node)
