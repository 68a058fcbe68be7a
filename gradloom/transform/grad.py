"""Reverse-mode gradients: walks the graph once from the losses back and lets each op's vjp add its nodes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ..base.dtypes import f32, f64
from ..base.errors import GradientError, GraphError, ShapeError
from ..graph.graph import reachable
from ..graph.opspec import REGISTRY, constant
from ..graph.value import Node, Value, builds_graphs, describe, scope


@builds_graphs
def gradients(
    outputs: Value | Sequence[Value],
    wrt: Sequence[Value],
    seeds: Sequence[Value] | None = None,
    through: Container[Node] | None = None,
) -> list[Value | None]:
    """d(sum of the outputs)/d(each value of wrt), as nodes like any other.

    outputs: one or several losses, which add up; a loss that is not a scalar counts with all its elements.
    wrt: any values of the graph. seeds: the gradients to start from, one per output; ones when not given. through: the
    nodes that gradients flow through; all when not given.
    Returns one value per entry of wrt, of its shape; None where no output depends on it.
    Raises GradientError where the way passes an op that has no gradient, naming the op, the node and its line; and for
    a quantised value or a parameter of halves.
    """
    for value in wrt:
        if value.dtype.is_quantised or (value.node.op.name == "parameter" and value.dtype not in (f32, f64)):
            raise GradientError(
                f"gradients: {describe(value)} has no gradient: steps that small are lost in its dtype; need an f32 "
                f"parameter: train a copy (--train-dtype f32); {value.node.op.name} {value.node.label}"
            )
    losses = [outputs] if isinstance(outputs, Value) else list(outputs)
    for value in (*losses, *wrt):
        if value.recorder is not None:
            raise GraphError(
                "gradients: got an eager tensor; need values of a graph, or the backward of a gl.grad_tape"
            )
    nodes = reachable(losses)
    flowing = nodes if through is None else [n for n in nodes if n in through]
    depends = _depending_on(flowing, wrt)
    incoming: dict[Value, list[Value]] = {}
    for i, loss in enumerate(losses):
        seed = seeds[i] if seeds is not None else _ones(loss)
        if seed.shape != loss.shape:
            raise ShapeError(f"gradients: seed {describe(seed)} for {loss.node.label}; need shape {list(loss.shape)}")
        if loss in depends:
            incoming.setdefault(loss, []).append(seed)

    done: dict[Value, Value] = {}
    for node in reversed(nodes):
        received = []
        for value in node.outputs:
            with _named_after(node):
                g = _total(incoming.pop(value, []))
            if g is not None:
                done[value] = g
            received.append(g)
        if all(g is None for g in received) or not any(v in depends for v in node.inputs if v is not None):
            continue
        if through is not None and node not in through:
            continue
        for read, g in zip(node.inputs, _vjp(node, received), strict=True):
            if read is not None and g is not None and read in depends:
                if g.shape != read.shape:
                    raise AssertionError(f"vjp of {node.op.name}: gradient {describe(g)} for an input {describe(read)}")
                incoming.setdefault(read, []).append(g)
    return [done.get(value) for value in wrt]


def _depending_on(nodes: Sequence[Node], wrt: Sequence[Value]) -> set[Value]:
    """The values through which a gradient must pass: wrt itself and everything differentiable computed from it."""
    depends = set(wrt)
    for node in nodes:
        if any(v in depends for v in node.inputs if v is not None):
            depends.update(v for v in node.outputs if v.dtype.is_float)
    return depends


def _vjp(node: Node, received: Sequence[Value | None]) -> list[Value | None]:
    op = node.op
    if op.vjp is None:
        raise GradientError(
            f"{op.name} has no gradient: {op.no_gradient}; node {node.label}; "
            "keep it out of the path from the loss to the parameters"
        )
    with _named_after(node):
        return op.pull(node, received)


def _named_after(node: Node) -> AbstractContextManager[None]:
    """What a node's gradient consists of is called after the node."""
    return scope(f"{node.name}.grad") if node.name else nullcontext()


def _total(terms: Sequence[Value]) -> Value | None:
    """The terms added in the order in which they arrived."""
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = REGISTRY["add"](total, term)
    return total


def _ones(value: Value) -> Value:
    one = constant(np.ones((), value.dtype.numpy), value.dtype)
    return one if value.shape == () else REGISTRY["broadcast_to"](one, shape=value.shape)
