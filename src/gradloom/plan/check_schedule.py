"""The proof of a schedule: it shares no code with what split the program, planned the parts or ordered the events.

Every node of the placed program is computed on its device, from the values that the graph names: once, or several
times if it writes nothing, stops no run and follows no other node. Each part's bytecode is proved by plan/check.py.
Events are held against happens-before: the order of each device, a send before its wait, Commit of all devices before
later events on any. Under it no instruction reads a transfer's bytes before the wait, none is sent before it is
computed, and a sent value is not overwritten in this step; no stored array is written before every guard, and
everything else that is no consequence of an update, has run on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ..base.errors import PlanError
from ..graph.value import Node, Value, describe
from ..transform.program import Program
from .bytecode import ARENA, ARG_WRITE, INPUTS, NO_SEGMENT, NODE_MASK, SEGMENT_NAMES
from .check import check
from .schedule import Commit, Event, Part, Run, Schedule, Send, Transfer, Wait

Moment = tuple[str, int]  # a device and the position of one of its events


def check_schedule(schedule: Schedule) -> None:
    """Prove a schedule, or raise PlanError naming the nodes."""
    values = {device: _computed(schedule, device) for device in schedule.parts}
    _check_whole(schedule, values)
    for k, one in enumerate(schedule.transfers):
        _check_transfer(schedule, k, one, values)
    for part in schedule.parts.values():
        plan = part.plan
        places = dict(zip(plan.laid.program.outputs, plan.output_places, strict=True))
        check(plan.bytecode, plan.laid.program, places, dict(zip(plan.order.steps, plan.needs, strict=True)))
    _Moments(schedule, values).check()


def _name(node: Node) -> str:
    return f"{node.op.name}#{node.id}{f' {node.name}' if node.name else ''} at {node.where}"


# ---- computed values ---------------------------------------------------------------------------------------------


def _computed(schedule: Schedule, device: str) -> dict[Value, Value]:
    """Of each value of a device's program the value of the placed program that it is; PlanError where a node computes
    something other than the node that it represents."""
    part, leaves = schedule.parts[device], {n for n in schedule.program.nodes if n.op.leaf}
    arriving = {t.key: t.copy.outputs[0] for t in schedule.transfers if t.destination == device}
    known: dict[Value, Value] = {}
    origins = _origins(part)
    for node in part.plan.laid.program.nodes:
        origin = origins.get(node)
        if node.op.leaf:
            if node in leaves:
                known[node.outputs[0]] = node.outputs[0]
            elif node.op.name == "input" and node.attrs["key"] in arriving:
                known[node.outputs[0]] = arriving[node.attrs["key"]]
            else:
                raise PlanError(f"schedule: {device} reads the leaf {_name(node)}, which the program does not have")
        elif origin is None:
            if node.op.name != "copy" or node.inputs[0] is None:
                raise PlanError(f"schedule: {device} computes {_name(node)}, which is no node of the program")
            known[node.outputs[0]] = known[node.inputs[0]]
        else:
            if node.op is not origin.op or node.attrs is not origin.attrs:
                raise PlanError(f"schedule: {device} computes {_name(node)} for {_name(origin)}")
            if schedule.device.get(origin) != device:
                raise PlanError(
                    f"schedule: {_name(origin)} runs on {device}; the program has it on {schedule.device.get(origin)}"
                )
            for mine, wanted in zip(node.inputs, origin.inputs, strict=True):
                seen = None if mine is None else known[mine]
                if seen is not wanted:
                    raise PlanError(
                        f"schedule: {_name(origin)} on {device} reads {_called(seen)}; need {_called(wanted)}"
                    )
            known.update(zip(node.outputs, origin.outputs, strict=True))
    return known


def _called(value: Value | None) -> str:
    return "nothing" if value is None else f"{describe(value)} of {_name(value.node)}"


def _origins(part: Part) -> dict[Node, Node]:
    """Of each laid node the node of the placed program. The layout keeps the order of the part's nodes, shares the
    attributes of each, and puts copies in between."""
    found: dict[Node, Node] = {}
    mine = list(part.program.nodes)
    k = 0
    for node in part.plan.laid.program.nodes:
        if k < len(mine) and mine[k].attrs is node.attrs:
            if mine[k] in part.origins:
                found[node] = part.origins[mine[k]]
            k += 1
    if k < len(mine):
        raise PlanError(f"schedule: {_name(mine[k])} is missing in the layout of its device")
    return found


def _check_whole(schedule: Schedule, values: Mapping[str, Mapping[Value, Value]]) -> None:
    """Every node on one device, and once unless that makes no difference; the caller's outputs; the updates; each array
    that is written on one device."""
    ran: dict[Node, str] = {}
    sent = {t.copy for t in schedule.transfers}
    for device, part in schedule.parts.items():
        for origin in part.origins.values():
            once = origin.op.updates or origin.op.guard or origin.op.python or origin.after
            if origin in ran and (once or ran[origin] != device):
                raise PlanError(f"schedule: {_name(origin)} runs on {ran[origin]} and again on {device}")
            ran[origin] = device
    for node in schedule.program.nodes:
        if not node.op.leaf and (node in sent) == (node in ran):
            how = "runs and is a transfer as well" if node in sent else "never runs"
            raise PlanError(f"schedule: {_name(node)} {how}")
    if len(sent) != len(schedule.transfers):
        raise PlanError("schedule: one copy node is several transfers")
    for value, (device, output) in zip(schedule.program.outputs, schedule.outputs, strict=True):
        found = values[device][schedule.parts[device].plan.laid.program.outputs[output]]
        if found is not value:
            raise PlanError(f"schedule: the caller reads {_called(found)} on {device}; need {_called(value)}")
    updated = {values[d][v] for d, part in schedule.parts.items() for v in part.plan.laid.program.effects}
    if missing := [v for v in schedule.program.effects if v not in updated]:
        raise PlanError(f"schedule: the update {_called(missing[0])} belongs to no device")
    for device, part in schedule.parts.items():
        arrays = {id(part.plan.bytecode.stored[k]) for k in _written(part)}
        for other, also in schedule.parts.items():
            if other != device and (both := [s for s in also.plan.bytecode.stored if id(s) in arrays]):
                raise PlanError(f"schedule: {device} writes the array {both[0].name}, which {other} reads; need a copy")


def _written(part: Part) -> set[int]:
    """Which of its stored arrays a part's bytecode writes."""
    args = part.plan.bytecode.args
    segments = args["segment"][(args["flags"] & ARG_WRITE) != 0].tolist()
    first = len(SEGMENT_NAMES)
    return {segment - first for segment in segments if segment != NO_SEGMENT and segment >= first}


