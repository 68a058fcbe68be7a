"""The CPU: hands proved bytecode to the native core.

Executables share one arena (the largest need, grown only at compile, in huge pages) and one lock (base/locks.py), held
from the copying of the inputs to the end of the native call. One that has an arena of its own has a lock of its own and
runs concurrently with the others and must share no written array with them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

try:
    from .. import _core
except ImportError as error:
    from ..base.native import core_error

    raise core_error("_core", error) from error
from ..base import locks
from ..base.aligned import aligned_empty
from ..base.arguments import what_is
from ..base.errors import (
    BackendError,
    GuardTripped,
    IndexOutOfRange,
    NotFinite,
    SettingError,
    UserOpError,
)
from ..base.memory import need_memory, present, release, show_bytes
from ..base.settings import Switches
from ..base.terminal import to_stderr
from ..graph.stored import bring_home
from ..graph.value import Node
from ..plan.bytecode import SEGMENT_NAMES, SETTING_BYTES, SETTINGS, KernelNeeds, encode_attrs, signature
from ..plan.plan import Plan
from ..transform.program import Program
from .backend import Buffer, has_effect, no_memory
from .calls import PlannedCall, native_form
from .cost import cost_table
from .planned import STOP_DEADLINE, STOP_DONE, STOP_NONFINITE, STOP_REQUESTED, PlannedExecutable
from .queue import Failure, Fetched, Interrupted, Queue, StepFailed

if not hasattr(_core, "Arena"):  # imported again, after all of gradloom was taken from sys.modules
    raise ImportError("gradloom: its native core can be loaded once in a process: restart Python", name="gradloom")
Arena = _core.Arena  # memory in huge pages: .bytes, .huge_bytes

CHECKED_BYTES = 64 << 20  # an arena that grows by less is not held against the machine's memory


_arena = _core.Arena()
_used: list[bool] = []  # not empty: pages of it were released that a run had used


def arena() -> Arena:
    """The arena that all CPU executables share."""
    return _arena


def arena_was_used() -> bool:
    """Whether a program has run in the shared arena."""
    return bool(_used) or present(_arena.address, _arena.bytes) > 0


def release_arena() -> None:
    """Give the pages of the shared arena back to the system: between two runs nothing reads them. The next run takes
    them again."""
    if locks.has_memory():  # a signal handler within a run
        return
    with locks.memory:
        if arena_was_used():
            _used.append(True)
            del _used[1:]
            release(_arena.address, _arena.bytes)


def check_memory(more: int) -> None:
    """BackendError when a plan needs more bytes than the machine has."""
    if more > CHECKED_BYTES:
        hint = "need smaller batches, a shorter context or a machine with more memory"
        need_memory(more, f"plan: {show_bytes(more)} more of memory are needed", hint, BackendError)


def choose_isa(wanted: str | None) -> str:
    """The instruction set to run: the best that this machine has, or the one that was asked for."""
    have = _core.isas()
    if wanted is None:
        return have[0]
    if wanted not in have:
        named = "GRADLOOM_ISA=" if wanted == os.environ.get("GRADLOOM_ISA") else "isa: "
        raise BackendError(f"{named}{wanted!r} cannot run here; must be one of {', '.join(have)}")
    return wanted


def isa_of(names: Iterable[str], wanted: str | None) -> str:
    """The instruction set of programs on these backends; "" where none of them runs on one."""
    return choose_isa(wanted) if any(has_effect(name, "isa") for name in names) else ""


@functools.cache
def _kernels(isa: str) -> frozenset[tuple[str, str]]:
    return frozenset(_core.kernels(isa))


class CpuBackend:
    """Hands proved plans to the native core."""

    name: ClassVar[str] = "cpu"
    planned: ClassVar[bool] = True
    calls_python: ClassVar[bool] = True
    piece_bytes: ClassVar[int] = 0

    def __init__(self, switches: Switches) -> None:
        self.switches, self.isa, self._why_not = switches, "", ""
        try:
            self.isa = choose_isa(switches.isa)
        except BackendError as error:
            self._why_not = str(error)

    def available(self) -> tuple[bool, str]:
        return not self._why_not, self.isa or self._why_not

    def signatures(self) -> frozenset[tuple[str, str]]:
        return _kernels(self.isa)

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        if node.op.python:
            return KernelNeeds()
        attrs = np.array(encode_attrs(node.op, node.attrs), np.int64)
        parts, scratch, workspace = _core.kernel_plan(self.isa, node.op.name, signature(node), args, attrs)
        return KernelNeeds(tuple(parts), scratch, workspace)

    def allocate(self, bytes: int) -> Arena:
        made = Arena()
        made.ensure(bytes)
        return made

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> CpuExecutable:
        assert plan is not None
        if self.switches.flush and not _core.FLUSHES:
            raise BackendError(
                "flush: this processor cannot take denormal numbers as 0; need flush=False (GRADLOOM_FLUSH=0)"
            )
        made = CpuExecutable(program, plan, self.switches, arena)
        print_debug(made)
        return made


class CpuExecutable(PlannedExecutable):
    """A proved plan in the native core."""

    plan: Plan

    def __init__(self, program: Program, plan: Plan, switches: Switches, own: Buffer | None = None) -> None:
        """own: an arena for this executable alone, instead of the one that all share. BackendError: no more memory."""
        super().__init__(program, plan, switches, own_lock=own is not None)
        if own is not None and not isinstance(own, Arena):
            raise SettingError(f"arena: got {what_is(own)}; need memory that the backend's allocate(bytes) gave")
        self.arena = _arena if own is None else own
        self.isa = choose_isa(switches.isa)
        try:
            self._load()
        except MemoryError:
            raise no_memory("compile") from None

    def _load(self) -> None:
        bytecode = self.plan.bytecode
        self._constants = aligned_empty((max(len(bytecode.constants), 1),), np.dtype(np.uint8))
        self._constants[: len(bytecode.constants)] = np.frombuffer(bytecode.constants, np.uint8)
        self._inputs = aligned_empty((max(bytecode.inputs_bytes, 1),), np.dtype(np.uint8))
        self._inputs[...] = 0
        self._slots = {
            k: self._inputs[o : o + self.inputs[k].bytes].view(self.inputs[k].dtype.numpy).reshape(self.inputs[k].shape)
            for k, o in bytecode.input_offsets.items()
        }
        self.calls = [
            PlannedCall(self, i, self.bytes_of) for i, node in enumerate(self.plan.order.steps) if node.op.python
        ]
        kernels, instructions, args = native_form(bytecode, [call.at for call in self.calls])
        sizes = self.output_bytes
        records = [(*place, size) for place, size in zip(self.plan.output_places, sizes, strict=True)]
        locks.refuse_in_user_code("a program is compiled")
        with self.lock:
            check_memory(bytecode.arena_bytes - self.arena.bytes)
            try:
                self.arena.ensure(max(bytecode.arena_bytes, 64))
            except RuntimeError as error:  # in a signal handler that came into a run
                raise BackendError(f"compile: {error}") from None
            self._native = _core.Program(
                self.isa, kernels, instructions, args, bytecode.attrs, self.segments(), records,
                bytecode.dead, bytecode.guards,
            )  # fmt: skip
        self.output_starts = np.cumsum([0, *sizes[:-1]]).tolist() if sizes else []

    def segments(self) -> list[tuple[Any, ...]]:
        """The segments of the bytecode as the core takes them: address and length of each."""
        bytecode = self.plan.bytecode
        fixed: list[tuple[Any, ...]] = [
            ("arena", self.arena),
            ("readonly", self._constants.ctypes.data, len(bytecode.constants)),
            ("readonly", self._inputs.ctypes.data, bytecode.inputs_bytes),
            ("settings", SETTING_BYTES * len(bytecode.settings)),
        ]
        stored = [("readonly" if s.role == "frozen" else "memory", s.address, s.bytes) for s in bytecode.stored]
        return [*fixed, *stored, ("scratch", bytecode.scratch_bytes)]

    # ---- running ---------------------------------------------------------------------------------------

    def copy_in(self, given: Mapping[str, np.ndarray]) -> None:
        for key, array in given.items():
            self._slots[key][...] = array

    def fed(self) -> dict[str, np.ndarray]:
        """The inputs that were fed last."""
        return dict(self._slots)

    @property
    def steps_run(self) -> int:
        return self._native.steps_run

    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        rows = self.settings_rows(steps, settings) if self.settings else None
        done, records = self._run_native(steps, rows, deadline)
        if records is None:
            return done, [np.empty((done, *s.shape), s.dtype.numpy) for s in self.outputs]
        return done, self.read(records[:done])

    def run_rows(self, steps: int, rows: np.ndarray | None) -> tuple[int, np.ndarray | None]:
        """run_many with the table of settings made and the inputs written to the places that `fed` gives: (steps done,
        records or None without outputs).

        It does not notify readers and writers of stored arrays.
        """
        self.check_files()
        return self._run_native(steps, rows, 0.0)

    def _run_native(self, steps: int, rows: np.ndarray | None, deadline: float) -> tuple[int, np.ndarray | None]:
        switches = self.switches
        locks.refuse_in_user_code("a program runs")
        with self.lock:
            bring_home(self.reads)
            before, done = self._native.steps_run, 0
            try:
                records = np.empty((steps, self.record_bytes), np.uint8) if self.record_bytes else None
                if self.calls:
                    done, stop, node, index, value = self._run_calling(steps, rows, records, deadline)
                else:
                    done, stop, node, index, value = self._native.run(
                        steps, rows, records, switches.threads, deadline, switches.poison, switches.check >= 2,
                        switches.flush,
                    )  # fmt: skip
            except UserOpError as error:
                error.steps_done = self._native.steps_run - before
                error.outputs = [] if records is None else self.read(records[: error.steps_done])
                raise
            except RuntimeError as error:
                raise BackendError(f"run: {error}") from None
            except MemoryError:
                raise no_memory("run") from None
            finally:
                if done or self._native.steps_run != before:  # where a signal has waited for the end of the call
                    for stored in self.writes:
                        stored.version += 1
        if stop not in (STOP_DONE, STOP_DEADLINE, STOP_REQUESTED):
            failed = self.failure(done, stop, node, index, value)
            if records is not None and isinstance(failed, (GuardTripped, NotFinite, IndexOutOfRange)):
                failed.outputs = self.read(records[:done])
            raise failed
        return done, records

    def _run_calling(
        self, steps: int, rows: np.ndarray | None, records: np.ndarray | None, deadline: float
    ) -> tuple[int, int, int, int, int]:
        """Steps of a program with calls of Python functions; returns the same as the core's run."""
        begun = time.monotonic()
        for i in range(steps):
            row, record = (None if table is None else table[i : i + 1] for table in (rows, records))
            stopped = self._run_part(0, len(self.plan.order.steps), row, record, None)
            if stopped[0] == STOP_REQUESTED:
                return i + 1, *stopped
            if stopped[0] != STOP_DONE:
                return i, *stopped
            if deadline and i + 1 < steps and time.monotonic() - begun >= deadline:
                return i + 1, STOP_DEADLINE, 0, 0, 0
        return steps, STOP_DONE, 0, 0, 0

    def _run_part(
        self,
        first: int,
        last: int,
        row: np.ndarray | None,
        record: np.ndarray | None,
        interrupted: Interrupted | bool | None,
    ) -> tuple[int, int, int, int]:
        """Instructions first .. last - 1 of a step, calls of Python included: (why it has stopped, node, index, value).
        interrupted: as `run_range`; None: signals are handled as in a whole run."""
        switches = self.switches

        def native(end: int, record: np.ndarray | None = None) -> tuple[int, int, int, int]:
            stopped: tuple[int, int, int, int] = self._native.run(
                1, row, record, switches.threads, 0.0, switches.poison, switches.check >= 2, switches.flush,
                first, end, interrupted,
            )[1:]  # fmt: skip
            return stopped

        for call in self.calls:
            if not first <= call.at < last:
                continue
            stopped = native(call.at)
            if stopped[0] != STOP_DONE:
                return stopped
            bad = call.run(row)
            if bad is not None:
                return STOP_NONFINITE, call.node_id, bad[1], 0
            first = call.at + 1
        return native(last, record)

    def read(self, records: np.ndarray) -> list[np.ndarray]:
        """The outputs out of records: one array of shape [steps, *shape] each (a view)."""
        columns = []
        for spec, start in zip(self.outputs, self.output_starts, strict=True):
            size = spec.size * spec.dtype.bytes
            column = records[:, start : start + size]
            if not column.flags.c_contiguous:
                column = np.ascontiguousarray(column)
            columns.append(column.view(spec.dtype.numpy).reshape((len(records), *spec.shape)))
        return columns

    def run_range(
        self, first: int, last: int, row: np.ndarray | None, interrupted: Interrupted | None
    ) -> tuple[int, int, int, int]:
        """Run the instructions first .. last - 1 of one step, which begins with 0 and ends with the last one of all:
        (why it has stopped, node, index, value). row: the settings of the step. interrupted: called at a signal; if
        it returns, the step is abandoned. The caller holds the lock, and has copied the stored arrays to the CPU."""
        try:
            return self._run_part(first, last, row, None, interrupted or False)
        except RuntimeError as error:
            raise BackendError(f"run: {error}") from None
        except MemoryError:
            raise no_memory("run") from None

    def bytes_of(self, segment: int, offset: int, size: int, row: np.ndarray | None) -> np.ndarray:
        """The bytes at a place of the plan: u8 [size], not a copy. row: the settings of the step."""
        if segment == SETTINGS:
            assert row is not None
            whole = row.reshape(-1).view(np.uint8)
        elif segment < len(SEGMENT_NAMES):
            whole = (self.arena.view(), self._constants, self._inputs)[segment]
        else:
            whole = self.plan.bytecode.stored[segment - len(SEGMENT_NAMES)].read().reshape(-1).view(np.uint8)
        return whole[offset : offset + size]

    def queue(self) -> Queue:
        return CpuQueue(self)

    def stop(self) -> None:
        """End the run in progress after its current step (from another thread or a callback)."""
        self._native.stop()

    def collect_times(self, on: bool = True) -> None:
        """Collect nanoseconds per instruction from the next run on."""
        with self.lock:
            self._native.profile(on)
            for call in self.calls:
                call.forget_times()

    def timings(self) -> list[tuple[str, int, int]]:
        """(op and node, least ns, total ns) per instruction since `collect_times`; without it none."""
        with self.lock:
            _, least, total = self._native.timings()
            for call in self.calls if least else ():
                least[call.at], total[call.at] = call.least, call.total
        nodes = self.plan.order.steps if least else []
        return [(f"{n.title} {n.label}", lo, t) for n, lo, t in zip(nodes, least, total, strict=True)]

    def denormals(self) -> list[str]:
        """The instructions, as `timings` calls them, that have had denormal operands since `collect_times`.

        An operation on such a number can cost an x86 processor 100 cycles and more. There are none under flush=True,
        which takes these numbers as 0, and none are seen on arm64.
        """
        return [what for (what, _, _), met in zip(self.timings(), self._met_denormals(), strict=True) if met]

    def _met_denormals(self) -> list[int]:
        with self.lock:
            return self._native.denormals()

    def report(self) -> str:
        """The timings as a table: microseconds, GB/s and GFLOP/s of each instruction at its fastest, and a mark on each
        that ran on denormal numbers."""
        timings = self.timings()
        timed = zip(self.plan.order.steps[: len(timings)], timings, self._met_denormals(), strict=True)
        mark = "  on denormal numbers (flush=True takes them as 0)"
        rows = [(node, least, what + mark * bool(met)) for node, (what, least, _), met in timed]
        return cost_table(f"{self.isa}, {self.switches.threads} threads", rows)


