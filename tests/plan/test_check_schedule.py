"""The proof of schedules against mutants: all are refused by a PlanError, or compute the same bits."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import PlanError
from gradloom.graph.scope import on_device
from gradloom.graph.value import Node
from gradloom.plan import check_schedule as proof
from gradloom.plan.bytecode import ARENA, ARG_WRITE, Bytecode
from gradloom.plan.check_schedule import check_schedule
from gradloom.plan.schedule import Commit, Event, Part, Run, Schedule, Send, Transfer, Wait
from gradloom.run.scheduled import ScheduledExecutable
from tests.plan.devices import DEVICES, loaded
from tests.plan.random_graphs import Made, build
from tests.plan.test_placements import computed
from tests.plan.test_properties import same_bits
from tests.run.test_scheduled import Step

Mutant = tuple[str, Schedule]  # what was done, the schedule


def stepping(cut: int = 2) -> Made:
    """A training step of four layers, two on each device."""
    step = Step(cut)
    rng = np.random.default_rng(1)
    labels = np.array([0, 1, 2, 4], np.int32)
    feeds: dict[str, Any] = {"x": rng.standard_normal((4, 6)).astype("f4"), "labels": labels, "lr": 0.1}
    return Made(step.outputs, list(step.updates), feeds, step.weights)


def crossing() -> Made:
    """Values that go to and fro, and a parameter that is read on the device that does not write it."""
    x = gl.input("x", (3, 4))
    p = gl.parameter(np.ones((3, 4)), "p")
    h, kept = x, []
    for i in range(6):
        with on_device(DEVICES[i % 2]):
            h = ops.tanh(h * 1.5 + p)
            kept.append(ops.sum(h))
    with on_device(DEVICES[1]):
        update = ops.assign(p, h)
    return Made([h, *kept], [*update], {"x": np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)}, [p])


def drawn(seed: int) -> Made:
    made, rng = build([seed * 977 + i * 31 for i in range(16)], 3), random.Random(seed)
    seen: set[Node] = set()
    todo = [v.node for v in (*made.outputs, *made.updates)]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            node.device = None if node.op.leaf else rng.choice([*DEVICES, None, None])
            todo.extend(v.node for v in node.inputs if v is not None)
    return made


PROGRAMS: dict[str, Callable[[], Made]] = {
    "step": stepping, "crossing": crossing, "drawn 1": lambda: drawn(1), "drawn 4": lambda: drawn(4),
}  # fmt: skip


def scheduled(made: Made) -> ScheduledExecutable:
    """As its nodes say where they run."""
    return loaded(made.outputs, made.updates, lambda i, node: node.device)


def refusal(schedule: Schedule) -> str | None:
    try:
        check_schedule(schedule)
    except PlanError as refused:
        return str(refused)
    return None


def with_events(schedule: Schedule, device: str, events: Sequence[Event], walk: bool = True) -> Schedule:
    """The schedule with other events of a device; walk: also in the walk, in the places that these have there."""
    changed = {**schedule.events, device: tuple(events)}
    if not walk:
        return dataclasses.replace(schedule, events=changed)
    mine = iter(events)
    made = []
    for name, event in schedule.walk:
        if name != device:
            made.append((name, event))
        elif (following := next(mine, None)) is not None:
            made.append((name, following))
    made += [(device, event) for event in mine]
    return dataclasses.replace(schedule, events=changed, walk=tuple(made))


def with_transfer(schedule: Schedule, k: int, **changes: Any) -> Schedule:
    transfers = list(schedule.transfers)
    transfers[k] = dataclasses.replace(transfers[k], **changes)
    return dataclasses.replace(schedule, transfers=tuple(transfers))


def with_part(schedule: Schedule, device: str, part: Part) -> Schedule:
    return dataclasses.replace(schedule, parts={**schedule.parts, device: part})


def with_bytecode(schedule: Schedule, device: str, args: np.ndarray) -> Schedule:
    part = schedule.parts[device]
    bytecode: Bytecode = dataclasses.replace(part.plan.bytecode, args=args)
    return with_part(
        schedule, device, dataclasses.replace(part, plan=dataclasses.replace(part.plan, bytecode=bytecode))
    )


# ---- mutants that are always wrong ----------------------------------------------------------------------------


def removed_events(schedule: Schedule) -> Iterator[Mutant]:
    for device, events in schedule.events.items():
        for i, event in enumerate(events):
            rest = [*events[:i], *events[i + 1 :]]
            yield f"{event} of {device} removed", with_events(schedule, device, rest, walk=False)
            walk = list(schedule.walk)
            walk.remove((device, event))
            changed = dataclasses.replace(schedule, events={**schedule.events, device: tuple(rest)}, walk=tuple(walk))
            yield f"{event} of {device} removed, in the walk, too", changed


def doubled_events(schedule: Schedule) -> Iterator[Mutant]:
    for device, events in schedule.events.items():
        for i, event in enumerate(events):
            again = [*events[: i + 1], event, *events[i + 1 :]]
            yield f"{event} of {device} twice", with_events(schedule, device, again)


def swapped_signals(schedule: Schedule) -> Iterator[Mutant]:
    """Two transfers' waits or sends exchanged, on one device and across devices."""
    for kind in (Send, Wait):
        places = [(d, i) for d, events in schedule.events.items() for i, e in enumerate(events) if isinstance(e, kind)]
        for (d, i), (other, j) in itertools.combinations(places, 2):
            changed = {name: list(events) for name, events in schedule.events.items()}
            changed[d][i], changed[other][j] = changed[other][j], changed[d][i]
            swap = {schedule.events[d][i]: changed[d][i], schedule.events[other][j]: changed[other][j]}
            if d == other and abs(i - j) == 1:
                continue  # neighbours: the order of two sends says nothing
            walk = tuple((name, swap.get(event, event)) for name, event in schedule.walk)
            events = {name: tuple(listed) for name, listed in changed.items()}
            if d != other or kind is Wait or not _harmless(schedule, d, i, j):
                yield (
                    f"{kind.__name__} {i} of {d} and {j} of {other}",
                    dataclasses.replace(schedule, events=events, walk=walk),
                )


