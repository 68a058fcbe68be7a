"""The backend "gpu": programs on an adapter, by WebGPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.errors import BackendError, GradloomError, GuardTripped, IndexOutOfRange, NotFinite, SettingError
from ..base.interrupts import postponed
from ..base.locks import Lock
from ..base.settings import Switches
from ..base.terminal import to_stderr
from ..graph.graph import written
from ..graph.value import Node
from ..plan.bytecode import KernelNeeds
from ..plan.plan import Plan
from ..run.backend import Buffer, DeviceBytes, PlanThere, no_memory, register_device
from ..run.cost import cost_table
from ..run.planned import PlannedExecutable
from ..transform.program import Program
from .device import Gpu, adapters, alike, device
from .encoder import Ready, encode, ready
from .held import held
from .kept import Kept
from .kernels.all import KERNELS
from .memory import Memory, copy, read, write
from .program import LEAST_ARENA, STATUS_BYTES, Arena, Encoded, Layout, Loader, bind_groups, needs_of
from .queue import GpuQueue, failure_of
from .records import PAIRS, Records
from .stored import Copies
from .timing import Timer

SUBMISSION_SECONDS = 0.025  # what one submission should take; PAIRS are on their way


class Place:
    """What all programs on a device share."""

    def __init__(self, made: Gpu) -> None:
        self.device = made
        self.copies = Copies(made)
        self.arena = Arena(made)


_places: dict[int, Place] = {}
_making = Lock()


def place_of(number: int) -> Place:
    """The place of a number, made on first use."""
    made = device(number)
    with _making:
        if number not in _places or _places[number].device is not made:
            _places[number] = Place(made)
        return _places[number]


class GpuBackend:
    """Hands proved plans to a device."""

    name: ClassVar[str] = "gpu"
    planned: ClassVar[bool] = True

    def __init__(self, switches: Switches, number: int = 0, place: Place | None = None) -> None:
        """place: instead of that of the number; for tests of other limits."""
        self.switches, self._why_not, self.piece_bytes = switches, "", 0
        try:
            self.place = place_of(number) if place is None else place
            self.piece_bytes = self.place.device.binding_bytes
        except BackendError as error:
            self._why_not = str(error)

    def available(self) -> tuple[bool, str]:
        return not self._why_not, self._why_not or self.place.device.name

    def signatures(self) -> Collection[tuple[str, str]]:
        return KERNELS.keys()

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        groups, workspace = needs_of(node, args, self.place.device.workgroup)
        return KernelNeeds((groups,), 0, workspace)

    def allocate(self, bytes: int) -> Arena:
        made = Arena(self.place.device)
        made.ensure(bytes)
        return made

    def held(self, plans: Sequence[PlanThere]) -> DeviceBytes:
        return held(plans, self.place.device, self.switches)

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> GpuExecutable:
        assert plan is not None
        try:
            return GpuExecutable(program, plan, self.switches, self.place, arena)
        except MemoryError:  # of this machine: inputs are laid out here first
            raise no_memory("compile") from None


class GpuExecutable(PlannedExecutable):
    """A proved plan on a device. ready: encoded steps (encoder.py); built by the first run."""

    def __init__(
        self, program: Program, plan: Plan, switches: Switches, place: Place, own: Buffer | None = None
    ) -> None:
        super().__init__(program, plan, switches, own_lock=own is not None)
        if own is not None and not isinstance(own, Arena):
            raise SettingError(f"arena: got {type(own).__name__}; need memory that the backend's allocate(bytes) gave")
        self.device, self.copies = place.device, place.copies
        self.arena = place.arena if own is None else own
        self._steps_run, self._stopping = 0, False
        self.timer: Timer | None = None
        self._least = 0  # bytes of an output that stays here; 0: none does
        self._there: dict[str, Kept] = {}  # inputs of this run that are here already
        self._made: dict[int, Kept] = {}  # outputs of this run that stay here
        bytecode = plan.bytecode
        self._inputs = np.zeros(max(bytecode.inputs_bytes, 1), np.uint8)
        self._slots = {
            k: self._inputs[o : o + v.bytes].view(v.dtype.numpy).reshape(v.shape)
            for k, v in self.inputs.items()
            for o in (bytecode.input_offsets[k],)
        }
        with self.lock, self.device.lock:
            self._load()
        self._debug()

    def _load(self) -> None:
        bytecode, device = self.plan.bytecode, self.device
        self.arena.ensure(max(bytecode.arena_bytes, LEAST_ARENA))
        copies = self.copies.place(bytecode.stored)
        self.layout = Layout(bytecode, [(id(copy.pool), copy.offset) for copy in copies])
        self.layout.memories |= {id(copy.pool): copy.pool for copy in copies}
        loader = Loader(bytecode, device, self.layout, self.switches)
        self._encoded: list[list[Encoded]] = loader.run()
        if self.layout.gathered_bytes:
            self.layout.memories["gathered"] = Memory(device, self.layout.gathered_bytes, "copies of operands")
        tape, calls = loader.tape.arrays()
        self._tape = device.buffer(tape.nbytes, "the tape")
        device.queue.write_buffer(self._tape, 0, tape)
        usage = device.usage
        self._calls = device.buffer(len(calls), "the calls", usage.UNIFORM | usage.COPY_DST)
        device.queue.write_buffer(self._calls, 0, calls)
        self.fixed = Memory(device, self.layout.fixed_bytes, "constants and inputs")
        write(self.fixed, self.layout.constants, np.frombuffer(bytecode.constants, np.uint8))
        self.layout.memories["fixed"] = self.fixed
        self.ready: list[Ready] = []
        self._generation = -1  # of the arena that the bind groups are for
        self._lay_out_records()

    def _lay_out_records(self) -> None:
        """Set the offset of each output of a step in its record, and the steps of a submission."""
        made = Records(self.plan, self.layout, self.device.binding_bytes, self._least)
        self._recorded, self._kept, self.output_starts = made.recorded, made.kept, made.starts
        self._stride, self._row_bytes = made.stride, made.row_bytes
        self._ahead, self._pairs = (1, 1) if self._least else (made.ahead, PAIRS)
        self._records: list[Any] = [None] * PAIRS
        self._rows: list[Any] = [None] * PAIRS

    def _make_records(self) -> None:
        """Allocate buffers for the records, and the settings, of the steps of a submission: they never grow."""
        usage = self.device.usage
        for pair in range(self._pairs):
            if self._records[pair] is None:
                size = self._ahead * self._stride
                self._records[pair] = self.device.buffer(size, "the outputs of steps", usage.MAP_READ | usage.COPY_DST)
            if self._row_bytes and self._rows[pair] is None:
                self._rows[pair] = self.device.buffer(self._ahead * self._row_bytes, "settings")

    def _debug(self) -> None:
        if self.switches.debug >= 2:
            self.collect_times()
            self.report_later()
        if self.switches.debug >= 1:
            to_stderr(self.plan.summary())
        if self.switches.debug >= 4:
            to_stderr(self.plan.bytecode)

    # ---- running ---------------------------------------------------------------------------------------

    @property
    def steps_run(self) -> int:
        return self._steps_run

    def fed(self) -> dict[str, np.ndarray]:
        return dict(self._slots)

    def copy_in(self, given: Mapping[str, np.ndarray]) -> None:
        for key, array in given.items():
            self._slots[key][...] = array

    def stop(self) -> None:
        self._stopping = True

    def collect_times(self, on: bool = True) -> None:
        """Collect nanoseconds per instruction from the next run on: by timestamps where the adapter has them. Elsewhere
        each instruction is submitted and waited for by itself: its wall time, with the cost of that."""
        with self.lock:
            self.timer = Timer(self.device, len(self._encoded)) if on else None

    def timings(self) -> list[tuple[str, int, int]]:
        times = [] if self.timer is None else self.timer.nanoseconds
        pairs = zip(self.plan.order.steps, times, strict=False)
        return [(f"{n.op.name} {n.label}", min(t, default=0), sum(t)) for n, t in pairs]

    def report(self) -> str:
        """The timings as a table: microseconds, GB/s and GFLOP/s of each instruction at its fastest."""
        how = "" if self.timer is None else f", {self.timer.how}"
        timed = zip(self.plan.order.steps, self.timings(), strict=False)
        return cost_table(f"{self.device.name}{how}", [(node, least, what) for node, (what, least, _) in timed])

    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        rows = self.settings_rows(steps, settings) if self.settings else None
        done, records = self._run(steps, rows, deadline)
        return done, self.read(records)

    def run_rows(self, steps: int, rows: np.ndarray | None) -> tuple[int, np.ndarray]:
        """run_many with the table of settings made and the inputs written to the places that `fed` gives: (steps done,
        records). It does not notify readers and writers of stored arrays."""
        self.check_files()
        return self._run(steps, rows, 0.0)

    def keep_outputs(self, least: int) -> None:
        """From now on outputs of at least `least` bytes stay on the device: `run_values` returns them as Kept."""
        self._least = least
        self._lay_out_records()

    def run_values(self, rows: np.ndarray | None, given: Mapping[str, Any]) -> list[Any]:
        """One step like run_rows, with all inputs: arrays, or Kept, which are not uploaded where they lie here. The
        outputs: arrays, or Kept. Where it fails, `fed` has the inputs as arrays."""
        self.check_files()
        for key, value in given.items():
            if isinstance(value, Kept) and value.device is self.device:
                self._there[key] = value
            else:
                self._slots[key][...] = value
        try:
            _, records = self._run(1, rows, 0.0)
            made = self._made
        except GradloomError:
            for key, value in self._there.items():
                self._slots[key][...] = value.numpy()
            raise
        finally:
            self._there, self._made = {}, {}
        starts = zip(self.output_starts, self.outputs, strict=True)
        return [
            made[i] if i in made else np.ndarray(spec.shape, spec.dtype.numpy, records, at)
            for i, (at, spec) in enumerate(starts)
        ]

    def read(self, records: np.ndarray) -> list[np.ndarray]:
        """The outputs out of records: one array of shape [steps, *shape] each."""
        columns = []
        for spec, start, size in zip(self.outputs, self.output_starts, self.output_bytes, strict=True):
            column = np.ascontiguousarray(records[:, start : start + size])
            columns.append(column.view(spec.dtype.numpy).reshape((len(records), *spec.shape)))
        return columns

    def _run(self, steps: int, rows: np.ndarray | None, deadline: float) -> tuple[int, np.ndarray]:
        with self.lock, postponed() as interrupted, self.device_held():
            self.prepare()
            self._make_records()
            self._stopping = False
            begun, submitted, size = time.monotonic(), 0, 1
            waiting: list[tuple[int, int, Any, float]] = []  # which pair of buffers, steps, promise, when
            found: list[np.ndarray] = []
            failed: np.ndarray | None = None
            try:
                while submitted < steps or waiting:
                    late = deadline and submitted and time.monotonic() - begun >= deadline
                    more = submitted < steps and failed is None and not (late or self._stopping or interrupted())
                    if more and len(waiting) < PAIRS:
                        count = min(size, steps - submitted, self._ahead)
                        pair = (waiting[-1][0] ^ 1) if waiting else 0
                        part = None if rows is None else rows[submitted : submitted + count]
                        waiting.append((pair, count, self._submit(pair, count, part), time.monotonic()))
                        submitted += count
                        continue
                    if not waiting:
                        break
                    pair, count, promise, since = waiting.pop(0)
                    records = self._collect(pair, count, promise)
                    if failed is None:
                        stops = records[:, :4].copy().view(np.uint32)[:, 0]
                        good = int(np.argmax(stops != 0)) if stops.any() else count
                        failed = records[good, :STATUS_BYTES].copy().view(np.uint32) if good < count else None
                        found.append(records[:good])
                        self._steps_run += good
                    if time.monotonic() - since < SUBMISSION_SECONDS:
                        size = min(2 * size, self._ahead)
            finally:
                for _, count, promise, _ in waiting:
                    promise.sync_wait()
                    self._steps_run += count
                if waiting:  # they are still mapped
                    self._drop_records()
                if submitted:
                    self.copies.written(self.writes)
            if failed is not None:
                write(self.fixed, 0, np.zeros(STATUS_BYTES, np.uint8))
        records = np.concatenate(found) if found else np.empty((0, self._stride), np.uint8)
        if failed is not None:
            error = self._error(len(records), failed)
            if isinstance(error, (GuardTripped, NotFinite, IndexOutOfRange)):
                error.outputs = self.read(records)
            raise error
        return len(records), records

    def _error(self, done: int, status: np.ndarray) -> Exception:
        """The error that stopped a run after `done` steps. status: u32 words."""
        return self.failure(done, *failure_of(status))

    def queue(self) -> GpuQueue:
        return GpuQueue(self)

    @contextlib.contextmanager
    def device_held(self) -> Iterator[None]:
        """Programs with an arena of their own have locks of their own; on one device they take turns."""
        self.copies.fetch(self.reads)
        with self.device.lock, self.device.errors("a run"):
            yield

    def prepare(self, elsewhere: Collection[str] | None = None) -> None:
        """Upload arrays that the host has written, except inputs from elsewhere; bind groups again if the arena has
        grown. The caller holds the device."""
        self.copies.upload(self.reads)
        bytecode, there = self.plan.bytecode, self._there if elsewhere is None else elsewhere
        if there:
            for key, slot in self._slots.items():
                if key not in there:
                    data = slot.reshape(-1).view(np.uint8)
                    write(self.fixed, self.layout.inputs + bytecode.input_offsets[key], data)
        elif self.inputs:
            write(self.fixed, self.layout.inputs, self._inputs[: bytecode.inputs_bytes])
        self.arena.ensure(max(self.plan.bytecode.arena_bytes, LEAST_ARENA))
        if self._generation != self.arena.generation:
            assert self.arena.memory is not None
            self.layout.memories["arena"] = self.arena.memory
            groups = bind_groups(self.device, self._encoded, self.layout.memories, self._calls, self._tape)
            self._groups = groups  # the native handles in `ready` are theirs
            self.ready = [ready(step, groups) for step in self._encoded]
            self._generation = self.arena.generation

    def _submit(self, pair: int, count: int, rows: np.ndarray | None) -> Any:
        """Encode `count` steps and submit them; the returned promise resolves when their records can be read."""
        device, records = self.device, self._records[pair]
        if rows is not None:
            device.queue.write_buffer(self._rows[pair], 0, np.ascontiguousarray(rows))
        if self.timer is not None:
            self._submit_timed(pair, count, rows is not None)
            return records.map_async("READ")
        encoder = device.raw.create_command_encoder()
        for step in range(count):
            self._begin(encoder, pair, step, rows is not None)
            encode(encoder, self.ready)
            self._end(encoder, records, step)
        device.queue.submit([encoder.finish()])
        return records.map_async("READ")

    def _begin(self, encoder: Any, pair: int, step: int, settings: bool) -> None:
        if settings:
            size = self._row_bytes
            encoder.copy_buffer_to_buffer(self._rows[pair], step * size, self.fixed.pieces[0], STATUS_BYTES, size)
        for key, value in self._there.items():
            to = self.layout.inputs + self.plan.bytecode.input_offsets[key]
            copy(encoder, value.memory, 0, self.fixed, to, value.nbytes)

    def _end(self, encoder: Any, records: Any, step: int) -> None:
        at = step * self._stride
        encoder.copy_buffer_to_buffer(self.fixed.pieces[0], 0, records, at, STATUS_BYTES)
        for key, piece, begin, to, length in self._recorded:
            encoder.copy_buffer_to_buffer(self.layout.memories[key].pieces[piece], begin, records, at + to, length)
        for i, key, start in self._kept:
            made = self._made[i] = Kept(self.device, self.copies, self.outputs[i])
            copy(encoder, self.layout.memories[key], start, made.memory, 0, made.nbytes)

    # ---- one instruction at a time -------------------------------------------------------------------------

    def run_instruction(self, k: int, rows: np.ndarray | None) -> None:
        """Run instruction k alone, and wait for it; before the first one the device gets inputs, stored arrays and the
        settings (rows: those of one step). Raises what a whole run would raise."""
        with self.lock, self.device_held():
            if k == 0:
                self.prepare()
                if rows is not None:
                    write(self.fixed, STATUS_BYTES, rows.reshape(-1).view(np.uint8))
            encoder = self.device.raw.create_command_encoder()
            encode(encoder, self.ready[k : k + 1])
            self.device.queue.submit([encoder.finish()])
            status = read(self.fixed, 0, STATUS_BYTES).view(np.uint32)
            self.copies.written(written([self.plan.order.steps[k]]))
            if status[0]:
                write(self.fixed, 0, np.zeros(STATUS_BYTES, np.uint8))
                raise self._error(0, status)

    def bytes_of(self, segment: int, offset: int, size: int) -> np.ndarray:
        """Present bytes at a place of the plan: u8 [size]."""
        key, start = self.layout.place(segment, offset)
        with self.device_held():
            return read(self.layout.memories[key], start, size)

    def _submit_timed(self, pair: int, count: int, settings: bool) -> None:
        assert self.timer is not None
        device = self.device
        for step in range(count):
            encoder = device.raw.create_command_encoder()
            self._begin(encoder, pair, step, settings)
            device.queue.submit([encoder.finish()])
            self.timer.run(self.ready)
            encoder = device.raw.create_command_encoder()
            self._end(encoder, self._records[pair], step)
            device.queue.submit([encoder.finish()])

    def _collect(self, pair: int, count: int, promise: Any) -> np.ndarray:
        """The records of a submission, when it is done: u8 [steps, bytes of a record]."""
        promise.sync_wait()
        records = self._records[pair]
        data = np.frombuffer(records.read_mapped(0, count * self._stride), np.uint8)
        records.unmap()
        return data.reshape(count, self._stride)

    def _drop_records(self) -> None:
        records = self.__dict__.get("_records", [])  # __init__ may have failed before it
        for pair, buffer in enumerate(records):
            if buffer is not None:
                self.device.drop(buffer)
                records[pair] = None

    def __del__(self) -> None:
        self._drop_records()
        mine = [self.__dict__.get(name) for name in ("_tape", "_calls")]
        for buffer in [*mine, *self.__dict__.get("_rows", ())]:
            if buffer is not None:
                self.device.drop(buffer)


register_device("gpu", GpuBackend, alike, lambda: len(adapters()))
