"""SumSteps: steps of several ranks. Micro-batches are summed, and one program on the sum ends the step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from ..base.errors import GuardTripped, NotFinite
from ..graph.leaves import constant
from ..graph.stored import Stored
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator
from ..parallel.flat import take_effects
from ..step.exchange import Exchange
from .batches import CompiledBatch, MicroBatches, RowRange
from .compile_cache import CompileCache
from .joins import BatchJoin
from .objective import BatchGraph
from .result import Result
from .steps import Call, OnProgress, Steps

T = TypeVar("T")


def exchanged(graph: BatchGraph) -> tuple[dict[Stored, Value], dict[Stored, Value]]:
    """The gradients of a micro-batch, and the next values of buffers, which its graph then does not write itself."""
    grads = dict(zip((p.stored for p in graph.parameters), graph.grads or (), strict=True))
    return grads, take_effects([*graph.outputs, *grads.values()])


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
        self.ranks, self.exchange = ranks, exchange
        self.endings: dict[Hashable, Any] = cache.table()

    def _groups(self, rows: RowRange) -> Iterable[MicroBatches]:
        for batch in rows.batches():
            yield MicroBatches(batch.start, batch.count, 1, True, True, 0)

    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """One optimiser step."""
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        exchange.fold(batch.micro_batches, lambda j: self._compute(exchange, batch, j))
        step, outputs = self._summed(exchange, batch)
        norms = self._end_step(exchange)
        if isinstance(norms, Exception):
            return step, 0, [], norms
        return step, 1, [*outputs, *norms], None

    def _end_step(self, exchange: Exchange) -> list[np.ndarray] | GuardTripped | NotFinite:
        """Run the program on the sum: its norms, or why nothing was written."""
        try:
            return self.ending_for(exchange).run_many(1, self.state.settings())[1]
        except (GuardTripped, NotFinite) as failed:
            return failed

    def ending_for(self, exchange: Exchange) -> Any:
        """The compiled program on the sum."""
        key = exchange, exchange.reached, self.state.update_key(exchange.updated)
        return self.cache.get(self.endings, key, True, lambda: self._built("step", key, lambda: self._ending(exchange)))

    def _ending(self, exchange: Exchange) -> tuple[Any, list[Value]]:
        """The program on the sum, and its nodes."""
        divisor = constant(1.0) if self.objective.is_total else None
        norms, updates = exchange.ending(
            self.state, divisor=divisor, max_norm=self.max_norm, max_value=self.max_value, reached=exchange.reached
        )
        return self.program(norms, updates), [*norms, *updates]

    def micro_program(
        self, exchange: Exchange, graph: BatchGraph, values: Mapping[Stored, Value], outputs: list[Value]
    ) -> CompiledBatch:
        """The program of a micro-batch that writes to the flat array. values: of parameters and buffers."""
        written = [values.get(p.stored) for p in (*exchange.parameters, *exchange.buffers)]
        updates = exchange.collect([*written, *graph.outputs[:2]])
        run = self.program(outputs, updates)
        return CompiledBatch(
            run, self.objective.has_predictions, outputs, updates, graph.parameters, tuple(graph.grads or ()),
            exchange.parameters, options=self.options, layout=graph.layout, join=graph.join,
        )  # fmt: skip

    @abstractmethod
    def _built(self, what: str, key: Hashable, build: Callable[[], tuple[T, list[Value]]]) -> T:
        """The first result of `build`, whose second one is the values of the graph that it built."""

    def built_join(self, what: str, key: Hashable, build: Callable[[], tuple[BatchJoin, list[Value]]]) -> BatchJoin:
        return self._built(what, key, build)

    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        return exchange.cause(
            batch.micro_batches, lambda j: self._compute(exchange, batch, j), lambda j: self._first_bad(batch, j)
        )

    @abstractmethod
    def _exchange_for(self, rows: RowRange) -> Exchange:
        """The exchange of the ranks in a step on such rows."""

    @abstractmethod
    def _compute(self, exchange: Exchange, batch: RowRange, j: int) -> None:
        """Compute micro-batch j into the flat array of the exchange."""

    @abstractmethod
    def _first_bad(self, batch: RowRange, j: int) -> str:
        """The first value that is not finite in micro-batch j."""

    @abstractmethod
    def _summed(self, exchange: Exchange, batch: RowRange) -> tuple[CompiledBatch, list[np.ndarray]]:
        """The outputs of a batch, from the sum; the program whose outputs these are."""
