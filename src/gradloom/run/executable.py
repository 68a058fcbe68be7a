"""Executable: a program that a backend has loaded. Shared by all backends."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import locks
from ..base.arrays import check_whole
from ..base.errors import BackendError, GuardTripped, IndexOutOfRange, NotFinite, UserOpError
from ..base.hooks import profiler, watcher
from ..base.settings import Switches
from ..graph.graph import mapped_checks, written
from ..graph.stored import arrays_locked, before_read, before_write, bring_home
from ..graph.value import Node, Value, describe
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..transform.program import Program
from .feeds import SETTING_DEFAULTS, as_array, check_names, leaves, narrowed


def called(node: Node) -> str:
    """The op and what messages call the node."""
    return f"{node.title} {node.label}" if node.name else node.label


@dataclass(frozen=True)
class Origin:
    """The arguments of the gl.compile that made a program."""

    outputs: Sequence[Value]
    updates: Sequence[Value]
    options: Mapping[str, Any]


class Executable(abc.ABC):
    """A loaded program. Call it with its inputs by name; it answers its outputs as NumPy arrays.

    Several threads may call it: each gets the outputs of its own inputs.
    inputs, settings: name -> value of the graph. reads, writes: the stored arrays that a run reads and writes. plan:
    None where the backend does not plan. narrow_inputs: the inputs of i64 that it converts to i32. effects: the
    updates of the program before what depends on precision and device. record_bytes: of the outputs of one step.
    source, device_name: the program before the passes and its device, where gl.compile made it for one device.
    origin: the arguments of its gl.compile.
    """

    source: Program | None = None
    device_name = "cpu"

    def __init__(
        self, program: Program, plan: Plan | Schedule | None, switches: Switches, own_lock: bool = False
    ) -> None:
        """own_lock: it runs concurrently with others and must share no written array with them."""
        self.lock = locks.Lock() if own_lock else locks.memory
        self._shares_lock = not own_lock
        self.program, self.plan, self.switches = program, plan, switches
        self.effects = program.effects
        self.inputs: dict[str, Value] = leaves(program.nodes, "input")
        self.settings: dict[str, Value] = leaves(program.nodes, "setting")
        self.reads = [node.attrs["stored"] for node in program.nodes if node.op.name == "parameter"]
        self.writes = written(program.nodes)
        self.record_bytes = sum(v.bytes for v in program.outputs)
        self._file_checks = mapped_checks(program.nodes)
        self.narrow_inputs, self._narrow_stored = narrowed(program.nodes)
        self.origin: Origin | None = None
        self.watches: tuple[Any, ...] = ()  # see `watch`

    def __repr__(self) -> str:
        """Its inputs and outputs with types and shapes, and its plan in a line."""
        inputs = ", ".join(f"{name}: {describe(value)}" for name, value in self.inputs.items())
        outputs = ", ".join(describe(value) for value in self.program.outputs)
        plan = "" if self.plan is None else f"; {self.plan.summary()}"
        return f"{type(self).__name__}(({inputs}) -> [{outputs}]{plan})"

    # ---- implemented by backends -----------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def steps_run(self) -> int:
        """How many steps it has completed so far, in all calls."""

    @abc.abstractmethod
    def fed(self) -> dict[str, Any]:
        """The inputs that were fed last."""

    @abc.abstractmethod
    def copy_in(self, given: Mapping[str, np.ndarray]) -> None:
        """Keep these inputs until others are fed."""

    @abc.abstractmethod
    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        """run_many, with the inputs copied in, the files checked and the lock held."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the run in progress after its current step (from another thread or a callback)."""

    @abc.abstractmethod
    def collect_times(self, on: bool = True) -> None:
        """Collect nanoseconds per instruction from the next run on."""

    @abc.abstractmethod
    def timings(self) -> list[tuple[str, int, int]]:
        """(op and node, least ns, total ns) per instruction since `collect_times`."""

    def timed_nodes(self) -> list[tuple[str, Node]]:
        """(device, "" where there is one; node) of each instruction of `timings`, in its order."""
        assert isinstance(self.plan, Plan)
        return [("", node) for node in self.plan.order.steps]

    def denormals(self) -> list[str]:
        """The instructions that have had denormal operands since `collect_times`; BackendError where none are seen."""
        raise BackendError("denormals: are seen where a program runs on the CPU alone; need device='cpu' for them")

    def checked_inputs(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The inputs as arrays of their shapes and dtypes; GraphError, ShapeError, DTypeError, IndexOutOfRange for
        others."""
        if feeds.keys() != self.inputs.keys():
            check_names(feeds, self.inputs, {})
        given = {key: as_array(key, feeds[key], v.shape, v.dtype) for key, v in self.inputs.items()}
        for key in self.narrow_inputs:
            check_whole(f"run: {key}", given[key], np.int32)
        return given

    # ---- running ---------------------------------------------------------------------------------------

    def __call__(self, **feeds: Any) -> list[np.ndarray]:
        """Feed inputs and settings by name, run once, and read the outputs (fresh arrays)."""
        if self.settings:
            check_names(feeds, self.inputs, self.settings)
        settings = {k: feeds.pop(k, SETTING_DEFAULTS.get(k)) for k in self.settings}
        for key, value in self.settings.items():
            as_array(key, settings[key], (), value.dtype)  # for its checks
        return [r[0] for r in self.run_many(1, settings, feeds=feeds)[1]]

    def feed(self, feeds: Mapping[str, Any]) -> None:
        """Copy the inputs in; they keep their values until they are fed again, by any thread."""
        given = self.checked_inputs(feeds)
        with self.lock:
            self.copy_in(given)

    def run_many(
        self,
        steps: int,
        settings: Mapping[str, Any],
        deadline: float = 0.0,
        feeds: Mapping[str, Any] | None = None,
    ) -> tuple[int, list[np.ndarray]]:
        """Run `steps` steps in one call: (steps done, the outputs of each as [steps done, *shape]).

        settings: each value a number, or one number per step. deadline: seconds after which no further step begins.
        feeds: the inputs, which no other thread can change before the run; without them, those that were fed last.
        Raises NonFiniteError or DataError as the step that failed demands; that step's updates are not applied.
        FileError, before anything runs, when a mapped file has changed; BackendError also when there is no memory.
        KeyboardInterrupt may come when steps have been done: it has their number as `steps_done`.
        """
        before = self.steps_run
        try:
            given = {} if feeds is None else self.checked_inputs(feeds)
            if self.watches:
                return self._run_watched(steps, settings, deadline, given)
            with self.held():
                if feeds is not None:
                    self.copy_in(given)
                self.check_files()
                return self.run_steps(steps, settings, deadline)
        except KeyboardInterrupt as interrupt:
            interrupt.steps_done = self.steps_run - before  # type: ignore[attr-defined]
            raise

    def _run_watched(
        self, steps: int, settings: Mapping[str, Any], deadline: float, given: Mapping[str, np.ndarray]
    ) -> tuple[int, list[np.ndarray]]:
        """run_many in calls that end before each watched step, whose values are computed first."""
        began, done, parts = time.monotonic(), 0, list[list[np.ndarray]]()
        numbers = [each.number() for each in self.watches]
        while True:
            ahead = min(each.ahead(n + done + 1) for each, n in zip(self.watches, numbers, strict=True))
            count = min(steps - done, 1 + ahead)
            left = max(deadline - (time.monotonic() - began), 1e-9) if deadline else 0.0
            with self.held():
                self.copy_in(given)
                self.check_files()
                for each, number in zip(self.watches, numbers, strict=True):
                    if not each.ahead(number + done):
                        each.observe(number + done, self.fed(), _part_of(settings, done, 1))
                try:
                    ran, outputs = self.run_steps(count, _part_of(settings, done, count), left)
                except (GuardTripped, NotFinite, IndexOutOfRange, UserOpError) as failed:
                    failed.steps_done += done
                    failed.outputs = _joined([*parts, failed.outputs])
                    raise
            parts.append(outputs)
            done += ran
            if done >= steps or ran < count or (deadline and time.monotonic() - began >= deadline):
                return done, _joined(parts)

    def watch(
        self,
        patterns: Any,
        every: str | int = "1steps",
        what: str = "norm",
        on_values: Callable[[int, Mapping[str, Any]], object] | None = None,
    ) -> Any:
        """Compute values of the program at some steps from now on: a Watch (run/watch.py). No bit of a run changes.

        patterns: of names of modules, nodes, inputs and parameters, such as "blk.*.attn_output"; nodes; or several.
        "grad:PATTERN": the gradients of the first output, f32[]. every: "10steps" or 10: at steps 10, 20, ... what:
        "norm", "histogram" or "values". on_values(step, values): called in place of keeping Watch.records. See
        docs/profiles.md. Raises SettingError for a pattern without a match, BudgetError as gl.compile.
        """
        return watcher(self, patterns, every, what, on_values)

    def profile(self, feeds: Mapping[str, Any] | None = None, steps: int = 20) -> Any:
        """Time each instruction over some steps: a Profile (run/profile.py). No state changes.

        feeds: inputs and settings by name. steps: how many are timed; one more runs before them. They are real steps:
        the arrays that they write (weights, moments, caches) are copied before, which takes their bytes of memory, and
        have the same bits afterwards. Other threads wait until then. Outputs are dropped.
        Raises what a call with these inputs raises, and SettingError where the copies need more memory than there is.
        """
        return profiler(self, {} if feeds is None else feeds, steps)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the arrays that the program writes at the end. The caller holds the lock."""
        bring_home(self.writes)
        arrays = {stored: stored.read().copy() for stored in self.writes}
        try:
            yield
        finally:
            for stored, array in arrays.items():
                stored.write(array)

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Holds the lock of its arrays and its arena, with nothing outstanding that reads or writes them."""
        locks.refuse_in_user_code("a program runs")
        return arrays_locked(self.reads, self.writes) if self._shares_lock else self._own_lock()

    def check_files(self) -> None:
        """FileError when a mapped file that the program reads has changed; IndexOutOfRange for a stored array of i64
        with numbers beyond the i32 that the program converts it to."""
        for check in self._file_checks:
            check()
        for stored in self._narrow_stored:
            check_whole(stored.name or "parameter", stored.read(), np.int32)

    @contextlib.contextmanager
    def _own_lock(self) -> Iterator[None]:
        """Holds a lock of its own, with no pending readers or writers of its arrays."""
        before_read(self.reads)
        before_write(self.writes)
        with self.lock:
            yield


def _part_of(settings: Mapping[str, Any], first: int, count: int) -> dict[str, Any]:
    """The settings of some of the steps that these are for, each a number or one for each step."""
    return {k: v[first : first + count] if np.ndim(v) else v for k, v in settings.items()}


def _joined(parts: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    """The outputs of several calls, each as one array."""
    whole = [part for part in parts if part]
    return whole[0] if len(whole) == 1 else [np.concatenate(columns) for columns in zip(*whole, strict=True)]
