"""The bytecode: instructions, arguments and attribute words as csrc/bytecode.h lays them out, and their disassembly."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..base.dtypes import ALL, DType, u8
from ..graph.declaration import Declaration
from ..graph.graph import storage_leaf
from ..graph.opspec import MAX_RANK
from ..graph.stored import Stored
from ..graph.value import Node, Shape, Value
from .layout import Laid, dense_strides
from .memory import Placement, aligned
from .order import Order, is_absent

ARENA, CONSTANTS, INPUTS, SETTINGS = range(4)  # segments; each stored array follows as one of its own
SEGMENT_NAMES = ("arena", "constants", "inputs", "settings")
NO_SEGMENT = 0xFFFFFFFF
ARG_WRITE = 1
INSTRUCTION_GUARD = 1
MAX_PHASES = 4
NODE_MASK = 0xFFFFFFFF  # node ids in the bytecode are 32 bits wide
EACH_STEP = 0xFFFFFFFF  # dead ranges: from the start of each step
SETTING_BYTES = 8
GUARD_BYTES = 64
ABSENT_ATTRIBUTE = -(1 << 63)  # the word of an optional attribute that is None; none at all where no other follows

ARG = np.dtype(
    [
        ("segment", "<u4"), ("dtype", "u1"), ("rank", "u1"), ("flags", "<u2"), ("offset", "<u8"), ("bytes", "<u8"),
        ("shape", "<i8", (MAX_RANK,)), ("strides", "<i8", (MAX_RANK,)),
    ]
)  # fmt: skip
INSTRUCTION = np.dtype(
    [
        ("kernel", "<u4"), ("node", "<u4"), ("arg_first", "<u4"), ("arg_count", "<u4"), ("attr_first", "<u4"),
        ("attr_count", "<u4"), ("flags", "<u4"), ("phases", "<u4"), ("parts", "<u4", (MAX_PHASES,)),
    ]
)  # fmt: skip
assert ARG.itemsize == 120 and INSTRUCTION.itemsize == 48


@dataclass(frozen=True)
class KernelNeeds:
    """A backend's requirements for one instruction: parts per phase, bytes of scratch per thread and of workspace."""

    parts: tuple[int, ...] = (1,)
    scratch_bytes: int = 0
    workspace_bytes: int = 0


@dataclass
class Bytecode:
    """A program as bytes. Segment i < 4 is SEGMENT_NAMES[i]; segment 4 + k is stored[k]."""

    kernels: list[tuple[str, str]]  # (op, signature)
    instructions: np.ndarray
    args: np.ndarray
    attrs: np.ndarray
    stored: list[Stored]
    constants: bytes
    input_offsets: dict[str, int]
    settings: dict[str, int]  # key -> word in the settings row
    arena_bytes: int
    inputs_bytes: int
    scratch_bytes: int  # per thread
    dead: list[tuple[int, int, int, int]]  # (instruction or EACH_STEP, segment, offset, bytes): dead from there on
    guards: list[tuple[int, int, int]]  # (segment, offset, bytes) that nothing may write
    nodes: dict[int, Node] = field(default_factory=dict)  # id in the bytecode -> node, for messages

    @property
    def segment_bytes(self) -> list[int]:
        fixed = [self.arena_bytes, len(self.constants), self.inputs_bytes, SETTING_BYTES * len(self.settings)]
        return fixed + [s.bytes for s in self.stored]

    def segment_name(self, segment: int) -> str:
        if segment < len(SEGMENT_NAMES):
            return SEGMENT_NAMES[segment]
        return self.stored[segment - len(SEGMENT_NAMES)].name or f"stored{segment - len(SEGMENT_NAMES)}"

    def __str__(self) -> str:
        return disassemble(self)


_DTYPES = {t.code: t for t in ALL}


def signature(node: Node) -> str:
    """dtypes of the present inputs and of all outputs, equal neighbours merged: which kernel of the op runs."""
    names = [v.dtype.name for v in node.inputs if v is not None] + [v.dtype.name for v in node.outputs]
    return "_".join(n for i, n in enumerate(names) if i == 0 or n != names[i - 1])


