"""From a placed program to a proved schedule: a program and a plan for each device, transfers, orders of events.

A node of the op `copy` whose input is on another device is a transfer: its input is an output of the source's
program, its output an input (a leaf) of the destination's. So each device's program is planned and proved like any
other, and a value that is sent lasts to the end of the step.

All parts are cut out of one order of the whole program, and keep it: so devices never wait for one another in a circle.
Each sends a value as soon as it is computed, and waits for one where it first reads it. Before the first instruction
that writes a stored array, all devices wait for one another (Commit): a failure of one of them stops all updates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..base.errors import GraphError
from ..graph.graph import storage_leaf, update_target, view_base
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Value
from ..transform.program import Program, copy_node
from ..transform.recompute import check_recomputed
from .check_schedule import check_schedule
from .order import kernel_order
from .plan import Plan
from .schedule import Commit, Event, Part, Run, Schedule, Send, Transfer, Wait, counterparts

PlanOf = Callable[[str, Program], tuple[Program, Plan]]


def make_schedule(
    program: Program, device: Mapping[Node, str], plan_of: PlanOf, ahead: Collection[str] = ()
) -> Schedule:
    """Split, plan and prove. device: of each node, but of leaves that every device has. plan_of: of the program of a
    device the program to run, which may have clones (transform/recompute.py), and its proved plan. ahead: the devices
    that work asynchronously to this thread; their events come first where they may. GraphError for a program that has
    no order, or whose devices do not fit one another."""
    splitter = _Splitter(program, device)
    splitter.run()
    parts, late = dict[str, Part](), dict[str, set[Node]]()
    for name, made in splitter.parts.items():
        cut = Program(tuple(made.nodes), tuple(made.outputs), tuple(made.effects))
        one, plan = plan_of(name, cut)
        computed = {n: n for n in cut.nodes} if one is cut else check_recomputed(cut, one)
        parts[name] = Part(one, plan, {n: made.origins[old] for n, old in computed.items() if old in made.origins})
        late[name] = {n for n, old in computed.items() if old in made.late}
    events = _events(parts, splitter, late)
    walk = _walk(events, ahead)
    schedule = Schedule(program, dict(device), parts, tuple(splitter.transfers), events, walk, tuple(splitter.outputs))
    check_schedule(schedule)
    return schedule


@dataclass
class _Cut:
    """The program of a device as it is cut out."""

    nodes: dict[Node, None] = field(default_factory=dict)
    new: dict[Value, Value] = field(default_factory=dict)  # value of the placed program -> of this one
    origins: dict[Node, Node] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    effects: list[Value] = field(default_factory=list)
    sent: dict[Value, int] = field(default_factory=dict)  # value of the placed program -> position among the outputs
    late: dict[Node, None] = field(default_factory=dict)  # updates and what depends on updates of any device, in order

    def output(self, value: Value) -> int:
        """The position of a value among the outputs."""
        for i, known in enumerate(self.outputs):
            if known is value:
                return i
        self.outputs.append(value)
        return len(self.outputs) - 1


class _Splitter:
    def __init__(self, program: Program, device: Mapping[Node, str]) -> None:
        self.program, self.device = program, device
        self.order, self.late = kernel_order(program.nodes, view_base)
        self.parts: dict[str, _Cut] = {}
        self.transfers: list[Transfer] = []
        self.homes: dict[Node, str] = {}  # leaf -> the device that writes its array
        homes: dict[int, str] = {}
        for node in program.nodes:
            if node.op.updates:
                for value in node.outputs:
                    if update_target(value) is not None:
                        homes[id(storage_leaf(value).node.attrs["stored"])] = device[node]
        for node in program.nodes:
            if node.op.name == "parameter" and id(node.attrs["stored"]) in homes:
                self.homes[node] = homes[id(node.attrs["stored"])]
        self.inputs = {node.attrs["key"] for node in program.nodes if node.op.name == "input"}
        self.updates = any(node.op.updates for node in program.nodes)  # also those that only nodes read: caches

    def run(self) -> None:
        for node in self.order:
            self.part(self.device[node])
        for node in self.order:
            if self.is_transfer(node):
                self.transfer(node)
            else:
                self.put(node)
        for value in self.program.effects:
            name = self.device[value.node]
            self.part(name).effects.append(self.value(name, value))
        self.outputs = [self.caller_reads(value) for value in self.program.outputs]

    def part(self, name: str) -> _Cut:
        return self.parts.setdefault(name, _Cut())

    def where(self, value: Value) -> str | None:
        """The device of a value; None for a leaf that all devices have, and for its views without a device."""
        node = value.node
        if node.op.leaf:
            return self.homes.get(node)
        return self.device[node]

    def is_transfer(self, node: Node) -> bool:
        if node.op.name != "copy":
            return False
        assert node.inputs[0] is not None
        source = self.where(node.inputs[0])
        return source is not None and source != self.device[node]

    def value(self, name: str, value: Value) -> Value:
        """The counterpart of a value of the placed program in the program of a device; leaves and views are added
        now."""
        part = self.part(name)
        known = part.new.get(value)
        if known is not None:
            return known
        node, there = value.node, self.where(value)
        if node.op.leaf and there in (None, name):
            part.nodes[node] = None
            part.new[value] = value
            return value
        if node.op.view is not None and there == name:
            self.put(node)
            return part.new[value]
        raise GraphError(
            f"devices: {node.op.name} {node.label} is on {there}, and is read on {name}; need a copy node between them"
        )

    def put(self, node: Node) -> Node:
        """Put a node into the program of its device."""
        name = self.device[node]
        part = self.part(name)
        inputs = [None if v is None else self.value(name, v) for v in node.inputs]
        made = self.chained(part, node, copy_node(node, inputs, {}))
        part.nodes[made] = None
        part.origins[made] = node
        part.new.update(zip(node.outputs, made.outputs, strict=True))
        return made

    def chained(self, part: _Cut, node: Node, made: Node) -> Node:
        """Updates and what depends on them keep the order that they have in the whole program."""
        after = [part.new[b.outputs[0]].node for b in node.after if b.outputs[0] in part.new]
        if node in self.late and part.late:
            after.append(next(reversed(part.late)))
        if tuple(after) != made.after:
            made = made.with_inputs(made.inputs, after)
        if node in self.late:
            part.late[made] = None
        return made

    def transfer(self, node: Node) -> None:
        value = node.inputs[0]
        assert value is not None
        source, destination = self.where(value), self.device[node]
        assert source is not None
        part = self.part(source)
        if value not in part.sent:
            dense = self.value(source, value)
            if value.node.op.leaf or value.node.op.view is not None or value.node.op.updates:
                copied = REGISTRY["copy"].node([dense], {}, value.node.name, value.node.where)
                copied = self.chained(part, node, copied)
                part.nodes[copied] = None
                dense = copied.outputs[0]
            part.sent[value] = part.output(dense)
        k = len(self.transfers)
        key = f"copy {k}"
        while key in self.inputs:
            key += "'"
        attrs = {"key": key, "extents": value.shape, "kind": value.dtype}
        leaf = REGISTRY["input"].node((), attrs, node.name, node.where)
        other = self.part(destination)
        other.nodes[leaf] = None
        other.new[node.outputs[0]] = leaf.outputs[0]
        self.transfers.append(Transfer(node, source, part.sent[value], destination, key))

    def caller_reads(self, value: Value) -> tuple[str, int]:
        name = self.where(value)
        if name is None:
            name = next((d for d, p in self.parts.items() if value in p.new), None) or next(iter(self.parts), "cpu")
        part = self.part(name)
        return name, part.output(self.value(name, value))


# ---- the order of events --------------------------------------------------------------------------------------


def _events(
    parts: Mapping[str, Part], splitter: _Splitter, late: Mapping[str, Collection[Node]]
) -> dict[str, tuple[Event, ...]]:
    """Of each device: sends as early, waits as late as they may be. late: of its program, updates and what depends on
    those of any device."""
    events: dict[str, tuple[Event, ...]] = {}
    for name, part in parts.items():
        laid, steps = part.plan.laid, part.plan.order.steps
        at = {node: i for i, node in enumerate(steps)}
        first: dict[Value, int] = {}  # base value -> the first step that reads it
        for i, node in enumerate(steps):
            for value in node.inputs:
                if value is not None:
                    first.setdefault(laid.layouts[value].base, i)
        keys = {n.attrs["key"]: n.outputs[0] for n in laid.program.nodes if n.op.name == "input"}
        made: list[tuple[int, int, Event]] = []  # instruction before which it happens, rank, event
        for k, one in enumerate(splitter.transfers):
            if one.source == name:
                base = laid.layouts[laid.program.outputs[one.output]].base
                made.append((at[base.node] + 1, 0, Send(k)))
            if one.destination == name:
                made.append((first.get(keys[one.key], len(steps)), 2, Wait(k)))
        if splitter.updates:
            made.append((_commit(part, late[name]), 1, Commit()))
        made.sort(key=lambda m: m[:2])
        listed: list[Event] = []
        done = 0
        for position, _, event in made:
            if position > done:
                listed.append(Run(done, position))
                done = position
            listed.append(event)
        if done < len(steps):
            listed.append(Run(done, len(steps)))
        events[name] = tuple(listed)
    return events


def _commit(part: Part, late: Collection[Node]) -> int:
    """The first instruction that is an update or depends on one, on any device. late: nodes of the part's program."""
    known = counterparts(part.program.nodes, part.plan.laid.program.nodes)
    for i, node in enumerate(part.plan.order.steps):
        if known.get(node) in late:
            return i
    return len(part.plan.order.steps)


