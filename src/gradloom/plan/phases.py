"""Phases of a program: forward, backward, update, by the structure of its graph.

A program of a training step ends in a guard, whose inputs are the loss, its weight and the gradients. (On several
devices further guards read norms of gradients.)

  forward    nodes that the loss, or an output that is no gradient, depends on
  backward   further nodes that a gradient, or an output computed from one, depends on; also nodes that are computed
             again
  update     all others: the guard, clipping, updates of stored arrays, and nodes that only these read

Without a guard, gradients are the values that updates of trained arrays read; without these, further outputs that have
the shape of a float leaf of the first scalar output, the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..graph.graph import storage_leaf, update_target
from ..graph.leaves import Parameter
from ..graph.value import Node, Value
from ..transform.program import Program
from .plan import Plan
from .schedule import Part, Schedule, counterparts

FORWARD, BACKWARD, UPDATE = range(3)
PHASES = ("forward", "backward", "update")


def phases(program: Program) -> dict[Node, int]:
    """The phase of each node but leaves."""
    nodes = [node for node in program.nodes if not node.op.leaf]
    ends, gradients = _ends(program, nodes)
    forward, backward = _reached(ends), _reached(gradients)
    return {n: FORWARD if n in forward else BACKWARD if n in backward else UPDATE for n in nodes}


def clones(nodes: Iterable[Node]) -> set[Node]:
    """The nodes that repeat an earlier one of `nodes`: clones keep the attributes of their original."""
    known: set[tuple[int, int, str]] = set()
    found: set[Node] = set()
    for node in nodes:
        key = (id(node.op), id(node.attrs), node.name)
        if key in known:
            found.add(node)
        known.add(key)
    return found


def step_phases(plan: Plan) -> tuple[list[int], list[bool]]:
    """(the phase of each step, whether it is computed again) of a plan."""
    again = clones(plan.order.steps) if plan.recomputed.nodes else ()
    return _steps(plan, phases(plan.laid.program), again)


def part_phases(schedule: Schedule, part: Part) -> tuple[list[int], list[bool]]:
    """step_phases of the part of one device, by the program of all devices."""
    whole = phases(schedule.program)
    laid = counterparts(part.program.nodes, part.plan.laid.program.nodes)
    known: dict[Node, int] = {}
    again: set[Node] = set()
    seen: set[Node] = set()
    for node in part.plan.laid.program.nodes:
        origin = part.origins.get(laid.get(node, node))
        if origin in whole and origin is not None:
            known[node] = whole[origin]
            if origin in seen:
                again.add(node)
                known[node] = max(BACKWARD, known[node])
            seen.add(origin)
    return _steps(part.plan, known, again)


def _steps(plan: Plan, known: dict[Node, int], again: Collection[Node]) -> tuple[list[int], list[bool]]:
    """A node without a phase (a copy for a transfer) has that of the step before it."""
    found: list[int] = []
    for node in plan.order.steps:
        found.append(known.get(node, found[-1] if found else FORWARD))
    return found, [node in again for node in plan.order.steps]


def _ends(program: Program, nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """(the loss and other outputs of the forward part, the gradients)."""
    guards = [node for node in nodes if node.op.guard]
    if guards:
        read = [v for node in guards for v in node.inputs if v is not None]
        loss, gradients = read[:2], read[2:]
        start = {v.node for v in gradients if not v.node.op.leaf}
        late = _depending(program, {*guards, *start} - _reached(loss))
        last = _depending(program, {node for node in nodes if node.op.guard or node.op.updates})
        further = [v for v in program.outputs if v.node in late - last]
        return [*loss, *(v for v in program.outputs if v.node not in late)], [*gradients, *further]
    trains = [node for node in nodes if any(_is_trained(update_target(v)) for v in node.outputs)]
    if trains:
        written = {id(update_target(v)) for node in trains for v in node.outputs}
        gradients = [v for node in trains for v in node.inputs if v is not None and id(v) not in written]
        late = _depending(program, set(trains))
        return [v for v in program.outputs if v.node not in late], gradients
    scalar = next((v for v in program.outputs if not v.shape and v.dtype.is_float), None)
    if scalar is None:
        return list(program.outputs), []
    computed = _reached([scalar])
    after = _depending(program, {node for node in computed if not node.op.leaf}) - computed
    leaves = {(v.shape, v.dtype) for n in computed if n.op.leaf for v in n.outputs if v.dtype.is_float}
    is_gradient = [(v.shape, v.dtype) in leaves and (v.node in after) for v in program.outputs]
    pairs = list(zip(program.outputs, is_gradient, strict=True))
    return [v for v, one in pairs if not one], [v for v, one in pairs if one]


def _is_trained(target: Value | None) -> bool:
    leaf = None if target is None else storage_leaf(target)
    return isinstance(leaf, Parameter) and leaf.stored.role == "trained"


def _depending(program: Program, start: set[Node]) -> set[Node]:
    """These nodes and all that depend on them."""
    found = set(start)
    for node in program.nodes:
        if any(v is not None and v.node in found for v in node.inputs):
            found.add(node)
    return found


def _reached(values: Iterable[Value]) -> set[Node]:
    """The nodes that compute these values, leaves included."""
    found: set[Node] = set()
    waiting = [value.node for value in values]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [value.node for value in node.inputs if value is not None]
    return found
