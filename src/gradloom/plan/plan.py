"""From a program to proved bytecode: layouts, order, offsets, bytecode, proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..base.html import html_details
from ..base.memory import show_bytes
from ..base.pages import Pages
from ..base.settings import Switches
from ..base.terminal import plural, printable
from ..graph.value import Node
from ..transform.program import Program
from .bytecode import (
    GUARD_BYTES,
    Bytecode,
    Call,
    KernelNeeds,
    Place,
    call_of,
    disassemble,
    lower,
    records,
)
from .check import check
from .layout import Laid, lay_out
from .memory import Placement, Workspace, place
from .order import Order, linear_order

Needs = Callable[[Node, np.ndarray], KernelNeeds]


class Recomputed(NamedTuple):
    """What a program computes twice to need less memory: nodes, bytes of their outputs, and the predicted time of the
    clones as a share of that of the program without them."""

    nodes: int = 0
    bytes: int = 0
    overhead: float = 0.0

    def shown(self) -> str:
        """For the end of a line; empty where nothing is computed twice."""
        text = f"; {self.nodes} nodes computed twice, {show_bytes(self.bytes)}, {self.overhead:+.1%} time"
        return text if self.nodes else ""


NOT_RECOMPUTED = Recomputed()


@dataclass(frozen=True, repr=False)
class Plan(Pages):
    """A proved plan. `print(plan)` shows its steps, offsets and bytes; `plan.save("plan.html")` writes its memory map.
    budget: bytes that arena and scratch were permitted to have; None without a limit."""

    laid: Laid
    order: Order
    placement: Placement
    needs: tuple[KernelNeeds, ...]
    bytecode: Bytecode
    output_places: tuple[Place, ...]  # of each output
    threads: int
    device: str = ""  # which one of several devices that were given it runs on as a whole
    recomputed: Recomputed = NOT_RECOMPUTED
    budget: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of all threads' scratch: the memory of a run without parameters, inputs, constants."""
        return self.placement.arena_bytes + self.bytecode.scratch_bytes * self.threads

    @property
    def lower_bound_bytes(self) -> int:
        """The largest sum of bytes alive at one step: no placement of this order can need less."""
        return self.placement.lower_bound_bytes + self.bytecode.scratch_bytes * self.threads

    @property
    def unshared_bytes(self) -> int:
        """Bytes of the same program when no two buffers share bytes."""
        return self.placement.unshared_bytes + self.bytecode.scratch_bytes * self.threads

    @property
    def stored_bytes(self) -> int:
        """Bytes of parameters and optimiser state that the program touches."""
        return sum(s.bytes for s in self.bytecode.stored)

    def summary(self) -> str:
        ratio = self.peak_bytes / self.lower_bound_bytes if self.lower_bound_bytes else 1.0
        return (
            f"{plural(len(self.order.steps), 'step')}; peak {show_bytes(self.peak_bytes)}, lower bound "
            f"{show_bytes(self.lower_bound_bytes)} (x{ratio:.3f}), unshared {show_bytes(self.unshared_bytes)}; "
            f"{len(self.placement.inplace)} in place; parameters and state {show_bytes(self.stored_bytes)}"
            f"{self.recomputed.shown()}"
        )

    def __repr__(self) -> str:
        return f"Plan({self.summary()})"

    def _repr_html_(self) -> str:
        return html_details(f"Plan: {self.summary()}", str(self.bytecode))

    def __str__(self) -> str:
        return printable(f"{self.summary()}\n{disassemble(self.bytecode)}")


def make_plan(program: Program, needs_of: Needs, switches: Switches, piece: int = 0) -> Plan:
    """Plan and prove. `needs_of` is the backend's word on parts, scratch and workspace of one instruction; it decides
    by op, attributes and forms of the arguments, and is asked once for each combination of these. piece: bytes of each
    piece of the arena, 0 where it is one."""
    laid = lay_out(program)
    order = linear_order(laid)
    calls = [call_of(laid, node) for node in order.steps]
    needs = _needs(order, calls, needs_of)
    workspaces = [Workspace(i, n.workspace_bytes) for i, n in enumerate(needs) if n.workspace_bytes]
    guard = GUARD_BYTES if switches.check >= 2 else 0
    placement = place(laid, order, workspaces, reuse=switches.reuse, inplace=switches.inplace, guard=guard, piece=piece)
    bytecode, places = lower(laid, order, calls, needs, placement, guard)
    check(bytecode, laid.program, places, dict(zip(order.steps, needs, strict=True)))
    return Plan(
        laid, order, placement, needs, bytecode, tuple(places[v] for v in laid.program.outputs), switches.threads
    )


def _needs(order: Order, calls: Sequence[Call], needs_of: Needs) -> tuple[KernelNeeds, ...]:
    """The requirements of each instruction."""
    cached: dict[object, KernelNeeds] = {}
    needs = []
    for node, call in zip(order.steps, calls, strict=True):
        key = (node.op.name, *call.words, *call.forms)
        if key not in cached:
            cached[key] = needs_of(node, records(call.forms))
        needs.append(cached[key])
    return tuple(needs)
