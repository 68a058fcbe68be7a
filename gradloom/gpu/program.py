"""A proved plan as dispatches: the buffers, the tape and the list that the encoder walks.

plan                     here
segment settings         `fixed`, behind 64 bytes of status; constants and inputs follow in it
segment arena            the arena of the device, or the program's own
segment of an array      its place in a buffer of stored arrays (stored.py)
an instruction           the dispatches of its kernel's rule
a dispatch               pipeline, bind group (call, tape, fixed, up to 6 segments), offset of its call, workgroups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.dtypes import i32
from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import (
    ARENA,
    CONSTANTS,
    EACH_STEP,
    INPUTS,
    SEGMENT_NAMES,
    SETTING_BYTES,
    SETTINGS,
    Bytecode,
)
from ..plan.layout import dense_strides
from .calls import Arg, Call, Dispatch, args_of, groups_for
from .device import SEGMENTS, Gpu
from .kernels.all import KERNELS
from .source import CALL_BYTES, file
from .stored import Copies
from .tape import Tape

STATUS_BYTES = 64  # at the start of `fixed`
POISON, GUARD = 0xFFFFFFFF, 0xA5A5A5A5
MOST_GROUPS = 65535  # along one axis
FIRST_STORED = len(SEGMENT_NAMES)
Place = tuple[Any, int]  # the key of a buffer, bytes from its start


class Arena:
    """Memory that programs compute in; it grows when a program is loaded, and what lay in it is lost."""

    def __init__(self, device: Gpu) -> None:
        self.device, self.buffer, self.generation = device, None, 0

    @property
    def bytes(self) -> int:
        return 0 if self.buffer is None else int(self.buffer.size)

    def ensure(self, bytes: int) -> None:
        if bytes > self.bytes or self.buffer is None:
            made = self.device.buffer(bytes, "the arena of the program")
            if self.buffer is not None:
                self.device.drop(self.buffer)
            self.buffer, self.generation = made, self.generation + 1


@dataclass(frozen=True)
class Encoded:
    """A dispatch that is ready: the buffers of its bind group by their keys, `fixed` first."""

    pipeline: Any
    buffers: tuple[Any, ...]
    offset: int
    x: int
    y: int


class Layout:
    """Where the segments of a program lie on a device."""

    def __init__(self, bytecode: Bytecode, device: Gpu, copies: Copies) -> None:
        self.constants = _aligned(STATUS_BYTES + SETTING_BYTES * len(bytecode.settings))
        self.inputs = _aligned(self.constants + len(bytecode.constants))
        self.fixed_bytes = self.inputs + bytecode.inputs_bytes
        self.buffers: dict[Any, Any] = {}
        self._at: dict[int, Place] = {
            SETTINGS: ("fixed", STATUS_BYTES), CONSTANTS: ("fixed", self.constants), INPUTS: ("fixed", self.inputs),
            ARENA: ("arena", 0),
        }  # fmt: skip
        for i, copy in enumerate(copies.place(bytecode.stored)):
            self._at[FIRST_STORED + i] = id(copy.pool), copy.offset
            self.buffers[id(copy.pool)] = copy.pool.buffer

    def place(self, segment: int, offset: int) -> Place:
        """(key of the buffer, bytes from its start) of bytes of a segment."""
        key, base = self._at[segment]
        return key, base + offset


class Loader:
    """Makes the list of dispatches of a program."""

    def __init__(self, bytecode: Bytecode, device: Gpu, layout: Layout, switches: Switches) -> None:
        self.bytecode, self.device, self.layout, self.switches = bytecode, device, layout, switches
        self.tape = Tape()
        self.steps: list[list[Encoded]] = []  # of each instruction

    def run(self) -> list[list[Encoded]]:
        """The dispatches of each instruction; those of checks belong to the instruction before them."""
        bytecode = self.bytecode
        every = args_of(bytecode.args)
        first = self.checks_before()
        for i, row in enumerate(bytecode.instructions):
            node = bytecode.nodes[int(row["node"])]
            begin = int(row["arg_first"])
            call = Call(node, every[begin : begin + int(row["arg_count"])])
            kernel = KERNELS[bytecode.kernels[int(row["kernel"])]]
            made = [self.encoded(d, int(row["node"])) for d in kernel.rule(call)]
            made += self.checks_after(i, call, int(row["node"]))
            self.steps.append(first + made)
            first = []
        return self.steps if self.steps else [first]

    def encoded(self, dispatch: Dispatch, node: int) -> Encoded:
        """A dispatch on the tape, with its pipeline."""
        buffers, slots, places = ["fixed"], list[int | None](), list[tuple[int, int] | None]()
        for arg in dispatch.args:
            if not arg.present:
                slots.append(None)
                places.append(None)
                continue
            key, at = self.layout.place(arg.segment, arg.offset)
            if key not in buffers:
                buffers.append(key)
            slots.append(buffers.index(key))
            places.append((buffers.index(key), at))
        called = self.bytecode.nodes[node].label
        if len(buffers) - 1 > SEGMENTS:
            raise BackendError(
                f"gpu: {called} touches {len(buffers) - 1} buffers; a kernel takes {SEGMENTS} "
                "(max-storage-buffers-per-shader-stage); need device='cpu'"
            )
        kinds = [arg.dtype if slot is not None else None for arg, slot in zip(dispatch.args, slots, strict=True)]
        stateful = any(a.write and a.segment >= FIRST_STORED for a in dispatch.args if a.present)
        if stateful and not any("stopped()" in file(name) for name in dispatch.source):
            raise AssertionError(f"{dispatch.source}: {dispatch.entry} writes a stored array after the run has stopped")
        pipeline = self.device.pipeline(dispatch, slots, kinds)
        args = self.tape.arguments(dispatch.args, places)
        offset = self.tape.call(args, node, dispatch.groups, dispatch.words)
        y = -(-dispatch.groups // MOST_GROUPS)
        return Encoded(pipeline, tuple(buffers), offset, -(-dispatch.groups // y), y)

    # ---- what a checked run does between instructions --------------------------------------------------------

    def checks_before(self) -> list[Encoded]:
        """Guard bytes and poison at the start of each step."""
        made = []
        if self.switches.check >= 2:
            made += [self.filled(*guard, GUARD) for guard in self.bytecode.guards]
        return made + list(self.poisoned(EACH_STEP))

    def checks_after(self, i: int, call: Call, node: int) -> list[Encoded]:
        made = []
        if self.switches.check >= 2:
            scanned = [a for a in call.args if a.present and a.write and a.size and _is_float(a)]
            for arg in scanned:
                flat = Arg(arg.segment, arg.dtype, (arg.size,), (1,), arg.offset)
                made.append(self.encoded(Dispatch(("tree", "scan"), "scan", (flat,), 1), node))
            if i == len(self.bytecode.instructions) - 1:
                for segment, offset, bytes in self.bytecode.guards:
                    words = (GUARD, offset)
                    seen = _words(segment, offset, bytes)
                    made.append(self.encoded(Dispatch(("tree", "checks"), "intact", (seen,), 1, words), node))
        return made + list(self.poisoned(i))

    def poisoned(self, when: int) -> Iterator[Encoded]:
        """NaN over the bytes that are dead from an instruction on."""
        if self.switches.poison:
            for instruction, segment, offset, bytes in self.bytecode.dead:
                if instruction == when and bytes:
                    yield self.filled(segment, offset, bytes, POISON)

    def filled(self, segment: int, offset: int, bytes: int, pattern: int) -> Encoded:
        args = (_words(segment, offset, bytes),)
        node = next(iter(self.bytecode.nodes), 0)
        return self.encoded(Dispatch(("tree", "checks"), "fill", args, groups_for(args[0].size), (pattern,)), node)


def needs_of(node: Node, args: np.ndarray) -> tuple[int, int]:
    """(workgroups, bytes of workspace) of an instruction."""
    from ..plan.bytecode import signature  # as bytecode.lower names it

    kernel = KERNELS[node.op.name, signature(node)]
    call = Call(node, args_of(args))
    workspace = kernel.workspace(call)
    if workspace:
        call = Call(node, (*call.args, Arg(ARENA, i32, (workspace // 4,), (1,), 0, True)))
    return sum(d.groups for d in kernel.rule(call)), workspace


def bind_groups(
    device: Gpu, encoded: Sequence[Sequence[Encoded]], buffers: dict[Any, Any], calls: Any, tape: Any
) -> dict[tuple[Any, ...], Any]:
    """The bind group of each set of buffers that dispatches touch."""
    made: dict[tuple[Any, ...], Any] = {}
    for step in encoded:
        for one in step:
            if one.buffers in made:
                continue
            bound = [calls, tape, *[buffers[key] for key in one.buffers]]
            entries = [
                {"binding": i, "resource": {"buffer": b, "offset": 0, "size": CALL_BYTES if i == 0 else b.size}}
                for i, b in enumerate(bound)
            ]
            made[one.buffers] = device.raw.create_bind_group(
                layout=device.layout(len(one.buffers) - 1)[0], entries=entries
            )
    return made


def _aligned(bytes: int) -> int:
    return -(-bytes // 256) * 256


def _is_float(arg: Arg) -> bool:
    return arg.dtype is not None and arg.dtype.name in ("f32", "f16", "bf16")


def _words(segment: int, offset: int, bytes: int) -> Arg:
    """Bytes as i32: whole words inside of them."""
    start = -(-offset // 4) * 4
    count = (offset + bytes) // 4 - start // 4
    return Arg(segment, i32, (max(count, 0),), dense_strides((count,)), start, True)