class CpuQueue(Queue):
    """The CPU as one of several devices: calls return when their work is done."""

    def __init__(self, executable: CpuExecutable) -> None:
        self.executable = executable
        self.places = executable.plan.output_places
        self.slots = executable.fed()
        self.row: np.ndarray | None = None

    def bring(self) -> None:
        bring_home(self.executable.reads)

    def held(self, fed: Collection[str]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # the lock of the memory is held already

    def begin(self, row: np.ndarray | None) -> None:
        self.row = row

    def run(self, first: int, last: int, interrupted: Interrupted | None) -> None:
        failure = Failure(*self.executable.run_range(first, last, self.row, interrupted))
        if failure.stop != STOP_DONE:
            raise StepFailed(failure)

    def fetch(self, what: Hashable, outputs: Sequence[int]) -> Fetched:
        sizes = self.executable.output_bytes
        found = [self.executable.bytes_of(*self.places[i], sizes[i], self.row) for i in outputs]
        return lambda: found

    def receive(self, key: str, data: np.ndarray) -> None:
        self.slots[key].reshape(-1).view(np.uint8)[...] = data

    def settle(self) -> Failure | None:
        return None

    def count_writes(self) -> None:
        for stored in self.executable.writes:
            stored.version += 1


def print_debug(executable: CpuExecutable) -> None:
    """What GRADLOOM_DEBUG asks for: 1 plan, 2 time per step (when the process ends), 4 bytecode. (3, the
    program after each pass, is printed where they are applied.)"""
    level = executable.switches.debug
    if level >= 2:
        executable.collect_times()
        executable.report_later()
    if level >= 1:
        to_stderr(executable.plan.summary())
    if level >= 4:
        to_stderr(executable.plan.bytecode)