def _walk(events: Mapping[str, Sequence[Event]], ahead: Collection[str]) -> tuple[tuple[str, Event], ...]:
    """One order of all events: devices that work on their own go as far as they may, then another one by one event."""
    waiting = {name: list(listed) for name, listed in events.items()}
    order = sorted(events, key=lambda name: name not in ahead)
    sent: set[int] = set()
    here: set[str] = set()  # the devices that have come to their Commit
    walk: list[tuple[str, Event]] = []

    def step(name: str) -> bool:
        """Carry out the next event of a device, if it may."""
        listed = waiting[name]
        blocked = not listed or (isinstance(listed[0], Wait) and listed[0].transfer not in sent)
        if blocked or (name in here and len(here) < len(events)):
            return False
        event = listed.pop(0)
        if isinstance(event, Send):
            sent.add(event.transfer)
        if isinstance(event, Commit):
            here.add(name)
        walk.append((name, event))
        return True

    while any(waiting.values()):
        moved = False
        for name in order:
            if name in ahead:
                while step(name):
                    moved = True
            elif step(name):
                moved = True
                break
        if not moved:
            stuck = ", ".join(f"{name} at {listed[0]}" for name, listed in waiting.items() if listed)
            raise GraphError(f"devices: they wait for one another: {stuck}")
    return tuple(walk)
