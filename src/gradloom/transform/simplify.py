"""Passes that every program goes through: constants, common subexpressions, what changes nothing, sums of pads.

They keep every number; the sign of a zero may change, no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..base.errors import GradloomError
from ..graph.composition import by_reference
from ..graph.leaves import constant
from ..graph.value import Node, Value
from .program import Program, copy_node, make, rebuild

FOLD_BYTES = 1 << 20  # a folded constant is at most this large


def simplify(program: Program, rounding: Collection[Node] = ()) -> Program:
    """Constants folded, views and products that change nothing dropped, nodes that compute the same merged.

    rounding: nodes whose operands a later pass rounds. They are not folded: their constants would not be rounded.
    """
    return rebuild(program, _Simplifier(rounding))


class _Simplifier:
    """Folds constants, drops views and products that change nothing, merges nodes that compute the same."""

    def __init__(self, rounding: Collection[Node]) -> None:
        self.known: dict[Any, Node] = {}
        self.rounding = rounding

    def __call__(self, node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        op = node.op
        if op.leaf:
            key = _leaf_key(node)
            return None if key is None else self.known.setdefault(key, node).outputs
        if not op.foldable or node.after or node.effects:
            return None
        same = _unchanged(node, inputs)
        if same is not None:
            return [same]
        is_known = inputs and _is_constant(inputs[0]) and all(map(_is_constant, inputs))
        if is_known and _small(node) and node not in self.rounding:
            folded = _fold(node, inputs)
            if folded is not None:
                return folded
        key = (op.name, node.device, *map(id, inputs), *_attribute_keys(node))
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = copy_node(node, inputs, {})
        return known.outputs


def _leaf_key(node: Node) -> tuple[Any, ...] | None:
    """Equal for leaves that stand for the same numbers; None for a leaf that stays as it is: a large constant."""
    name, attrs, out = node.op.name, node.attrs, node.outputs[0]
    if name == "parameter":
        return name, id(attrs["stored"])
    if name == "constant":
        data = attrs["data"]
        return (name, data.tobytes(), data.shape, data.dtype.str) if data.size < 64 else None
    return (name, attrs["key"], out.shape, out.dtype.name) if name in ("input", "setting") else None


def _attribute_keys(node: Node) -> list[Any]:
    """Equal for attributes of equal kinds and values; floats by their digits, which distinguish -0.0 from 0.0."""
    return [v if type(v) in (tuple, int, bool, str) else repr(v) for v in node.attrs.values()]


def _unchanged(node: Node, inputs: Sequence[Value | None]) -> Value | None:
    """The input that the node would only repeat: x * 1, x / 1, a view of the same shape."""
    out = node.outputs[0]
    x = inputs[0]
    if x is None:
        return None
    name = node.op.name
    if name in ("detach", "show") or (name in ("reshape", "broadcast_to") and x.shape == out.shape):
        return x
    if name == "permute":
        axes, source = node.attrs["axes"], x
        if x.node.op.name == "permute":  # two transpositions: do they undo each other?
            assert x.node.inputs[0] is not None
            axes, source = tuple(x.node.attrs["axes"][a] for a in axes), x.node.inputs[0]
        if axes == tuple(range(x.ndim)):
            return source
    if name in ("mul", "div"):
        y = inputs[1]
        assert y is not None
        if _is_one(y) and x.shape == out.shape:
            return x
        if name == "mul" and _is_one(x) and y.shape == out.shape:
            return y
    return None


def _is_one(value: Value) -> bool:
    while value.node.op.name in ("broadcast_to", "reshape"):
        base = value.node.inputs[0]
        assert base is not None
        value = base
    return value.node.op.name == "constant" and bool(np.all(value.node.attrs["data"] == 1))


def _is_constant(value: Value | None) -> bool:
    return value is None or value.node.op.name == "constant"


def _small(node: Node) -> bool:
    return sum(v.bytes for v in node.outputs) <= FOLD_BYTES


def _fold(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
    arrays = [None if v is None else _wide(v.node.attrs["data"], v) for v in inputs]
    try:
        results = by_reference(node, arrays)
    except GradloomError:
        return None  # the run raises the error, with the node's name
    return [constant(r, v.dtype) for r, v in zip(results, node.outputs, strict=True)]


def _wide(data: np.ndarray, value: Value) -> np.ndarray:
    """Real numbers as the references take them: in float64."""
    return data.astype(np.float64) if value.dtype.is_float else data


def join_pads(program: Program) -> Program:
    """A sum of pads over disjoint ranges of one axis (the gradient of a split) becomes one concat. Where a piece holds
    -0 the concat keeps it; the sum had 0."""
    if all(node.op.name != "pad" for node in program.nodes):
        return program
    return rebuild(program, _Joiner(program))


Pieces = tuple[int, list[tuple[int, int, "Value"]]]  # axis, (start, stop, value) in order; zeros between them


class _Joiner:
    """Finds the sums of pads; see join_pads."""

    def __init__(self, program: Program) -> None:
        self.pieces: dict[Value, Pieces] = {}  # of values of the old program; their parts belong to the new one
        self.ends: set[Value] = {v for v in (*program.outputs, *program.effects) if v.node.op.name == "add"}
        for node in program.nodes:
            for value in node.inputs:
                if value is not None and value.node.op.name == "add" and node.op.name != "add":
                    self.ends.add(value)
        self.inner: dict[Value, list[Value]] = {}  # sum -> the sums that it is added to
        for node in program.nodes:
            pieces = self.pieces_of(node, node.inputs)
            if pieces is not None:
                self.pieces[node.outputs[0]] = pieces
            for value in node.inputs:
                if value is not None and node.op.name == "add":
                    self.inner.setdefault(value, []).append(node.outputs[0])
        # A sum is materialised if it has a reader that is no larger sum of pads.
        self.ends |= {v for v, sums in self.inner.items() if any(s not in self.pieces for s in sums)}
        self.ends &= self.pieces.keys()
        self.pieces.clear()

    def pieces_of(self, node: Node, inputs: Sequence[Value | None]) -> Pieces | None:
        """The terms of a sum node; its pads' values are taken from `inputs`."""
        if node.op.name == "pad":
            before, after = node.attrs["before"], node.attrs["after"]
            axes = [i for i, sides in enumerate(zip(before, after, strict=True)) if sides != (0, 0)]
            x = inputs[0]
            if x is None or len(axes) != 1 or any(node.attrs["interior"]) or node.attrs["value"] != 0:
                return None
            start = before[axes[0]]
            return axes[0], [(start, start + x.shape[axes[0]], x)] if x.size else []
        if node.op.name != "add":
            return None
        first, second = (self.pieces.get(v) for v in node.inputs if v is not None)
        if first is None or second is None or first[0] != second[0]:
            return None
        if any(v is not None and v.shape != node.outputs[0].shape for v in node.inputs):
            return None
        joined = sorted([*first[1], *second[1]], key=lambda p: p[0])
        if any(joined[i][1] > joined[i + 1][0] for i in range(len(joined) - 1)):
            return None
        return first[0], joined

    def __call__(self, node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        pieces = self.pieces_of(node, inputs)
        if pieces is None:
            return None
        out = node.outputs[0]
        self.pieces[out] = pieces
        if out not in self.ends or node.op.name == "pad":
            return None
        axis, parts = pieces
        values, at = [], 0
        for start, stop, value in [*parts, (out.shape[axis], out.shape[axis], None)]:
            if start > at:
                values.append(_zeros((*out.shape[:axis], start - at, *out.shape[axis + 1 :]), node))
            if value is not None:
                values.append(value)
            at = stop
        return make("concat", values, {"axis": axis}, node).outputs


def _zeros(shape: tuple[int, ...], like: Node) -> Value:
    return make("broadcast_to", [constant(np.float32(0))], {"shape": shape}, like).outputs[0]
