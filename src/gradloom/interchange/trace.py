"""The forward pass of a network as nodes to be written, with extents that depend on the number of rows.

The pass is built for three numbers of rows. Where the three graphs differ in whole numbers alone, each a multiple of
the rows plus a constant, the number of rows is free; else the graph holds for the rows of the example only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import GradloomError, GraphError
from ..graph.composition import composed
from ..graph.graph import reachable
from ..graph.leaves import input as input_value
from ..graph.stored import Stored
from ..graph.value import Node, Value, graph_mode
from ..nn.module import Module, mode
from ..ops.conv import whole_groups
from ..train.inputs import called
from .graph_writer import Batch, Extent, GraphWriter
from .onnx_ops import OPS, Call, emitted, kind_of

Outputs = dict[str, Value]


class _Differs(Exception):
    """The graphs of different numbers of rows are not one graph."""


@dataclass
class Trace:
    """One forward pass: nodes in order, leaves by input name, outputs by name."""

    nodes: list[Node]
    inputs: dict[str, Value]
    outputs: Outputs


@dataclass
class Forward:
    """Traces of the same pass for different numbers of rows; a single one where the rows are fixed. why: the reason."""

    traces: list[Trace]
    rows: list[int]
    why: str = ""

    @property
    def is_free(self) -> bool:
        return len(self.traces) > 1

    def extent(self, values: Sequence[int]) -> Extent:
        """Whole numbers of the traces as one that depends on the rows."""
        first = int(values[0])
        if all(value == first for value in values):
            return first
        times, rest = divmod(int(values[1]) - first, self.rows[1] - self.rows[0])
        plus = first - times * self.rows[0]
        if rest or any(value != times * n + plus for value, n in zip(values, self.rows, strict=True)):
            raise _Differs(f"{list(map(int, values))} for {self.rows} rows")
        return Batch(times, plus)

    def shape(self, values: Sequence[Any]) -> tuple[Extent, ...]:
        """The shapes of one value in all traces as one."""
        shapes = [v.shape for v in values]
        if len({len(shape) for shape in shapes}) > 1:
            raise _Differs("values of different ranks")
        return tuple(self.extent(extents) for extents in zip(*shapes, strict=True))


def traced(net: Module, inputs: Mapping[str, Value], structure: Callable[[Mapping[str, Value]], Any]) -> Trace:
    """The forward pass in eval mode; GraphError for outputs that are no values."""
    with graph_mode(), mode(False), whole_groups():
        made = called(net, structure(inputs))
        outputs = _named(made)
        roots, rewritten = _expanded(list(outputs.values()))
    return Trace(rewritten, dict(inputs), dict(zip(outputs, roots, strict=True)))


def _named(made: Any, prefix: str = "output") -> Outputs:
    """Outputs by name: those of a dict by key, of a tuple by number."""
    if isinstance(made, Value):
        return {prefix: made}
    if isinstance(made, Mapping):
        pairs = [(str(key), one) for key, one in made.items()]
    elif isinstance(made, (tuple, list)):
        pairs = [(f"{prefix}_{i}", one) for i, one in enumerate(made, 1)]
    else:
        raise GraphError(f"export_onnx: forward returns {type(made).__name__}; need values, or a dict or tuple of them")
    found: Outputs = {}
    for name, one in pairs:
        found |= _named(one, name)
    return found


def _expanded(roots: list[Value]) -> tuple[list[Value], list[Node]]:
    """The roots and their nodes, with each op that has no entry in OPS replaced by its composition."""
    while True:
        known: dict[Value, Value] = {}
        changed = False
        for node in reachable(roots):
            inputs = [None if v is None else known.get(v, v) for v in node.inputs]
            if node.op.name not in OPS and node.op.composition is not None:
                known |= dict(zip(node.outputs, composed(node, inputs), strict=True))
                changed = True
            elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                known |= dict(zip(node.outputs, node.with_inputs(inputs, ()).outputs, strict=True))
        roots = [known.get(v, v) for v in roots]
        if not changed:
            return roots, _in_order(roots)


def _in_order(roots: Sequence[Value]) -> list[Node]:
    """The nodes, inputs first, in an order that follows from the structure alone: constants that layers keep are older
    than others."""
    order: dict[Node, None] = {}
    todo: list[tuple[Node, bool]] = [(v.node, False) for v in reversed(roots)]
    while todo:
        node, is_ready = todo.pop()
        if node in order:
            continue
        if is_ready:
            order[node] = None
        else:
            todo.append((node, True))
            todo += [(v.node, False) for v in reversed(node.inputs) if v is not None]
    return list(order)


def forward_of(net: Module, examples: Mapping[str, np.ndarray], structure: Callable[..., Any]) -> Forward:
    """The traces of a network for an example of its inputs, whose first axes are the rows."""

    def trace(rows: int | None) -> Trace:
        leaves = {}
        for name, array in examples.items():
            kind = "f32" if array.dtype.kind == "f" else "u8" if array.dtype in (np.uint8, np.bool_) else "i32"
            shape = array.shape if rows is None else (rows, *array.shape[1:])
            leaves[name] = input_value(name, shape, kind)
        return traced(net, leaves, structure)

    given = {array.shape[0] if array.ndim else None for array in examples.values()}
    fixed = trace(None)
    number = next(iter(given))
    if len(given) > 1 or number is None:
        return Forward([fixed], [0], "inputs differ in their first extent")
    rows = max(number, 2)
    counts = [rows, rows + 1, rows + 3]
    try:
        forward = Forward([trace(n) for n in counts], counts)
        write(forward, _Checker())
        return forward
    except (GradloomError, _Differs) as error:
        return Forward([fixed], [number], str(error))


class _Checker:
    """Stands for a writer while the traces are compared."""

    def __getattr__(self, name: str) -> Any:
        return None


def write(forward: Forward, w: Any, inputs: Mapping[str, str] | None = None, names: Mapping[Stored, str] | None = None
          ) -> dict[str, tuple[str, Value, tuple[Extent, ...]]]:  # fmt: skip
    """Write the nodes; {output: (its name in the graph, value, shape)}.

    inputs: name of an input -> its name in ONNX. names: those of parameters. GraphError for an op without an entry.
    """
    is_check = isinstance(w, _Checker)
    traces = forward.traces
    if len({len(t.nodes) for t in traces}) > 1:
        raise _Differs("graphs of different sizes")
    _check_forms(traces[0].nodes)
    index = [{node: i for i, node in enumerate(t.nodes)} for t in traces]
    read = {v for t in traces for node in t.nodes for v in node.inputs} | set(traces[0].outputs.values())
    written: dict[Value, str] = {}
    for nodes in zip(*(t.nodes for t in traces), strict=True):
        node = nodes[0]
        _check_alike(nodes, index)
        shapes = [forward.shape(values) for values in zip(*(n.outputs for n in nodes), strict=True)]
        attrs = {name: _attribute(forward, [n.attrs[name] for n in nodes]) for name in node.attrs}
        if node.op.name == "constant":
            array, shape = _constant(forward, nodes)
        if is_check:
            continue
        out = node.outputs[0]
        if node.op.name == "input":
            written[out] = (inputs or {})[node.attrs["key"]]
        elif node.op.name == "parameter":
            written[out] = _parameter(w, node.attrs["stored"], names or {})
        elif node.op.name == "constant":
            name = w.array(array, node.name or "constant")
            written[out] = name if array.shape == node.outputs[0].shape else w("Expand", name, w.extents(shape))
        else:
            given = tuple(None if v is None else written[v] for v in node.inputs)
            operands = zip(node.inputs, zip(*(n.inputs for n in nodes), strict=True), strict=True)
            seen = tuple(None if v is None else forward.shape(values) for v, values in operands)
            call = Call(given, attrs, seen, shapes[0], out.dtype, tuple(v in read for v in node.outputs))
            with w.within(node.name):
                made = emitted(w, node.op.name, call)
            if made is None:
                raise _no_form(node)
            written |= dict(zip(node.outputs, made, strict=False))
    return {
        name: (written.get(value, ""), value, forward.shape([t.outputs[name] for t in traces]))
        for name, value in traces[0].outputs.items()
    }


def _check_forms(nodes: Sequence[Node]) -> None:
    """GraphError for the first op that has no entry, else for a setting."""
    found = [node for node in nodes if node.op.name not in OPS and node.op.name not in _LEAVES]
    if found:
        raise _no_form(next((node for node in found if not node.op.leaf), found[0]))


def _no_form(node: Node) -> GraphError:
    return GraphError(f"export_onnx: {node.op.name} {node.label} has no form in ONNX; need a forward pass without it")


_LEAVES = ("input", "parameter", "constant")


def _check_alike(nodes: Sequence[Node], index: Sequence[Mapping[Node, int]]) -> None:
    """_Differs unless nodes of different traces are one op of the same inputs."""
    first = nodes[0]
    for other, places in zip(nodes[1:], index[1:], strict=True):
        same = other.op.name == first.op.name and len(other.inputs) == len(first.inputs)
        same = same and all(
            (a is None and b is None)
            or (a is not None and b is not None and index[0][a.node] == places[b.node] and a.index == b.index)
            for a, b in zip(first.inputs, other.inputs, strict=True)
        )
        if not same:
            raise _Differs(f"{first.op.name} and {other.op.name} at one place")


def _attribute(forward: Forward, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, (Stored, np.ndarray)):
        if isinstance(first, Stored) and any(value is not first for value in values):
            raise _Differs("different parameters at one place")
        return first
    if isinstance(first, tuple):
        if len({len(value) for value in values}) > 1:
            raise _Differs("shapes of different ranks")
        return tuple(forward.extent(entries) for entries in zip(*values, strict=True))
    if isinstance(first, int) and not isinstance(first, bool):
        return forward.extent(values)
    if any(value != first for value in values[1:]):
        raise _Differs(f"{first!r} and {values[1]!r}")
    return first


def _constant(forward: Forward, nodes: Sequence[Node]) -> tuple[np.ndarray, tuple[Extent, ...]]:
    """The contents of a constant, with extent 1 along axes that depend on the rows and along which it is the same."""
    arrays = [node.attrs["data"] for node in nodes]
    shape = forward.shape([node.outputs[0] for node in nodes])
    cut = tuple(slice(0, 1) if isinstance(n, Batch) else slice(None) for n in shape)
    small = arrays[0][cut]
    for array in arrays:
        if not np.array_equal(array, np.broadcast_to(small, array.shape), equal_nan=array.dtype.kind == "f"):
            raise _Differs("a constant depends on the number of rows")
    return small, shape


def _parameter(w: GraphWriter, stored: Stored, names: Mapping[Stored, str]) -> str:
    contents = stored.numpy().astype(kind_of(stored.dtype), copy=False)
    if stored not in names:  # of no module
        return w.array(contents, stored.name or "parameter")
    w.arrays[names[stored]] = contents
    return names[stored]
