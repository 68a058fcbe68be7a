"""Whole graphs: topological order, the shape checker, listings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from ..base.errors import GraphError
from .declaration import Declaration, Spec
from .opspec import REGISTRY
from .stored import Stored
from .value import Node, Value, describe


def reachable(values: Iterable[Value], effects: bool = False, since: int = 0) -> list[Node]:
    """All nodes that the values need, in topological order (by id); with `effects`, also the updates of theirs; with
    `since`, only those whose id is not smaller."""
    seen: set[Node] = set()
    todo = [v.node for v in values]
    while todo:
        node = todo.pop()
        if node in seen or node.id < since:
            continue
        seen.add(node)
        todo.extend([v.node for v in node.inputs if v is not None])
        todo.extend(node.after)
        if effects:
            todo.extend([v.node for v in node.effects])
    return sorted(seen, key=operator.attrgetter("id"))


def check_graph(nodes: Sequence[Node]) -> None:
    """Infer every shape and dtype again and compare it with those of the nodes; inputs must precede their users."""
    seen: set[Node] = set()
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.node not in seen:
                raise GraphError(f"graph: {node.label} reads {value.node.label}, which comes later or is missing")
        inferred = REGISTRY[node.op.name].infer(node.inputs, node.attrs)
        if [(s.shape, s.dtype) for s in inferred] != [(v.shape, v.dtype) for v in node.outputs]:
            stated = [Spec(v.shape, v.dtype) for v in node.outputs]
            raise GraphError(f"graph: {node.label} states {stated}; its op infers {list(inferred)}")
        seen.add(node)
    check_updates(nodes)


def check_updates(nodes: Iterable[Node]) -> None:
    """GraphError unless updates write to parameters, and nothing reads outputs that they do not write."""
    for node in nodes:
        if node.op.updates:
            _check_targets(node)
        for read in node.inputs:
            if read is not None and read.node.op.updates and is_unwritten(read):
                name = read.node.op.slot(read.node.op.outputs, read.index).name
                raise GraphError(
                    f"{node.op.name}: it reads {name} of {read.node.op.name} {read.node.label}, which was called "
                    f"without {name}; node {node.label}"
                )


def _check_targets(node: Node) -> None:
    for value in node.outputs:
        target = update_target(value)
        if target is None:
            continue
        leaf = storage_leaf(target)
        if leaf.node.op.name != "parameter":
            raise GraphError(
                f"{node.op.name}: it would write to {describe(target)} of {target.node.op.name} {target.node.label}; "
                f"need a parameter (gl.parameter); node {node.label}"
            )
        if leaf.node.attrs["stored"].role == "frozen":
            raise GraphError(f"{node.op.name}: {leaf.node.label} is read-only; need a parameter; node {node.label}")


def listing(values: Iterable[Value]) -> str:
    """The graph of these values as text, a line per node."""
    return show(reachable(values))


def show(nodes: Iterable[Node]) -> str:
    """Nodes as text, a line each."""
    lines = []
    for node in nodes:
        outputs = ", ".join(f"%{node.id}{f'.{i}' if i else ''} {describe(v)}" for i, v in enumerate(node.outputs))
        inputs = ", ".join("-" if v is None else f"%{v.node.id}{f'.{v.index}' if v.index else ''}" for v in node.inputs)
        hidden = node.op.attrs[1:] if node.op.name in ("input", "setting") else ()  # shape and dtype stand on the left
        hidden_names = {"data", "stored"} | {a.name for a in hidden}
        attrs = "".join(f" {k}={v}" for k, v in node.attrs.items() if k not in hidden_names)
        name = f"  # {node.name}" if node.name and node.attrs.get("key") != node.name else ""
        lines.append(f"{outputs} = {node.op.name}({inputs}){attrs}{name}")
    return "\n".join(lines)


def dot(values: Iterable[Value]) -> str:
    """The graph in Graphviz' language."""
    lines = ["digraph gradloom {", '  node [shape=box, fontname="monospace"];']
    for node in reachable(values):
        text = f"{node.op.name}\\n{node.name}\\n{', '.join(map(describe, node.outputs))}"
        lines.append(f'  n{node.id} [label="{text}"{", style=filled" if node.op.leaf else ""}];')
        lines.extend(f"  n{v.node.id} -> n{node.id};" for v in node.inputs if v is not None)
    return "\n".join([*lines, "}"])


# ---- storage --------------------------------------------------------------------------------------------


def update_target(value: Value) -> Value | None:
    """The input whose storage this output of an update op is written to; None for other values."""
    node = value.node
    op = node.op
    if not op.updates:
        return None
    positions = _update_positions(op)
    group, member = 0, value.index
    if member >= op.fixed_outputs:  # of a repeated group
        group, member = divmod(member - op.fixed_outputs, len(positions) - op.fixed_outputs)
        member += op.fixed_outputs
    position = positions[member]
    return None if position is None else node.inputs[position + group * op.group_size]


@cache
def _update_positions(op: Declaration) -> tuple[int | None, ...]:
    """For each declared output the position of the declared input whose storage it is written to."""
    inputs = [slot.name for slot in op.inputs]
    targets = [op.updates.get(slot.name) for slot in op.outputs]
    return tuple([None if name is None else inputs.index(name) for name in targets])


def is_unwritten(value: Value) -> bool:
    """An update's output whose input was not given: nothing is written."""
    op = value.node.op
    return bool(op.updates) and op.slot(op.outputs, value.index).name in op.updates and update_target(value) is None


def mapped_checks(nodes: Iterable[Node]) -> list[Callable[[], object]]:
    """The checks of the stored arrays that a program reads, each once; all are called before each run."""
    stored = (node.attrs["stored"] for node in nodes if node.op.name == "parameter")
    return list(dict.fromkeys(s.check for s in stored if s.check is not None))


def written(nodes: Iterable[Node]) -> list[Stored]:
    """The stored arrays that the nodes update, each once."""
    targets = [update_target(v) for n in nodes if n.op.updates for v in n.outputs]
    return list(dict.fromkeys(storage_leaf(v).node.attrs["stored"] for v in targets if v is not None))


def storage_leaf(value: Value) -> Value:
    """The parameter leaf that an update's output finally lives in (updates may follow one another)."""
    while (target := update_target(value)) is not None:
        value = target
    return value


def view_base(value: Value) -> Value:
    """The value that a chain of views looks at; itself when it is no view."""
    while value.node.op.view is not None:
        source = value.node.inputs[0]
        assert source is not None
        value = source
    return value
