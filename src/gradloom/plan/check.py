"""The proof: replays the bytecode over an interval map "byte range -> value that wrote it".

It shares no code with what placed the buffers or chose the order. It knows the graph, reads the bytecode, and demands:
every instruction runs the kernel of its node, with its attributes, in the parts and with the workspace that the
backend asked for; every read finds exactly the value that the graph names, at the place inside that value
given by the graph's views, in a layout that the op takes; every write is dense, stays in the arena or in the
storage that an update op declares, and overwrites an input of its own instruction only where the op allows it; updates
come after the guard; outputs, updates, untouched parameters, inputs and guard bytes are there at the end. One replay
catches overlap, wrong order, illegal in-place, stale views, early reuse and lost writes.

NumPy computes the offset of a view: the op's reference is applied to an array that is never read.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import PlanError, ShapeError
from ..graph.declaration import Declaration, Slot
from ..graph.graph import reachable
from ..graph.value import Node, Value
from ..transform.program import Program
from .bytecode import (
    ARENA,
    ARG_WRITE,
    CONSTANTS,
    EACH_STEP,
    INPUTS,
    INSTRUCTION_GUARD,
    NO_SEGMENT,
    NODE_MASK,
    SEGMENT_NAMES,
    SETTING_BYTES,
    SETTINGS,
    Bytecode,
    KernelNeeds,
    Place,
)

Written = dict[int, list[tuple[int, int, object]]]  # segment -> (start, end, what) that one instruction writes
View = tuple[Value, int, tuple[int, ...]]  # base value, offset and strides in elements
# By dtype code: elements of a block and its bytes, as csrc/bytecode.h has them.
BLOCKS = {
    1: (1, 4), 2: (1, 2), 3: (1, 2), 4: (1, 8), 5: (1, 1), 6: (1, 1), 7: (1, 4), 8: (1, 8),
    16: (32, 18), 17: (32, 20), 18: (32, 22), 19: (32, 24), 20: (32, 34),
    21: (256, 84), 22: (256, 110), 23: (256, 144), 24: (256, 176), 25: (256, 210),
}  # fmt: skip
CACHE_LINE = 64


class _Intervals:
    """For each segment, disjoint [start, end) ranges and the value that wrote each."""

    def __init__(self) -> None:
        self.starts: dict[int, list[int]] = defaultdict(list)
        self.ranges: dict[int, list[tuple[int, int, object]]] = defaultdict(list)

    def write(self, segment: int, start: int, end: int, owner: object) -> None:
        """[start, end) now holds owner; overlapping entries lose these bytes."""
        if start == end:
            return
        starts, ranges = self.starts[segment], self.ranges[segment]
        first = max(bisect_right(starts, start) - 1, 0)
        if first < len(ranges) and ranges[first][:2] == (start, end):
            ranges[first] = (start, end, owner)
            return
        if first < len(ranges) and ranges[first][1] <= start:
            first += 1
        last = bisect_left(starts, end)
        put = [(start, end, owner)]
        if first < last:
            old_start, _, old = ranges[first]
            if old_start < start:
                put.insert(0, (old_start, start, _Torn(old, owner)))
            _, old_end, old = ranges[last - 1]
            if old_end > end:
                put.append((end, old_end, _Torn(old, owner)))
        ranges[first:last] = put
        starts[first:last] = [r[0] for r in put]

    def at(self, segment: int, position: int) -> tuple[int, int, object] | None:
        i = bisect_right(self.starts[segment], position) - 1
        if i >= 0:
            held = self.ranges[segment][i]
            if position < held[1]:
                return held
        return None

    def within(self, segment: int, start: int, end: int) -> list[tuple[int, int, object]]:
        """The ranges that meet [start, end)."""
        starts = self.starts[segment]
        first = max(bisect_right(starts, start) - 1, 0)
        return [r for r in self.ranges[segment][first : bisect_left(starts, end)] if r[1] > start]


class _Torn:
    """The rest of a value after part of its bytes were overwritten by another."""

    def __init__(self, value: object, by: object) -> None:
        self.value: object = value.value if isinstance(value, _Torn) else value
        self.by = by


class _Dead:
    """Bytes that the plan frees, and the value that they held."""

    def __init__(self, held: object) -> None:
        self.held = held


def _name(owner: object) -> str:
    if owner is None:
        return "bytes that nothing wrote"
    if isinstance(owner, _Torn):
        return f"what {_name(owner.by)} left of {_name(owner.value)}"
    if isinstance(owner, _Dead):
        return "dead bytes" + ("" if owner.held is None else f" of {_name(owner.held)}")
    if isinstance(owner, Value):
        return _called(owner.node)
    return str(owner)


def _called(node: Node) -> str:
    """How the proof calls a node: by its id as well, for several nodes may stand under one name on one line."""
    return f"{node.op.name}#{node.id}{f' {node.name}' if node.name else ''} at {node.where}"


# Actions of an instruction or the caller, for messages; built only when one is raised.


def _reads(node: Node, name: str, value: Value) -> str:
    return f"{_called(node)} reads {name}, {_name(value)}"


def _writes(node: Node, name: str) -> str:
    return f"{_called(node)} writes {name}"


def _workspace(node: Node) -> str:
    return f"the workspace of {_called(node)}"


def _caller_reads(value: Value) -> str:
    return f"the caller reads {_name(value)}"


def _must_last(value: Value) -> str:
    return f"{_name(value)} must last until the end"


# ---- views -----------------------------------------------------------------------------------------------


class _Views:
    """Where values lie inside their bases: references of view ops applied to bytes that are reserved, never touched."""

    def __init__(self) -> None:
        self.memo: dict[Value, View] = {}
        self.places: dict[Any, tuple[int, tuple[int, ...]]] = {}  # of equal chains of views over equal shapes
        self.reserved: Any = b""

    def __call__(self, value: Value) -> View:
        view = self.memo.get(value)
        if view is None:
            view = self.memo[value] = self.place(value)
        return view

    def place(self, value: Value) -> View:
        if value.node.op.view is None:
            return value, 0, _row_major(value.shape)
        chain = [value]
        while chain[-1].node.op.view is not None:
            source = chain[-1].node.inputs[0]
            assert source is not None
            chain.append(source)
        base = chain.pop()
        if not value.size:
            return base, 0, _row_major(value.shape)
        key = (base.shape, *[(v.node.op.name, v.shape, *map(repr, v.node.attrs.values())) for v in chain])
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = self.viewed(base, chain)
        return base, *place

    def viewed(self, base: Value, chain: Sequence[Value]) -> tuple[int, tuple[int, ...]]:
        """(offset, strides) of the first of a chain of views; base: the value that the last of them views."""
        whole = array = np.frombuffer(self.reserve(base.size), np.uint8, base.size).reshape(base.shape)
        for value in reversed(chain):
            node = value.node
            array = node.op.call("reference", dict(node.attrs) | {node.op.inputs[0].name: array})
            if array.shape != value.shape:
                raise PlanError(f"proof: {_called(node)} views {array.shape} where the graph states {value.shape}")
        if not np.may_share_memory(array, whole):
            raise PlanError(f"proof: {_name(chain[0])} is laid out as a view, but no view of {_name(base)} exists")
        return _address(array) - _address(whole), array.strides

    def reserve(self, size: int) -> Any:
        """A byte for each element: address space only. ShapeError where it is too small."""
        if len(self.reserved) < size:
            flags = {}
            if hasattr(mmap, "MAP_PRIVATE"):
                lazy = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux' number; Python < 3.13 does not name it
                flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazy}
            try:
                self.reserved = mmap.mmap(-1, size, **flags)
            except (OSError, ValueError, OverflowError):
                raise ShapeError(
                    f"plan: a value of {size} elements is more than this machine has addresses for; need smaller shapes"
                ) from None
        return self.reserved


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@lru_cache(maxsize=4096)
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return _same_steps(shape, strides, _row_major(shape))


def _same_steps(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Equal strides along all axes but those of one element."""
    return all(n == 1 or s == other for n, s, other in zip(shape, strides, others, strict=True))


