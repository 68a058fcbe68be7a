"""Executable: a program that a backend has loaded. Shared by all backends."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..base import locks
from ..base.arrays import check_whole
from ..base.errors import BackendError
from ..base.settings import Switches
from ..graph.graph import mapped_checks, written
from ..graph.stored import arrays_locked, before_read, before_write
from ..graph.value import Node, Value, describe
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..transform.program import Program
from .feeds import SETTING_DEFAULTS, as_array, check_names, leaves, narrowed


def called(node: Node) -> str:
    """The op and what messages call the node."""
    return f"{node.op.name} {node.label}" if node.name else node.label


class Executable(abc.ABC):
    """A loaded program. Call it with its inputs by name; it answers its outputs as NumPy arrays.

    Several threads may call it: each gets the outputs of its own inputs.
    inputs, settings: name -> value of the graph. reads, writes: the stored arrays that a run reads and writes. plan:
    None where the backend does not plan. narrow_inputs: the inputs of i64 that it converts to i32. effects: the
    updates of the program before what depends on precision and device. record_bytes: of the outputs of one step.
    """

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
    def profile(self, on: bool = True) -> None:
        """Collect nanoseconds per instruction from the next run on."""

    @abc.abstractmethod
    def timings(self) -> list[tuple[str, int, int]]:
        """(op and node, least ns, total ns) per instruction since `profile`."""

    def denormals(self) -> list[str]:
        """The instructions that have had denormal operands since `profile`; BackendError where none are seen."""
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
            with arrays_locked(self.reads, self.writes) if self._shares_lock else self._own_lock():
                if feeds is not None:
                    self.copy_in(given)
                self.check_files()
                return self.run_steps(steps, settings, deadline)
        except KeyboardInterrupt as interrupt:
            interrupt.steps_done = self.steps_run - before  # type: ignore[attr-defined]
            raise

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