def _check_transfer(schedule: Schedule, k: int, one: Transfer, values: Mapping[str, Mapping[Value, Value]]) -> None:
    """One copy node of the program, between the devices of its input and of itself, of the value that it copies."""
    who = f"transfer {k}, {_name(one.copy)}"
    if one.copy not in schedule.device or one.copy.op.name != "copy":
        raise PlanError(f"schedule: {who}, is no copy of the program")
    if one.source == one.destination or schedule.device[one.copy] != one.destination:
        raise PlanError(
            f"schedule: {who}, goes from {one.source} to {one.destination}; the program places it on "
            f"{schedule.device[one.copy]}"
        )
    outputs = schedule.parts[one.source].plan.laid.program.outputs
    if not 0 <= one.output < len(outputs):
        raise PlanError(f"schedule: {who}, is output {one.output} of {one.source}, which has {len(outputs)}")
    sent, wanted = outputs[one.output], one.copy.inputs[0]
    found = values[one.source][sent]
    if found is not wanted:
        raise PlanError(f"schedule: {who}, sends {_called(found)}; need {_called(wanted)}")
    keys = [t.key for t in schedule.transfers if t.destination == one.destination]
    keys += [n.attrs["key"] for n in schedule.program.nodes if n.op.name == "input"]
    if keys.count(one.key) != 1:
        raise PlanError(f"schedule: {who}, arrives as {one.key!r}, which is another input of {one.destination} as well")
    for node in schedule.parts[one.destination].plan.laid.program.nodes:
        if node.op.name == "input" and node.attrs["key"] == one.key:
            to = node.outputs[0]
            if (to.shape, to.dtype) != (sent.shape, sent.dtype):
                raise PlanError(f"schedule: {who}, sends {describe(sent)}, and {one.destination} reads {describe(to)}")


