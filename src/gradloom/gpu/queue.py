"""GpuQueue: a GPU together with other devices. Ranges of a step are encoded and submitted without waiting; values for
other devices are copied into staging buffers after earlier submissions, and mapped when they are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ..graph.stored import Stored
from ..graph.value import Value
from ..plan.plan import Plan
from ..run.queue import Failure, Fetched, Interrupted, Queue, StepFailed
from .device import Gpu
from .encoder import Ready, encode
from .memory import Memory, parts, read, write
from .program import STATUS_BYTES, Layout
from .stored import Copies
from .timing import Timer


class Loaded(Protocol):
    """What a queue needs of a program that a device has loaded."""

    plan: Plan
    device: Gpu
    copies: Copies
    layout: Layout
    fixed: Memory
    ready: list[Ready]
    timer: Timer | None
    reads: list[Stored]
    writes: list[Stored]
    output_bytes: list[int]
    inputs: dict[str, Value]

    def prepare(self, elsewhere: Collection[str] | None = None) -> None: ...


def failure_of(status: np.ndarray) -> Failure:
    """What a device has stopped at. status: u32 words."""
    stop, node, index, low, high = (int(v) for v in status[:5])
    return Failure(stop, node, index, (high << 32 | low) - (1 << 64) * (high >> 31))


class Staging:
    """A buffer that the host maps: the status, and copies of outputs behind it. It belongs to one fetch."""

    def __init__(self, loaded: Loaded, outputs: Sequence[int]) -> None:
        self.device, self.copied = loaded.device, list[tuple[Any, int, int, int]]()
        self.spans: list[tuple[int, int]] = []  # of each output: its first byte here, its bytes
        self.promise: Any = None
        at = STATUS_BYTES
        for i in outputs:
            key, start = loaded.layout.place(*loaded.plan.output_places[i])
            size = loaded.output_bytes[i]
            begin = start // 4 * 4
            length = -(-(start + size - begin) // 4) * 4 if size else 0
            for piece, byte, further, some in parts(begin, length, self.device.binding_bytes):
                buffer = loaded.layout.memories[key].pieces[piece]
                self.copied.append((buffer, byte, at + further, some))
            self.spans.append((at + start - begin, size))
            at += -(-length // 8) * 8
        self.status, self.bytes = loaded.fixed.pieces[0], at
        usage = self.device.usage
        self.buffer = self.device.buffer(at, "what other devices read", usage.MAP_READ | usage.COPY_DST)

    def begin(self) -> None:
        """Submit the copies; they come behind all that was submitted."""
        encoder = self.device.raw.create_command_encoder()
        encoder.copy_buffer_to_buffer(self.status, 0, self.buffer, 0, STATUS_BYTES)
        for buffer, byte, at, size in self.copied:
            encoder.copy_buffer_to_buffer(buffer, byte, self.buffer, at, size)
        self.device.queue.submit([encoder.finish()])
        self.promise = self.buffer.map_async("READ")

    def end(self) -> np.ndarray:
        """Wait for the copies: u8 [bytes]."""
        promise, self.promise = self.promise, None
        promise.sync_wait()
        data = np.frombuffer(self.buffer.read_mapped(0, self.bytes), np.uint8)
        self.buffer.unmap()
        return data


class GpuQueue(Queue):
    """A loaded program, a range at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.device = loaded, loaded.device
        self.staged: dict[Hashable, Staging] = {}
        self.generation: object = None  # of the bind groups: with new ones the arena has moved

    def bring(self) -> None:
        self.loaded.copies.fetch(self.loaded.reads)

    @contextlib.contextmanager
    def held(self, fed: Collection[str]) -> Iterator[None]:
        loaded = self.loaded
        with self.device.lock, self.device.errors("a run"):
            loaded.prepare([key for key in loaded.inputs if key not in fed])
            if self.generation is not loaded.ready:
                self.drop()
                self.generation = loaded.ready
            yield

    def begin(self, row: np.ndarray | None) -> None:
        if row is not None:
            write(self.loaded.fixed, STATUS_BYTES, np.ascontiguousarray(row).reshape(-1).view(np.uint8))

    def run(self, first: int, last: int, interrupted: Interrupted | None) -> None:
        ready = self.loaded.ready[first:last]
        with self.device.errors("a run"):
            if self.loaded.timer is not None:
                self.loaded.timer.run(ready, first)
                return
            encoder = self.device.raw.create_command_encoder()
            encode(encoder, ready)
            self.device.queue.submit([encoder.finish()])

    def fetch(self, what: Hashable, outputs: Sequence[int]) -> Fetched:
        staging = self.staged.get(what)
        if staging is None:
            staging = self.staged[what] = Staging(self.loaded, outputs)
        with self.device.errors("a run"):
            staging.begin()

        def wait() -> list[np.ndarray]:
            with self.device.errors("a run"):
                data = staging.end()
            status = data[:STATUS_BYTES].view(np.uint32)
            if status[0]:
                raise StepFailed(failure_of(status))
            return [data[start : start + size] for start, size in staging.spans]

        return wait

    def receive(self, key: str, data: np.ndarray) -> None:
        write(self.loaded.fixed, self.loaded.layout.inputs + self.loaded.plan.bytecode.input_offsets[key], data)

    def settle(self) -> Failure | None:
        for staging in self.staged.values():
            if staging.promise is not None:
                with self.device.errors("a run"):
                    staging.end()
        status = read(self.loaded.fixed, 0, STATUS_BYTES).view(np.uint32)
        if not status[0]:
            return None
        write(self.loaded.fixed, 0, np.zeros(STATUS_BYTES, np.uint8))
        return failure_of(status)

    def count_writes(self) -> None:
        self.loaded.copies.written(self.loaded.writes)

    def drop(self) -> None:
        """Give the buffers of fetches back."""
        while self.staged:
            self.device.drop(self.staged.popitem()[1].buffer)

    def __del__(self) -> None:
        self.drop()