def encode_attrs(op: Declaration, attrs: dict[str, Any]) -> list[int]:
    """Attribute words in the order of declaration: see Call in csrc/bytecode.h."""
    given = [attr for attr in op.attrs if attr.kind != "object"]
    while given and given[-1].optional and attrs[given[-1].name] is None:
        given.pop()
    words: list[int] = []
    for attr in given:
        value = attrs[attr.name]
        if value is None:
            words.append(ABSENT_ATTRIBUTE)
        elif attr.kind == "ints":
            words += [len(value), *value]
        elif attr.kind == "float":
            words.append(struct.unpack("<q", struct.pack("<d", value))[0])
        elif attr.kind == "dtype":
            words.append(value.code)
        elif attr.choices:
            words.append(attr.choices.index(value))
        else:
            words.append(int(value))
    return words


Form = tuple[int, Shape, "Shape | None", int]  # of an argument: dtype code, shape, strides (None: absent), flags
ABSENT: Form = (0, (), None, 0)


class Call(NamedTuple):
    """An instruction but for where its arguments lie: all that a kernel may decide by."""

    kernel: tuple[str, str]  # op and signature
    words: list[int]  # of the attributes
    forms: list[Form]  # of the arguments


def call_of(laid: Laid, node: Node) -> Call:
    """The call of a node's kernel."""
    forms = [ABSENT if v is None else (v.dtype.code, v.shape, _strides(laid, v), 0) for v in node.inputs]
    forms += [
        (v.dtype.code, v.shape, None if is_absent(v, laid) else _strides(laid, v), ARG_WRITE) for v in node.outputs
    ]
    return Call((node.op.name, signature(node)), encode_attrs(node.op, node.attrs), forms)


def _strides(laid: Laid, value: Value) -> Shape:
    """In elements; those of a value without elements are dense, whatever it is a view of."""
    return dense_strides(value.shape) if 0 in value.shape else laid.layouts[value].strides


@lru_cache(maxsize=4096)
def record(form: Form) -> tuple:
    """A row of the argument array whose place is not yet set."""
    code, shape, strides, flags = form
    pad = MAX_RANK - len(shape)
    padded = shape + (1,) * pad
    if strides is None:
        return (NO_SEGMENT, code, len(shape), flags, 0, 0, padded, (0,) * MAX_RANK)
    extent = 0 if 0 in shape else 1 + sum((e - 1) * s for e, s in zip(shape, strides, strict=True))
    return (0, code, len(shape), flags, 0, _DTYPES[code].bytes_of(extent), padded, strides + (0,) * pad)


def records(forms: Iterable[Form]) -> np.ndarray:
    """The argument array of arguments without places. Most have the form of another one."""
    distinct: dict[Form, int] = {}
    rows = [distinct.setdefault(form, len(distinct)) for form in forms]
    return np.array([record(form) for form in distinct], ARG)[rows]


Place = tuple[int, int]  # segment, byte offset


def lower(
    laid: Laid, order: Order, calls: Sequence[Call], needs: Sequence[KernelNeeds], placement: Placement, guard: int = 0
) -> tuple[Bytecode, dict[Value, Place]]:
    """Write the bytecode, and the offset of each output of the program. calls[i] and needs[i] belong to
    order.steps[i]."""
    lowerer = _Lowerer(laid, order, calls, needs, placement, guard)
    return lowerer.run(), {v: lowerer.place(v) for v in laid.program.outputs}


