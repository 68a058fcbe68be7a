"""ProgramPlans: programs that are planned once, and then within ever smaller arenas, without building graphs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..plan.plan import Plan
from ..plan.recomputed import Budget
from .backend import backend, plan_for
from .cost import TYPICAL, node_seconds
from .null_backend import PLANNED


def planned_bytes(plans: Sequence[Plan]) -> int:
    """The most bytes of arena and scratch of all threads that one of these plans has."""
    return max((plan.bytecode.arena_bytes + plan.bytecode.scratch_bytes * plan.threads for plan in plans), default=0)


class ProgramPlans:
    """Plans of programs within an arena: those that gl.compile finds with the same `memory`.

    runs: programs that are planned for the CPU without a limit. on_plan: called after each further plan.
    """

    def __init__(self, runs: Sequence[Any], on_plan: Callable[[], object] = lambda: None) -> None:
        self._runs, self._on_plan = list(runs), on_plan
        self._budgets: dict[int, Budget] = {}  # of the programs that need clones

    def within(self, arena: int | None, fastest: bool = True) -> list[Plan] | None:
        """Plans of at most `arena` bytes of arena and scratch each, None: of any number; None where one has none.
        fastest: those of gl.compile; otherwise any ones, if they are found in few plans."""
        found = []
        for k, run in enumerate(self._runs):
            plan = run.plan
            if arena is not None and plan.peak_bytes > arena:
                budget = self._budget(k)
                small = budget.within(arena) if fastest else None
                other = small[1] if small is not None else None if fastest else budget.some_within(arena)
                self._on_plan()
                if other is None:
                    return None
                plan = other
            found.append(plan)
        return found

    def least(self) -> int:
        """About the smallest arena within which all of them have plans."""
        least = 0
        for k in sorted(range(len(self._runs)), key=lambda k: -self._runs[k].plan.peak_bytes):
            if self._runs[k].plan.peak_bytes > least:
                least = max(least, self._budget(k).smallest[1].peak_bytes)
                self._on_plan()
        return least

    def slowest(self, arena: int) -> list[Plan]:
        """Plans within this arena, which is that of `least` or larger, where `within` looks for faster ones."""
        whole = [run.plan for run in self._runs]
        return [p if p.peak_bytes <= arena else self._budget(k).smallest[1] for k, p in enumerate(whole)]

    def _budget(self, k: int) -> Budget:
        if k not in self._budgets:
            run = self._runs[k]
            plan_of = partial(_plan_of, backend(PLANNED + "cpu", run.switches), run.switches)
            self._budgets[k] = Budget(run.program, plan_of, lambda node: node_seconds(node, TYPICAL), run.plan)
        return self._budgets[k]


def _plan_of(one: Any, switches: Any, program: Any) -> Plan:
    plan: Plan = plan_for(one, program, switches)
    return plan
