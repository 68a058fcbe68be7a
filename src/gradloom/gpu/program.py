"""A proved plan as dispatches: the buffers, the tape and the list that the encoder walks.

plan                     here
segment settings         `fixed`, behind 64 bytes of status; constants and inputs follow in it
segment arena            the arena of the device, or the program's own
segment of an array      its place in a memory of stored arrays (stored.py)
an instruction           the dispatches of its kernel's rule
a dispatch               pipeline, bind group (call, tape, fixed, the pieces that its arguments span), offset of its
                         call, workgroups
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.dtypes import i32
from ..base.errors import BackendError
from ..base.memory import show_bytes
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import (
    ARENA,
    CONSTANTS,
    EACH_STEP,
    INPUTS,
    NO_SEGMENT,
    SEGMENT_NAMES,
    SETTING_BYTES,
    SETTINGS,
    Bytecode,
)
from ..plan.layout import dense_strides
from .calls import Arg, Call, Dispatch, Limits, args_of, groups_for
from .device import OURS, Gpu
from .kernels.all import KERNELS
from .memory import Memory, parts
from .source import CALL_BYTES, Slots, file
from .stored import aligned
from .tape import Tape

STATUS_BYTES = 64  # at the start of `fixed`
LEAST_ARENA = 64  # bytes: of a program that needs none
POISON, GUARD = 0xFFFFFFFF, 0xA5A5A5A5
MOST_GROUPS = 65535  # along one axis
FIRST_STORED = len(SEGMENT_NAMES)
Place = tuple[Any, int]  # the key of a memory, bytes from its start
Piece = tuple[Any, int]  # the key of a memory, which of its pieces
FIXED_PIECE: Piece = ("fixed", 0)
GATHERED = NO_SEGMENT - 1  # a segment of a program here: copies of what a dispatch reads from too many pieces


class Arena:
    """Memory that programs compute in; it grows when a program is loaded, and what lay in it is lost."""

    def __init__(self, device: Gpu) -> None:
        self.device, self.generation = device, 0
        self.memory: Memory | None = None

    @property
    def bytes(self) -> int:
        return 0 if self.memory is None else self.memory.bytes

    def ensure(self, bytes: int) -> None:
        if self.memory is None:
            self.generation, self.memory = 1, Memory(self.device, bytes, "the arena of the program")
        elif bytes > self.bytes:
            self.generation += 1
            self.memory.grow(bytes)


@dataclass(frozen=True)
class Encoded:
    """A dispatch that is ready: the pieces of its bind group, the first one of `fixed` first."""

    pipeline: Any
    pieces: tuple[Piece, ...]
    offset: int
    x: int
    y: int


class Layout:
    """Where the segments of a program lie on a device. stored: the places of its stored arrays, in their order;
    memories: filled by who makes them."""

    def __init__(self, bytecode: Bytecode, stored: Sequence[Place]) -> None:
        self.constants = _aligned(STATUS_BYTES + SETTING_BYTES * len(bytecode.settings))
        self.inputs = _aligned(self.constants + len(bytecode.constants))
        self.fixed_bytes = self.inputs + bytecode.inputs_bytes
        self.memories: dict[Any, Memory] = {}
        self._at: dict[int, Place] = {
            SETTINGS: ("fixed", STATUS_BYTES), CONSTANTS: ("fixed", self.constants), INPUTS: ("fixed", self.inputs),
            ARENA: ("arena", 0), GATHERED: ("gathered", 0),
        }  # fmt: skip
        self.gathered_bytes = 0  # known when all instructions are encoded
        self._at |= {FIRST_STORED + i: place for i, place in enumerate(stored)}

    def place(self, segment: int, offset: int) -> Place:
        """(key of the memory, bytes from its start) of bytes of a segment."""
        key, base = self._at[segment]
        return key, base + offset


class Loader:
    """Makes the list of dispatches of a program. compiles: their pipelines, too; else only the tape and the bytes that
    are gathered are of use."""

    def __init__(
        self, bytecode: Bytecode, device: Gpu, layout: Layout, switches: Switches, compiles: bool = True
    ) -> None:
        self.bytecode, self.device, self.layout, self.switches = bytecode, device, layout, switches
        self.compiles = compiles
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
            call = Call(node, every[begin : begin + int(row["arg_count"])], self.device.workgroup)
            kernel = KERNELS[bytecode.kernels[int(row["kernel"])]]
            made = [one for d in kernel.rule(call) for one in self.encoded(d, int(row["node"]))]
            made += self.checks_after(i, call, int(row["node"]))
            self.steps.append(first + made)
            first = []
        return self.steps if self.steps else [first]

    def encoded(self, dispatch: Dispatch, node: int) -> list[Encoded]:
        """A dispatch on the tape, with its pipeline; before it the copies of arguments in too many pieces."""
        pieces, slots, places = [FIXED_PIECE], list[Slots](), list[tuple[int, int] | None]()
        for arg in dispatch.args:
            spanned, begin = self.spanned(arg)
            pieces += [piece for piece in spanned if piece not in pieces]
            slots.append(tuple(pieces.index(piece) for piece in spanned))
            places.append((slots[-1][0], begin) if spanned else None)
        if len(pieces) - 1 > self.device.segments:
            copies, dispatch = self.gathered(dispatch, node)
            return [one for copy in (*copies, dispatch) for one in self.encoded(copy, node)]
        if self.device.rounds is not None and dispatch.rounds > self.device.rounds:
            called, most = self.bytecode.nodes[node].label, f"{self.device.rounds:,}"
            raise BackendError(
                f"gpu: {called}: the loops of its kernel make up to {dispatch.rounds:,} rounds, and {self.device.name} "
                f"ends them after {most}, without a word; need fewer tokens, or device='cpu'"
            )
        kinds = [arg.dtype if spanned else None for arg, spanned in zip(dispatch.args, slots, strict=True)]
        stateful = any(a.write and FIRST_STORED <= a.segment < GATHERED for a in dispatch.args)
        if stateful and not any("stopped()" in file(name) for name in dispatch.source):
            raise AssertionError(f"{dispatch.source}: {dispatch.entry} writes a stored array after the run has stopped")
        pipeline = self.device.pipeline(dispatch, slots, kinds) if self.compiles else None
        args = self.tape.arguments(dispatch.args, places)
        offset = self.tape.call(args, node, dispatch.groups, dispatch.words)
        y = -(-dispatch.groups // MOST_GROUPS)
        return [Encoded(pipeline, tuple(pieces), offset, -(-dispatch.groups // y), y)]

    def gathered(self, dispatch: Dispatch, node: int) -> tuple[list[Dispatch], Dispatch]:
        """(copies, the dispatch): read-only arguments are copied side by side, the smallest first, until the dispatch
        touches no more pieces than a kernel may. BackendError if it still does."""
        args, copies, end = list(dispatch.args), list[Dispatch](), 0
        read = [k for k, arg in enumerate(args) if not arg.write and self.spanned(arg)[0] not in ([], [FIXED_PIECE])]
        if any(arg.segment == GATHERED for arg in args):  # such a copy itself
            read = []
        for k in sorted(read, key=lambda k: args[k].end - args[k].offset):
            arg, start = args[k], args[k].offset // 4 * 4
            words = -(-(arg.end - start) // 4)
            copied = Arg(GATHERED, i32, (words,), (1,), end, end + 4 * words, True)
            source = Arg(arg.segment, i32, (words,), (1,), start, start + 4 * words)
            copies.append(Dispatch(("copy_words",), "copy_words", (source, copied), groups_for(words)))
            args[k] = replace(arg, segment=GATHERED, offset=end + arg.offset - start, end=end + arg.end - start)
            end = aligned(end + 4 * words)
            touched = {piece for one in args for piece in self.spanned(one)[0]} - {FIXED_PIECE}
            if len(touched) <= self.device.segments:
                self.layout.gathered_bytes = max(self.layout.gathered_bytes, end)
                return copies, replace(dispatch, args=tuple(args))
        raise self.too_many(dispatch, node)

    def spanned(self, arg: Arg) -> tuple[list[Piece], int]:
        """(the pieces that an argument may touch, bytes from the start of the first one to its first element)."""
        if not arg.present:
            return [], 0
        key, at = self.layout.place(arg.segment, arg.offset)
        size = self.device.binding_bytes
        last = max(at + arg.end - arg.offset - 1, 0) // size
        first = min(at // size, last)
        return [(key, i) for i in range(first, last + 1)], at - first * size

    def too_many(self, dispatch: Dispatch, node: int) -> BackendError:
        """The error for a dispatch that touches more pieces than a kernel may."""
        device, called = self.device, self.bytecode.nodes[node].label
        known = [arg for arg in dispatch.args if arg.present and arg.segment != GATHERED]
        longest = max(known, key=lambda arg: (len(self.spanned(arg)[0]), arg.segment))
        bytes, name = longest.end - longest.offset, self.bytecode.segment_name(longest.segment)
        what = f"the array {name}" if longest.segment >= FIRST_STORED else f"a value in the {name}"
        return BackendError(
            f"gpu: {called} touches too many buffers, {what} alone is {show_bytes(bytes)}; {device.name} takes "
            f"{device.segments} in a kernel (max-storage-buffers-per-shader-stage, less {OURS}) of "
            f"{show_bytes(device.binding_bytes)} each (max-storage-buffer-binding-size); need smaller arrays or "
            "batches, or device='cpu'"
        )

    # ---- what a checked run does between instructions --------------------------------------------------------

    def checks_before(self) -> list[Encoded]:
        """Guard bytes and poison at the start of each step."""
        made = []
        if self.switches.check >= 2:
            made += [one for guard in self.bytecode.guards for one in self.filled(*guard, GUARD)]
        return made + list(self.poisoned(EACH_STEP))

    def checks_after(self, i: int, call: Call, node: int) -> list[Encoded]:
        made = []
        if self.switches.check >= 2:
            scanned = [a for a in call.args if a.present and a.write and a.size and _is_float(a)]
            for arg in scanned:
                flat = Arg(arg.segment, arg.dtype, (arg.size,), (1,), arg.offset, arg.end)
                made += self.encoded(Dispatch(("tree", "scan"), "scan", (flat,), 1), node)
            if i == len(self.bytecode.instructions) - 1:
                for segment, offset, bytes in self.bytecode.guards:
                    words = (GUARD, offset)
                    seen = _words(segment, offset, bytes)
                    made += self.encoded(Dispatch(("tree", "checks"), "intact", (seen,), 1, words), node)
        return made + list(self.poisoned(i))

    def poisoned(self, when: int) -> Iterator[Encoded]:
        """NaN over the bytes that are dead from an instruction on."""
        if self.switches.poison:
            for instruction, segment, offset, bytes in self.bytecode.dead:
                if instruction == when and bytes:
                    yield from self.filled(segment, offset, bytes, POISON)

    def filled(self, segment: int, offset: int, bytes: int, pattern: int) -> Iterator[Encoded]:
        """A dispatch for each piece of the range."""
        node = next(iter(self.bytecode.nodes), 0)
        for _, _, at, length in parts(offset, bytes, self.device.binding_bytes):
            args = (_words(segment, offset + at, length),)
            filled = Dispatch(("tree", "checks"), "fill", args, groups_for(args[0].size), (pattern,))
            yield from self.encoded(filled, node)


def needs_of(node: Node, args: np.ndarray, limits: Limits) -> tuple[int, int]:
    """(workgroups, bytes of workspace) of an instruction on a device of these limits."""
    from ..plan.bytecode import signature  # as bytecode.lower names it

    kernel = KERNELS[node.op.name, signature(node)]
    call = Call(node, args_of(args), limits)
    workspace = int(kernel.workspace(call))
    if workspace:
        call = replace(call, args=(*call.args, Arg(ARENA, i32, (workspace // 4,), (1,), 0, workspace, True)))
    return sum(d.groups for d in kernel.rule(call)), workspace


def bind_groups(
    device: Gpu, encoded: Sequence[Sequence[Encoded]], memories: Mapping[Any, Memory], calls: Any, tape: Any
) -> dict[tuple[Piece, ...], Any]:
    """The bind group of each list of pieces that dispatches touch."""
    made: dict[tuple[Piece, ...], Any] = {}
    for step in encoded:
        for one in step:
            if one.pieces in made:
                continue
            bound = [calls, tape, *[memories[key].pieces[i] for key, i in one.pieces]]
            entries = [
                {"binding": i, "resource": {"buffer": b, "offset": 0, "size": CALL_BYTES if i == 0 else b.size}}
                for i, b in enumerate(bound)
            ]
            made[one.pieces] = device.raw.create_bind_group(
                layout=device.layout(len(one.pieces) - 1)[0], entries=entries
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
    return Arg(segment, i32, (max(count, 0),), dense_strides((count,)), start, start + 4 * max(count, 0), True)