def _harmless(schedule: Schedule, device: str, i: int, j: int) -> bool:
    """Nothing runs between two events of a device."""
    return not any(isinstance(e, Run) for e in schedule.events[device][i:j])


def early_sends(schedule: Schedule) -> Iterator[Mutant]:
    for device, events in schedule.events.items():
        for i, event in enumerate(events):
            if isinstance(event, Send) and schedule.transfers[event.transfer].bytes:
                yield (
                    f"{event} of {device} first",
                    with_events(schedule, device, [event, *events[:i], *events[i + 1 :]]),
                )


def late_waits(schedule: Schedule) -> Iterator[Mutant]:
    for device, events in schedule.events.items():
        part = schedule.parts[device]
        for i, event in enumerate(events):
            if isinstance(event, Wait) and any(isinstance(e, Run) for e in events[i:]):
                one = schedule.transfers[event.transfer]
                if one.bytes and one.key in part.plan.bytecode.input_offsets and _is_read(part, one):
                    rest = [*events[:i], *events[i + 1 :], event]
                    yield f"{event} of {device} last", with_events(schedule, device, rest)


def _is_read(part: Part, one: Transfer) -> bool:
    """Whether an instruction reads a transfer: else it is an output alone."""
    leaf = next(n.outputs[0] for n in part.plan.laid.program.nodes if n.attrs.get("key") == one.key)
    layouts = part.plan.laid.layouts
    return any(v is not None and layouts[v].base is leaf for n in part.plan.order.steps for v in n.inputs)


