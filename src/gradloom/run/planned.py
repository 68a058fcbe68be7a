"""PlannedExecutable: what executables of a proved plan share: the table of settings, failures."""

from __future__ import annotations

import abc
import atexit
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.errors import (
    BackendError,
    GraphError,
    GuardTripped,
    IndexOutOfRange,
    NotFinite,
    SettingError,
    TrainError,
    one_line,
)
from ..base.settings import Switches
from ..base.terminal import to_stderr
from ..graph.declaration import Spec
from ..plan.bytecode import SETTING_BYTES
from ..plan.plan import Plan
from ..transform.program import Program
from .executable import Executable, called
from .queue import Queue

# Why a run has ended, as in csrc/bytecode.h; a device reports the same numbers.
STOP_DONE, STOP_GUARD, STOP_INDEX, STOP_NONFINITE, STOP_BOUNDS, STOP_REQUESTED, STOP_DEADLINE = range(7)

_WAITING = 64  # programs whose timings are not printed yet
_waiting: deque[PlannedExecutable] = deque()


def _print_reports(left: int) -> None:
    while len(_waiting) > left:
        to_stderr(_waiting.popleft().report())


class PlannedExecutable(Executable):
    """A loaded program with its proved plan.

    outputs: shape and dtype of each; output_starts: the byte of a step's record at which each begins. settings_words:
    key -> word in a row of settings.
    """

    plan: Plan
    output_starts: list[int]

    def __init__(self, program: Program, plan: Plan, switches: Switches, own_lock: bool = False) -> None:
        super().__init__(program, plan, switches, own_lock=own_lock)
        self.settings_words = dict(plan.bytecode.settings)
        self.outputs = [Spec(v.shape, v.dtype) for v in self.program.outputs]
        self.output_bytes = [v.bytes for v in self.program.outputs]
        words = self.settings_words
        self._row = np.dtype(
            {
                "names": list(words),
                "formats": [self.settings[key].dtype.numpy for key in words],
                "offsets": [SETTING_BYTES * word for word in words.values()],
                "itemsize": SETTING_BYTES * len(words),
            }
        )

    def settings_rows(self, steps: int, values: Mapping[str, Any]) -> np.ndarray:
        """The settings table for `steps` steps; each value is a number or an array of one number per step.

        SettingError for a finite one that its dtype makes infinite."""
        rows, key = np.zeros(steps, self._row), ""
        try:
            with np.errstate(over="raise"):
                for key in self.settings_words:
                    rows[key] = np.asarray(values[key])
        except FloatingPointError:
            seen = f"{key}={one_line(values[key])} is not finite in {self.settings[key].dtype.name}"
            raise SettingError(f"run: {seen}; need a number that is nearer to 0") from None
        return rows.view(np.int64).reshape(steps, len(self.settings_words))

    def queue(self) -> Queue:
        """Its device as one of several that run a program. BackendError for one that runs whole programs only."""
        raise BackendError(f"{type(self).__name__}: it runs whole programs; need devices such as 'gpu' and 'cpu'")

    def report_later(self) -> None:
        """Print the timings when the process ends, or before that, when _WAITING later programs were compiled: those
        that wait keep their arrays."""
        if not _waiting:
            atexit.register(_print_reports, 0)
        _waiting.append(self)
        _print_reports(_WAITING)

    @abc.abstractmethod
    def report(self) -> str:
        """The timings as a table: microseconds, GB/s and GFLOP/s of each instruction at its fastest."""

    def failure(self, done: int, stop: int, node_id: int, index: int, value: int) -> Exception:
        """The error for the place where the run stopped."""
        node = self.plan.bytecode.nodes.get(node_id)
        where = called(node) if node else f"node {node_id}"
        if stop == STOP_INDEX and node and node.op.name == "take_batch" and not -(1 << 31) <= value < 1 << 31:
            data = node.inputs[0]
            name = where if data is None else data.name
            return IndexOutOfRange(done, f"{name}: {value} in row {index} of a batch is out of range; need ids of i32")
        if stop == STOP_INDEX:
            among = node.op.id_range(node.inputs, node.attrs) if node else None
            need = "" if among is None else f"; need {among}"
            return IndexOutOfRange(done, f"{where}: id {value} at position {index} is out of range{need}")
        if stop == STOP_GUARD:
            return GuardTripped(done, f"{where}: the loss or a gradient is not finite")
        if stop == STOP_NONFINITE:
            return NotFinite(done, f"{where} produced a number that is not finite, at element {index}", node, index)
        if stop == STOP_BOUNDS:
            return TrainError(f"{where} wrote outside its output, at byte {index} of the arena")
        return GraphError(f"{where}: stopped for reason {stop}")
