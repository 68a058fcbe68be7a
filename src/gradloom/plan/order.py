"""The linear order of the kernels, and how long each buffer must live.

The program's order, which follows the user's, forward first and backward after it, is kept. Only updates move: an
update overwrites storage, so it runs after the guard and after everything that still reads the old contents.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import GraphError
from ..graph.graph import reachable, update_target
from ..graph.value import Node, Value
from .layout import Laid


class Lifetime(NamedTuple):
    """Bytes in the arena: written first by step `birth`, last needed by step `death` (both inclusive)."""

    value: Value
    bytes: int
    birth: int
    death: int


@dataclass(frozen=True)
class Order:
    steps: tuple[Node, ...]  # one instruction each
    buffers: dict[Value, Lifetime]  # by base value
    end: int  # a death at `end` means: the caller reads it


def linear_order(laid: Laid) -> Order:
    """Order the kernel nodes and derive the lifetime of each buffer."""
    steps = tuple(kernel_order(laid.program.nodes, lambda value: laid.layouts[value].base)[0])
    at = {node: i for i, node in enumerate(steps)}
    end = len(steps)
    birth: dict[Value, int] = {}
    death: dict[Value, int] = {}
    for i, node in enumerate(steps):
        for value in node.outputs:
            if update_target(value) is None and not is_absent(value, laid):
                birth[value] = death[value] = i
        for read in node.inputs:
            if read is not None:
                base = laid.layouts[read].base
                if base in birth:
                    death[base] = i
    for value in laid.program.outputs:
        base = laid.layouts[value].base
        if base in birth:
            death[base] = end
    assert all(node in at for node in laid.program.nodes if not node.op.leaf and not node.op.view)
    return Order(steps, {v: Lifetime(v, v.bytes, b, death[v]) for v, b in birth.items()}, end)


def is_absent(value: Value, laid: Laid) -> bool:
    """An unread optional output gets no bytes, nor does an update of an input that was not given."""
    op = value.node.op
    slot = op.slot(op.outputs, value.index)
    if op.updates and slot.name in op.updates:
        return update_target(value) is None
    return slot.optional and value not in laid.read


def kernel_order(nodes: Sequence[Node], base: Callable[[Value], Value]) -> tuple[list[Node], set[Node]]:
    """(the nodes that have kernels, in the order in which they run; those of them that come late: updates and what
    depends on these). base: the value whose buffer holds a value. GraphError where there is no order."""
    kernels = [n for n in nodes if not n.op.leaf and not n.op.view]
    waits: dict[Node, set[Node]] = {n: set(_producers(n, base)) for n in kernels}
    updates = [n for n in kernels if n.op.updates]
    guards = [n for n in kernels if n.op.guard or n.op.python]
    late = _late(kernels, updates, waits)
    if early := [g for g in guards if g in late]:
        changed = next(n for n in reachable(early[0].outputs) if n.op.updates)
        raise GraphError(
            f"order: {early[0].title} {early[0].label} reads what {changed.op.name} {changed.label} has updated; "
            f"{'a guard' if early[0].op.guard else 'a user-defined op'} comes before every update: give it the values "
            "that the updates read"
        )
    readers: dict[Value, list[Node]] = {}
    for node in kernels:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(base(value), []).append(node)
    for update in updates:
        waits[update].update(guards)
        for value in update.outputs:
            target = update_target(value)
            if target is None:
                continue
            # All readers of the storage's contents before this update precede it.
            waits[update].update(r for r in readers.get(target, ()) if r is not update)

    users: dict[Node, list[Node]] = {n: [] for n in kernels}
    for node, before in waits.items():
        for b in before:
            users[b].append(node)
    missing = {n: len(before) for n, before in waits.items()}
    place = {n: i for i, n in enumerate(kernels)}
    ready = [(n in late, place[n], n) for n in kernels if not missing[n]]
    heapq.heapify(ready)
    steps = []
    while ready:
        _, _, node = heapq.heappop(ready)
        steps.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (user in late, place[user], user))
    if len(steps) != len(kernels):
        stuck = next(n for n in kernels if missing[n])
        raise GraphError(
            f"order: {stuck.label} ({stuck.op.name}) needs a parameter's value both before and after its update; "
            "copy the old value first"
        )
    return steps, late


def _producers(node: Node, base: Callable[[Value], Value]) -> Iterator[Node]:
    for value in node.inputs:
        if value is not None:
            made = base(value).node
            if not made.op.leaf:
                yield made
    for before in node.after:
        made = base(before.outputs[0]).node
        if not made.op.leaf:
            yield made


def _late(kernels: list[Node], updates: list[Node], waits: dict[Node, set[Node]]) -> set[Node]:
    """Updates and their dependants: scheduled last among the ready nodes."""
    late = set(updates)
    for node in kernels:
        if waits[node] & late:
            late.add(node)
    return late
