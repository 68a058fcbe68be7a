"""Memory budgets of the whole process: the bytes that it holds, and those that programs and their arrays will add."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..base import memory
from ..base.errors import BudgetError, GradloomError, SettingError
from ..base.memory import as_bytes, show_bytes
from ..base.messages import log
from ..graph.value import Value
from ..plan.plan import Plan
from .backend import is_device
from .compile import compile as compile_program
from .cpu_backend import arena as shared_arena
from .null_backend import PLANNED
from .rates import measure_early

HUGE = 2 << 20  # bytes of a huge page: arenas and scratch take whole ones
LOAD_BYTES = 1 << 10  # for each instruction of a planned step when it is loaded
STEP_BYTES = 5 << 10  # of memory for each instruction of a compiled step: its node, its plan, its bytecode; measured

# Of a budget, for the larger of which a run may exceed its plan; measured.
RESERVE_BYTES, RESERVE_SHARE = 16 << 20, 0.03
LATER_RESERVE_BYTES = 4 << 20  # in place of RESERVE_BYTES once programs have run: libraries and threads are there

FAR = 1.1  # times a budget: smaller steps do not help where as much is needed besides them
ABOUT_BYTES, ABOUT_SHARE = 1 << 20, 0.01  # that an error adds to the least budget, which is measured anew each time
# The hint of a resumed run's budget: its bits depend on rows and precision, which cannot change.
RESUMED_HINT = "fewer threads: a resumed run keeps its rows, its precision and its model"
HERE = {"backend": PLANNED + "cpu"}  # options of gl.compile, of programs that are only planned


def check_places(who: str, limit: int | str | None, options: Mapping[str, Any], *more: object) -> None:
    """SettingError for a budget that is no number of bytes, and for one with another device than the CPU. options: of
    gl.compile; more: not None if something computes on a GPU."""
    if limit is None:
        return
    if limit != "auto":
        as_bytes("memory", limit, who)
    elif memory.memory() is None:
        raise SettingError("{memory}: this system does not report its memory; need bytes", memory=limit, place=who)
    given = [options.get(word) for word in ("device", "backend")]
    names = [*(options.get("devices") or ()), *(name for name in given if name is not None)]
    if any(one is not None for one in more) or any(name != "cpu" for name in names):
        raise SettingError("{memory} requires device 'cpu'", memory=limit, place=who)


def check_one_process(limit: int | str | None, ranks: object) -> None:
    """SettingError for "auto" with ranks (not None), which share the memory."""
    if limit == "auto" and ranks is not None:
        raise SettingError("{memory} 'auto' requires one process; need the bytes of each rank", memory="auto")


def budget_bytes(who: str, limit: int | str, held: int) -> int:
    """The bytes of a budget; "auto": those that are available now, less a reserve, besides the `held` ones."""
    there = memory.memory()
    if limit == "auto" and there is not None:
        return held + int((1 - RESERVE_SHARE) * there.available)
    return as_bytes("memory", limit, who)


def with_reserve(total: int, held: int) -> int:
    """The bytes of a plan with those by which a run may exceed it; held: those of `total` that are measured."""
    shared = shared_arena()
    least = LATER_RESERVE_BYTES if memory.present(shared.address, shared.bytes) else RESERVE_BYTES
    return total + max(least, int(RESERVE_SHARE * (total - held)))


def resident_when_settled() -> int:
    """Resident memory of this process once graphs and plans that nothing needs any more are freed."""
    memory.settle()
    return memory.resident()


def shared_bytes(arena: int) -> int:
    """The bytes of an arena that are in memory already: earlier programs have used them."""
    shared = shared_arena()
    return memory.present(shared.address, min(arena, shared.bytes))


def too_small(who: str, most: int, least: int, hint: str, included: str = "") -> BudgetError:
    """The error of a budget that cannot be met. hint: settings that need less; included: parts of the least bytes."""
    least += ABOUT_BYTES + int(ABOUT_SHARE * least)
    need = f"at least about {show_bytes(least)}{included}; or {hint}"
    error = BudgetError(setting="memory", seen=show_bytes(most), need=need, place=who)
    error.least = least
    return error


class ProcessBudget:
    """The most bytes that this process may hold while its programs run on the CPU.

    limit: bytes, a text such as "6GiB", or "auto". options: of gl.compile. hint: settings that need less memory.
    .most   the bytes
    .arena  the most that arena and scratch of a program may have, which `search` finds; None: they need no limit
    Raises SettingError for a limit that is not usable, and with another device than the CPU.
    """

    def __init__(self, who: str, limit: int | str, options: Mapping[str, Any], hint: str) -> None:
        check_places(who, limit, options)
        self.who, self.hint = who, hint
        self.most = budget_bytes(who, limit, memory.resident())
        self.arena: int | None = None
        self.is_searching = False
        self._planned: list[Plan] = []  # in this search
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()  # programs that can run

    def compile(self, outputs: Any, updates: Sequence[Value], options: Mapping[str, Any]) -> Any:
        """gl.compile within the budget; during a search the program is planned and cannot run."""
        made = {**options, "memory": self.arena}
        if self.is_searching:
            run = compile_program(outputs, updates, **{k: v for k, v in made.items() if k != "device"} | HERE)
            self._planned.append(run.plan)
            return run
        run = compile_program(outputs, updates, **made)
        if not isinstance(run.plan, Plan) or is_device(run.plan.device):
            raise SettingError("{memory} requires device 'cpu'", memory=show_bytes(self.most), place=self.who)
        self._loaded.add(run)
        return run

    def search(
        self,
        build: Callable[[], object],
        forget: Callable[[], object] = lambda: None,
        more: Callable[[], int] = lambda: 0,
        largest: Callable[[int], int] = lambda excess: excess,
    ) -> None:
        """Find the arena with which programs and process have room together.

        build: compiles the programs, which are only planned. forget: drops them. more: bytes that the process will take
        besides programs and their arrays. largest: the largest of a number on all ranks. BudgetError, before any array
        of the programs is made, where they do not have room.
        """
        before, total, planned = self.arena, 0, 0
        self.arena = None
        with self._searching():
            try:
                while True:
                    self._planned.clear()
                    build()
                    if not self._planned:
                        return
                    measure_early(self._planned)
                    total, planned = self._total(more()), max(_planned(plan) for plan in self._planned)
                    excess = largest(total - self.most)
                    if excess <= 0:
                        return
                    self.arena = max(planned - excess, 1)
                    forget()
            except BudgetError as refusal:  # total and planned: of the programs with a larger arena
                error = self._largest(refusal, build, forget)
                self.arena = before
                total = largest(total)
                count = len(self._loaded)
                earlier = f", {count} earlier program{'s' * (count > 1)} included" if count else ""
                refused = too_small(self.who, self.most, total - planned + error.least, self.hint, earlier)
                refused.fixed = total - planned
                raise refused from None
            finally:
                self._planned.clear()
                forget()

    def _largest(self, error: BudgetError, build: Callable[[], object], forget: Callable[[], object]) -> BudgetError:
        """The error of the program that needs the largest arena; `error`: of the first one that the arena is too small
        for."""
        while True:
            forget()
            self.arena = error.least
            try:
                build()
            except BudgetError as other:
                if other.least <= error.least:
                    return error
                error = other
            else:
                return error

    def first_within(self, sizes: Sequence[int], build: Callable[[int], object], **how: Any) -> int:
        """The first of these sizes with which `build` has room; see `search`. A smaller one than the first is logged;
        the BudgetError of the one that needs the least where there is none."""
        errors, left = list[BudgetError](), list(sizes)
        while left:
            size = left.pop(0)
            try:
                self.search(partial(build, size), **how)
            except BudgetError as error:
                errors.append(error)
                if error.fixed >= FAR * self.most:  # no size is small enough; the last one needs the least
                    left = left[-1:]
                continue
            except GradloomError:
                if not errors:
                    raise
                continue  # such as BatchNorm, which cannot train on one row
            if size != sizes[0]:
                log.info("memory: %d rows are computed at once, not %d", size, sizes[0])
            return size
        raise min(errors, key=lambda error: error.least)

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        self.is_searching = True
        try:
            yield
        finally:
            self.is_searching = False

    def _total(self, more: int) -> int:
        """The resident memory of the process with the programs of this search and the earlier ones."""
        held = resident_when_settled()
        plans = [*self._planned, *(run.plan for run in self._loaded)]
        arena = -(-max(p.bytecode.arena_bytes for p in plans) // HUGE) * HUGE
        arena -= shared_bytes(arena)
        scratch = sum(-(-p.bytecode.scratch_bytes * p.threads // HUGE) * HUGE for p in plans)
        arrays = sum(stored.absent_bytes for stored in {s for p in plans for s in p.bytecode.stored})
        inputs = sum(p.bytecode.inputs_bytes + len(p.bytecode.constants) for p in plans)
        steps = LOAD_BYTES * sum(len(p.order.steps) for p in self._planned)
        return with_reserve(held + arena + scratch + arrays + inputs + steps + more, held)


def _planned(plan: Plan) -> int:
    """The arena and the scratch of all threads."""
    return plan.bytecode.arena_bytes + plan.bytecode.scratch_bytes * plan.threads
