"""graph -> graph: dead code, constants, common subexpressions, simplifications, fusion.

A fusion never changes the arithmetic: a fused op computes, bit for bit, what the nodes that it replaces compute.
Simplifications, which `fuse` does not switch off, may change the sign of a zero, no more.
Dead code needs no pass: only what the outputs and effects reach is ever visited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import GradloomError, GraphError, ShapeError
from ..graph.graph import is_unwritten, reachable, update_target
from ..graph.opspec import REGISTRY, constant
from ..graph.value import Node, Value, describe, same_values

FOLD_BYTES = 1 << 20  # a folded constant is at most this large


@dataclass(frozen=True)
class Program:
    """What is to be computed: the outputs that the caller reads, and the updates that a run leaves behind."""

    outputs: tuple[Value, ...]
    effects: tuple[Value, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """Everything needed, in topological order."""
        return reachable((*self.outputs, *self.effects))


def gather_program(outputs: Sequence[Value], effects: Sequence[Value] = ()) -> Program:
    """The outputs, the given updates, and the updates that belong to nodes on the way (running statistics)."""
    for value in outputs:
        if is_unwritten(value):
            node = value.node
            raise GraphError(
                f"{node.op.name}: output {value.index} of {node.label} is never written: its input is absent"
            )
    found = dict.fromkeys(effects)
    for node in reachable((*outputs, *effects), effects=True):
        found.update(dict.fromkeys(node.effects))
    return Program(tuple(outputs), tuple(v for v in found if update_target(v) is not None))


def rewrite(program: Program, fuse: bool = True) -> Program:
    """The program with constants folded and twins merged, and with `fuse` also fused."""
    program = _rebuild(program, _Simplifier())
    program = _rebuild(program, _Joiner(program))
    for pattern in (*TURNS, *FUSIONS) if fuse else TURNS:
        if {pattern.outer, pattern.inner} <= {node.op.name for node in program.nodes}:
            program = _rebuild(program, _Fuser(program, pattern))
    return _rebuild(program, _Simplifier())


Replace = Callable[[Node, Sequence["Value | None"]], "Sequence[Value] | None"]


def _rebuild(program: Program, replace: Replace) -> Program:
    """Visit the nodes in order; `replace` sees a node and its new inputs, answers new outputs or None (keep)."""
    new: dict[Value, Value] = {}
    for node in program.nodes:
        inputs = [None if v is None else new[v] for v in node.inputs]
        outputs = replace(node, inputs)
        if outputs is None:
            outputs = _copy_node(node, inputs, new).outputs
        new.update(zip(node.outputs, outputs, strict=True))
    return Program(tuple(new[v] for v in program.outputs), tuple(new[v] for v in program.effects))


def _copy_node(node: Node, inputs: Sequence[Value | None], new: dict[Value, Value]) -> Node:
    after = [new[b.outputs[0]].node for b in node.after if b.outputs[0] in new]
    if same_values(inputs, node.inputs) and after == list(node.after):
        return node
    specs = [(v.shape, v.dtype) for v in node.outputs]
    return Node(node.op, inputs, node.attrs, specs, node.name, node.where, after)


def substitute(value: Value, replacements: Mapping[Value, Value]) -> Value:
    """The same expression with some of its values replaced by others of the same shape; its updates and marked losses
    come along."""
    return _substituted([value], replacements)[0]


def _substituted(values: Sequence[Value], replacements: Mapping[Value, Value]) -> list[Value]:
    new: dict[Value, Value] = {}
    copies: list[tuple[Node, Node]] = []
    for node in reachable(values, effects=True):
        made = _copy_node(node, [None if v is None else new[v] for v in node.inputs], new)
        if made is not node:
            copies.append((node, made))
        for old, own in zip(node.outputs, made.outputs, strict=True):
            new[old] = replacements.get(old, own)
    for node, made in copies:
        made.effects = tuple(new[v] for v in node.effects)
        made.losses = node.losses
    return [new[v] for v in values]


def with_batch(values: Sequence[Value], leaf: Value, batch: Value) -> list[Value]:
    """The same expressions with an input replaced by one with the same or another number of rows.

    leaf: the input, [rows, ...]; batch: of the same dtype and the same shape but for the first axis. Where the number
    of rows differs, all shapes are inferred again. Raises ShapeError when the batch does not fit, and when a value does
    not have its rows along the first axis (a mean over rows, the statistics of a batch): numbers of rows may be written
    into such a graph.
    """
    if leaf.shape[1:] != batch.shape[1:] or leaf.ndim != batch.ndim or not leaf.ndim or leaf.dtype != batch.dtype:
        raise ShapeError(f"step: the batch is {describe(batch)}; the graph's input {leaf.name} is {describe(leaf)}")
    if leaf.shape == batch.shape:
        return _substituted(values, {leaf: batch})
    before, now = leaf.shape[0], batch.shape[0]
    new: dict[Value, Value] = {leaf: batch}
    copies: list[tuple[Node, Node]] = []
    for node in reachable(values, effects=True):
        inputs = [None if v is None else new[v] for v in node.inputs]
        if leaf.node is node or same_values(inputs, node.inputs):
            new.update((v, new.get(v, v)) for v in node.outputs)
            continue
        attrs, first = dict(node.attrs), inputs[0]
        if node.op.name in ("reshape", "broadcast_to") and attrs["shape"] and attrs["shape"][0] * now % before == 0:
            attrs["shape"] = (attrs["shape"][0] * now // before, *attrs["shape"][1:])
        if node.op.name == "slice" and first is not None and first.shape[0] * before == attrs["stops"][0] * now:
            attrs["stops"] = (first.shape[0], *attrs["stops"][1:])
        try:
            made = node.op.node(inputs, attrs, node.name, node.where)
            for old, own in zip(node.outputs, made.outputs, strict=True):
                if not old.shape or own.shape != (old.shape[0] * now // before, *old.shape[1:]):
                    raise ShapeError(f"{node.op.name} {node.label} gives {describe(old)}, which mixes rows")
        except GradloomError as error:
            raise ShapeError(
                f"step: the graph was made for {before} rows and cannot take {now}: {error}; need a function of the "
                "batch, or batches of one size"
            ) from None
        new.update(zip(node.outputs, made.outputs, strict=True))
        copies.append((node, made))
    for node, made in copies:
        made.effects = tuple(new[v] for v in node.effects)
        made.losses = node.losses
    return [new[v] for v in values]


# ---- simplification --------------------------------------------------------------------------------------


class _Simplifier:
    """Folds constants, drops views and products that change nothing, merges nodes that compute the same."""

    def __init__(self) -> None:
        self.known: dict[Any, Node] = {}

    def __call__(self, node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.name in ("setting", "input"):
            return self.merged((node.op.name, node.attrs["key"], node.outputs[0].shape, node.outputs[0].dtype), node)
        if node.op.name == "parameter":
            return self.merged((node.op.name, id(node.attrs["stored"])), node)
        if node.op.name == "constant":
            data = node.attrs["data"]
            return (
                self.merged(("constant", data.tobytes(), data.shape, data.dtype.str), node) if data.size < 64 else None
            )
        if not node.op.foldable or node.op.leaf or node.after or node.effects:
            return None
        same = _unchanged(node, inputs)
        if same is not None:
            return [same]
        if inputs and all(v is None or v.node.op.name == "constant" for v in inputs) and _small(node):
            folded = _fold(node, inputs)
            if folded is not None:
                return folded
        key = (node.op.name, tuple(id(v) for v in inputs), tuple(sorted((k, repr(v)) for k, v in node.attrs.items())))
        known = self.known.get(key)
        if known is not None:
            return known.outputs
        made = _copy_node(node, inputs, {})
        self.known[key] = made
        return made.outputs

    def merged(self, key: Any, node: Node) -> Sequence[Value]:
        return self.known.setdefault(key, node).outputs


def _unchanged(node: Node, inputs: Sequence[Value | None]) -> Value | None:
    """The input that the node would only repeat: x * 1, x / 1, a view of the same shape."""
    out = node.outputs[0]
    x = inputs[0]
    if x is None:
        return None
    name = node.op.name
    if name == "detach" or (name in ("reshape", "broadcast_to") and x.shape == out.shape):
        return x
    if name == "permute":
        axes, source = node.attrs["axes"], x
        if x.node.op.name == "permute":  # two turns: do they undo each other?
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


def _small(node: Node) -> bool:
    return sum(v.bytes for v in node.outputs) <= FOLD_BYTES


def _fold(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
    arrays = [None if v is None else _wide(v.node.attrs["data"], v) for v in inputs]
    try:
        with np.errstate(all="ignore"):
            results = node.op.call("reference", dict(node.attrs) | node.op.bind_inputs(arrays))
    except GradloomError:
        return None  # the run will say it, with the node's name
    results = results if isinstance(results, tuple) else (results,)
    return [constant(np.asarray(r), v.dtype) for r, v in zip(results, node.outputs, strict=True)]


def _wide(data: np.ndarray, value: Value) -> np.ndarray:
    """Real numbers as the references take them: in float64."""
    return data.astype(np.float64) if value.dtype.is_float else data


# ---- sums of pads ----------------------------------------------------------------------------------------

Pieces = tuple[int, list[tuple[int, int, "Value"]]]  # axis, (start, stop, value) in order; zeros between them


class _Joiner:
    """A sum of pads over disjoint ranges of one axis (the gradient of a split) becomes one concat.

    Where a piece holds -0 the concat keeps it; the sum had 0.
    """

    def __init__(self, program: Program) -> None:
        self.pieces: dict[Value, Pieces] = {}  # of values of the old program; their parts belong to the new one
        self.ends: set[Value] = {v for v in (*program.outputs, *program.effects) if v.node.op.name == "add"}
        for node in program.nodes:
            for value in node.inputs:
                if value is not None and value.node.op.name == "add" and node.op.name != "add":
                    self.ends.add(value)
        self.inner: dict[Value, list[Value]] = {}  # sum -> the sums that it is added to
        for node in program.nodes:
            found = self.found(node, node.inputs)
            if found is not None:
                self.pieces[node.outputs[0]] = found
            for value in node.inputs:
                if value is not None and node.op.name == "add":
                    self.inner.setdefault(value, []).append(node.outputs[0])
        # A sum is written down where somebody reads it who is no larger sum of pads.
        self.ends |= {v for v, sums in self.inner.items() if any(s not in self.pieces for s in sums)}
        self.ends &= self.pieces.keys()
        self.pieces.clear()

    def found(self, node: Node, inputs: Sequence[Value | None]) -> Pieces | None:
        """What the node is a sum of; its pads' values are taken from `inputs`."""
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
        pieces = self.found(node, inputs)
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
        return _make("concat", values, {"axis": axis}, node).outputs