class _Lowerer:
    def __init__(
        self,
        laid: Laid,
        order: Order,
        calls: Sequence[Call],
        needs: Sequence[KernelNeeds],
        placement: Placement,
        guard: int,
    ) -> None:
        self.laid, self.order, self.calls, self.needs = laid, order, calls, needs
        self.placement, self.guard = placement, guard
        self.kernels: dict[tuple[str, str], int] = {}
        self.instructions: list[tuple] = []
        self.forms: dict[Form, int] = {}  # -> its position among all forms
        self.args: list[int] = []  # of each argument the position of its form, segment, offset
        self.bases: dict[Value, Place] = {}
        self.attrs: list[int] = []
        self.stored: dict[int, int] = {}
        self.stored_list: list[Stored] = []
        self.constants = bytearray()
        self.input_offsets: dict[str, int] = {}
        self.inputs_bytes = 0
        self.settings: dict[str, int] = {}

    def run(self) -> Bytecode:
        for node in self.laid.program.nodes:
            if node.op.leaf:
                self.locate_leaf(node)
        for i, node in enumerate(self.order.steps):
            self.instruction(i, node)
        buffers = self.arena_buffers()
        return Bytecode(
            kernels=list(self.kernels),
            instructions=np.array(self.instructions, INSTRUCTION),
            args=self.arguments(),
            attrs=np.array(self.attrs, np.int64),
            stored=self.stored_list,
            constants=bytes(self.constants),
            input_offsets=self.input_offsets,
            settings=self.settings,
            arena_bytes=self.placement.arena_bytes,
            inputs_bytes=self.inputs_bytes,
            scratch_bytes=max((n.scratch_bytes for n in self.needs), default=0),
            dead=[
                (step, ARENA, offset, size)
                for offset, size, step in buffers
                if size and (step < self.order.end or step == EACH_STEP)
            ],
            guards=self.guard_ranges(buffers) if self.guard else [],
            nodes={n.id & NODE_MASK: n for n in self.order.steps},
        )

    def locate_leaf(self, node: Node) -> None:
        value, attrs = node.outputs[0], node.attrs
        name = node.op.name
        if name == "constant":
            self.bases[value] = CONSTANTS, len(self.constants)
            data = attrs["data"].tobytes()
            self.constants += data + bytes(aligned(len(data)) - len(data))
        elif name == "input":
            if attrs["key"] not in self.input_offsets:
                self.input_offsets[attrs["key"]] = self.inputs_bytes
                self.inputs_bytes += aligned(value.bytes)
            self.bases[value] = INPUTS, self.input_offsets[attrs["key"]]
        elif name == "setting":
            self.bases[value] = SETTINGS, SETTING_BYTES * self.settings.setdefault(attrs["key"], len(self.settings))
        else:
            stored = attrs["stored"]
            if id(stored) not in self.stored:
                self.stored[id(stored)] = len(SEGMENT_NAMES) + len(self.stored_list)
                self.stored_list.append(stored)
            self.bases[value] = self.stored[id(stored)], 0

    def arguments(self) -> np.ndarray:
        """The argument array: each row a form at a place."""
        forms, segments, offsets = np.array(self.args, np.int64).reshape(-1, 3).T
        args = records(self.forms)[forms]
        args["segment"], args["offset"] = segments, offsets
        return args

    def locate(self, base: Value) -> Place:
        """(segment, byte offset) of a base value."""
        place = self.bases.get(base)
        if place is None:
            offset = self.placement.offsets.get(base)
            place = self.bases[storage_leaf(base)] if offset is None else (ARENA, offset)
            self.bases[base] = place
        return place

    def place(self, value: Value) -> Place:
        """The offset of a value's first element; that of its base for an empty value."""
        at = self.laid.layouts[value]
        segment, offset = self.locate(at.base)
        return segment, offset + (value.dtype.bytes_of(at.offset) if at.offset and value.size else 0)

    def argument(self, form: Form, segment: int, offset: int) -> None:
        self.args += (self.forms.setdefault(form, len(self.forms)), segment, offset)

    def instruction(self, i: int, node: Node) -> None:
        first, attr_first, call, needs = len(self.args) // 3, len(self.attrs), self.calls[i], self.needs[i]
        for value, form in zip((*node.inputs, *node.outputs), call.forms, strict=True):
            place = (NO_SEGMENT, 0) if value is None or form[2] is None else self.place(value)
            self.argument(form, *place)
        if needs.workspace_bytes:
            form = (u8.code, (needs.workspace_bytes,), (1,), ARG_WRITE)
            self.argument(form, ARENA, self.placement.workspace_offsets[i])
        self.attrs += call.words
        kernel = self.kernels.setdefault(call.kernel, len(self.kernels))
        parts = needs.parts + (1,) * (MAX_PHASES - len(needs.parts))
        flags = INSTRUCTION_GUARD if node.op.guard else 0
        counts = (len(self.args) // 3 - first, attr_first, len(self.attrs) - attr_first)
        self.instructions.append((kernel, node.id & NODE_MASK, first, *counts, flags, len(needs.parts), parts))

    def arena_buffers(self) -> list[tuple[int, int, int]]:
        """(offset, bytes, last step) of each buffer; ranges that are free when a step begins come first."""
        last: dict[Value, int] = {}  # root buffer -> its last step; values in place share the root's bytes
        roots: dict[Value, Value] = {}
        for value, buffer in self.order.buffers.items():  # in the order of their birth
            root = roots[value] = roots[self.placement.inplace[value]] if value in self.placement.inplace else value
            last[root] = max(last.get(root, 0), buffer.death)
        buffers = [(self.placement.offsets[v], v.bytes, death) for v, death in last.items()]
        buffers += [(o, self.needs[step].workspace_bytes, step) for step, o in self.placement.workspace_offsets.items()]
        if self.guard:  # the bytes between the buffers keep their pattern
            return [(offset, size, EACH_STEP) for offset, size, _ in buffers] + buffers
        return [(0, self.placement.arena_bytes, EACH_STEP)] + [(o, aligned(size), death) for o, size, death in buffers]

    def guard_ranges(self, buffers: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The bytes up to `guard` before or after a buffer that are in no buffer at any step."""
        used = _union([(offset, offset + size) for offset, size, _ in buffers])
        near = _union(
            [(offset - self.guard, offset + aligned(size) + self.guard) for offset, size, _ in buffers if size]
        )
        guards, k = [], 0
        for start, end in near:
            while k < len(used) and used[k][0] < end:
                if start < used[k][0]:
                    guards.append((ARENA, start, used[k][0] - start))
                start = max(start, used[k][1])
                k += 1
            if start < end:
                guards.append((ARENA, start, end - start))
        return guards


def _union(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes as disjoint ranges, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


# ---- text ------------------------------------------------------------------------------------------------


def disassemble(bytecode: Bytecode) -> str:
    """The bytecode as text: a line per instruction, its operands as dtype[shape] @ segment + offset."""
    lines = []
    for i, ins in enumerate(bytecode.instructions):
        name, sig = bytecode.kernels[ins["kernel"]]
        first, count = int(ins["arg_first"]), int(ins["arg_count"])
        shown = ", ".join(show_arg(bytecode, bytecode.args[k]) for k in range(first, first + count))
        words = bytecode.attrs[int(ins["attr_first"]) : int(ins["attr_first"]) + int(ins["attr_count"])]
        parts = "x".join(str(p) for p in ins["parts"][: int(ins["phases"])])
        label = f"  # {bytecode.nodes[int(ins['node'])].label}"
        attrs = f" {{{' '.join(map(str, words))}}}" if len(words) else ""
        lines.append(f"{i:4d}  {name}.{sig}{attrs} parts {parts}  {shown}{label}")
    return "\n".join(lines)


def show_arg(bytecode: Bytecode, arg: np.void) -> str:
    if arg["segment"] == NO_SEGMENT:
        return "-"
    rank = int(arg["rank"])
    shape = tuple(int(n) for n in arg["shape"][:rank])
    strides = tuple(int(n) for n in arg["strides"][:rank])
    kind: DType = _DTYPES[int(arg["dtype"])]
    text = f"{kind.name}[{','.join(map(str, shape))}]"
    if strides != dense_strides(shape):
        text += f"({','.join(map(str, strides))})"
    mark = "=>" if arg["flags"] & ARG_WRITE else ""
    return f"{mark}{text}@{bytecode.segment_name(int(arg['segment']))}+{int(arg['offset'])}"
