"""Memory maps of a planned program, as plain records: of each buffer the steps at which it is alive and its bytes in
the arena. A map holds numbers and texts alone, so it keeps neither the graph nor arrays alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.terminal import in_one_line
from ..graph.graph import written
from ..graph.value import Node, describe, describe_spec
from .phases import BACKWARD, UPDATE, part_phases, step_phases
from .plan import Plan
from .schedule import Schedule

LARGEST = 200  # stored arrays of a map
MOST = 8  # programs of a run
WORKSPACE = "workspace"


@dataclass(frozen=True)
class MemoryMap:
    """The rectangles of a plan, ordered by first step, and its numbers.

    offset, bytes: in the arena, i64. first, last: steps, both inclusive, i64; a last step equal to the number of steps:
    the caller reads the buffer after the program. A buffer that an output takes over in place ends at the step before.
    specs, spec: the distinct texts of dtype and shape ("workspace" for memory that a single step needs for itself), and
    the number of each rectangle's. readers, reader_starts: steps that read rectangle i are
    readers[reader_starts[i] : reader_starts[i + 1]].
    phase, again: of each step: index in PHASES; whether it computes something again. names, ops, lines: distinct texts
    (of a node its name, else its op; the user's line, "" where none is known); name, op, line: the number of each
    step's.
    stored: name, type, role and bytes of the largest stored arrays (parameters, optimiser state), of stored_count.
    """

    device: str
    summary: str
    offset: np.ndarray
    bytes: np.ndarray
    first: np.ndarray
    last: np.ndarray
    spec: np.ndarray
    specs: Sequence[str]
    readers: np.ndarray
    reader_starts: np.ndarray
    phase: np.ndarray
    again: np.ndarray
    name: np.ndarray
    names: Sequence[str]
    op: np.ndarray
    ops: Sequence[str]
    line: np.ndarray
    lines: Sequence[str]
    stored: Sequence[tuple[str, str, str, int]]
    stored_count: int
    stored_bytes: int
    arena_bytes: int
    lower_bound_bytes: int
    unshared_bytes: int
    scratch_bytes: int  # of each thread
    threads: int
    in_place: int  # buffers
    budget: int | None
    recomputed_nodes: int
    recomputed_bytes: int
    recomputed_overhead: float

    @property
    def steps(self) -> int:
        return len(self.phase)

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of all threads' scratch."""
        return self.arena_bytes + self.scratch_bytes * self.threads

    @property
    def alive(self) -> np.ndarray:
        """Bytes alive at each step, and after the last one: i64 [steps + 1]."""
        change = np.zeros(self.steps + 2, np.int64)
        np.add.at(change, self.first, self.bytes)
        np.add.at(change, self.last + 1, -self.bytes)
        return np.cumsum(change)[:-1]


@dataclass(frozen=True)
class ProgramMap:
    """The maps of a program, one for each device. copies, copy_bytes: between devices in a step."""

    name: str
    maps: tuple[MemoryMap, ...]
    copies: int = 0
    copy_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return sum(one.peak_bytes for one in self.maps)


def program_map(plan: Plan | Schedule) -> ProgramMap:
    """The maps of a plan."""
    if isinstance(plan, Plan):
        return ProgramMap(program_name(plan), tuple(memory_maps(plan)))
    return ProgramMap(program_name(plan), tuple(memory_maps(plan)), len(plan.transfers), plan.transfer_bytes)


def program_maps(plans: Iterable[Plan | Schedule]) -> tuple[ProgramMap, ...]:
    """The maps of the programs of a run, the highest peaks first; of many programs those of the MOST highest ones."""
    return tuple(map(program_map, sorted(plans, key=lambda plan: -plan.peak_bytes)[:MOST]))


def memory_maps(plan: Plan | Schedule) -> list[MemoryMap]:
    """The map of a plan, or that of each device."""
    if isinstance(plan, Plan):
        return [_map_of(plan, plan.device, *step_phases(plan))]
    return [_map_of(part.plan, device, *part_phases(plan, part)) for device, part in plan.parts.items()]


def _map_of(plan: Plan, device: str, phase: list[int], again: list[bool]) -> MemoryMap:
    placed, order, layouts = plan.placement, plan.order, plan.laid.layouts
    readers: dict[Any, list[int]] = {value: [] for value in order.buffers}
    for step, node in enumerate(order.steps):
        for base in dict.fromkeys(layouts[v].base for v in node.inputs if v is not None):
            if base in readers:
                readers[base].append(step)
    taken = set(placed.inplace.values())
    rows = [
        (life.birth, placed.offsets[value], value.bytes, life.death - (value in taken), describe(value), readers[value])
        for value, life in order.buffers.items()
        if value.bytes
    ]
    for step, at in placed.workspace_offsets.items():
        rows.append((step, at, plan.needs[step].workspace_bytes, step, WORKSPACE, []))
    rows.sort(key=lambda row: row[:2])
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    first, offset, size, last = (np.array(column, np.int64) for column in columns[:4])
    specs, spec = _numbered(columns[4])
    names, name = _numbered([step_name(node) for node in order.steps])
    ops, op = _numbered([node.op.name for node in order.steps])
    lines, line = _numbered([line_of(node) for node in order.steps])
    again_of = plan.recomputed
    return MemoryMap(
        device, plan.summary(), offset, size, first, last, spec, specs,
        np.array([step for row in rows for step in row[5]], np.int64),
        np.cumsum(np.array([0, *(len(row[5]) for row in rows)])),
        np.array(phase, np.uint8), np.array(again, bool), name, names, op, ops, line, lines,
        _stored(plan), len(plan.bytecode.stored), plan.stored_bytes, placed.arena_bytes, placed.lower_bound_bytes,
        placed.unshared_bytes, plan.bytecode.scratch_bytes, plan.threads, len(placed.inplace), plan.budget,
        again_of.nodes, again_of.bytes, again_of.overhead,
    )  # fmt: skip


def _numbered(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """(the distinct texts, the number of each)."""
    known: dict[str, int] = {}
    numbers = [known.setdefault(text, len(known)) for text in texts]
    return list(known), np.array(numbers, np.uint32)


def _stored(plan: Plan) -> list[tuple[str, str, str, int]]:
    every = sorted(plan.bytecode.stored, key=lambda one: -one.bytes)
    return [
        (one.name or "unnamed", describe_spec(one.shape, one.dtype), one.role, one.bytes) for one in every[:LARGEST]
    ]


def step_name(node: Node) -> str:
    """The name of a node, its op where it has none."""
    return in_one_line(node.name) if node.name else node.op.name


def line_of(node: Node) -> str:
    """The user's line that made a node; empty where only the interpreter's own code did (python -m gradloom)."""
    return "" if node.where.startswith("<frozen ") else in_one_line(node.where)


def program_name(plan: Plan | Schedule) -> str:
    """The phases of a program, and its largest input, as a title."""
    if isinstance(plan, Plan):
        programs, phases = [plan], set(step_phases(plan)[0])
    else:
        programs = [part.plan for part in plan.parts.values()]
        phases = {phase for part in plan.parts.values() for phase in part_phases(plan, part)[0]}
    steps = [node for one in programs for node in one.order.steps]
    guards = any(node.op.guard for node in steps)
    trains = any(stored.role == "trained" for stored in written(steps))
    if trains:
        kind = "Training step"
    elif BACKWARD in phases:
        kind = "Gradients of a micro-batch" if guards else "Loss and gradients"
    else:
        kind = "Forward pass and updates" if UPDATE in phases else "Forward pass"
    every = [node for one in programs for node in one.laid.program.nodes]
    read = [n.outputs[0] for n in every if n.op.name in ("input", "take_batch")]
    largest = max(read, key=lambda value: value.bytes, default=None)
    if largest is None:
        return kind
    return f"{kind}: {largest.node.attrs.get('key', 'rows')} {describe(largest)}"
