"""SumSteps: optimiser steps on the sum over micro-batches that several ranks compute; see step/exchange.py.

micro-batch j on rank j mod N -> flat array -> sum over all micro-batches -> one program on the sum, on all ranks
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np

from ..base.errors import GuardTripped, NotFinite
from ..graph.leaves import constant
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator
from ..run.compile import compile as compile_program
from ..step.exchange import Exchange, check_exchange
from .batches import CompiledBatch, MicroBatches, RowRange, S
from .compile_cache import CompileCache
from .result import Result
from .steps import BatchObjective, Call, OnProgress, Steps

T = TypeVar("T")


class SumSteps(Steps[S]):
    """Steps of ranks. All call the same methods in the same order. To `run` a batch is one group of one micro-batch.

    exchange   "ordered": summed in the order of the micro-batches; "fast": in the quickest order
    """

    ranks: Communicator

    def __init__(
        self,
        objective: BatchObjective,
        cache: CompileCache,
        state: OptimizerState,
        ranks: Communicator,
        exchange: str,
        **settings: Any,
    ) -> None:
        super().__init__(objective, cache, state, **settings)
        self.ranks, self.exchange = ranks, check_exchange(exchange)
        self._endings: dict[Hashable, Any] = cache.table()

    def _groups(self, rows: RowRange[S]) -> Iterable[MicroBatches]:
        for batch in rows.batches():
            yield MicroBatches(batch.start, batch.count, 1, True, True, 0)

    def _call(
        self, rows: RowRange[S], left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """One optimiser step."""
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        exchange.fold(batch.micro_batches, lambda j: self._compute(exchange, batch, j))
        self._check_stop(exchange)
        step, outputs = self._summed(exchange, batch)
        norms = self._end_step(exchange)
        if isinstance(norms, Exception):
            return Call(step, 0, [], norms)
        return Call(step, 1, [*outputs, *norms])

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

    def _built(self, what: str, key: Hashable, build: Callable[[], tuple[T, list[Value]]]) -> T:
        """Build a graph; build() returns what is built and the values of the graph."""
        return build()[0]

    def _cause(self, step: CompiledBatch, rows: RowRange[S], left: MicroBatches) -> str:
        batch, exchange = rows.part(left.start, left.start + left.rows), self._exchange_for(rows)
        return exchange.cause(
            batch.micro_batches, lambda j: self._compute(exchange, batch, j), lambda j: self._first_bad(batch, j)
        )

    @abstractmethod
    def _exchange_for(self, rows: RowRange[S]) -> Exchange:
        """What the ranks exchange in a step on such rows."""

    @abstractmethod
    def _compute(self, exchange: Exchange, batch: RowRange[S], j: int) -> None:
        """Compute micro-batch j into the flat array of the exchange."""

    @abstractmethod
    def _first_bad(self, batch: RowRange[S], j: int) -> str:
        """The first value that is not finite in micro-batch j."""

    @abstractmethod
    def _summed(self, exchange: Exchange, batch: RowRange[S]) -> tuple[CompiledBatch, list[np.ndarray]]:
        """The outputs of a batch, from the sum; the program whose outputs these are."""
