"""The time of each instruction on a device: by timestamps that the device writes, or by waiting for each."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

import numpy as np

from .device import Gpu
from .encoder import Ready, encode

QUERIES = 4096  # of a query set: the most that WebGPU allows
STAMP_BYTES = 8  # of a timestamp: u64, in periods of the queue


class Timer:
    """Runs the instructions of a step one by one. nanoseconds: times of each, a list per instruction.

    Where the adapter has timestamp-query, the device writes the time before and after each instruction. Elsewhere each
    instruction is submitted and waited for by itself: its time includes this cost. how: the method, for tables.
    """

    def __init__(self, device: Gpu, count: int) -> None:
        self.device, self.nanoseconds = device, [list[int]() for _ in range(count)]
        self.how = "by timestamps of the device"
        if not device.timestamps:
            self.how = "each instruction waited for: the adapter has no timestamp-query"
            return
        usage = device.usage
        sizes = [min(QUERIES, 2 * count - at) for at in range(0, 2 * count, QUERIES)]
        self._sets = [device.raw.create_query_set(type="timestamp", count=size) for size in sizes]
        self._stamps = device.buffer(STAMP_BYTES * 2 * count, "timestamps", usage.QUERY_RESOLVE | usage.COPY_SRC)
        weakref.finalize(self, device.drop, self._stamps)

    def run(self, instructions: Sequence[Ready], first: int = 0) -> None:
        """Run the instructions of one step, or some of them from the first one on."""
        found = self._by_timestamps if self.device.timestamps else self._by_waiting
        timed = self.nanoseconds[first : first + len(instructions)]
        for times, took in zip(timed, found(instructions), strict=True):
            times.append(took)

    def _by_timestamps(self, instructions: Sequence[Ready]) -> list[int]:
        encoder = self.device.raw.create_command_encoder()
        for i, one in enumerate(instructions):
            begin = 2 * i % QUERIES
            writes = {
                "query_set": self._sets[2 * i // QUERIES],
                "beginning_of_pass_write_index": begin,
                "end_of_pass_write_index": begin + 1,
            }
            encode(encoder, [one], timestamp_writes=writes)
        for k, queries in enumerate(self._sets):
            encoder.resolve_query_set(queries, 0, queries.count, self._stamps, k * QUERIES * STAMP_BYTES)
        self.device.queue.submit([encoder.finish()])
        with self.device.errors("a download of timestamps"):
            found = self.device.queue.read_buffer(self._stamps, 0, STAMP_BYTES * 2 * len(instructions))
        stamps = np.frombuffer(found, np.uint64)
        periods = (stamps[1::2] - stamps[::2]).view(np.int64)
        return [max(int(n * self.device.period), 0) for n in periods.tolist()]

    def _by_waiting(self, instructions: Sequence[Ready]) -> list[int]:
        took = []
        self.device.wait()
        for one in instructions:
            begun = time.perf_counter_ns()
            encoder = self.device.raw.create_command_encoder()
            encode(encoder, [one])
            self.device.queue.submit([encoder.finish()])
            self.device.wait()
            took.append(time.perf_counter_ns() - begun)
        return took
