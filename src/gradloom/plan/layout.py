"""The place of a value inside its buffer, and the copies that make every kernel's inputs fit.

Views (reshape, permute, slice, broadcast_to) need no kernel: their value is an offset and strides inside the buffer
of the value that they look at. Where a consumer cannot take such strides, a copy node is put in between; so it is where
an update reads, in addition to the storage that it writes, a value that some update overwrites (a gradient that is
itself a parameter): updates may then run in any order.

Quantised values are never copied. Offsets and strides count their elements as well; a view of them keeps whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..base.errors import ShapeError
from ..graph.declaration import Slot
from ..graph.graph import update_target, view_base
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Shape, Value, describe
from ..transform.program import Program, copy_node


class Layout(NamedTuple):
    """The place of a value: in the buffer of `base`, `offset` elements in, with `strides` in elements."""

    base: Value
    offset: int
    strides: tuple[int, ...]


@lru_cache(maxsize=4096)
def dense_strides(shape: Shape) -> tuple[int, ...]:
    """Row-major strides without gaps, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def is_dense(shape: Shape, strides: Sequence[int]) -> bool:
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def keeps_blocks(shape: Shape, strides: Sequence[int], offset: int, block: int) -> bool:
    """Do whole blocks of `block` neighbours run along one axis, and do all other steps go from block to block?"""
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    along = [(n, s) for n, s in axes if s % block]
    return offset % block == 0 and len(along) == 1 and along[0][1] == 1 and along[0][0] % block == 0


@dataclass(frozen=True)
class Laid:
    """A program in which every node's inputs have layouts that its kernel takes."""

    program: Program
    layouts: dict[Value, Layout]
    read: frozenset[Value]  # the base values that some node or the caller reads


def lay_out(program: Program) -> Laid:
    """Insert copies where a consumer cannot take a view, and compute the layout of every value."""
    return _Layouter(program).run()


class _Layouter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.layouts: dict[Value, Layout] = {}
        self.new: dict[Value, Value] = {}  # of the values that changed only
        self.copies: dict[Value, Value] = {}
        targets = (update_target(v) for n in program.nodes if n.op.updates for v in n.outputs)
        self.overwritten = {v for v in targets if v is not None}  # by some update

    def run(self) -> Laid:
        for node in self.program.nodes:
            self.visit(node)
        outputs = []
        for old in self.program.outputs:
            # The caller reads dense bytes after the step; a parameter asked for as an output means its value before the
            # step, and an update's output its value before the next update.
            value = self.new.get(old, old)
            dense = is_dense(value.shape, self.layouts[value].strides)
            outputs.append(value if dense and view_base(old) not in self.overwritten else self.copied(value))
        program = Program(tuple(self.nodes), tuple(outputs), tuple(self.new.get(v, v) for v in self.program.effects))
        read = [v for n in self.nodes for v in n.inputs if v is not None] + outputs
        bases = frozenset([self.layouts[v].base for v in read])
        return Laid(program, self.layouts, bases)

    def visit(self, node: Node) -> None:
        op, new = node.op, self.new
        inputs = [v if v is None else new.get(v, v) for v in node.inputs]
        if op.dense or op.unit or op.updates:
            for i, (old, value) in enumerate(zip(node.inputs, inputs, strict=True)):
                if old is not None and value is not None:
                    slot = op.slot(op.inputs, i)
                    torn = op.updates and slot.name not in op.updates.values() and view_base(old) in self.overwritten
                    if torn or not self.fits(slot, node, value):
                        inputs[i] = self.copied(value)
        view = None
        if op.view:
            view = self.view_of(node, inputs[0])
            if view is None:
                assert inputs[0] is not None
                inputs[0] = self.copied(inputs[0])
                view = self.view_of(node, inputs[0])
                assert view is not None, f"{op.name} has no view of a dense input"
        made = copy_node(node, inputs, new)
        self.nodes.append(made)
        if made is not node:
            new.update(zip(node.outputs, made.outputs, strict=True))
        for value in made.outputs:
            self.layouts[value] = view or Layout(value, 0, dense_strides(value.shape))

    def fits(self, slot: Slot, node: Node, value: Value) -> bool:
        strides = self.layouts[value].strides
        if strides == dense_strides(value.shape) and 0 not in value.shape:
            return True
        if slot.name in node.op.dense:
            return is_dense(value.shape, strides)
        if slot.name in node.op.unit:
            last = [(s, e) for s, e in zip(strides[-2:], value.shape[-2:], strict=True)]
            return any(stride == 1 or extent == 1 for stride, extent in last) and all(s > 0 or e == 1 for s, e in last)
        return True

    def view_of(self, node: Node, x: Value | None) -> Layout | None:
        assert x is not None
        at = self.layouts[x]
        place = node.op.call("view", node.attrs | {"layout_shape": x.shape, "strides": at.strides})
        if place is None:
            return None
        layout, out = Layout(at.base, at.offset + place[0], tuple(place[1])), node.outputs[0]
        block = out.dtype.block
        if block > 1 and out.size and not keeps_blocks(out.shape, layout.strides, layout.offset, block):
            raise ShapeError(
                f"{node.op.name}: {describe(out)} cuts blocks of {describe(at.base)}: x {describe(x)}; "
                f"need whole blocks of {block} along one axis, or a cast to f32 first; node {node.label}"
            )
        return layout

    def copied(self, value: Value) -> Value:
        if value.dtype.is_quantised:
            raise ShapeError(
                f"{value.node.op.name}: {describe(value)} is a view that cannot be read in place; need "
                f"{describe(self.layouts[value].base)} as it is stored, or a cast to f32 first; node {value.node.label}"
            )
        if value not in self.copies:
            node = REGISTRY["copy"].node([value], {}, value.node.name, value.node.where)
            self.nodes.append(node)
            self.layouts[node.outputs[0]] = Layout(node.outputs[0], 0, dense_strides(value.shape))
            self.copies[value] = node.outputs[0]
        return self.copies[value]
