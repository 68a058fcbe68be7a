"""A program on several devices: one thread walks the events of all of them in one order (plan/schedule.py).

Calls of a device that works asynchronously return at once: so a GPU computes while the CPU runs its
instructions, and this thread waits only for values that the CPU, or another device, is about to read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import BackendError, BudgetError, GuardTripped, IndexOutOfRange, NotFinite, UserOpError
from ..base.interrupts import postponed
from ..base.memory import settle, show_bytes
from ..base.settings import Switches
from ..graph.value import Node
from ..plan.bytecode import NODE_MASK
from ..plan.plan import Plan
from ..plan.recomputed import Budget
from ..plan.schedule import Commit, Run, Schedule, Send, counterparts
from ..plan.split import make_schedule
from ..transform.place import Placed
from ..transform.program import Program
from .backend import Backend, is_device, plan_for
from .cost import TYPICAL, node_seconds
from .executable import Executable
from .null_backend import NullBackend, NullExecutable
from .planned import STOP_REQUESTED, PlannedExecutable
from .queue import Failure, Fetched, Interrupted, Queue, StepFailed

NO_BUDGETS: Mapping[str, int] = {}
END, COMMIT = "end", "commit"  # fetched values other than transfers, which are numbers


def plan_within(
    budget: int | None, chosen: Backend, program: Program, switches: Switches, device: str = ""
) -> tuple[Program, Plan]:
    """The program, with clones where it needs them, and its proved plan of at most `budget` bytes of arena and scratch,
    None: of any number. The choice does not depend on the speed of this machine. BudgetError where there is none;
    device: of a part of a program, for the message."""
    if budget is None:
        return program, plan_for(chosen, program, switches)
    plans = Budget(program, lambda made: plan_for(chosen, made, switches), lambda node: node_seconds(node, TYPICAL))
    found = plans.within(budget)
    if found is None:
        least = plans.smallest[1].peak_bytes
        where = f"part of the program on {device!r}" if device else "program"
        shown = show_bytes(budget)
        shown = f"{budget} bytes" if shown == show_bytes(least) else shown
        need = f"at least {least} bytes ({show_bytes(least)}), for the arena and scratch of this {where}"
        error = BudgetError(setting="memory", seen=shown, need=need, place="compile")
        error.least = least
        raise error
    del plans
    settle()  # the programs and plans that were tried would add to the process's memory
    return found[0], replace(found[1], budget=budget)


def schedule_for(
    placed: Placed, backends: Mapping[str, Backend], switches: Switches, budgets: Mapping[str, int] = NO_BUDGETS
) -> Schedule:
    """Plan and prove a placed program for several devices. backends: who computes, by the names that it is placed on.
    budgets: most bytes of arena and scratch, of devices that have a limit. BudgetError where that is too little,
    BackendError where one cannot run a part of a program, or has no kernel for a node."""
    if whole := [name for name, one in backends.items() if not one.planned]:
        raise BackendError(f"devices: {whole[0]!r} runs whole programs; need devices such as 'gpu' and 'cpu'")
    return make_schedule(
        placed.program,
        placed.device,
        lambda name, program: plan_within(budgets.get(name), backends[name], program, switches, name),
        [name for name in backends if is_device(name)],
    )


def scheduled(
    placed: Placed, backends: Mapping[str, Backend], switches: Switches, budgets: Mapping[str, int] = NO_BUDGETS
) -> Executable:
    """The same, loaded: each part on its device. Where the backends only plan, nothing is."""
    schedule = schedule_for(placed, backends, switches, budgets)
    if all(isinstance(one, NullBackend) for one in backends.values()):
        return NullExecutable(schedule.program, schedule, switches)
    parts = {}
    for name, part in schedule.parts.items():
        loaded = backends[name].load(part.program, part.plan)
        if not isinstance(loaded, PlannedExecutable):
            raise BackendError(f"devices: {name!r} runs whole programs; need devices such as 'gpu' and 'cpu'")
        parts[name] = loaded
    return ScheduledExecutable(schedule, parts, switches)


class ScheduledExecutable(Executable):
    """A proved schedule, loaded. parts: by device."""

    plan: Schedule

    def __init__(self, schedule: Schedule, parts: Mapping[str, PlannedExecutable], switches: Switches) -> None:
        """parts: each device's program, loaded there."""
        super().__init__(schedule.program, schedule, switches)
        self.parts = dict(parts)
        self._queues: dict[str, Queue] = {device: part.queue() for device, part in self.parts.items()}
        self._ends: dict[str, list[int]] = {device: [] for device in self.parts}  # outputs that the caller reads there
        for device, output in schedule.outputs:
            if output not in self._ends[device]:
                self._ends[device].append(output)
        self._places = [(device, self._ends[device].index(output)) for device, output in schedule.outputs]
        self._slots: dict[str, list[np.ndarray]] = {
            key: [part.fed()[key] for part in self.parts.values() if key in part.inputs] for key in self.inputs
        }
        self._steps_run, self._stopping = 0, False
        self._committed = False  # stored arrays may have been written by the run in progress
        self._device = ""  # that of the event in progress
        self._positions = {device: _positions(schedule, device) for device in self.parts}

    # ---- what every executable answers --------------------------------------------------------------------

    @property
    def steps_run(self) -> int:
        return self._steps_run

    def fed(self) -> dict[str, np.ndarray]:
        return {key: slots[0] for key, slots in self._slots.items()}

    def copy_in(self, given: Mapping[str, np.ndarray]) -> None:
        for key, array in given.items():
            for slot in self._slots[key]:
                slot[...] = array

    def stop(self) -> None:
        self._stopping = True

    def collect_times(self, on: bool = True) -> None:
        """Collect nanoseconds per instruction from the next run on, on each device as a program of its own does."""
        for part in self.parts.values():
            part.collect_times(on)

    def timings(self) -> list[tuple[str, int, int]]:
        """(device, op and node; least ns; total ns) per instruction since `collect_times`, device by device."""
        return [
            (f"{device}: {what}", least, total)
            for device, part in self.parts.items()
            for what, least, total in part.timings()
        ]

    def timed_nodes(self) -> list[tuple[str, Node]]:
        return [(device, node) for device, part in self.parts.items() for _, node in part.timed_nodes()]

    def report(self) -> str:
        """The timings of each device as a table."""
        return "\n".join(part.report() for part in self.parts.values())

    # ---- running ------------------------------------------------------------------------------------------

    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        rows = {d: part.settings_rows(steps, settings) for d, part in self.parts.items() if part.settings}
        columns = [np.empty((steps, *v.shape), v.dtype.numpy) for v in self.program.outputs]
        done, failure = 0, None
        self._stopping, self._committed, begun = False, False, time.monotonic()
        with postponed() as interrupted, contextlib.ExitStack() as held:
            for queue in self._queues.values():
                queue.bring()
            for device, queue in self._queues.items():
                held.enter_context(queue.held([key for key in self.parts[device].inputs if key in self._slots]))
            try:
                while done < steps and not interrupted():
                    late = deadline and time.monotonic() - begun >= deadline
                    if done and (late or self._stopping):
                        break
                    row = {device: rows[device][done : done + 1] for device in rows}
                    ended = self._step(row, interrupted)
                    for column, (device, place) in zip(columns, self._places, strict=True):
                        column[done : done + 1].reshape(-1).view(np.uint8)[...] = ended[device][place]
                    done += 1
                    self._steps_run += 1
            except StepFailed as failed:
                failure = self._first_failure(failed.failure)
                if failed.failure.stop == STOP_REQUESTED:  # abandoned; other failures are ignored
                    failure = None
            except BaseException as ended:
                if isinstance(ended, UserOpError):
                    ended.steps_done, ended.outputs = done, [column[:done] for column in columns]
                for queue in self._queues.values():
                    with contextlib.suppress(BackendError):  # the device that is lost
                        queue.settle()
                raise
            finally:
                if self._committed:
                    for queue in self._queues.values():
                        queue.count_writes()
        found = [column[:done] for column in columns]
        if failure is not None:
            device, seen = failure
            error = self.parts[device].failure(done, *seen)
            if isinstance(error, (GuardTripped, NotFinite, IndexOutOfRange)):
                error.outputs = found
            raise error
        return done, found

    def _step(self, rows: Mapping[str, np.ndarray], interrupted: Interrupted) -> dict[str, list[np.ndarray]]:
        """Walk one step and return the outputs on each device. StepFailed where a device has failed, or where the step
        was given up, before anything was written that outlives it. rows: the settings on each device."""
        queues, fetched = self._queues, dict[Hashable, Fetched]()
        waiting = len(queues)  # devices that have not come to their Commit
        fresh = not self._committed
        for device, queue in queues.items():
            queue.begin(rows.get(device))
        for device, event in self.plan.walk:
            self._device = device
            if isinstance(event, Run):
                may_end = fresh and waiting > 0
                if may_end and interrupted():
                    raise StepFailed(Failure(STOP_REQUESTED, 0, 0, 0))
                queues[device].run(event.first, event.last, interrupted if may_end else None)
            elif isinstance(event, Send):
                k = event.transfer
                fetched[k] = queues[device].fetch(k, [self.plan.transfers[k].output])
            elif isinstance(event, Commit):
                fetched[COMMIT, device] = queues[device].fetch(COMMIT, [])
                waiting -= 1
                if not waiting:
                    for each in queues:
                        self._device = each
                        fetched.pop((COMMIT, each))()
                    self._committed = True
            else:
                one = self.plan.transfers[event.transfer]
                self._device = one.source
                data = fetched.pop(event.transfer)()[0]
                self._device = device
                queues[device].receive(one.key, data)
        ends = {device: queue.fetch(END, self._ends[device]) for device, queue in queues.items()}
        ended = {}
        for device, end in ends.items():
            self._device = device
            ended[device] = end()
        return ended

    def _first_failure(self, seen: Failure) -> tuple[str, Failure]:
        """Wait for all devices; of their failures return the one that comes first in the program. seen: that of the
        device whose event was in progress."""
        failures = [(self._device, seen)]
        for device, queue in self._queues.items():
            found = queue.settle()
            if found is not None and device != self._device:
                failures.append((device, found))
        return min(failures, key=lambda f: self._positions[f[0]].get(f[1].node, 0))


def _positions(schedule: Schedule, device: str) -> dict[int, int]:
    """Of each node of a device's bytecode (its id there) the position in the placed program."""
    at = {node: i for i, node in enumerate(schedule.program.nodes)}
    part, found, last = schedule.parts[device], dict[int, int](), 0
    made_of = counterparts(part.program.nodes, part.plan.laid.program.nodes)
    for node in part.plan.order.steps:
        origin = part.origins.get(made_of.get(node, node))
        last = last if origin is None else at[origin]
        found[node.id & NODE_MASK] = last
    return found
