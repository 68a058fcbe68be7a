"""The proof: replays a tape over an interval map "byte range -> value that wrote it".

It shares no code with what placed the buffers or chose the order. It knows the graph, reads the tape, and demands:
every read finds exactly the value that the graph says it reads, at the place inside that value where the graph's
views say it is; every write is dense, stays in the arena or in the storage that an update op declares, and overwrites
an input of its own instruction only where the op allows it; updates come after the guard; outputs and updates are
there at the end. One replay catches overlap, wrong order, illegal in-place, stale views, early reuse and lost writes.

Where a view lies is asked of NumPy: the op's reference is applied to an array that is never touched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.errors import PlanError
from ..graph.graph import reachable
from ..graph.value import Node, Value
from .tape import (
    ARENA,
    ARG_WRITE,
    CONSTANTS,
    EACH_STEP,
    INPUTS,
    INSTRUCTION_GUARD,
    NO_SEGMENT,
    NODE_MASK,
    SETTING_BYTES,
    SETTINGS,
    Tape,
)

Place = tuple[int, int]  # segment, byte offset


class _Intervals:
    """For each segment, disjoint [start, end) ranges and the value that wrote each."""

    def __init__(self) -> None:
        self.starts: dict[int, list[int]] = {}
        self.ranges: dict[int, list[tuple[int, int, object]]] = {}

    def write(self, segment: int, start: int, end: int, owner: object) -> None:
        """[start, end) now holds owner; what it overlaps loses those bytes."""
        if start == end:
            return
        starts, ranges = self.starts.setdefault(segment, []), self.ranges.setdefault(segment, [])
        first = max(bisect_right(starts, start) - 1, 0)
        if first < len(ranges) and ranges[first][1] <= start:
            first += 1
        last = bisect_left(starts, end)
        kept = []
        for old_start, old_end, old in ranges[first:last]:
            if old_start < start:
                kept.append((old_start, start, _Torn(old)))
            if old_end > end:
                kept.append((end, old_end, _Torn(old)))
        put = sorted([*kept, (start, end, owner)], key=lambda r: r[0])
        ranges[first:last] = put
        starts[first:last] = [r[0] for r in put]

    def at(self, segment: int, position: int) -> tuple[int, int, object] | None:
        starts = self.starts.get(segment, [])
        i = bisect_right(starts, position) - 1
        if i >= 0 and position < self.ranges[segment][i][1]:
            return self.ranges[segment][i]
        return None


class _Torn:
    """What is left of a value after part of its bytes were overwritten."""

    def __init__(self, value: object) -> None:
        self.value = value.value if isinstance(value, _Torn) else value


def _say(owner: object) -> str:
    if owner is None:
        return "bytes that nothing wrote"
    if isinstance(owner, _Torn):
        return f"what is left of {_say(owner.value)}"
    if isinstance(owner, Value):
        return f"{owner.node.op.name} {owner.node.label}"
    return str(owner)


def view_place(value: Value, memo: dict[Value, tuple[Value, int, tuple[int, ...]]]) -> tuple[Value, int, tuple[int, ...]]:
    """(base value, byte offset, byte strides) of a value, by applying references of view ops to untouched arrays."""
    if value in memo:
        return memo[value]
    chain = [value]
    while chain[-1].node.op.view is not None:
        source = chain[-1].node.inputs[0]
        assert source is not None
        chain.append(source)
    base = chain.pop()
    whole = np.empty(base.shape, base.dtype.numpy)
    array = whole
    for viewed in reversed(chain):
        node = viewed.node
        first = node.op.inputs[0].name
        array = node.op.call("reference", dict(node.attrs) | {first: array})
        if array.shape != viewed.shape:
            raise PlanError(f"proof: {node.label} views {array.shape} where the graph says {viewed.shape}")
    offset = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    if chain and base.size and not np.may_share_memory(array, whole):
        raise PlanError(f"proof: {value.node.label} is laid out as a view, but no view of {base.node.label} exists")
    memo[value] = (base, offset if base.size and value.size else 0, array.strides)
    return memo[value]


def check(
    tape: Tape,
    outputs: Sequence[Value],
    effects: Sequence[Value],
    places: Mapping[Value, Place],
) -> None:
    """Prove a tape or raise PlanError naming both nodes. `places` says where the caller will look for each output's base."""
    _Checker(tape, outputs, effects, places).run()


