"""Runs one kernel on a device, on NumPy arrays: no plan. Every buffer has guard bytes on both sides.

Operands lie in the arena and among the inputs by turns, so that a dispatch touches several buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradloom.base.dtypes import dtype as as_dtype
from gradloom.base.settings import Switches
from gradloom.gpu.backend import Place, place_of
from gradloom.gpu.calls import Call, args_of
from gradloom.gpu.device import Gpu
from gradloom.gpu.encoder import encode, ready
from gradloom.gpu.kernels.all import KERNELS
from gradloom.gpu.memory import Memory, read, write
from gradloom.gpu.program import STATUS_BYTES, Layout, Loader, bind_groups
from gradloom.graph.value import Node
from gradloom.plan.bytecode import ARENA, ARG, INPUTS, INSTRUCTION, NO_SEGMENT, Bytecode, signature
from tests.core.harness import BLOCKS, NAMES, arg

GUARD = 64
GUARD_BYTE = 0xA5


@functools.cache
def default_place() -> Place:
    """A device with no more than WebGPU promises everywhere."""
    return Place(Gpu(0, default_limits=True))


class Bytes:
    """One segment, as bytes that grow; what lies between the buffers keeps its pattern."""

    def __init__(self) -> None:
        self.bytes = np.full(GUARD, GUARD_BYTE, np.uint8)
        self.used = np.zeros(GUARD, bool)

    def add(self, data: np.ndarray) -> int:
        """Place bytes; where they begin."""
        at, size = len(self.bytes), data.size
        room = -(-size // 64) * 64 + GUARD
        self.bytes = np.concatenate([self.bytes, data, np.full(room - size, GUARD_BYTE, np.uint8)])
        self.used = np.concatenate([self.used, np.ones(size, bool), np.zeros(room - size, bool)])
        return at


def run_node(
    node: Node,
    inputs: Sequence[Any],
    alias: dict[int, int] | None = None,
    unwanted: Sequence[int] = (),
    place: Place | None = None,
    full: bool = False,
) -> Any:
    """The outputs of a node as NumPy arrays. alias: {output: input} shares bytes; unwanted: outputs without memory.

    full=True returns (outputs, status words) instead.
    """
    place = place or place_of(0)
    alias = alias or {}
    memories = {ARENA: Bytes(), INPUTS: Bytes()}
    records, where = [], []  # where: (segment, offset) of each input
    aliased = set(alias.values())
    for i, x in enumerate(inputs):
        if x is None:
            records.append(arg("none", ()))
            where.append((NO_SEGMENT, 0))
            continue
        quantised = not isinstance(x, np.ndarray | np.generic)
        t = x.dtype.name if quantised else NAMES[x.dtype]
        size = 1 if quantised else x.dtype.itemsize
        strides = [s // size if n > 1 else 0 for n, s in zip(x.shape, x.strides, strict=True)]
        if i in aliased:
            strides = [s // size for s in x.strides]
        reach = 0 if x.size == 0 else 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
        same = next((j for j in range(i) if inputs[j] is x), None)
        if same is not None:
            segment, offset = where[same]
        else:
            if quantised:
                reach = -(-reach // BLOCKS[t][1]) * BLOCKS[t][2]
                data = x.data[:reach]
            else:
                data = np.lib.stride_tricks.as_strided(x, (reach,), (size,)).copy().view(np.uint8)
            segment = ARENA if i in aliased or i % 2 else INPUTS
            offset = memories[segment].add(data)
        where.append((segment, offset))
        records.append(arg(t, x.shape, segment, offset, reach * size, strides))
    outputs: list[Any] = []
    for k, value in enumerate(node.outputs):
        if k in unwanted:
            records.append(arg(value.dtype.name, value.shape))
            outputs.append(None)
            continue
        if k in alias:
            segment, offset = where[alias[k]]
        else:
            segment, offset = ARENA, memories[ARENA].add(np.full(value.bytes, 0xFF, np.uint8))
        records.append(arg(value.dtype.name, value.shape, segment, offset, value.bytes, write=True))
        outputs.append((segment, offset, value))
    name = (node.op.name, signature(node))
    kernel = KERNELS[name]
    given = np.array(records, ARG)
    workspace = kernel.workspace(Call(node, args_of(given)))
    if workspace:
        offset = memories[ARENA].add(np.full(workspace, 0xFF, np.uint8))
        records.append(arg("u8", (workspace,), ARENA, offset, workspace, write=True))
    instruction = np.zeros(1, INSTRUCTION)
    instruction["arg_count"], instruction["node"] = len(records), node.id & 0xFFFFFFFF
    code = Bytecode(
        [name], instruction, np.array(records, ARG), np.zeros(0, np.int64), [], b"", {}, {}, len(memories[ARENA].bytes),
        len(memories[INPUTS].bytes), 0, [], [], {node.id & 0xFFFFFFFF: node},
    )  # fmt: skip
    memory, status = _run(place, code, memories)
    results: list[Any] = []
    for one in outputs:
        if one is None:
            results.append(None)
            continue
        segment, offset, value = one
        data = memory[segment][offset : offset + value.bytes]
        results.append(data.copy().view(as_dtype(value.dtype).numpy).reshape(value.shape))
    for segment, before in memories.items():
        changed = np.flatnonzero((memory[segment] != before.bytes) & ~before.used)
        assert not changed.size, f"{name}: guard byte {changed[0]} of segment {segment} overwritten"
    for i, (segment, offset) in enumerate(where):
        if segment != NO_SEGMENT and i not in aliased and not any(inputs[j] is inputs[i] for j in aliased):
            end = offset + int(records[i]["bytes"])
            same_bytes = np.array_equal(memory[segment][offset:end], memories[segment].bytes[offset:end])
            assert same_bytes, f"{name}: input {i} was changed"
    if full:
        return results, status
    assert status[0] == 0, f"{name}: stopped: {status}"
    return results


def _run(place: Place, code: Bytecode, memories: dict[int, Bytes]) -> tuple[dict[int, np.ndarray], np.ndarray]:
    device = place.device
    assert not code.stored
    layout = Layout(code, [])
    loader = Loader(code, device, layout, Switches())
    steps = loader.run()
    tape, calls = loader.tape.arrays()
    raw = device.raw
    usage = device.usage
    tape_buffer = device.buffer(tape.nbytes, "tape")
    device.queue.write_buffer(tape_buffer, 0, tape)
    call_buffer = raw.create_buffer(size=len(calls), usage=usage.UNIFORM | usage.COPY_DST)
    device.queue.write_buffer(call_buffer, 0, calls)
    fixed, arena = Memory(device, layout.fixed_bytes, "inputs"), Memory(device, code.arena_bytes, "arena")
    layout.memories |= {"fixed": fixed, "arena": arena}
    if layout.gathered_bytes:
        layout.memories["gathered"] = Memory(device, layout.gathered_bytes, "copies")
    write(fixed, layout.inputs, memories[INPUTS].bytes)
    write(arena, 0, memories[ARENA].bytes)
    groups = bind_groups(device, steps, layout.memories, call_buffer, tape_buffer)
    encoder = raw.create_command_encoder()
    encode(encoder, [ready(step, groups) for step in steps])
    device.queue.submit([encoder.finish()])
    found = {
        ARENA: read(arena, 0, len(memories[ARENA].bytes)),
        INPUTS: read(fixed, layout.inputs, len(memories[INPUTS].bytes)),
    }
    status = read(fixed, 0, STATUS_BYTES).view(np.uint32)
    device.drop(tape_buffer)
    call_buffer.destroy()
    return found, status