def circles(schedule: Schedule) -> Iterator[Mutant]:
    """Two devices that each wait for the other before they send."""
    for k, l in itertools.permutations(range(len(schedule.transfers)), 2):
        one, other = schedule.transfers[k], schedule.transfers[l]
        if (one.source, one.destination) == (other.destination, other.source):
            events = {}
            for device, first, then in ((one.source, Wait(l), Send(k)), (other.source, Wait(k), Send(l))):
                rest = [e for e in schedule.events[device] if e not in (first, then)]
                events[device] = (first, then, *rest)
            changed = {**schedule.events, **events}
            walk = tuple((d, e) for d, listed in changed.items() for e in listed)
            yield (
                f"transfers {k} and {l} wait for one another",
                dataclasses.replace(schedule, events=changed, walk=walk),
            )


def moved_commits(schedule: Schedule) -> Iterator[Mutant]:
    """Updates before the commit, guards behind it."""
    for device, events in schedule.events.items():
        for i, event in enumerate(events):
            if isinstance(event, Commit):
                rest = [*events[:i], *events[i + 1 :]]
                if any(isinstance(e, Run) for e in events[i:]):
                    yield f"commit of {device} last", with_events(schedule, device, [*rest, event])
                if any(isinstance(e, Run) for e in events[:i]):
                    yield f"commit of {device} first", with_events(schedule, device, [event, *rest])


def wrong_transfers(schedule: Schedule) -> Iterator[Mutant]:
    for k, one in enumerate(schedule.transfers):
        rest = (*schedule.transfers[:k], *schedule.transfers[k + 1 :])
        yield f"transfer {k} dropped", dataclasses.replace(schedule, transfers=rest)
        yield f"transfer {k} within {one.source}", with_transfer(schedule, k, destination=one.source)
        yield f"transfer {k} turned", with_transfer(schedule, k, source=one.destination, destination=one.source)
        count = len(schedule.parts[one.source].plan.laid.program.outputs)
        for output in {*range(count), count, -1} - {one.output}:
            yield f"transfer {k} of output {output}", with_transfer(schedule, k, output=output)
        for other in schedule.transfers:
            if other is not one:
                yield f"transfer {k} as {other.key}", with_transfer(schedule, k, key=other.key)
                yield f"transfer {k} for the copy of another", with_transfer(schedule, k, copy=other.copy)
        yield f"transfer {k} as nothing", with_transfer(schedule, k, key="nothing")


def wrong_places(schedule: Schedule) -> Iterator[Mutant]:
    """A node that the program places elsewhere; an output that the caller looks for elsewhere."""
    for node, device in schedule.device.items():
        if not node.op.leaf:
            other = DEVICES[device == DEVICES[0]]
            yield f"{node} on {other}", dataclasses.replace(schedule, device={**schedule.device, node: other})
    for i, (device, output) in enumerate(schedule.outputs):
        for place in range(len(schedule.parts[device].plan.laid.program.outputs)):
            outputs = list(schedule.outputs)
            outputs[i] = device, place
            if place != output:
                yield f"output {i} at {place}", dataclasses.replace(schedule, outputs=tuple(outputs))


def wrong_origins(schedule: Schedule) -> Iterator[Mutant]:
    """A node that stands for another one, or for none; two that stand for one."""
    for device, part in schedule.parts.items():
        nodes = list(part.origins)
        for mine, other in itertools.pairwise(nodes):
            origins = {**part.origins, mine: part.origins[other]}
            yield f"{mine} for {other}", with_part(schedule, device, dataclasses.replace(part, origins=origins))
        for mine in nodes:
            origins = {n: o for n, o in part.origins.items() if n is not mine}
            yield f"{mine} for none", with_part(schedule, device, dataclasses.replace(part, origins=origins))


def wrong_offsets(schedule: Schedule) -> Iterator[Mutant]:
    """What is read is looked for somewhere else."""
    for device, part in schedule.parts.items():
        bytecode = part.plan.bytecode
        for at in range(len(bytecode.args)):
            if int(bytecode.args[at]["bytes"]) and not bytecode.args[at]["flags"] & ARG_WRITE:
                args = bytecode.args.copy()
                args[at]["offset"] += 64
                yield f"operand {at} of {device} moved", with_bytecode(schedule, device, args)


