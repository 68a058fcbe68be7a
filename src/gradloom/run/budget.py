"""Memory budgets of the whole process: the bytes that it holds, and those that programs and their arrays will add."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ..base import memory
from ..base.arguments import halves
from ..base.errors import BudgetError, GradloomError, SettingError
from ..base.memory import as_bytes, show_above, show_bytes
from ..base.messages import log
from ..base.settings import switches
from ..graph.value import Value
from ..plan.plan import Plan
from .backend import is_device
from .compile import compile as compile_program
from .cpu_backend import arena as shared_arena
from .cpu_backend import arena_was_used, release_arena
from .null_backend import PLANNED
from .program_plans import ProgramPlans, planned_bytes
from .rates import measure_early

T = TypeVar("T")

HUGE = 2 << 20  # bytes of a huge page: arenas and scratch take whole ones
LOAD_BYTES = 1 << 10  # for each instruction of a planned step when it is loaded
STEP_BYTES = 5 << 10  # of memory for each instruction of a compiled step: its node, its plan, its bytecode; measured

# Of a budget, for the larger of which a run may exceed its plan; measured.
RESERVE_BYTES, RESERVE_SHARE = 16 << 20, 0.03
LATER_RESERVE_BYTES = 4 << 20  # in place of RESERVE_BYTES once programs have run: libraries and threads are there

FAR = 1.1  # times a budget: smaller steps do not help where as much is needed besides them
ABOUT_BYTES, ABOUT_SHARE = 1 << 20, 0.01  # see about()
FEWER_THREADS = "fewer threads"
KEPT_BY_RESUME = "a resumed run keeps its rows, its precision and its model"
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


def with_reserve(total: int, held: int, is_first: bool | None = None) -> int:
    """The bytes of a plan with those by which a run may exceed it; held: those of `total` that are measured. is_first:
    of the first run of a process; None: if no program has run in this one."""
    is_first = not arena_was_used() if is_first is None else is_first
    least = RESERVE_BYTES if is_first else LATER_RESERVE_BYTES
    return total + max(least, int(RESERVE_SHARE * (total - held)))


def resident_when_settled() -> int:
    """Resident memory of this process once graphs and plans that nothing needs any more are freed."""
    memory.settle()
    return memory.resident()


def shared_bytes(arena: int) -> int:
    """The bytes of an arena that are in memory already: earlier programs have used them."""
    shared = shared_arena()
    return memory.present(shared.address, min(arena, shared.bytes))


Hint = tuple[str, Sequence[str]]  # the end of a message, with names in braces, and the settings that it names
NO_HINT: Hint = ("", ())
NOTHING: Mapping[str, object] = {}


def enough(settings: Mapping[str, object], texts: Sequence[str], kinds: Sequence[str], kept: str = "") -> Hint:
    """The hint of a budget that cannot be met. settings, texts: those that suffice; kinds: all that were tried;
    kept: why there are no more of them."""
    found = [*(f"{{{name}}} {value}" for name, value in settings.items()), *texts]
    if found:
        text = f"it is enough for {', or '.join(found)}"
    elif kinds:
        text = f"{' and '.join([', '.join(kinds[:-1])] * (len(kinds) > 1) + [kinds[-1]])} would not suffice"
    else:
        text = ""
    return "".join(f"; {one}" for one in (text, kept) if one), [*settings]


def nearest(candidates: Sequence[T], fits: Callable[[T], bool]) -> T | None:
    """The first of these that fits, if all that follow one that fits do so, too; None where the last does not."""
    if not candidates or not fits(candidates[-1]):
        return None
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(candidates[middle]) else (middle + 1, high)
    return candidates[high]


def about(total: int) -> int:
    """A budget that is enough where `total` bytes are the least, which are measured anew each time."""
    return total + ABOUT_BYTES + int(ABOUT_SHARE * total)


def too_small(
    who: str, most: int, total: int, hint: Hint = NO_HINT, included: str = "", rows: Mapping[str, object] = NOTHING
) -> BudgetError:
    """The error of a budget that cannot be met.

    total: the least bytes; included: parts of them, in words; rows: the setting, with its number of rows computed at
    once, to which they belong."""
    least = about(total)
    with_rows = "".join(f" with {{{name}}} {size}" for name, size in rows.items())
    text = f"{{memory}}: must be at least about {show_above(least, most)}{included}{with_rows}{hint[0]}"
    error = BudgetError(text, {"memory": show_bytes(most), **dict.fromkeys([*rows, *hint[1]], ...)}, place=who)
    error.least, error.total = least, total
    return error


class ProcessBudget:
    """The most bytes that this process may hold while its programs run on the CPU.

    limit: bytes, a text such as "6GiB", or "auto". options: of gl.compile. rows: the setting of the rows computed at
    once, if there is one. proposes: an error names settings that suffice, which are planned for it.
    .kept   of a resumed run, why it cannot compute other rows or in another precision
    .most   the bytes
    .arena  the most that arena and scratch of a program may have, which `search` finds; None: they need no limit
    Raises SettingError for a limit that is not usable, and with another device than the CPU.
    """

    def __init__(
        self, who: str, limit: int | str, options: Mapping[str, Any], rows: str = "", proposes: bool = True
    ) -> None:
        check_places(who, limit, options)
        self.who, self.rows, self.kept = who, rows, ""
        self.options, self.proposes = options, proposes
        self._changed: Mapping[str, object] = {}  # options of programs that are planned for a hint; else none
        self.most = budget_bytes(who, limit, memory.resident())
        self.arena: int | None = None
        self.is_searching = False
        self._planned: list[Any] = []  # programs of this search, which cannot run
        self._peak = 0  # resident bytes while this search planned
        self._first_held: tuple[int, int] | None = None  # bytes, and instructions, of the first of several searches
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()  # programs that can run

    def name(self, rows: str, kept: str = "") -> None:
        """Set the setting of the rows computed at once, and `kept`, for messages."""
        self.rows, self.kept = rows, kept

    def compile(self, outputs: Any, updates: Sequence[Value], options: Mapping[str, Any]) -> Any:
        """gl.compile within the budget; during a search the program is planned and cannot run."""
        if self.is_searching:
            if not self._planned:
                release_arena()
            made = {**options, **self._changed, **HERE}
            made.pop("device", None)
            run = compile_program(outputs, updates, **made)
            self._planned.append(run)
            self._note_peak()
            return run
        run = compile_program(outputs, updates, **{**options, "memory": self.arena})
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
        self.first_within((0,), lambda _: build(), forget=forget, more=more, largest=largest)

    def _search(
        self,
        build: Callable[[], object],
        forget: Callable[[], object] = lambda: None,
        more: Callable[[], int] = lambda: 0,
        largest: Callable[[int], int] = lambda excess: excess,
    ) -> None:
        """`search` with one number of rows."""
        before, self.arena, self._peak, has_found = self.arena, None, 0, False
        try:
            with self._searching():
                build()
                if self._planned:
                    self.arena = self._arena(more, largest)
            has_found = True
        finally:
            if not has_found:
                self.arena = before
            self._planned.clear()
            forget()

    def _arena(self, more: Callable[[], int], largest: Callable[[int], int]) -> int | None:
        """The arena of each program; None where they need no limit. BudgetError where the least one is too large."""
        whole = [run.plan for run in self._planned]
        measure_early(whole)
        programs, held = ProgramPlans(self._planned, self._note_peak), self._held(_steps(whole))
        arena, plans, is_least = None, whole, False
        while True:
            clones = STEP_BYTES * (_steps(plans) - _steps(whole))
            total = largest(max(self._total(plans, held) + clones + more(), self._peak))
            if total <= self.most:
                return arena
            if is_least:
                raise self._refused(total, largest(total - planned_bytes(plans)))
            arena = max(planned_bytes(plans) - (total - self.most), 1)
            found = programs.within(arena, not self._changed)
            if self._changed and largest(int(found is None)):
                raise self._refused(total, largest(total - planned_bytes(plans)))
            if is_least := largest(int(found is None)) > 0:
                arena = largest(programs.least())
                found = programs.slowest(arena)
            assert found is not None
            plans = found

    def _refused(self, total: int, fixed: int) -> BudgetError:
        count = len(self._loaded)
        earlier = f", {count} earlier program{'s' * (count > 1)} included" if count else ""
        refused = too_small(self.who, self.most, total, included=earlier)
        refused.fixed, refused.included = fixed, earlier
        return refused

    def first_within(
        self, sizes: Sequence[int], build: Callable[[int], object], smaller: Sequence[int] = (), **how: Any
    ) -> int:
        """The first of these sizes with which `build` has room; see `search`. A smaller one than the first is logged;
        the BudgetError of the one that needs the least where there is none. smaller: sizes that its hint may name."""
        errors, left = dict[int, BudgetError](), list(sizes)
        self._first_held = None
        while left:
            size = left.pop(0)
            try:
                self._search(partial(build, size), **how)
            except BudgetError as error:
                errors[size] = error.with_traceback(None)  # whose frames hold the programs that were tried
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
        size = min(errors, key=lambda size: errors[size].least)
        best = errors[size]
        rows = {self.rows: size} if self.rows and len(sizes) > 1 else NOTHING
        hint = self._enough(best, [*errors][-1], smaller, build, how) if self.proposes else NO_HINT
        raise too_small(self.who, self.most, best.total, hint, best.included, rows) from None

    def _enough(
        self,
        best: BudgetError,
        size: int,
        smaller: Sequence[int],
        build: Callable[[int], object],
        how: Mapping[str, Any],
    ) -> Hint:
        """Settings that were planned and with which there is room."""
        threads = switches(threads=self.options.get("threads")).threads
        kinds: list[tuple[str, str, list[Any]]] = []
        if threads > 1:
            kinds.append((FEWER_THREADS, "threads", [*halves(threads)]))
        if smaller:
            kinds.append(("fewer rows at once", self.rows, list(smaller)))
        if not self.kept and self.options.get("precision") != "bf16":
            kinds.append(("precision bf16", "precision", ["bf16"]))
        found = dict[str, object]()

        def fits(name: str, value: Any) -> bool:
            self._changed = {"memory": None} if name == self.rows else {name: value}
            try:
                self._search(partial(build, value if name == self.rows else size), **how)
            except GradloomError:
                return False
            finally:
                self._changed, self.arena = {}, before
            return True

        before = self.arena
        for _, name, values in kinds:
            if best.fixed < FAR * self.most and (value := nearest(values, partial(fits, name))) is not None:
                found[name] = value
        return enough(found, (), [kind for kind, _, _ in kinds], self.kept)

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        self.is_searching = True
        try:
            yield
        finally:
            self.is_searching = False

    def _note_peak(self) -> None:
        """Called where planning has taken memory: a budget holds while it plans, too."""
        self._peak = max(self._peak, memory.resident())

    def _held(self, steps: int) -> int:
        """The resident memory of the process with the programs that are planned. Of later sizes about that of the first
        one: memory that earlier tries have left in the heap is free for them."""
        now = resident_when_settled()
        if self._first_held is None:
            self._first_held = now, steps
        held, first = self._first_held
        return min(now, held + STEP_BYTES * max(steps - first, 0))

    def _total(self, planned: Sequence[Plan], held: int) -> int:
        """The resident memory of the process with these programs and the earlier ones."""
        plans = [*planned, *(run.plan for run in self._loaded)]
        arena = -(-max(p.bytecode.arena_bytes for p in plans) // HUGE) * HUGE
        arena -= shared_bytes(arena)
        scratch = sum(-(-p.bytecode.scratch_bytes * p.threads // HUGE) * HUGE for p in plans)
        arrays = sum(stored.absent_bytes for stored in {s for p in plans for s in p.bytecode.stored})
        inputs = sum(p.bytecode.inputs_bytes + len(p.bytecode.constants) for p in plans)
        return with_reserve(held + arena + scratch + arrays + inputs + LOAD_BYTES * _steps(planned), held)


def _steps(plans: Sequence[Plan]) -> int:
    return sum(len(plan.order.steps) for plan in plans)
