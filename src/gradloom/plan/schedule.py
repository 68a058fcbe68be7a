"""Schedule: a program on several devices, as one program and plan per device, transfers between these, and orders of
events. plan/split.py makes one, plan/check_schedule.py proves it, run/scheduled.py runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.html import html_details
from ..base.memory import show_bytes
from ..base.pages import Pages
from ..base.terminal import plural
from ..graph.value import Node, describe
from ..transform.program import Program
from .plan import Plan, Recomputed


class Run(NamedTuple):
    """Run the instructions first .. last - 1 of the device."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"run {self.first}..{self.last - 1}"


class Send(NamedTuple):
    """Begin transfer k: the device has computed its value."""

    transfer: int

    def __str__(self) -> str:
        return f"send {self.transfer}"


class Wait(NamedTuple):
    """Wait until transfer k has ended: from here on the device may read its value."""

    transfer: int

    def __str__(self) -> str:
        return f"wait {self.transfer}"


class Commit(NamedTuple):
    """Wait until all devices are here and none has failed: from here on stored arrays may be written."""

    def __str__(self) -> str:
        return "commit"


Event = Run | Send | Wait | Commit


@dataclass(frozen=True)
class Part:
    """The program of one device. origins: of each node, clones included, the node of the placed program that it stands
    for; leaves stand for themselves, the leaf of a transfer and a copy that makes a transfer's bytes dense for none."""

    program: Program
    plan: Plan
    origins: Mapping[Node, Node]


@dataclass(frozen=True)
class Transfer:
    """A value that goes from one device to another one. copy: the node of the placed program. output: its position
    among the outputs of the source's part. key: of the input that it is to the destination's part."""

    copy: Node
    source: str
    output: int
    destination: str
    key: str

    @property
    def bytes(self) -> int:
        return self.copy.outputs[0].bytes


@dataclass(frozen=True, repr=False)
class Schedule(Pages):
    """A proved schedule. `print(schedule)` shows the device of each node; `save("plan.html")` writes the memory maps.

    program, device: the placed program, and the device of each of its nodes but of leaves that every device has.
    parts, events: by device. walk: the events of all devices in the order in which one thread carries them out.
    outputs: of each output of the program, its device and the position among the outputs of that part.
    """

    program: Program
    device: Mapping[Node, str]
    parts: Mapping[str, Part]
    transfers: tuple[Transfer, ...]
    events: Mapping[str, tuple[Event, ...]]
    walk: tuple[tuple[str, Event], ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def first(self) -> Plan:
        """The plan of the first part."""
        return next(iter(self.parts.values())).plan

    def _sum(self, name: str) -> int:
        return sum(getattr(part.plan, name) for part in self.parts.values())

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arenas and of all threads' scratch, of all devices."""
        return self._sum("peak_bytes")

    @property
    def lower_bound_bytes(self) -> int:
        """The sum of the parts' lower bounds."""
        return self._sum("lower_bound_bytes")

    @property
    def unshared_bytes(self) -> int:
        """Bytes of the parts when no two buffers share bytes."""
        return self._sum("unshared_bytes")

    @property
    def stored_bytes(self) -> int:
        """Bytes of parameters and state, of all devices: what two devices read counts twice."""
        return self._sum("stored_bytes")

    @property
    def recomputed(self) -> dict[str, Recomputed]:
        """The nodes that each device computes twice; the overhead is a share of the time of its part."""
        return {device: part.plan.recomputed for device, part in self.parts.items()}

    @property
    def transfer_bytes(self) -> int:
        """Bytes that a step moves between devices."""
        return sum(t.bytes for t in self.transfers)

    def fetched(self, device: str) -> tuple[tuple[int, ...], ...]:
        """The outputs of a device's part that each fetch from it brings: a transfer, the end of the step, and nothing
        but the device's word at a Commit."""
        sent = [(one.output,) for one in self.transfers if one.source == device]
        ends = tuple(dict.fromkeys(output for name, output in self.outputs if name == device))
        commits = [()] if any(isinstance(event, Commit) for event in self.events[device]) else []
        return (*sent, *commits, ends)

    def summary(self) -> str:
        parts = [
            f"{device}: {plural(len(part.plan.order.steps), 'step')}, peak {show_bytes(part.plan.peak_bytes)}, "
            f"parameters and state {show_bytes(part.plan.stored_bytes)}{part.plan.recomputed.shown()}"
            for device, part in self.parts.items()
        ]
        copies = "1 copy" if len(self.transfers) == 1 else f"{len(self.transfers)} copies"
        return "; ".join([*parts, f"{copies}, {show_bytes(self.transfer_bytes)} a step"])

    def __repr__(self) -> str:
        return f"Schedule({self.summary()})"

    def _repr_html_(self) -> str:
        return html_details(f"Schedule: {self.summary()}", str(self))

    def __str__(self) -> str:
        lines = [self.summary()]
        for device, part in self.parts.items():
            ops = Counter(node.op.name for node in part.plan.order.steps)
            lines.append(f"{device}: {part.plan.summary()}")
            lines.append(f"  {', '.join(f'{count} {op}' for op, count in ops.most_common())}")
            lines.append(f"  {', '.join(map(str, self.events[device]))}")
        for k, one in enumerate(self.transfers):
            lines.append(
                f"transfer {k}: {describe(one.copy.outputs[0])} ({show_bytes(one.bytes)}) from {one.source} to "
                f"{one.destination}  # {_source(one).label}"
            )
        lines += [f"\n{device}: {part.plan}" for device, part in self.parts.items()]
        return "\n".join(lines)


def _source(transfer: Transfer) -> Node:
    value = transfer.copy.inputs[0]
    assert value is not None
    return value.node


def counterparts(nodes: Sequence[Node], laid: Sequence[Node]) -> dict[Node, Node]:
    """Of each laid node the node that it was made of; none for the copies that the layout has put in between."""
    known: dict[Node, Node] = {}
    waiting = iter(nodes)
    old = next(waiting, None)
    for node in laid:
        if old is not None and node.op is old.op and node.attrs is old.attrs:
            known[node] = old
            old = next(waiting, None)
    assert old is None, f"{old} has no place in the layout"
    return known