def reused(schedule: Schedule) -> Iterator[Mutant]:
    """A later result over the bytes that are sent."""
    for k, one in enumerate(schedule.transfers):
        plan = schedule.parts[one.source].plan
        _, offset = plan.output_places[one.output]
        made = plan.order.steps.index(plan.laid.program.outputs[one.output].node)
        for i in range(made + 1, len(plan.order.steps)):
            row = plan.bytecode.instructions[i]
            for at in range(int(row["arg_first"]), int(row["arg_first"] + row["arg_count"])):
                arg = plan.bytecode.args[at]
                if arg["flags"] & ARG_WRITE and arg["segment"] == ARENA and arg["bytes"] and one.bytes:
                    args = plan.bytecode.args.copy()
                    args[at]["offset"] = offset
                    yield f"instruction {i} over transfer {k}", with_bytecode(schedule, one.source, args)


WRONG = (
    removed_events, doubled_events, swapped_signals, early_sends, late_waits, circles, moved_commits, wrong_transfers,
    wrong_places, wrong_origins, wrong_offsets, reused,
)  # fmt: skip


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("program", PROGRAMS)
def test_mutants_are_refused(program: str, kind: Callable[[Schedule], Iterator[Mutant]]) -> None:
    schedule = scheduled(PROGRAMS[program]()).plan
    assert refusal(schedule) is None
    mutants = list(kind(schedule))
    assert mutants or program.startswith("drawn")
    for what, mutant in random.Random(0).sample(mutants, min(len(mutants), 60)):
        message = refusal(mutant)
        assert message is not None, f"{what}: accepted"
        assert "\n" not in message


@pytest.mark.parametrize("program", ["step", "crossing"])
def test_what_is_reused_is_seen_without_the_proof_of_the_parts(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both proofs refuse it: this one names both nodes."""
    schedule = scheduled(PROGRAMS[program]()).plan
    monkeypatch.setattr(proof, "check", lambda *_: None)
    messages = [(what, refusal(mutant)) for what, mutant in reused(schedule)]
    assert messages and all(message is not None for _, message in messages), messages
    named = [set(re.findall(r"\w+#\d+", message)) for _, message in messages if message and "overwrites" in message]
    assert named and all(len(nodes) == 2 for nodes in named)


def test_messages_name_both_nodes() -> None:
    schedule = scheduled(stepping()).plan
    for kind in (early_sends, late_waits):
        for what, mutant in kind(schedule):
            message = refusal(mutant)
            assert message is not None and re.findall(r"\w+#\d+", message), (what, message)


# ---- mutants that may be right ----------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_other_orders_are_refused_or_give_the_same_bits(program: str) -> None:
    """Two events of a device or of the walk exchanged; ranges cut in two."""
    made = PROGRAMS[program]()
    executable = scheduled(made)
    schedule, right, rng = executable.plan, computed(made, executable), random.Random(0)
    accepted = refused = 0
    for _ in range(120):
        mutant = schedule
        if rng.random() < 0.5:
            walk = list(schedule.walk)
            i = rng.randrange(len(walk) - 1)
            walk[i], walk[i + 1] = walk[i + 1], walk[i]
            events = {d: tuple(e for name, e in walk if name == d) for d in schedule.events}
            mutant = dataclasses.replace(schedule, walk=tuple(walk), events=events)
        else:
            device = rng.choice(list(schedule.events))
            listed = list(schedule.events[device])
            i, j = rng.randrange(len(listed)), rng.randrange(len(listed))
            listed.insert(j, listed.pop(i))
            mutant = with_events(schedule, device, listed)
        if refusal(mutant) is not None:
            refused += 1
            continue
        accepted += 1
        again = ScheduledExecutable(mutant, executable.parts, executable.switches)
        assert same_bits(computed(made, again), right)
    assert accepted and refused
