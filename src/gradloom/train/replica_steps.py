"""ReplicaSteps: the steps of dp_train. A rank is a replica with its own model; a batch has one sample for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import numpy as np

from ..base import locks
from ..base.errors import GradientError, GradloomError, GraphError, GuardTripped, NotFinite, TrainError
from ..graph.stored import Stored
from ..graph.structure import named, structure
from ..graph.value import Value, graph_mode
from ..nn.module import Module
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator, checksum
from ..run.backend import make_of
from ..run.diagnose import Place, place_in
from ..step.exchange import Exchange
from ..step.step import random_settings
from .batches import CompiledBatch, RowRange
from .compile_cache import CompileCache
from .replica_job import ReplicaJob, Sample, SampleObjective, SampleSource
from .result import Result
from .sum_steps import SumSteps, T, exchanged


class ReplicaSteps(SumSteps):
    """The steps of one replica, used by one thread. Row j of the source is sample j of the whole training.

    .makes  the makes of the devices of all replicas. On devices of one make each replica runs the program on the sum:
            equal work gives equal bits. Replicas of another make copy the arrays that the first replica has written
    """

    objective: SampleObjective

    def __init__(
        self, job: ReplicaJob, ranks: Communicator, model: Module, state: OptimizerState, options: dict[str, Any]
    ) -> None:
        super().__init__(
            SampleObjective(job, model), CompileCache(None, job.seed, False), state, ranks, job.exchange, seed=job.seed,
            max_norm=job.max_norm, max_value=job.max_value, skips=job.skips, options=options,
        )  # fmt: skip
        self.source = SampleSource(job)
        self.makes = ranks.gather(make_of(options["device"]))
        self._is_like_first = self.makes[ranks.rank] == self.makes[0]
        self.parameters, self.buffers = self.objective.parameters, self.objective.buffers
        pieces = {"reached": (len(self.parameters) + len(self.buffers),)}
        self._exchange = Exchange(ranks, self.parameters.values(), self.buffers.values(), pieces, job.exchange).join()
        self._micros: dict[Hashable, tuple[CompiledBatch, np.ndarray]] = self.cache.table()

    def step(self, i: int) -> float:
        """Take step i, counted from 0: its mean loss, nan when it was skipped."""
        result = Result()
        self.run(self.samples(i), result, True, None)
        return result.loss

    def samples(self, i: int) -> RowRange:
        """The samples of step i, one for each replica."""
        size = self.ranks.size
        return RowRange(self.source, i * size, (i + 1) * size, size, 1, True)

    def programs_of(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile the program of this replica's first sample."""
        return [self._micro_for(self.source.sample(rows.start + self.ranks.rank))[0]]

    def copy_first(self, written: Iterable[Stored], everywhere: bool = False) -> None:
        """Copy arrays of the first replica to those of other makes, or to all; all call it together."""
        for stored in written:
            array = stored.read().copy()
            self.ranks.broadcast(array)
            if everywhere or not self._is_like_first:
                stored.write(array)

    @property
    def runs(self) -> list[Any]:
        """All programs that were compiled so far."""
        return [*super().runs, *(step.run for step, _ in self._micros.values()), *self.endings.values()]

    def compare_graphs(self) -> None:
        """TrainError when processes build different graphs for samples of the same form: their scripts differ.

        Threads run one script: differences among them are intended.
        """
        ranks = self.ranks
        if ranks.size == 1 or ranks.kind != "rank":
            return
        with locks.building:
            mine = {repr(k): checksum(repr(structure(one.updates, named))) for k, (one, _) in self._micros.items()}
        seen: dict[str, str] = {}
        for rank, theirs in enumerate(ranks.gather(mine)):
            for key, outline in theirs.items():
                if seen.setdefault(key, outline) != outline:
                    raise TrainError(
                        f"rank {rank} makes another graph than those before it of samples {key}; need the same "
                        "forward_fn, loss_fn and target_fn on all"
                    )

    # ---- a step ----------------------------------------------------------------------------------------------

    def _begin(self, rows: RowRange, each: bool) -> bool:
        return each  # a program is compiled when its sample comes

    def _exchange_for(self, rows: RowRange) -> Exchange:
        return self._exchange

    def _compute(self, exchange: Exchange, batch: RowRange, j: int) -> None:
        at = batch.start + j
        with self._named(at):
            sample = self.source.sample(at)
            micro, reached = self._micro_for(sample)
            micro.run.feed({name: array for name, array in sample.leaves.items() if name in micro.run.inputs})
            exchange.run(micro.run, random_settings(self.seed, at + 1))
            exchange.numbers["reached"][...] = reached

    def _summed(self, exchange: Exchange, batch: RowRange) -> tuple[CompiledBatch, list[np.ndarray]]:
        step = CompiledBatch(None, False, [], (), updated=exchange.updated)
        return step, [np.array(exchange.mean_loss), np.ones(())]

    def _end_step(self, exchange: Exchange) -> list[np.ndarray] | GuardTripped | NotFinite:
        if len(set(self.makes)) == 1:
            return super()._end_step(exchange)
        ended: Any = GuardTripped(0, "the guard of replica 0 tripped")
        if self._is_like_first:
            ended = super()._end_step(exchange)
        norms = self.ranks.gather(None if isinstance(ended, Exception) else ended)[0]
        if norms is None:
            return ended
        written, average = [*exchange.updated, *self.buffers.values()], self.state.average
        if average is not None:
            known = [i for i, p in enumerate(self.state.parameters) if p.stored in average.arrays]
            written += [average.of(self.state.parameters[i]) for i in self.ranks.gather(known)[0]]
        self.copy_first(p.stored for p in written)
        return norms

    def _first_bad(self, batch: RowRange, j: int) -> str:
        sample = self.source.sample(batch.start + j)
        micro, _ = self._micro_for(sample)

        def place(name: str, array: np.ndarray, at: int) -> Place:
            return f"{name} of the sample", place_in(array.shape, at)

        settings = random_settings(self.seed, batch.start + j + 1)
        return f"{micro.first_bad(settings, place)}, in {self.ranks.kind} {self.ranks.rank}, sample {sample.number}"

    @contextlib.contextmanager
    def _named(self, at: int) -> Iterator[None]:
        """Errors inside name the replica, the sample and the step."""
        try:
            yield
        except Exception as error:
            number, step = self.source.number(at), at // self.ranks.size + 1
            where = f"{self.ranks.kind} {self.ranks.rank}, sample {number}, step {step}"
            raise error_at(error, where) from error.__cause__

    # ---- building --------------------------------------------------------------------------------------------

    def _built(self, what: str, key: Hashable, build: Callable[[], tuple[T, list[Value]]]) -> T:
        with locks.building, graph_mode():
            return build()[0]

    def _ending(self, exchange: Exchange) -> tuple[Any, list[Value]]:
        if not exchange.updated:
            raise GradientError("dp_train: the loss depends on no trainable parameter; need at least one")
        return super()._ending(exchange)

    def _micro_for(self, sample: Sample) -> tuple[CompiledBatch, np.ndarray]:
        """The program of a sample, and f32 [parameters + buffers], 1 where it has a value."""

        def build() -> tuple[tuple[CompiledBatch, np.ndarray], list[Value]]:
            graph = self.objective.graph(sample)
            grads, nexts = exchanged(graph)
            unknown = {s.name for s in nexts} - {p.stored.name for p in self.buffers.values()}
            if unknown:
                raise GraphError(f"the graph updates {', '.join(sorted(unknown))}, which is no buffer of the model")
            values, targets = grads | nexts, (*self._exchange.parameters, *self._exchange.buffers)
            reached = np.array([p.stored in values for p in targets], np.float32)
            return (self.micro_program(self._exchange, graph, values, []), reached), []

        return self.cache.get(self._micros, sample.key, True, lambda: self._built("sample", sample.key, build))


def error_at(error: BaseException, where: str) -> BaseException:
    """The error with its place; an error without a message becomes the cause of one that has a message."""
    if not isinstance(error, Exception):
        return error
    if isinstance(error, GradloomError):
        return error.extended(f"{where}: ")
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{where}: {error}",)
        return error
    named = TrainError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
