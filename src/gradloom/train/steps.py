"""Steps: the driver of training and evaluation: rows -> micro-batches -> compiled programs -> calls -> Result.

LocalSteps    (local_steps.py)    one process: a step is one program, or a window of micro-batches
SumSteps      (sum_steps.py)      several ranks: micro-batches are summed, and one program ends the step
  RankSteps     (rank_steps.py)     ... micro-batches of a batch of rows
  ReplicaSteps  (replica_steps.py)  ... one sample per rank, for dp_train
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..base.errors import GuardTripped, IndexOutOfRange, NonFiniteError, NotFinite, SettingError
from ..graph.graph import reachable, storage_leaf
from ..graph.leaves import Parameter, constant
from ..graph.stored import Stored
from ..graph.structure import structure
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator
from ..parallel.flat import take_effects
from ..run.compile import compile as compile_program
from ..run.diagnose import stopped
from ..step.exchange import Exchange, check_exchange
from ..step.step import end_step
from .batches import CompiledBatch, MicroBatches, RowRange
from .compile_cache import CompileCache
from .metrics import NOTHING, Measures
from .objective import BatchGraph
from .result import Result
from .source import FeedSource, RowSource

Failed = GuardTripped | NotFinite | IndexOutOfRange  # why a micro-batch was not applied
# the program, micro-batches done, the outputs of each as in CompiledBatch.outputs, why the next one failed
Call = tuple[CompiledBatch, int, list[np.ndarray], Failed | None]
OnProgress = Callable[[int], None]  # called with the rows that are done

T = TypeVar("T")

NO_COMMON_WEIGHT = (
    "the losses have different weights (labels that are ignored, masks): their means do not add up over micro-batches "
    "or ranks; need micro_batch_size=batch_size in one process, or one value per row with row weights of the data"
)


def written_by(run: Any) -> dict[Stored, None]:
    """The arrays that a program writes, in its order."""
    leaves = [storage_leaf(value) for value in run.program.effects]
    return dict.fromkeys(leaf.stored for leaf in leaves if isinstance(leaf, Parameter))


def exchanged(graph: BatchGraph) -> tuple[dict[Stored, Value], dict[Stored, Value]]:
    """The gradients of a micro-batch, and the next values of buffers, which its graph then does not write itself."""
    grads = dict(zip((p.stored for p in graph.parameters), graph.grads or (), strict=True))
    return grads, take_effects([*graph.outputs, *grads.values()])


class Steps(ABC):
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
        objective: Any,  # an Objective, in dp_train a SampleObjective
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

    def run(self, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> None:
        """Train on these rows, or measure them. on_progress(rows done) is called after each call; each: a call computes
        one micro-batch."""
        each = self._begin(rows, each)
        if rows.backward:
            self.done = 0
        start = rows.start
        while start < rows.stop:  # again after a batch that was skipped
            start = self._run_from(start, rows, result, each, on_progress)

    def _begin(self, rows: RowRange, each: bool) -> bool:
        """Compile first, so that errors come before any training; whether a call computes one micro-batch."""
        if not self.dynamic:
            self.prepare(rows)
        return each or self.dynamic

    def _run_from(self, start: int, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> int:
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

    def _report(self, on_progress: OnProgress | None, done: int, rows: RowRange, each: bool) -> None:
        if on_progress is not None:
            on_progress(done)

    @abstractmethod
    def prepare(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""

    @abstractmethod
    def _groups(self, rows: RowRange) -> Iterable[MicroBatches]:
        """The micro-batches of these rows, or where ranks share them whole optimiser steps, in groups of equal size."""

    @abstractmethod
    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """Compute some of these micro-batches, from the first one on."""

    @abstractmethod
    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
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
        buffers = [p.stored for exchange in self.exchanges for p in exchange.buffers]
        return [*(stored for step in self.compiled.values() for stored in written_by(step.run)), *buffers]

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
        return tuple(stored for stored in written_by(run) if stored not in sums)


class SumSteps(Steps):
    """Steps of ranks. All call the same methods in the same order. To `run` a batch is one group of one micro-batch.

    exchange   "ordered": summed in the order of the micro-batches; "fast": in the quickest order
    """

    ranks: Communicator

    def __init__(
        self,
        objective: Any,  # an Objective, in dp_train a SampleObjective
        cache: CompileCache,
        state: OptimizerState,
        ranks: Communicator,
        exchange: str,
        **settings: Any,
    ) -> None:
        super().__init__(objective, cache, state, **settings)
        self.ranks, self.exchange = ranks, check_exchange(exchange)
        self._endings: dict[Hashable, Any] = cache.table()

    def _groups(self, rows: RowRange) -> Iterable[MicroBatches]:
        for batch in rows.batches():
            yield MicroBatches(batch.start, batch.count, 1, True, True, 0)

    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """One optimiser step."""
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        exchange.fold(batch.micro_batches, lambda j: self._compute(exchange, batch, j))
        self._check_stop(exchange)
        step, outputs = self._summed(exchange, batch)
        norms = self._end_step(exchange)
        if isinstance(norms, Exception):
            return step, 0, [], norms
        return step, 1, [*outputs, *norms], None

    def _check_stop(self, exchange: Exchange) -> None:
        """Raise on all ranks what one of them was asked to stop for."""

    def _end_step(self, exchange: Exchange) -> list[np.ndarray] | GuardTripped | NotFinite:
        """Run the program on the sum: its norms, or why nothing was written."""
        try:
            return self._ending_for(exchange).run_many(1, self.state.settings())[1]
        except (GuardTripped, NotFinite) as failed:
            return failed

    def _ending_for(self, exchange: Exchange) -> Any:
        """The compiled program on the sum."""
        key = exchange, exchange.reached, self.state.update_key(exchange.updated)
        return self.cache.get(
            self._endings, key, True, lambda: self._built("step", key, lambda: self._ending(exchange))
        )

    def _ending(self, exchange: Exchange) -> tuple[Any, list[Value]]:
        """The program on the sum, and its nodes."""
        divisor = constant(1.0) if self.objective.is_total else None
        norms, updates = exchange.ending(
            self.state, divisor=divisor, max_norm=self.max_norm, max_value=self.max_value, reached=exchange.reached
        )
        return compile_program(norms, updates, **self.options), [*norms, *updates]

    def _collecting(
        self, exchange: Exchange, graph: BatchGraph, values: Mapping[Stored, Value], outputs: list[Value]
    ) -> CompiledBatch:
        """The program of a micro-batch that writes to the flat array. values: of parameters and buffers."""
        written = [values.get(p.stored) for p in (*exchange.parameters, *exchange.buffers)]
        updates = exchange.collect([*written, *graph.outputs[:2]])
        run = compile_program(outputs, updates, **self.options)
        return CompiledBatch(
            run, self.objective.has_predictions, outputs, updates, graph.parameters, tuple(graph.grads or ()),
            exchange.parameters, options=self.options, layout=graph.layout,
        )  # fmt: skip

    def _built(self, what: str, key: Hashable, build: Callable[[], tuple[T, list[Value]]]) -> T:
        """Build a graph; build() returns what is built and the values of the graph."""
        return build()[0]

    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        return exchange.cause(
            batch.micro_batches, lambda j: self._compute(exchange, batch, j), lambda j: self._first_bad(batch, j)
        )

    @abstractmethod
    def _exchange_for(self, rows: RowRange) -> Exchange:
        """What the ranks exchange in a step on such rows."""

    @abstractmethod
    def _compute(self, exchange: Exchange, batch: RowRange, j: int) -> None:
        """Compute micro-batch j into the flat array of the exchange."""

    @abstractmethod
    def _first_bad(self, batch: RowRange, j: int) -> str:
        """The first value that is not finite in micro-batch j."""

    @abstractmethod
    def _summed(self, exchange: Exchange, batch: RowRange) -> tuple[CompiledBatch, list[np.ndarray]]:
        """The outputs of a batch, from the sum; the program whose outputs these are."""
