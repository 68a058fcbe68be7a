"""Steps: the driver of training and evaluation: rows -> micro-batches -> compiled programs -> calls -> Result.

LocalSteps    (local_steps.py)    one process: a step is one program, or a window of micro-batches
SumSteps      (sum_steps.py)      several ranks: micro-batches are summed, and one program ends the step
  RankSteps     (rank_steps.py)     ... micro-batches of a batch of rows
  ReplicaSteps  (replica_steps.py)  ... one sample per rank, for dp_train
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np

from ..base.errors import GuardTripped, IndexOutOfRange, NonFiniteError, NotFinite, SettingError
from ..graph.graph import reachable, storage_leaf
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.structure import structure
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator
from ..run.compile import compile as compile_program
from ..run.diagnose import stopped
from ..step.exchange import Exchange
from ..step.step import end_step
from .batches import CompiledBatch, MicroBatches, RowRange, S
from .compile_cache import CompileCache
from .metrics import NOTHING, Measures
from .objective import BatchGraph
from .result import Result
from .source import FeedSource, RowSource

Failed = GuardTripped | NotFinite | IndexOutOfRange  # why a micro-batch was not applied
OnProgress = Callable[[int], None]  # called with the rows that are done

NO_COMMON_WEIGHT = (
    "the losses have different weights (labels that are ignored, masks): their means do not add up over micro-batches "
    "or ranks; need micro_batch_size=batch_size in one process, or one value per row with row weights of the data"
)


class BatchObjective(Protocol):
    """Builds the graph of a micro-batch; see objective.py."""

    is_total: bool
    has_predictions: bool

    def graph(self, source: Any, rows: int, backward: bool, measures: Measures = NOTHING) -> BatchGraph: ...


class Call(NamedTuple):
    """One call of a driver: micro-batches done, the outputs of each as in `step.outputs`, why the next one failed."""

    step: CompiledBatch
    done: int
    outputs: list[np.ndarray]
    failed: Failed | None = None


class Steps(ABC, Generic[S]):
    """Compiles and runs the micro-batches of an objective.

    build      "grad": gradients into accumulators, no update; "opt": the whole step
    accumulate micro-batches per optimiser step
    skips      `run` leaves out a batch whose loss or gradient is not finite: its rows and its random step are
               consumed, the optimiser's step is not
    .done      rows that the last `run` of training rows has consumed: those of whole optimiser steps
    .held      micro-batches that the accumulators hold
    .in_window, .window_rows  micro-batches and rows of the open accumulation window
    .skipped   batches that were left out so far
    """

    ranks: Communicator | None = None  # those that train together
    exchange = "none"  # how they sum up their gradients

    def __init__(
        self,
        objective: BatchObjective,
        cache: CompileCache,
        state: OptimizerState,
        *,
        seed: int,
        max_norm: float,
        max_value: float,
        skips: bool,
        options: dict[str, Any],
        build: str = "opt",
        accumulate: int = 1,
        dynamic: bool = False,
    ) -> None:
        self.objective, self.cache, self.state = objective, cache, state
        self.build, self.accumulate, self.dynamic, self.skips = build, accumulate, dynamic, skips
        self.seed, self.options = seed, options
        self.max_norm, self.max_value = max_norm, max_value
        self.keeps_gradients = build == "grad" or accumulate > 1
        self.compiled: dict[Hashable, CompiledBatch] = cache.table()
        self.done = self.skipped = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new accumulation window."""
        self.held = self.in_window = self.window_rows = 0

    # ---- running -------------------------------------------------------------------------------------------

    def run(self, rows: RowRange[S], result: Result, each: bool, on_progress: OnProgress | None) -> None:
        """Train on these rows, or measure them. on_progress(rows done) is called after each call; each: a call computes
        one micro-batch."""
        each = self._begin(rows, each)
        if rows.backward:
            self.done = 0
        start = rows.start
        while start < rows.stop:  # again after a batch that was skipped
            start = self._run_from(start, rows, result, each, on_progress)

    def _begin(self, rows: RowRange[S], each: bool) -> bool:
        """Compile first, so that errors come before any training; whether a call computes one micro-batch."""
        self.prepare(rows)
        return each

    def _run_from(
        self, start: int, rows: RowRange[S], result: Result, each: bool, on_progress: OnProgress | None
    ) -> int:
        """Run the rows from `start`, where a batch begins; the row after the last one, or after a skipped batch."""
        backward = rows.backward
        for group in self._groups(rows.part(start, rows.stop)):
            left = group
            while left.count:
                step, count, outputs, failed = self._call(rows, left, result, each, on_progress)
                self._count(step, left, count, backward)
                end = left.start + count * left.rows
                if count:
                    truth = rows.source.truth(left.start, end) if step.needs_truth else (None, None)
                    self._add(result, step, count * left.rows, outputs, backward and left.update, *truth)
                left = left.after(count)
                if backward and (not self.in_window or self.build == "grad"):
                    self.done = end - rows.start
                if failed is not None:
                    if isinstance(failed, IndexOutOfRange):
                        raise failed
                    if not self.skips or not backward:
                        raise self._stopped(self._cause(step, rows, left))
                    self._skip(result)
                    end = rows.batch_end(left.start)
                    self.done = end - rows.start
                self._report(on_progress, end - rows.start, rows, each)
                if failed is not None:
                    return end
        return rows.stop

    def _count(self, step: CompiledBatch, micro: MicroBatches, count: int, backward: bool) -> None:
        """Count micro-batches that were done."""
        if backward and count:
            self.state.advance(step.updated, count)

    def _add(
        self,
        result: Result,
        step: CompiledBatch,
        rows: int,
        outputs: list[np.ndarray],
        steps: bool,
        labels: np.ndarray | None,
        weights: np.ndarray | None,
    ) -> None:
        """Add the outputs of micro-batches to a result; steps: optimiser steps ended in them."""
        result.is_total = self.objective.is_total
        predictions = outputs[2] if step.has_predictions else None
        norms = outputs[-1] if steps else None
        losses = step.losses(step.loss_outputs(outputs)) if step.layout.losses else None
        result.add(rows, outputs[0], outputs[1], predictions, labels, weights, norms, losses)
        if step.layout.size:
            result.measured.add(step.layout, step.extra(outputs), rows, labels, weights)

    def _skip(self, result: Result) -> None:
        """Leave out the batch whose loss or gradient is not finite."""
        self.skipped += 1
        result.skipped += 1

    def _stopped(self, cause: str) -> NonFiniteError:
        """The error of a training step whose loss or gradient is not finite."""
        return stopped(self.state.steps + 1, cause, self.state.epoch + 1)

    def _report(self, on_progress: OnProgress | None, done: int, rows: RowRange[S], each: bool) -> None:
        if on_progress is not None:
            on_progress(done)

    @abstractmethod
    def prepare(self, rows: RowRange[S]) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""

    @abstractmethod
    def _groups(self, rows: RowRange[S]) -> Iterable[MicroBatches]:
        """The micro-batches of these rows, or where ranks share them whole optimiser steps, in groups of equal size."""

    @abstractmethod
    def _call(
        self, rows: RowRange[S], left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """Compute some of these micro-batches, from the first one on."""

    @abstractmethod
    def _cause(self, step: CompiledBatch, rows: RowRange[S], left: MicroBatches) -> str:
        """Why the first of these micro-batches is not finite."""

    # ---- one process and ranks -------------------------------------------------------------------------------

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Inside, Ctrl-C stops all ranks after the same step."""
        return contextlib.nullcontext()

    def tell(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener."""
        if listener is not None:
            listener(*results)

    @property
    def exchanges(self) -> list[Exchange]:
        """What ranks exchange, for each size of batch."""
        return []

    @property
    def plans(self) -> list[Any]:
        """The plans of all programs that were compiled so far."""
        return [step.run.plan for step in self.compiled.values() if step.run.plan is not None]

    def written(self) -> list[Stored]:
        """Arrays that the steps so far wrote, but for those of the optimiser's moments."""
        leaves = [storage_leaf(value) for step in self.compiled.values() for value in step.run.program.effects]
        buffers = [p.stored for exchange in self.exchanges for p in exchange.buffers]
        return [*(leaf.stored for leaf in leaves if isinstance(leaf, Parameter)), *buffers]

    # ---- building --------------------------------------------------------------------------------------------

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

        step = self.cache.get(self.compiled, key, backward, make)
        others = self._others(step.parameters, update)
        update_key = self._update_key(step.parameters, others, update)
        if update_key != step.update_key:
            step = self.cache.get(self.compiled, (*key, update_key), backward, lambda: make(others))
        return step

    def _others(self, parameters: Sequence[Parameter], update: bool) -> tuple[Parameter, ...]:
        """Parameters that an update finds in the open window besides these: those of another graph."""
        return self.state.others(parameters) if update and self.in_window else ()

    def _update_key(self, parameters: Sequence[Parameter], others: Sequence[Parameter], update: bool) -> Hashable:
        """What the nodes of an update depend on besides the parameters with a gradient."""
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
        run = compile_program(outputs, updates, **self.options)
        return CompiledBatch(
            run, self.objective.has_predictions, outputs, updates, graph.parameters, tuple(graph.grads or ()), updated,
            self._update_key(graph.parameters, others, update), self.options, self._statistics(run, update),
            graph.layout,
        )  # fmt: skip

    def _statistics(self, run: Any, update: bool) -> tuple[Stored, ...]:
        """What a micro-batch without an update writes besides the sums of its window."""
        if update:
            return ()
        sums = {p.stored for p in (*self.state.sums.values(), self.state.weight)}
        leaves = [storage_leaf(value) for value in run.program.effects]
        written = dict.fromkeys(leaf.stored for leaf in leaves if isinstance(leaf, Parameter))
        return tuple(stored for stored in written if stored not in sums)