def _reached(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements lie from the first one to the last one; -1 for negative extents or strides."""
    if 0 in shape:
        return 0
    if any(s < 0 for s in strides) or any(n < 0 for n in shape):
        return -1
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@lru_cache(maxsize=4096)
def _is_unit(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Can a kernel take the last two axes: one of them has a stride of 1, none repeats?"""
    last = list(zip(shape, strides, strict=True))
    return any(s == 1 or n == 1 for n, s in last) and not any(s == 0 and n > 1 for n, s in last)


def _whole_blocks(shape: Sequence[int], strides: Sequence[int], offset: int, block: int) -> bool:
    """Is a view of blocks of neighbours made of whole blocks? Every index along all axes but one starts a block."""
    walks = [n for n, s in zip(shape, strides, strict=True) if s == 1 and n > 1]
    jumps = [s for n, s in zip(shape, strides, strict=True) if s != 1 and n > 1]
    return len(walks) == 1 and walks[0] % block == 0 and not any(s % block for s in (*jumps, offset))


# ---- the bytecode, decoded -----------------------------------------------------------------------------------


class _Arg(NamedTuple):
    segment: int
    dtype: int
    writes: bool
    offset: int
    bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    reached: int  # elements, from the first one to the last one
    row_major: bool


class _Read(NamedTuple):
    """Bytes that an instruction reads."""

    start: int
    end: int
    name: str
    value: Value
    row_major: bool


def _decode(args: np.ndarray) -> list[_Arg]:
    """The rows of the argument array. Fields that follow from rank, shape and strides are computed once for equal
    rows."""
    columns = [args[name].tolist() for name in ("segment", "dtype", "flags", "offset", "bytes", "rank")]
    shapes, strides, raw, size = args["shape"], args["strides"], args.tobytes(), args.dtype.itemsize
    start = size - shapes.itemsize * shapes.shape[1] - strides.itemsize * strides.shape[1]  # they are the end of a row
    forms: dict[tuple[int, bytes], tuple[tuple[int, ...], tuple[int, ...], int, bool]] = {}
    decoded = []
    for i, (segment, kind, flags, offset, length, rank) in enumerate(zip(*columns, strict=True)):
        key = (rank, raw[i * size + start : (i + 1) * size])
        form = forms.get(key)
        if form is None:
            shape, steps = tuple(shapes[i].tolist()[:rank]), tuple(strides[i].tolist()[:rank])
            form = forms[key] = (shape, steps, _reached(shape, steps), _is_row_major(shape, steps))
        decoded.append(_Arg(segment, kind, flags & ARG_WRITE != 0, offset, length, *form))
    return decoded


@lru_cache(maxsize=4096)
def _slots(op: Declaration, inputs: int, outputs: int) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The declarations of the inputs and outputs of an op."""
    return tuple(op.slot(op.inputs, i) for i in range(inputs)), tuple(op.slot(op.outputs, i) for i in range(outputs))


def _expected_words(node: Node) -> list[int]:
    """The attribute words that csrc/bytecode.h describes for a node."""
    attrs = [attr for attr in node.op.attrs if attr.kind != "object"]
    while attrs and node.attrs[attrs[-1].name] is None:
        attrs.pop()
    words: list[int] = []
    for attr in attrs:
        value = node.attrs[attr.name]
        if value is None:
            words.append(-(2**63))
        elif attr.kind == "ints":
            words.append(len(value))
            words.extend(value)
        elif attr.kind == "float":
            words.append(int(np.float64(value).view(np.int64)))
        elif attr.kind == "dtype":
            words.append(value.code)
        elif attr.choices:
            words.append(attr.choices.index(value))
        else:
            words.append(int(value))
    return words


def _expected_signature(node: Node) -> str:
    """dtypes of the inputs that are present and of the outputs, each run of equal ones once."""
    merged, last = [], None
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not last:
            last = value.dtype
            merged.append(last.name)
    return "_".join(merged)


def check(
    bytecode: Bytecode, program: Program, places: Mapping[Value, Place], needs: Mapping[Node, KernelNeeds] | None = None
) -> None:
    """Prove the bytecode of a program, or raise PlanError naming both nodes.

    program: the nodes that the bytecode must compute; constants are stored in their order. places: where the caller
    reads each output. needs: the backend's requirements for each node."""
    _Checker(bytecode, program, places, needs or {}).run()


class _Checker:
    def __init__(
        self, bytecode: Bytecode, program: Program, places: Mapping[Value, Place], needs: Mapping[Node, KernelNeeds]
    ) -> None:
        self.bytecode, self.places, self.needs = bytecode, places, needs
        self.outputs, self.effects = program.outputs, program.effects
        self.nodes: dict[int, Node] = {n.id & NODE_MASK: n for n in program.nodes}
        self.args = _decode(bytecode.args)
        self.words = bytecode.attrs.tolist()
        self.segment_bytes = bytecode.segment_bytes
        self.map = _Intervals()
        self.views = _Views()
        self.done: set[Node] = set()
        self.guards_left = {n for n in self.nodes.values() if n.op.guard or n.op.python}
        self.read = self.values_read()
        self.homes: dict[Value, Place] = {}
        self.last_update: dict[Place, Value] = {}  # storage -> the update that wrote it last
        self.dead: dict[int, list[tuple[int, int, int]]] = {}
        for instruction, *rest in bytecode.dead:
            self.dead.setdefault(instruction, []).append((rest[0], rest[1], rest[2]))

    def values_read(self) -> set[Value]:
        read = set(self.outputs)
        for node in self.nodes.values():
            read.update(v for v in node.inputs if v is not None)
        return read | {self.views(v)[0] for v in read if v.node.op.view is not None}

    def run(self) -> None:
        if set(self.nodes.values()) != set(reachable((*self.outputs, *self.effects))):
            raise PlanError("proof: the program's nodes are not those that its outputs and effects need")
        self.check_leaves()
        for segment, offset, size in self.bytecode.guards:
            if segment != ARENA or not 0 <= offset <= offset + size <= self.segment_bytes[ARENA]:
                raise PlanError(f"proof: guard bytes at {offset} of segment {segment} lie outside the arena")
            self.map.write(segment, offset, offset + size, "guard bytes")
        self.bury(EACH_STEP)
        for i, ins in enumerate(self.bytecode.instructions.tolist()):
            self.instruction(*ins)
            self.bury(i)
        if self.dead:
            raise PlanError(f"proof: bytes are dead after instruction {min(self.dead)}, which does not exist")
        self.check_end()

    def bury(self, instruction: int) -> None:
        """Freed ranges are invalidated, as a poisoned run does: nothing may read them again."""
        for segment, offset, size in self.dead.pop(instruction, ()):
            if segment != ARENA or not 0 <= offset <= offset + size <= self.segment_bytes[ARENA]:
                raise PlanError(
                    f"proof: dead bytes at {offset} of {self.bytecode.segment_name(segment)} lie outside the arena"
                )
            held = self.map.at(segment, offset)
            self.map.write(segment, offset, offset + size, _Dead(None if held is None else held[2]))

    def check_end(self) -> None:
        for node in self.nodes.values():
            if not node.op.leaf and node.op.view is None and node not in self.done:
                raise PlanError(f"proof: {_called(node)} never runs, and {self.readers(node)} it")
        for value in self.outputs:
            base, offset, strides = self.views(value)
            segment, start = self.places[value]
            if not _is_row_major(value.shape, strides):
                raise PlanError(
                    f"proof: the caller reads {_name(value)} inside {_name(base)} with strides {list(strides)}"
                )
            if value.size:
                start -= offset * value.dtype.bytes // value.dtype.block
                self.expect(base, segment, start, partial(_caller_reads, value))
        for value in self.effects:
            place = self.home(value)
            if place not in self.last_update:
                raise PlanError(
                    f"proof: the update {_name(value)} of {self.bytecode.segment_name(place[0])} is never written"
                )
        for leaf, place in self.homes.items():
            kept = self.last_update.get(place, leaf)
            self.expect(kept, *place, partial(_must_last, kept))
        for segment, offset, size in self.bytecode.guards:
            for _, _, owner in self.map.within(segment, offset, offset + size):
                if owner != "guard bytes" and not (isinstance(owner, _Torn) and owner.value == "guard bytes"):
                    raise PlanError(
                        f"proof: {_name(owner)} lies on guard bytes at {self.bytecode.segment_name(segment)}+{offset}"
                    )

    def readers(self, node: Node) -> str:
        """Who needs a node, for messages."""
        for other in self.nodes.values():
            if any(v is not None and self.views(v)[0].node is node for v in other.inputs if other.op.view is None):
                return f"{_called(other)} reads"
        return "the caller wants"

    # ---- leaves --------------------------------------------------------------------------------------

    def check_leaves(self) -> None:
        at = 0
        stored = {id(s): (len(SEGMENT_NAMES) + i, 0) for i, s in enumerate(self.bytecode.stored)}
        for node in self.nodes.values():
            if not node.op.leaf:
                continue
            value, name = node.outputs[0], node.op.name
            if name == "constant":
                data = node.attrs["data"].tobytes()
                if self.bytecode.constants[at : at + len(data)] != data:
                    raise PlanError(
                        f"proof: the bytecode's constants do not hold {_name(value)}, which {self.readers(node)}"
                    )
                place = (CONSTANTS, at)
                at += -(-len(data) // CACHE_LINE) * CACHE_LINE
            elif name == "input":
                place = (INPUTS, self.bytecode.input_offsets.get(node.attrs["key"], -1))
            elif name == "setting":
                place = (SETTINGS, SETTING_BYTES * self.bytecode.settings.get(node.attrs["key"], -1))
            else:
                place = stored.get(id(node.attrs["stored"]), (ARENA, -1))
            segment, offset = self.homes[value] = place
            if offset < 0 or offset + value.bytes > self.segment_bytes[segment]:
                raise PlanError(
                    f"proof: {_name(value)}, which {self.readers(node)}, "
                    f"has no place in {self.bytecode.segment_name(segment)}"
                )
            for _, _, owner in self.map.within(segment, offset, offset + value.bytes):
                if not _same_leaf(owner, value):
                    raise PlanError(f"proof: {_name(value)} and {_name(owner)} lie on the same bytes")
            self.map.write(segment, offset, offset + value.bytes, value)

    def home(self, value: Value) -> Place:
        """The storage that an update's output lives in."""
        return self.homes[_home_leaf(value)]

    # ---- instructions --------------------------------------------------------------------------------

    def instruction(
        self, kernel: int, node_id: int, arg_first: int, arg_count: int, attr_first: int, attr_count: int,
        flags: int, phases: int, parts: Sequence[int],
    ) -> None:  # fmt: skip
        node = self.nodes.get(node_id)
        if node is None or node.op.leaf or node.op.view is not None:
            raise PlanError(f"proof: an instruction runs node {node_id}, which the graph does not need")
        op = node.op
        run, signature = self.bytecode.kernels[kernel] if kernel < len(self.bytecode.kernels) else ("nothing", "")
        if node in self.done:
            raise PlanError(f"proof: {_called(node)} runs twice")
        if (run, signature) != (op.name, _expected_signature(node)):
            raise PlanError(
                f"proof: {_called(node)} runs the kernel {run} {signature}; need {op.name} {_expected_signature(node)}"
            )
        words = self.words[attr_first : attr_first + attr_count]
        if words != _expected_words(node):
            raise PlanError(f"proof: {_called(node)} gets attributes {words}; need {_expected_words(node)}")
        if bool(flags & INSTRUCTION_GUARD) != op.guard:
            raise PlanError(f"proof: {_called(node)} is marked as a guard and is none, or the other way round")
        args = self.args[arg_first : arg_first + arg_count]
        declared = len(node.inputs) + len(node.outputs)
        needs = self.needs.get(node)
        if needs is not None:
            if tuple(parts[:phases]) != needs.parts:
                raise PlanError(
                    f"proof: {_called(node)} runs in parts {tuple(parts[:phases])}; its kernel wants {needs.parts}"
                )
            if needs.scratch_bytes > self.bytecode.scratch_bytes:
                raise PlanError(
                    f"proof: {_called(node)} wants {needs.scratch_bytes} bytes of scratch; "
                    f"there are {self.bytecode.scratch_bytes}"
                )
            given = sum([a.bytes for a in args[declared:]])
            if given < needs.workspace_bytes:
                raise PlanError(
                    f"proof: {_called(node)} wants a workspace of {needs.workspace_bytes} bytes; it gets {given}"
                )
        if len(args) - declared not in (0, 1):
            raise PlanError(
                f"proof: {_called(node)} has {len(args)} arguments; need {declared} and perhaps a workspace"
            )
        self.done.add(node)
        inputs, outputs = args[: len(node.inputs)], args[len(node.inputs) : declared]
        input_slots, output_slots = _slots(op, len(inputs), len(outputs))
        reads: dict[int, list[_Read]] = {}
        for slot, value, arg in zip(input_slots, node.inputs, inputs, strict=True):
            read = self.check_read(node, slot.name, value, arg)
            if read is not None:
                reads.setdefault(arg.segment, []).append(read)
        for before in node.after:
            made = self.views(before.outputs[0])[0].node
            if not made.op.leaf and made not in self.done:
                raise PlanError(f"proof: {_called(node)} runs before {_called(before)}, which it must follow")
        written: Written = {}
        for slot, value, arg in zip(output_slots, node.outputs, outputs, strict=True):
            self.check_write(node, slot, value, arg, reads, written)
        for arg in args[declared:]:
            self.check_workspace(node, arg, reads, written)
        for segment, ranges in written.items():
            for start, end, owner in ranges:
                self.map.write(segment, start, end, owner)
        self.guards_left.discard(node)

    def extent(self, arg: _Arg, who: Callable[[], str]) -> tuple[int, int, int]:
        """(segment, first byte, end) that an argument may touch, recomputed from shape and strides."""
        segment, offset = arg.segment, arg.offset
        if segment >= len(self.segment_bytes):
            raise PlanError(f"proof: {who()} lies in segment {segment}; there are {len(self.segment_bytes)}")
        elements = arg.reached
        if elements < 0:
            raise PlanError(f"proof: {who()} has negative strides {list(arg.strides)} or extents")
        touched = 0
        if elements:
            block, size = BLOCKS[arg.dtype]
            if elements % block:
                raise PlanError(f"proof: {who()} ends inside a block: {elements} elements in blocks of {block}")
            touched = elements // block * size
        if touched != arg.bytes or offset + touched > self.segment_bytes[segment]:
            held = self.map.at(segment, offset)
            raise PlanError(
                f"proof: {who()}, {touched} bytes at {self.bytecode.segment_name(segment)}+{offset}, states {arg.bytes}"
                f"; the segment holds {self.segment_bytes[segment]}, there {_name(None if held is None else held[2])}"
            )
        return segment, offset, offset + touched

    def check_read(self, node: Node, name: str, value: Value | None, arg: _Arg) -> _Read | None:
        if value is None:
            if arg.segment != NO_SEGMENT or arg.dtype:
                raise PlanError(f"proof: {_called(node)} reads {name}, which the graph does not give it")
            return None
        reads = partial(_reads, node, name, value)
        if arg.segment == NO_SEGMENT:
            raise PlanError(f"proof: {reads()}, which the bytecode does not give it")
        if arg.writes:
            raise PlanError(f"proof: {reads()}, but the bytecode marks it as written")
        self.check_form(reads, value, arg)
        if 0 in value.shape:
            return None
        base, offset, strides = self.views(value)
        if arg.strides != strides and not _same_steps(arg.shape, arg.strides, strides):
            raise PlanError(
                f"proof: {reads()} with strides {list(arg.strides)}; need {list(strides)} inside {_name(base)}"
            )
        if not arg.row_major and name in node.op.dense:
            raise PlanError(f"proof: {reads()} with gaps (strides {list(arg.strides)}); its kernel takes none")
        if name in node.op.unit and not _is_unit(arg.shape[-2:], arg.strides[-2:]):
            raise PlanError(
                f"proof: {reads()} with strides {list(arg.strides)}; its kernel takes a matrix with a stride of 1"
            )
        block, size = BLOCKS[arg.dtype]
        if block > 1 and not _whole_blocks(arg.shape, arg.strides, offset, block):
            raise PlanError(
                f"proof: {reads()} from element {offset} with strides {list(arg.strides)}, which cuts blocks of {block}"
            )
        segment, start, end = self.extent(arg, reads)
        self.expect(base, segment, start - offset // block * size, reads)
        return _Read(start, end, name, value, arg.row_major)

    def expect(self, base: Value, segment: int, start: int, who: Callable[[], str]) -> None:
        """The bytes from start on must hold exactly `base`."""
        size = base.bytes
        if not size:
            return
        held = self.map.at(segment, start)
        if held is None or held[0] != start or held[1] != start + size or not _same_leaf(held[2], base):
            seen, name = _name(None if held is None else held[2]), self.bytecode.segment_name(segment)
            raise PlanError(f"proof: {who()}, but finds {seen} at {name}+{start}; need {_name(base)}")

    def check_form(self, who: Callable[[], str], value: Value, arg: _Arg) -> None:
        if arg.shape != value.shape or arg.dtype != value.dtype.code:
            raise PlanError(
                f"proof: {who()} as shape {list(arg.shape)}, dtype code {arg.dtype}; the graph has {value!r}"
            )

    def check_write(
        self, node: Node, slot: Slot, value: Value, arg: _Arg, reads: Mapping[int, Sequence[_Read]], written: Written
    ) -> None:
        op = node.op
        who = partial(_writes, node, slot.name)
        if not arg.writes:
            raise PlanError(f"proof: {who()}, but the bytecode does not mark it as written")
        self.check_form(who, value, arg)
        updated = slot.name in op.updates
        if arg.segment == NO_SEGMENT:
            if value in self.read or not (_updated_input(value) is None if updated else slot.optional):
                raise PlanError(f"proof: {_called(node)} does not write {slot.name}, which {self.readers(node)}")
            return
        if 0 in value.shape:
            return
        segment, start, end = self.extent(arg, who)
        if not arg.row_major:
            raise PlanError(f"proof: {who()} with gaps (strides {list(arg.strides)})")
        if start % CACHE_LINE:
            raise PlanError(
                f"proof: {who()} to {self.bytecode.segment_name(segment)}+{start}, which is no multiple of {CACHE_LINE}"
            )
        if updated:
            home = self.home(value)
            if (segment, start) != home:
                raise PlanError(
                    f"proof: {who()} to {self.bytecode.segment_name(segment)}+{start}, "
                    f"outside {_name(_home_leaf(value))}, the storage that it updates"
                )
            if self.guards_left:
                raise PlanError(
                    f"proof: {who()}: state changes before {_called(next(iter(self.guards_left)))} has guarded it"
                )
            allowed: Collection[str] = (op.updates[slot.name],)
        else:
            if segment != ARENA:
                held = self.map.at(segment, start)
                raise PlanError(
                    f"proof: {who()} over {_name(None if held is None else held[2])} in "
                    f"{self.bytecode.segment_name(segment)}; only an update op may"
                )
            allowed = op.may_overwrite.get(slot.name, ())
        for read in reads.get(segment, ()):
            if read.end <= start or end <= read.start:
                continue
            exact = (read.start, read.end) == (start, end) and read.value.shape == value.shape and read.row_major
            if read.name not in allowed or not exact or read.value.dtype.bytes != value.dtype.bytes:
                raise PlanError(
                    f"proof: {who()} over its input {read.name}, {_name(read.value)}, which it does not allow"
                )
        self.put(who, segment, start, end, value, written)
        if updated:
            self.last_update[segment, start] = value

    def check_workspace(self, node: Node, arg: _Arg, reads: Mapping[int, Sequence[_Read]], written: Written) -> None:
        who = partial(_workspace, node)
        segment, start, end = self.extent(arg, who)
        if segment != ARENA or start % CACHE_LINE or not arg.writes:
            raise PlanError(f"proof: {who()} is no cache lines of the arena that are marked as written")
        for read in reads.get(segment, ()):
            if read.start < end and start < read.end:
                raise PlanError(f"proof: {who()} lies on its input {_name(read.value)}")
        self.put(who, segment, start, end, who(), written)

    @staticmethod
    def put(who: Callable[[], str], segment: int, start: int, end: int, owner: object, written: Written) -> None:
        """Record the ranges that an instruction writes; they must not overlap each other."""
        ranges = written.setdefault(segment, [])
        for other_start, other_end, other in ranges:
            if other_start < end and start < other_end:
                raise PlanError(f"proof: {who()} to the same bytes as {_name(other)}")
        ranges.append((start, end, owner))


def _updated_input(value: Value) -> Value | None:
    """The input whose storage an update's output is written to, by the declared output=input pair; None: not given."""
    op, node = value.node.op, value.node
    fixed = op.fixed_outputs
    if value.index < fixed:
        return node.inputs[_updated_position(op, value.index)]
    group, member = divmod(value.index - fixed, len(op.outputs) - fixed)
    return node.inputs[_updated_position(op, fixed + member) + group * op.group_size]


@cache
def _updated_position(op: Declaration, output: int) -> int:
    """Of a declared output: the position of the declared input that it is paired with."""
    return [slot.name for slot in op.inputs].index(op.updates[op.outputs[output].name])


def _home_leaf(value: Value) -> Value:
    """The parameter leaf behind an update's output."""
    while value.node.op.name != "parameter":
        into = None if value.node.op.leaf or value.node.op.view else _updated_input(value)
        if into is None:
            raise PlanError(f"proof: {_name(value)} is updated and is no parameter")
        value = into
    return value


def _same_leaf(owner: object, value: Value) -> bool:
    """The same value, or two leaf nodes that stand for the same outside bytes."""
    if owner is value:
        return True
    if not isinstance(owner, Value) or not (owner.node.op.leaf and value.node.op.leaf):
        return False
    mine, other = value.node, owner.node
    if mine.op.name != other.op.name or value.shape != owner.shape or value.dtype != owner.dtype:
        return False
    if mine.op.name == "parameter":
        return mine.attrs["stored"] is other.attrs["stored"]
    return mine.op.name in ("input", "setting") and mine.attrs["key"] == other.attrs["key"]