class _Checker:
    def __init__(self, tape: Tape, outputs: Sequence[Value], effects: Sequence[Value], places: Mapping[Value, Place]) -> None:
        self.tape, self.outputs, self.effects, self.places = tape, outputs, effects, places
        self.nodes: dict[int, Node] = {n.id & NODE_MASK: n for n in reachable((*outputs, *effects))}
        self.map = _Intervals()
        self.memo: dict[Value, tuple[Value, int, tuple[int, ...]]] = {}
        self.done: set[Node] = set()
        self.guarded = not any(n.op.guard for n in self.nodes.values())
        self.read = self.values_read()
        self.homes: dict[Value, Place] = {}
        self.dead: dict[int, list[tuple[int, int, int]]] = {}
        for instruction, *rest in tape.dead:
            self.dead.setdefault(instruction, []).append((rest[0], rest[1], rest[2]))

    def values_read(self) -> set[Value]:
        read = set(self.outputs)
        for node in self.nodes.values():
            read.update(v for v in node.inputs if v is not None)
        return read | {view_place(v, self.memo)[0] for v in read}

    def run(self) -> None:
        self.check_constants_and_leaves()
        self.bury(EACH_STEP)
        for i, ins in enumerate(self.tape.instructions):
            self.instruction(ins)
            self.bury(i)
        missing = [n for n in self.nodes.values() if not n.op.leaf and n.op.view is None and n not in self.done]
        if missing:
            raise PlanError(f"proof: {missing[0].op.name} {missing[0].label} never runs")
        for value in self.outputs:
            base, _, _ = view_place(value, self.memo)
            segment, offset = self.places[base]
            self.expect(base, segment, offset, base.bytes, f"the caller reads {_say(value)}")
        for value in self.effects:
            segment, offset = self.home(value)
            if value in self.last_updates():
                self.expect(value, segment, offset, value.bytes, f"the update {_say(value)} must last")

    def bury(self, instruction: int) -> None:
        """What the plan calls dead is overwritten here, as a poisoned run will do: nobody may read it again."""
        for segment, offset, size in self.dead.get(instruction, ()):
            self.map.write(segment, offset, offset + size, "dead bytes")

    # ---- leaves --------------------------------------------------------------------------------------

    def check_constants_and_leaves(self) -> None:
        at = 0
        for node in self.nodes.values():
            if not node.op.leaf:
                continue
            value, name = node.outputs[0], node.op.name
            if name == "constant":
                data = node.attrs["data"].tobytes()
                found = bytes(self.tape.constants[at : at + len(data)])
                if found != data:
                    raise PlanError(f"proof: the tape's constants do not hold {node.label}")
                self.homes[value] = (CONSTANTS, at)
                at += -(-len(data) // 64) * 64
            elif name == "input":
                self.homes[value] = (INPUTS, self.tape.input_offsets[node.attrs["key"]])
            elif name == "setting":
                self.homes[value] = (SETTINGS, SETTING_BYTES * self.tape.settings[node.attrs["key"]])
            else:
                index = next(i for i, s in enumerate(self.tape.stored) if s is node.attrs["stored"])
                self.homes[value] = (4 + index, 0)
            segment, offset = self.homes[value]
            held = self.map.at(segment, offset)
            if held is not None and value.bytes and not _same_leaf(held[2], value):
                raise PlanError(f"proof: {node.label} and {_say(held[2])} lie on the same bytes")
            self.map.write(segment, offset, offset + value.bytes, value)

    def home(self, value: Value) -> Place:
        """The storage that an update's output lives in."""
        leaf = _home_leaf(value)
        assert leaf is not None
        return self.homes[leaf]

    # ---- instructions --------------------------------------------------------------------------------

    def instruction(self, ins: np.void) -> None:
        args = self.tape.args[int(ins["arg_first"]) : int(ins["arg_first"]) + int(ins["arg_count"])]
        node = self.nodes.get(int(ins["node"]))
        if node is None:
            raise PlanError(f"proof: an instruction runs node {int(ins['node'])}, which the graph does not need")
        kernel = self.tape.kernels[int(ins["kernel"])][0]
        if node in self.done or kernel != node.op.name:
            raise PlanError(f"proof: {node.op.name} {node.label} runs twice or as {kernel}")
        if len(args) not in (len(node.inputs) + len(node.outputs), len(node.inputs) + len(node.outputs) + 1):
            raise PlanError(f"proof: {node.op.name} {node.label} has {len(args)} arguments")
        if bool(ins["flags"] & INSTRUCTION_GUARD) != node.op.guard:
            raise PlanError(f"proof: {node.label} is marked as a guard and is none, or the other way round")
        self.done.add(node)
        inputs, outputs = args[: len(node.inputs)], args[len(node.inputs) : len(node.inputs) + len(node.outputs)]
        for value, arg in zip(node.inputs, inputs, strict=True):
            self.check_read(node, value, arg)
        for before in node.after:
            if not before.op.leaf and before not in self.done:
                raise PlanError(f"proof: {node.op.name} {node.label} runs before {before.label}, which it must follow")
        written: list[tuple[int, int, int, object]] = []
        for value, arg in zip(node.outputs, outputs, strict=True):
            self.check_write(node, value, arg, inputs, written)
        for arg in args[len(node.inputs) + len(node.outputs) :]:
            self.check_workspace(node, arg, inputs, written)
        for segment, start, end, owner in written:
            self.map.write(segment, start, end, owner)
        if node.op.guard:
            self.guarded = all(n in self.done for n in self.nodes.values() if n.op.guard)

    def extent(self, arg: np.void) -> tuple[int, int, int]:
        """(segment, first byte, end) that an argument may touch, recomputed from shape and strides."""
        segment, offset = int(arg["segment"]), int(arg["offset"])
        rank, item = int(arg["rank"]), self.item_bytes(arg)
        shape, strides = arg["shape"][:rank].tolist(), arg["strides"][:rank].tolist()
        touched = 0
        if all(n > 0 for n in shape):
            if any(s < 0 for s in strides):
                raise PlanError(f"proof: negative strides {strides}")
            touched = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * item
        if touched != int(arg["bytes"]) or offset + touched > self.tape.segment_bytes[segment]:
            raise PlanError(
                f"proof: an operand of {touched} bytes at {offset} says {int(arg['bytes'])}; "
                f"{self.tape.segment_name(segment)} holds {self.tape.segment_bytes[segment]}"
            )
        return segment, offset, offset + touched

    @staticmethod
    def item_bytes(arg: np.void) -> int:
        return {1: 4, 2: 2, 3: 2, 4: 8, 5: 1, 6: 1, 7: 4, 8: 8}[int(arg["dtype"])]

    def check_read(self, node: Node, value: Value | None, arg: np.void) -> None:
        if value is None:
            if arg["segment"] != NO_SEGMENT:
                raise PlanError(f"proof: {node.label} reads an input that the graph does not give it")
            return
        if arg["segment"] == NO_SEGMENT:
            raise PlanError(f"proof: {node.label} does not read {_say(value)}, which the graph gives it")
        self.check_form(node, value, arg)
        if not value.size:
            return
        base, offset, strides = view_place(value, self.memo)
        rank = int(arg["rank"])
        given = [int(s) * value.dtype.bytes for s in arg["strides"][:rank]]
        if [s for s, n in zip(given, value.shape, strict=True) if n > 1] != [s for s, n in zip(strides, value.shape, strict=True) if n > 1]:
            raise PlanError(f"proof: {node.label} reads {_say(value)} with strides {given}; need {list(strides)}")
        segment, start, end = self.extent(arg)
        self.expect(base, segment, start - offset, base.bytes, f"{node.op.name} {node.label} reads {_say(value)}")
        if end > start - offset + base.bytes:
            raise PlanError(f"proof: {node.label} reads beyond {_say(base)}")

    def expect(self, base: Value, segment: int, start: int, size: int, who: str) -> None:
        """[start, start + size) must hold exactly `base`."""
        if size == 0:
            return
        held = self.map.at(segment, start)
        if held is None or held[0] != start or held[1] != start + size or not _same_leaf(held[2], base):
            seen = _say(None if held is None else held[2])
            raise PlanError(f"proof: {who}, but finds {seen} at {self.tape.segment_name(segment)}+{start}")

    def check_form(self, node: Node, value: Value, arg: np.void) -> None:
        shape = tuple(int(n) for n in arg["shape"][: int(arg["rank"])])
        if shape != value.shape or int(arg["dtype"]) != value.dtype.code:
            raise PlanError(f"proof: an operand of {node.label} has shape {shape}; the graph says {value!r}")

    def check_write(
        self, node: Node, value: Value, arg: np.void, inputs: np.ndarray, written: list[tuple[int, int, int, object]]
    ) -> None:
        op = node.op
        slot = op.slot(op.outputs, value.index)
        if not arg["flags"] & ARG_WRITE:
            raise PlanError(f"proof: the output of {op.name} {node.label} is not marked as written")
        self.check_form(node, value, arg)
        if arg["segment"] == NO_SEGMENT:
            if not slot.optional or value in self.read:
                raise PlanError(f"proof: {op.name} {node.label} does not write {slot.name}, which is needed")
            return
        if not value.size:
            return
        segment, start, end = self.extent(arg)
        if end - start != value.bytes:
            raise PlanError(f"proof: {op.name} {node.label} does not write {slot.name} densely")
        updated = _home_leaf(value) is not None
        if updated:
            if (segment, start) != self.home(value):
                raise PlanError(f"proof: {op.name} {node.label} writes {slot.name} outside the storage that it updates")
            if not self.guarded:
                raise PlanError(f"proof: {op.name} {node.label} changes state before the guard has passed")
            allowed = {op.updates[slot.name]}
        else:
            if segment != ARENA:
                raise PlanError(f"proof: {op.name} {node.label} writes to {self.tape.segment_name(segment)}; no update op may")
            allowed = set(op.may_overwrite.get(slot.name, ()))
        for i, (read, given) in enumerate(zip(node.inputs, inputs, strict=True)):
            if read is None or not read.size or given["segment"] == NO_SEGMENT:
                continue
            other, other_start, other_end = self.extent(given)
            if other != segment or other_end <= start or end <= other_start:
                continue
            name = op.slot(op.inputs, i).name
            exact = (other_start, other_end) == (start, end) and read.shape == value.shape and _dense(given)
            if name not in allowed or not exact or read.dtype.bytes != value.dtype.bytes:
                raise PlanError(
                    f"proof: {op.name} {node.label} writes {slot.name} over its input {name}, {_say(read)}, "
                    "which it does not allow"
                )
        self.keep_apart(node, segment, start, end, written)
        written.append((segment, start, end, value))

    def check_workspace(
        self, node: Node, arg: np.void, inputs: np.ndarray, written: list[tuple[int, int, int, object]]
    ) -> None:
        segment, start, end = self.extent(arg)
        if segment != ARENA:
            raise PlanError(f"proof: the workspace of {node.label} is not in the arena")
        for read, given in zip(node.inputs, inputs, strict=True):
            if read is None or not read.size:
                continue
            other, other_start, other_end = self.extent(given)
            if other == segment and other_start < end and start < other_end:
                raise PlanError(f"proof: the workspace of {node.label} lies on its input {_say(read)}")
        self.keep_apart(node, segment, start, end, written)
        written.append((segment, start, end, f"the workspace of {node.label}"))

    def keep_apart(self, node: Node, segment: int, start: int, end: int, written: list[tuple[int, int, int, object]]) -> None:
        for other, other_start, other_end, owner in written:
            if other == segment and other_start < end and start < other_end:
                raise PlanError(f"proof: {node.op.name} {node.label} writes two outputs to the same bytes as {_say(owner)}")

    def last_updates(self) -> set[Value]:
        """The updates after which nothing writes the same storage again."""
        last: dict[Place, Value] = {}
        order = {int(ins["node"]): i for i, ins in enumerate(self.tape.instructions) }
        for node in self.done:
            for value in node.outputs:
                if not node.op.leaf and _home_leaf(value) is not None:
                    place = self.home(value)
                    known = last.get(place)
                    if known is None or order[known.node.id & NODE_MASK] < order[node.id & NODE_MASK]:
                        last[place] = value
        return set(last.values())


def _dense(arg: np.void) -> bool:
    step = 1
    rank = int(arg["rank"])
    for n, stride in zip(reversed(arg["shape"][:rank].tolist()), reversed(arg["strides"][:rank].tolist()), strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def _home_leaf(value: Value) -> Value | None:
    """The parameter leaf behind an update's output: follow the declared output=input pairs down; None for other values."""
    while not value.node.op.leaf:
        op, node = value.node.op, value.node
        into = op.updates.get(op.slot(op.outputs, value.index).name)
        if into is None:
            return None
        names = [n for n, _ in op.named_outputs(node.outputs)]
        suffix = names[value.index][len(op.slot(op.outputs, value.index).name) :]
        pair = dict(op.named_inputs(node.inputs))[into + suffix]
        if pair is None:
            return None
        value = pair
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