def _zeros(shape: tuple[int, ...], like: Node) -> Value:
    return _make("broadcast_to", [constant(np.float32(0))], {"shape": shape}, like).outputs[0]


# ---- fusion ----------------------------------------------------------------------------------------------


class _Fuser:
    """Applies one pattern wherever the inner node is used by nobody else."""

    def __init__(self, program: Program, pattern: Pattern) -> None:
        self.pattern = pattern
        self.uses: dict[Value, int] = dict.fromkeys((*program.outputs, *program.effects), 2)
        for node in program.nodes:
            for value in node.inputs:
                if value is not None:
                    self.uses[value] = self.uses.get(value, 0) + 1

    def __call__(self, node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.name != self.pattern.outer or node.after or node.effects:
            return None
        position = self.pattern.position
        for i in range(len(inputs)) if position is None else (position,):
            old, inner = node.inputs[i], inputs[i]
            if old is None or inner is None or inner.index or inner.node.op.name != self.pattern.inner:
                continue
            if self.uses[old] != 1 or inner.node.effects:
                continue
            fused = self.pattern.build(inner.node, node, [*inputs[:i], *inputs[i + 1 :]])
            if fused is not None:
                self.uses.setdefault(fused.outputs[0], self.uses[node.outputs[0]])
                return fused.outputs
        return None


@dataclass(frozen=True)
class Pattern:
    """outer(..., inner(...), ...) -> build(inner node, outer node, the outer's other inputs), or None: not here."""

    outer: str
    inner: str
    position: int | None  # of the inner value among the outer's inputs; None: any
    build: Callable[[Node, Node, list[Value | None]], Node | None]


def _make(name: str, inputs: Sequence[Value | None], attrs: dict[str, Any], like: Node) -> Node:
    op = REGISTRY[name]
    return op.node(inputs, attrs, like.name, like.where)


def _add_bias(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """matmul(x, y) + bias[N]"""
    bias = _row_vector(others[0], outer.outputs[0].shape[-1:])
    if bias is None or outer.outputs[0].shape != inner.outputs[0].shape:
        return None
    return _make("matmul_act", [*inner.inputs, bias], {"act": "none"}, outer)


def _row_vector(value: Value | None, shape: tuple[int, ...]) -> Value | None:
    """The value of shape [N] that `value` repeats along all other axes; None when it is anything else."""
    while value is not None and value.shape != shape:
        source, name = value.node.inputs[0] if value.node.inputs else None, value.node.op.name
        if source is None or name not in ("broadcast_to", "reshape") or value.shape[-1:] != shape:
            return None
        if source.size != shape[0] or source.shape[-1:] != shape:
            return None
        value = source
    return value


def _relu_on(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu of a matmul_act or conv2d that has no activation yet"""
    if inner.attrs["act"] != "none":
        return None
    return _make(inner.op.name, inner.inputs, inner.attrs | {"act": "relu"}, outer)


def _matmul_relu_back(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu_back(matmul(x, y), h)"""
    return _make("matmul_relu_back", [*inner.inputs, others[0]], {}, outer)


def _relu_back_before_pool(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu_back(max_pool2d_back(g, index), c) where y, index = max_pool2d(c): what was picked is y, the rest is 0"""
    g, index = inner.inputs
    assert index is not None
    pool = index.node
    if pool.op.name != "max_pool2d" or pool.inputs[0] is not others[0]:
        return None
    picked = _make("relu_back", [g, pool.outputs[0]], {}, outer)
    return _make("max_pool2d_back", [picked.outputs[0], index], inner.attrs, outer)


def _conv_pool(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """max_pool2d(conv2d(...)) over halves: the image between is never stored"""
    if any(outer.attrs[k] != v for k, v in {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}.items()):
        return None
    return _make("conv2d_max_pool", inner.inputs, inner.attrs, outer)


def _turned_product(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """(x @ y) with its last two axes swapped = y^T @ x^T: the product is written where it is needed, without a copy"""
    axes = outer.attrs["axes"]
    last = len(axes) - 1
    x, y = inner.inputs
    assert x is not None and y is not None
    if last < 1 or axes != (*range(last - 1), last, last - 1) or x.ndim != last + 1 or y.ndim != last + 1:
        return None
    if y.dtype is not x.dtype:  # a frozen operand stays on the right
        return None
    turned = [_make("permute", [v], {"axes": axes}, outer).outputs[0] for v in (y, x)]
    return _make("matmul", turned, {}, outer)


TURNS: tuple[Pattern, ...] = (Pattern("permute", "matmul", 0, _turned_product),)  # done whether or not nodes are fused

FUSIONS: tuple[Pattern, ...] = (
    Pattern("add", "matmul", None, _add_bias),
    Pattern("relu", "matmul_act", 0, _relu_on),
    Pattern("relu", "conv2d", 0, _relu_on),
    Pattern("relu_back", "matmul", 0, _matmul_relu_back),
    Pattern("relu_back", "max_pool2d_back", 0, _relu_back_before_pool),
    Pattern("max_pool2d", "conv2d", 0, _conv_pool),
)
