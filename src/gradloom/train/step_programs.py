"""StepPrograms: the programs of micro-batches, compiled once for each structure and within a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

from ..base.errors import SettingError
from ..graph.graph import reachable, storage_leaf
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.structure import structure
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.agree import largest_of
from ..parallel.communicator import Communicator
from ..run.budget import ProcessBudget
from ..run.compile import compile as compile_program
from ..step.step import end_step
from .batches import CompiledBatch
from .compile_cache import CompileCache
from .metrics import NOTHING, Measures
from .objective import BatchGraph
from .source import FeedSource, RowSource
from .watching import Watching

T = TypeVar("T")

NO_COMMON_WEIGHT = (
    "the losses have different weights (labels that are ignored, masks): their means do not add up over micro-batches "
    "or ranks; need micro_batch_size=batch_size in one process, or one value per row with row weights of the data"
)


def written_by(run: Any) -> dict[Stored, None]:
    """The arrays that a program writes, in its order."""
    leaves = [storage_leaf(value) for value in run.program.effects]
    return dict.fromkeys(leaf.stored for leaf in leaves if isinstance(leaf, Parameter))


class StepPrograms:
    """Compiles the micro-batches of an objective.

    build      "grad": gradients into accumulators, no update; "opt": the whole step
    accumulate micro-batches per optimiser step
    dynamic    the graph may change from call to call
    .compiled  the micro-batches that were compiled so far
    .in_window micro-batches of the open accumulation window
    """

    ranks: Communicator | None = None  # those that train together
    watching: Watching | None = None  # of optimiser steps, in one process
    in_window: int

    def __init__(
        self,
        objective: Any,  # an Objective, in dp_train a SampleObjective
        cache: CompileCache,
        state: OptimizerState,
        *,
        max_norm: float,
        max_value: float,
        options: dict[str, Any],
        build: str = "opt",
        accumulate: int = 1,
        dynamic: bool = False,
        budget: ProcessBudget | None = None,
    ) -> None:
        self.objective, self.cache, self.state = objective, cache, state
        self.build, self.accumulate, self.dynamic = build, accumulate, dynamic
        self.options, self.budget = options, budget
        self.max_norm, self.max_value = max_norm, max_value
        self.keeps_gradients = build == "grad" or accumulate > 1
        self.compiled: dict[Hashable, CompiledBatch] = cache.table()
        self.result_bytes: dict[Hashable, int] = {}  # of passes, by their rows
        self._is_within = False  # inside of within_budget

    def program(self, outputs: Sequence[Value], updates: Sequence[Value] = ()) -> Any:
        """Compile a program with the options of the steps."""
        if self.budget is not None:
            return self.budget.compile(outputs, updates, self.options)
        return compile_program(outputs, updates, **self.options)

    def within_budget(
        self, build: Callable[[int], T], sizes: Sequence[int] = (0,), more: Callable[[], int] = lambda: 0,
        smaller: Sequence[int] = (),
    ) -> T:  # fmt: skip
        """What build(size) compiles, of the first size with which the process stays below the memory budget: with its
        programs, the results of passes and more() bytes. They are planned before; BudgetError where no size is small
        enough. Without a budget, of the first size. smaller: sizes that the error may propose."""
        budget, size = self.budget, sizes[0]
        if budget is None or self._is_within:
            return build(size)
        self._is_within = True
        try:
            with self.cache.trying() as drop:
                size = budget.first_within(
                    sizes, build, smaller, forget=drop, more=lambda: more() + sum(self.result_bytes.values()),
                    largest=partial(largest_of, self.ranks),
                )  # fmt: skip
            return build(size)
        finally:
            self._is_within = False

    def compiled_for(
        self,
        source: RowSource | FeedSource,
        rows: int,
        backward: bool,
        update: bool,
        measures: Measures = NOTHING,
    ) -> CompiledBatch:
        """The program of a micro-batch of n rows; update: it ends in an optimiser step; measures: of its outputs."""
        key: tuple[Hashable, ...] = (source.key, rows, backward, update, measures)
        if self.dynamic:
            graph = self.objective.graph(source, rows, backward, measures)
            others = self._others(graph.parameters, update)
            nodes = reachable(graph.outputs)
            statistics = [v for node in nodes for v in node.effects]
            wires = structure([*graph.outputs, *(graph.grads or ()), *statistics])
            devices = tuple(node.device for node in nodes)  # their gradients run on the same ones
            key = (*key, wires, devices, self._update_key(graph.parameters, others, update))
            if key not in self.compiled:
                self.compiled[key] = self._compile(graph, update, others)
            return self.compiled[key]

        def make(others: Sequence[Parameter] = ()) -> CompiledBatch:
            return self._compile(self.objective.graph(source, rows, backward, measures), update, others)

        def build(_: int) -> CompiledBatch:
            step = self.cache.get(self.compiled, key, backward, make)
            others = self._others(step.parameters, update)
            update_key = self._update_key(step.parameters, others, update)
            if update_key != step.update_key:
                step = self.cache.get(self.compiled, (*key, update_key), backward, lambda: make(others))
            return step

        return self.within_budget(build)

    def _others(self, parameters: Sequence[Parameter], update: bool) -> tuple[Parameter, ...]:
        """Parameters that an update finds in the open window besides these: those of another graph."""
        return self.state.others(parameters) if update and self.in_window else ()

    def _update_key(self, parameters: Sequence[Parameter], others: Sequence[Parameter], update: bool) -> Hashable:
        """Key of the nodes of an update, besides the parameters with a gradient."""
        return update and (tuple(p.stored for p in others), self.state.update_key((*parameters, *others)))

    def _compile(self, graph: BatchGraph, update: bool, others: Sequence[Parameter]) -> CompiledBatch:
        outputs = graph.outputs
        updates: tuple[Value, ...] = ()
        updated = (*graph.parameters, *others) if update else ()
        if graph.grads is not None:
            if self.keeps_gradients and not graph.adds_up:
                raise SettingError(NO_COMMON_WEIGHT)
            total, weight = outputs[:2]
            norms, updates = end_step(
                self.state, graph.parameters, graph.grads, total, weight,
                divisor=weight if self.objective.is_total else None, accumulates=self.keeps_gradients,
                updates=update, others=others, max_norm=self.max_norm, max_value=self.max_value,
            )  # fmt: skip
            outputs = [*outputs, *norms]
        run, watched = self.program(outputs, updates), None
        if self.watching is not None and update:
            divisor = None if self.objective.is_total else graph.outputs[1]
            watched = self.watching.attach(self, run, graph.outputs[0], divisor)
        return CompiledBatch(
            run, self.objective.has_predictions, outputs, updates, graph.parameters, tuple(graph.grads or ()), updated,
            self._update_key(graph.parameters, others, update), self.options, self._statistics(run, update),
            graph.layout, graph.join, watched,
        )  # fmt: skip

    def _statistics(self, run: Any, update: bool) -> tuple[Stored, ...]:
        """What a micro-batch without an update writes besides the sums of its window."""
        if update:
            return ()
        sums = {p.stored for p in (*self.state.sums.values(), self.state.weight)}
        return tuple(stored for stored in written_by(run) if stored not in sums)