# ---- when ------------------------------------------------------------------------------------------------------


class _Moments:
    """The events that happened before each event, and whether they suffice."""

    def __init__(self, schedule: Schedule, values: Mapping[str, Mapping[Value, Value]]) -> None:
        self.schedule, self.values = schedule, values
        self.sends: dict[int, Moment] = {}
        self.waits: dict[int, Moment] = {}
        self.commits: dict[str, int] = {}
        self.nodes = {device: _instructions(part) for device, part in schedule.parts.items()}
        self.late = _late(schedule.program)

    def check(self) -> None:
        if set(self.schedule.events) != set(self.schedule.parts):
            raise PlanError("schedule: the devices that have events are not those that have a part")
        for device in self.schedule.parts:
            self.read_events(device)
        for k, one in enumerate(self.schedule.transfers):
            for found, device, what in ((self.sends, one.source, "sent"), (self.waits, one.destination, "waited for")):
                if k not in found or found[k][0] != device:
                    where = f"on {found[k][0]}" if k in found else "never"
                    raise PlanError(f"schedule: transfer {k}, {_name(one.copy)}, is {what} {where}; need {device}")
        for device in self.schedule.parts:
            self.check_reads(device)
            self.check_sends(device)
            self.check_commit(device)
        self.check_order(self.schedule.walk)

    def read_events(self, device: str) -> None:
        """Each instruction once and in order; each send, each wait once."""
        events, count = self.schedule.events[device], len(self.schedule.parts[device].plan.bytecode.instructions)
        done = 0
        for i, event in enumerate(events):
            if isinstance(event, Run):
                if event.first != done or not done < event.last <= count:
                    raise PlanError(f"schedule: {device} runs {event.first}..{event.last - 1}; need {done} of {count}")
                done = event.last
            elif isinstance(event, Commit):
                if device in self.commits:
                    raise PlanError(f"schedule: {device} commits twice")
                self.commits[device] = i
            else:
                found = self.sends if isinstance(event, Send) else self.waits
                if not 0 <= event.transfer < len(self.schedule.transfers):
                    raise PlanError(f"schedule: {device}: {event}; there is no such transfer")
                if event.transfer in found:
                    copy = self.schedule.transfers[event.transfer].copy
                    raise PlanError(f"schedule: {device}: {event}, {_name(copy)}, for the second time")
                found[event.transfer] = device, i
        if done != count:
            node = self.nodes[device][done]
            raise PlanError(f"schedule: {device} never runs instruction {done}, {_name(node)}")

    def check_order(self, walk: Collection[tuple[str, Event]]) -> None:
        """The walk has the events of each device in their order, a send before its wait, all commits before what
        follows one: so there is no cycle, and the walk follows happens-before."""
        at = dict.fromkeys(self.schedule.events, 0)
        sent: set[int] = set()
        committed: set[str] = set()
        for device, event in walk:
            events = self.schedule.events.get(device, ())
            if at.get(device, 0) >= len(events) or events[at[device]] != event:
                raise PlanError(f"schedule: the walk has {event} of {device} out of the device's order")
            if device in committed and len(committed) < len(self.schedule.events):
                missing = next(d for d in self.schedule.events if d not in committed)
                raise PlanError(f"schedule: {device} continues with {event} before {missing} has committed")
            at[device] += 1
            if isinstance(event, Send):
                sent.add(event.transfer)
            elif isinstance(event, Commit):
                committed.add(device)
            elif isinstance(event, Wait) and event.transfer not in sent:
                one = self.schedule.transfers[event.transfer]
                value = one.copy.inputs[0]
                raise PlanError(
                    f"schedule: {device} waits for transfer {event.transfer}, {_name(one.copy)}, before {one.source} "
                    f"has sent {_called(value)}"
                )
        for device, events in self.schedule.events.items():
            if at[device] != len(events):
                raise PlanError(f"schedule: the walk ends before {events[at[device]]} of {device}")

    def ran_before(self, device: str, event: int) -> int:
        """How many instructions a device has run before its event of this position."""
        return max((e.last for e in self.schedule.events[device][:event] if isinstance(e, Run)), default=0)

    def check_reads(self, device: str) -> None:
        """No instruction reads the bytes of a transfer before its wait, and none writes any."""
        bytecode = self.schedule.parts[device].plan.bytecode
        for k, one in enumerate(self.schedule.transfers):
            if one.destination != device or one.key not in bytecode.input_offsets:
                continue
            start = bytecode.input_offsets[one.key]
            ready = self.ran_before(device, self.waits[k][1])
            for i, _ in self.touching(device, INPUTS, start, start + one.bytes):
                if i < ready:
                    raise PlanError(
                        f"schedule: {_name(self.nodes[device][i])} on {device} reads transfer {k}, {_name(one.copy)}, "
                        "before the wait for it"
                    )

    def check_sends(self, device: str) -> None:
        """A sent value has been computed and stays in place until the step ends."""
        plan = self.schedule.parts[device].plan
        for k, one in enumerate(self.schedule.transfers):
            if one.source != device or not one.bytes:
                continue
            value = one.copy.inputs[0]
            segment, start = plan.output_places[one.output]
            if segment != ARENA:
                raise PlanError(f"schedule: transfer {k}, {_called(value)}, does not lie in the arena of {device}")
            writes = [i for i, writes in self.touching(device, segment, start, start + one.bytes) if writes]
            made = plan.laid.program.outputs[one.output].node
            mine = [i for i in writes if self.nodes[device][i] is made]
            if not mine:
                raise PlanError(f"schedule: {device} never computes transfer {k}, {_called(value)}")
            if self.ran_before(device, self.sends[k][1]) <= mine[0]:
                raise PlanError(f"schedule: {device} sends transfer {k} before it has run {_name(made)}")
            if later := [i for i in writes if i > mine[0]]:
                raise PlanError(
                    f"schedule: {_name(self.nodes[device][later[0]])} overwrites what transfer {k} sends, "
                    f"{_called(value)}"
                )

    def touching(self, device: str, segment: int, start: int, end: int) -> Iterator[tuple[int, bool]]:
        """(instruction, whether it writes there) of those that touch bytes of a segment."""
        bytecode = self.schedule.parts[device].plan.bytecode
        args, first = bytecode.args, bytecode.instructions["arg_first"].astype(np.int64)
        hit = (args["segment"] == segment) & (args["offset"] < end) & (args["offset"] + args["bytes"] > start)
        writes = hit & ((args["flags"] & ARG_WRITE) != 0)
        last = np.minimum(first + bytecode.instructions["arg_count"], len(args))
        found, written = (np.concatenate([[0], np.cumsum(one)]) for one in (hit, writes))
        for i in np.flatnonzero(found[last] > found[first]).tolist():
            yield i, bool(written[last[i]] > written[first[i]])

    def check_commit(self, device: str) -> None:
        """Updates and what depends on them run after the commit; guards and all else before it."""
        ready = None if device not in self.commits else self.ran_before(device, self.commits[device])
        known = self.values[device]
        for i, node in enumerate(self.nodes[device]):
            origin = known[node.outputs[0]].node
            if node.op.updates and (ready is None or i < ready):
                raise PlanError(
                    f"schedule: {_name(node)} on {device} writes an array before all devices have committed"
                )
            fails = node.op.guard or node.op.python or origin not in self.late
            if fails and node.op.name != "copy" and ready is not None and i >= ready:
                raise PlanError(f"schedule: {_name(node)} on {device} may fail, and runs after the commit")


def _instructions(part: Part) -> list[Node]:
    """The node of each instruction."""
    known = {n.id & NODE_MASK: n for n in part.plan.laid.program.nodes}
    return [known[node] for node in part.plan.bytecode.instructions["node"].tolist()]


def _late(program: Program) -> set[Node]:
    """The updates, and all that depends on one."""
    late: set[Node] = set()
    for node in program.nodes:
        before = [v.node for v in node.inputs if v is not None] + list(node.after)
        if node.op.updates or any(one in late for one in before):
            late.add(node)
    return late
