"""Capsule: programs with their inputs, stored arrays, settings and results, to run them again in another process.

    capsule.py         the record: programs, the arrays that they share, and their calls in order
    capsule_format.py  a capsule as a JSON object and arrays, and back
    replay.py          runs one, and compares
    reduce.py          the smallest program that still differs

A program is saved as it was built, before the passes: they depend on the instruction set, as do plan and bytecode.
These are saved to be compared and read, and never run: a capsule is planned and proved again where it is replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import BackendError, PlanError
from ..base.settings import Switches
from ..graph.leaves import stored_value
from ..graph.stored import Stored, arrays_locked
from ..graph.value import Node, Value
from ..plan.plan import Plan
from ..transform.program import Program, rebuild

Number = bool | int | float


@dataclass
class Outcome:
    """The results of a call.

    outputs   of the program: values, or None where only digests were saved; `digests` has the digest of each
    steps     a digest of each instruction's outputs, in the order in which they ran
    updated   index of a stored array -> digest after the call, of the arrays that the program writes
    error     message and instruction where the call failed; "" and -1
    not_finite  the first instruction with an output that is not finite; -1
    """

    outputs: list[np.ndarray | None] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    updated: dict[int, str] = field(default_factory=dict)
    error: str = ""
    failed: int = -1
    not_finite: int = -1


@dataclass
class Call:
    """One run of a program: its inputs (none, where only digests were saved), settings, and results."""

    program: int
    inputs: dict[str, np.ndarray]
    settings: dict[str, Number]
    outcome: Outcome


@dataclass
class Planned:
    """The plan of a program where the capsule was made: as text, its bytecode with a digest, and the proof's error."""

    text: str = ""
    digest: str = ""
    bytecode: dict[str, np.ndarray] = field(default_factory=dict)
    error: str = ""


@dataclass
class Capsule:
    """Programs, the arrays that they share, and their calls in order.

    switches  of gl.compile, with the instruction set that ran
    device    "cpu", "gpu", ...
    about     versions, machine, origin: plain values
    has_data  False: inputs, stored arrays and outputs are digests alone
    """

    programs: list[Program]
    stored: list[Stored]
    calls: list[Call]
    plans: list[Planned]
    switches: dict[str, Any]
    device: str = "cpu"
    about: dict[str, Any] = field(default_factory=dict)
    has_data: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of the stored arrays and inputs."""
        fed = sum(a.nbytes for call in self.calls for a in call.inputs.values())
        return fed + sum(s.bytes for s in self.stored)


def digest(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


# ---- building --------------------------------------------------------------------------------------------------------


def switches_of(chosen: Switches, isa: str) -> dict[str, Any]:
    """The switches that a capsule states: those that have an effect on bits or on the plan."""
    names = ("reuse", "inplace", "fuse", "poison", "flush", "precision", "check")
    return {name: getattr(chosen, name) for name in names} | {"isa": isa}


def planned(plan: Plan) -> Planned:
    """The plan of a program, as a capsule holds it."""
    code = plan.bytecode
    instructions = code.instructions.copy()
    instructions["node"] = 0  # numbers of this process
    arrays = {"instructions": instructions, "args": code.args, "attrs": code.attrs}
    found = hashlib.sha256(repr((code.kernels, code.arena_bytes, code.scratch_bytes, code.input_offsets)).encode())
    found.update(repr((code.settings, code.dead, code.guards, plan.output_places)).encode())
    for array in arrays.values():
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    flat = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in arrays.items()}
    return Planned(str(plan), found.hexdigest(), flat)


class Snapshot:
    """Programs with copies of the arrays that they write; frozen arrays are shared."""

    def __init__(self) -> None:
        self.stored: dict[Stored, Stored] = {}

    def of(self, program: Program) -> Program:
        """The program on the copies, which are taken now where there are none yet."""
        leaves = [node.attrs["stored"] for node in program.nodes if node.op.name == "parameter"]
        new = [one for one in dict.fromkeys(leaves) if one not in self.stored]
        with arrays_locked(new):
            self.stored.update((one, _copied(one)) for one in new)

        def replace(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
            if node.op.name != "parameter":
                return None
            made = stored_value(self.stored[node.attrs["stored"]])
            made.node.name, made.node.where = node.name, node.where
            return (made,)

        return rebuild(program, replace)


def _copied(stored: Stored) -> Stored:
    if stored.role == "frozen":
        return stored
    return Stored(stored.name, stored.read().copy(), stored.dtype, stored.role)


def source_of(run: Any) -> tuple[Program, Switches, str, str]:
    """(program before the passes, switches, device, instruction set) of a compiled program, or of the PlanError of one.
    BackendError for one of several devices, or of the references."""
    if isinstance(run, PlanError):
        found = run.program
        if found is None:
            raise BackendError("capsule: this error has no program; need the PlanError of gl.compile")
        program, chosen, device = found
        return program, chosen, device, chosen.isa or ""
    if not hasattr(run, "plan"):
        raise BackendError(f"capsule: run is {what_is(run)}; need what gl.compile returns, or its PlanError")
    if getattr(run, "source", None) is None:
        raise BackendError(
            "capsule: this program runs on the references or on several devices; need one that was compiled for "
            "device='cpu' or 'gpu'"
        )
    return run.source, run.switches, run.device_name, getattr(run, "isa", "")
