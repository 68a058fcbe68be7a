"""Figure of a memory map: one rectangle per buffer, of the steps at which it is alive and of its bytes in the arena."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.memory import show_bytes
from ..plan.memory_map import WORKSPACE, MemoryMap
from ..plan.phases import PHASES
from .page import Figure, Table

LARGEST = 200  # rows of a table


def figure(one: MemoryMap, title: str) -> Figure:
    """The figure of a map."""
    scratch = one.scratch_bytes * one.threads
    specs, largest = list(one.specs), int(one.alive.argmax())
    facts = {
        "steps": one.steps, "arena": one.arena_bytes, "lower_bound": one.lower_bound_bytes, "scratch": scratch,
        "budget": None if one.budget is None else max(one.budget - scratch, 0), "phases": PHASES,
        "workspace": specs.index(WORKSPACE) if WORKSPACE in specs else -1, "largest_step": largest,
    }  # fmt: skip
    distance = np.diff(np.concatenate([[0], one.first])) if len(one.first) else one.first
    counts = np.diff(one.reader_starts)
    owner = np.repeat(np.arange(len(one.first)), counts)
    arrays: dict[str, np.ndarray | Sequence[str]] = {
        "offset": _whole(one.offset), "bytes": _whole(one.bytes), "first": _whole(distance),
        "life": _whole(one.last - one.first), "spec": one.spec, "readers": _whole(one.readers - one.first[owner]),
        "reader_count": _whole(counts), "phase": one.phase + 4 * one.again.astype(np.uint8), "name": one.name,
        "op": one.op, "line": one.line, "names": one.names, "ops": one.ops, "lines": one.lines, "specs": specs,
    }  # fmt: skip
    label = (
        f"Memory map of {one.steps} steps: {len(one.first)} buffers in an arena of {show_bytes(one.arena_bytes)}; "
        f"at most {show_bytes(one.lower_bound_bytes)} are alive, at step {largest}."
    )
    return Figure("memory_map", title, label, _table(one), facts, arrays)


def _whole(array: np.ndarray) -> np.ndarray:
    """Numbers from 0 on as u32, or as f64, which is exact below 2^53."""
    return array.astype(np.uint32 if array.max(initial=0) < 2**32 else np.float64)


def _table(one: MemoryMap) -> Table:
    order = np.lexsort((one.first, -one.bytes))[:LARGEST]
    rows = []
    for i in order.tolist():
        first, last = int(one.first[i]), int(one.last[i])
        end = "end" if last == one.steps else str(last)
        count = int(one.reader_starts[i + 1] - one.reader_starts[i])
        phase = PHASES[one.phase[first]] + (", computed again" if one.again[first] else "")
        rows.append((
            one.names[one.name[first]], one.ops[one.op[first]], one.specs[one.spec[i]], int(one.bytes[i]),
            int(one.offset[i]), f"{first} to {end}", phase, count, one.lines[one.line[first]],
        ))  # fmt: skip
    head = ("buffer", "op", "type", "bytes", "offset", "steps", "phase", "readers", "line")
    every = f"{len(one.first)} buffers"
    note = f"the {len(rows)} largest of {every}" if len(rows) < len(one.first) else every
    return Table(head, rows, note)


def stored_table(one: MemoryMap) -> Table:
    """The largest of the stored arrays: parameters, optimiser state, mapped tensors."""
    count = len(one.stored)
    note = f"the {count} largest of {one.stored_count}" if count < one.stored_count else f"{count}"
    return Table(("array", "type", "role", "bytes"), list(one.stored), note)
