"""Reverse-mode gradients: walks the graph once from the losses back and lets each op's vjp add its nodes.

A gradient is f32, whatever the dtype of its value: rounding to halves has slope 1. An input on the way gets a gradient,
or its op declares why it gets none (`no_gradient_to`), or a GradientError names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import TypeVar

from ..base.collector import paused
from ..base.dtypes import f32, f64
from ..base.errors import GradientError, GraphError, ShapeError
from .graph import reachable
from .numbers import constant_array
from .opspec import REGISTRY
from .products import sum_of
from .scope import current_device, enter_scope, leave_scope, located, on_device
from .value import Node, Value, builds_graphs, describe

R = TypeVar("R")


@paused()
@builds_graphs
def gradients(
    outputs: Value | Sequence[Value],
    wrt: Sequence[Value],
    seeds: Sequence[Value | None] | None = None,
    through: Container[Node] | None = None,
) -> list[Value | None]:
    """d(sum of the outputs)/d(each value of wrt), as nodes like any other.

    outputs: one or several losses, which add up; a loss that is not a scalar counts with all its elements.
    wrt: any values of the graph. seeds: the gradients to start from, one per output (None: that output does not count);
    ones when not given. through: the nodes that gradients flow through; all when not given.
    Returns one f32 value per entry of wrt, of its shape; None where no output depends on it, or only through inputs
    whose op declares that they get no gradient (conditions, row numbers, detach).
    Raises GradientError where the way passes an op that has no gradient (comparisons, argmax, casts to whole numbers),
    naming the op, the node and its line; and for a quantised value or a parameter of halves.
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
    nodes = reachable(losses, since=min((v.node.id for v in wrt), default=0))  # older nodes depend on nothing of wrt
    depends = _depending_on(nodes if through is None else [n for n in nodes if n in through], wrt)
    incoming: dict[Value, list[Value]] = {}
    for i, loss in enumerate(losses):
        seed = seeds[i] if seeds is not None else _ones(loss)
        if seed is None:
            continue
        if seed.shape != loss.shape:
            raise ShapeError(f"gradients: seed {describe(seed)} for {loss.node.label}; need shape {list(loss.shape)}")
        if loss in depends:
            incoming.setdefault(loss, []).append(seed)

    done: dict[Value, Value] = {}
    with located():
        for node in reversed(nodes):
            received = [_total(incoming.pop(value, ()), node) for value in node.outputs]
            arrived = [(value, g) for value, g in zip(node.outputs, received, strict=True) if g is not None]
            done.update(arrived)
            if not arrived or depends.isdisjoint(node.inputs):
                continue
            if through is not None and node not in through:
                continue
            for position, (read, g) in enumerate(zip(node.inputs, _vjp(node, received, depends), strict=True)):
                if read is None or read not in depends:
                    continue
                if g is None:
                    _declared(node, position, depends)
                elif not read.dtype.is_float or g.dtype is not f32 or g.shape != read.shape:
                    raise AssertionError(f"vjp of {node.op.name}: gradient {describe(g)} for an input {describe(read)}")
                else:
                    incoming.setdefault(read, []).append(g)
    return [done.get(value) for value in wrt]


def _depending_on(nodes: Sequence[Node], wrt: Sequence[Value]) -> set[Value]:
    """wrt itself and every value that is computed from it, whole numbers included."""
    depends = set(wrt)
    for node in nodes:
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
    return depends


def _vjp(node: Node, received: Sequence[Value | None], depends: Collection[Value]) -> list[Value | None]:
    """Gradients of the node's inputs (flat), given those of its outputs: its op's vjp, called by name.

    `g` is the gradient of the first output, unless the op has an input called g; then only g_<output> names it.
    `needed` are the names of the inputs that are in `depends`: the gradients of others are not looked at.
    """
    op = node.op
    if op.vjp is None:
        raise _no_gradient(node, op.no_gradient)
    bound = op.bind_outputs(received)
    asked = {"g": bound[op.output_names[0]]} | {f"g_{name}": g for name, g in bound.items()}
    asked |= {**node.attrs, **op.bind_inputs(node.inputs), **op.bind_outputs(node.outputs)}
    if "needed" in op.wants["vjp"]:
        asked["needed"] = {op.slot(op.inputs, i).name for i, v in enumerate(node.inputs) if v in depends}
    return op.flatten(op.inputs, _named_after(node, lambda: op.call("vjp", asked)))


def _declared(node: Node, position: int, depends: Collection[Value]) -> None:
    """GradientError unless the op declares why this input, which the loss depends on, gets no gradient."""
    name = node.op.slot(node.op.inputs, position).name
    if name in node.op.no_gradient_to:
        return
    read = node.inputs[position]
    assert read is not None
    if read.dtype.is_float:
        raise _no_gradient(node, f"it gives none to its input {name}")
    while True:  # back to where whole numbers were made of floats
        source = next((v for v in read.node.inputs if v is not None and v in depends), None)
        if source is None or source.dtype.is_float:
            raise _no_gradient(read.node, read.node.op.no_gradient or f"{read.dtype.name} numbers have no slope")
        read = source


def _no_gradient(node: Node, why: str | None) -> GradientError:
    return GradientError(
        f"{node.op.name} has no gradient: {why}; node {node.label}; keep it out of the path from the loss to the "
        "parameters, or detach the values computed from it"
    )


def _named_after(node: Node, make: Callable[[], R], device: str | None = None) -> R:
    """The nodes of a node's gradient, as `make` builds them, are named after the node and assigned to `device`, or
    where the node is."""
    device = device or node.device
    if device is not None and device != current_device():
        with on_device(device):
            return _named_after(node, make, device)
    if not node.name:
        return make()
    outer = enter_scope(f"{node.name}.grad")
    try:
        return make()
    finally:
        leave_scope(outer)


def _total(terms: Sequence[Value], node: Node) -> Value | None:
    """The gradients of an output of a node, added in the order in which they arrived: where all of them are, if they
    are on one device."""
    if len(terms) < 2:
        return terms[0] if terms else None
    devices = {term.node.device for term in terms}
    return _named_after(node, lambda: sum_of(terms), devices.pop() if len(devices) == 1 else None)


def _ones(value: Value) -> Value:
    one = REGISTRY["constant"].node((), {"data": constant_array(1.0)}).outputs[0]
    return one if value.shape == () else REGISTRY["broadcast_to"](one, shape=value.shape)
