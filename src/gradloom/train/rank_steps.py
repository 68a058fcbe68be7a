"""RankSteps: batches shared by ranks. Every rank computes some of a batch's micro-batches, and all take the same step.

Every rank holds the data and the weights. A batch is cut into micro-batches as in one process, and micro-batch j is
computed on rank j mod N. So the micro-batches decide the bits, the number of ranks does not.

Running statistics start each micro-batch from their value before the step; after it they are the mean over the
micro-batches, by rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ..base.errors import GraphError, NotFinite, SettingError, TrainError
from ..base.settings import switches
from ..graph.leaves import setting, stored_value
from ..graph.stored import Stored
from ..graph.structure import named, structure
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.agree import Agreement, agreed, same_settings, sampled
from ..parallel.communicator import Communicator, checksum
from ..run.backend import make_of
from ..run.cpu_backend import isa_of
from ..runs.state import TrainState, shown
from ..step.exchange import Exchange
from ..step.step import random_settings
from .batches import CompiledBatch, MicroBatches, RowRange, cut
from .compile_cache import CompileCache
from .objective import BatchGraph, Objective
from .output_losses import OutputLosses
from .result import Result
from .source import Join, RowSource
from .step_programs import NO_COMMON_WEIGHT
from .steps import CALL_SECONDS, Call, OnProgress
from .sum_steps import SumSteps, T, exchanged

REPORT_SECONDS = 0.1  # between two reports of a training pass
DATA_BYTES, WEIGHT_BYTES = 64 << 20, 1 << 20  # larger data sets and mapped weights are compared by samples of this size


def _name_of(objective: Any) -> str:
    """The part of its loss that is the same text on all ranks."""
    loss = objective.loss if isinstance(objective.loss, OutputLosses) else objective.named_loss
    return str(loss or "a function")


def _compared(one: Any) -> str:
    """Of an array a checksum, of a large one that of samples; a text as it is."""
    return one if isinstance(one, str) else sampled(one, DATA_BYTES)


class RankSteps(SumSteps):
    """The steps of ranks that share each batch of rows.

    train_state  its parts "model", "optimizer" and "average" must be the same on all ranks
    """

    objective: Objective

    def __init__(
        self,
        objective: Objective,
        cache: CompileCache,
        state: OptimizerState,
        ranks: Communicator,
        exchange: str,
        train_state: TrainState,
        **settings: Any,
    ) -> None:
        super().__init__(objective, cache, state, ranks, exchange, **settings)
        self.train_state = train_state
        self.agreement = Agreement(ranks)
        self._exchanges: dict[Hashable, Exchange] = cache.table()
        self._micros: dict[Hashable, CompiledBatch] = cache.table()
        self._names: dict[Stored, Hashable] = {}
        self._measured: dict[int, list[np.ndarray]] = {}  # outputs of micro-batches that all ranks have measured
        self._reported = 0.0

    # ---- the same on all ranks -------------------------------------------------------------------------------

    def together(self) -> contextlib.AbstractContextManager[None]:
        """See Steps.together."""
        return self.agreement.together()

    def notify(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener on rank 0; then all take its weights, and stop if it asks for that."""
        self.agreement.root(listener, *results)
        if self.ranks.gather(listener is not None)[0]:
            self._share_state()
        self.agreement.settle()

    def _share_state(self) -> None:
        """Copy rank 0's parameters, buffers, optimiser state and rates that are numbers to all ranks."""
        with self.agreement.own():
            self.cache.refresh(True)
        self._compare_model()
        for stored in self.train_state.arrays("model", "optimizer", "average").values():
            array = stored.numpy()
            self.ranks.broadcast(array)
            stored.assign(array)
        rates = self.state.optimizer.settings
        rates |= self.ranks.gather({k: v for k, v in rates.items() if not callable(v)})[0]

    def _compare_model(self) -> None:
        """TrainError when the model has changed on some ranks only."""
        ranks = self.ranks
        first, *others = ranks.gather(self.cache.version)
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                raise TrainError(
                    f"the model has changed on {ranks.kind} 0 otherwise than on {ranks.kind} {rank}; need the same "
                    f"change on all {ranks.size} (a listener is called on {ranks.kind} 0 alone)"
                )

    def _compare_settings(self, rows: RowRange) -> None:
        """The trainer's settings, and the data set by checksum."""
        objective, optimizer, source = self.objective, self.state.optimizer, rows.source
        with self.agreement.own():
            rates = {k.removeprefix("opt."): v for k, v in self.state.settings().items()}
            chosen = switches(**{name: self.options.get(name) for name in ("isa", "precision", "flush")})
            schedules = {f"schedule of {k}": shown(v) if callable(v) else "none" for k, v in optimizer.settings.items()}
            device = self.options.get("backend", "cpu")
            mine = {
                "batch_size": rows.batch_size, "micro_batch_size": rows.micro_size, "training": rows.backward,
                "seed": self.seed, "max_norm": self.max_norm, "max_value": self.max_value, "freeze": objective.freeze,
                "loss": _name_of(objective), "exchange": self.exchange,
                "optimizer": type(optimizer).__name__, **rates, **schedules, "device": make_of(device),
                "isa": isa_of([device], chosen.isa),  # another one computes other bits
                "precision": chosen.precision, "flush": chosen.flush,
            }  # fmt: skip
        same_settings(self.ranks, **mine)
        self.agreement.compare_once("the data", id(source), lambda: list(map(_compared, source.contents)))

    def _built(self, what: str, key: Hashable, build: Callable[[], tuple[T, list[Value]]]) -> T:
        """Build a graph, and compare it with those of the other ranks."""
        with agreed(self.ranks):
            made, values = build()
        self._compare_graph(what, key, True, values)
        return made

    def _compare_graph(self, what: str, key: Hashable, backward: bool, values: list[Value]) -> None:
        """Compare graphs by a checksum that is the same in all processes: arrays by name, mapped weights also by
        bytes."""
        version = self.cache.version[backward]
        self.agreement.compare_once(
            "the graph", (what, version, key), lambda: checksum(repr(structure(values, self._name)))
        )

    def _name(self, stored: Stored) -> Hashable:
        if stored not in self._names:
            known = named(stored)
            self._names[stored] = known if stored.check is None else (known, sampled(stored.read(), WEIGHT_BYTES))
        return self._names[stored]

    # ---- running ---------------------------------------------------------------------------------------------

    def run(self, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> None:
        """Steps.run on all ranks: the same rows, the same result everywhere. Only rank 0 calls `on_progress`."""
        with self.agreement.together():
            super().run(rows, result, each, on_progress)
            self.agreement.settle()

    def _begin(self, rows: RowRange, each: bool) -> bool:
        each = super()._begin(rows, bool(self.ranks.gather(each)[0]))
        self.agreement.compare(rows.source.called, lambda: checksum(*rows.source.compared(rows.start, rows.stop)))
        if rows.source.begins and (rows.backward or not self._exchanges):
            self.agreement.compare("the training state", self.train_state.digest, "model", "optimizer", "average")
        self._measured.clear()
        self._reported = time.perf_counter()
        return each

    def programs_of(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs, the same programs on all ranks."""
        self._compare_model()
        self._compare_settings(rows)
        if rows.backward:
            self.ending_for(self._exchange_for(rows))
            micros = {
                (batch.micro_batch(j)[1], self.joins.of(batch)): batch
                for batch in rows.ends() for j in (0, batch.micro_batches - 1)
            }  # fmt: skip
            sizes = sorted(micros.items(), key=lambda one: one[0][0])
            return [self._micro_for(batch, size) for (size, _), batch in sizes]
        steps = []
        ends = rows.ends() if self.joins.couples(rows) else [rows]
        groups = [group for part in ends for group in self._groups(part)]
        for (join, size), group in {(self._join_at(rows, one.start), one.rows): one for one in groups}.items():
            with agreed(self.ranks):
                step = self.program_for(rows, group)
            key = id(rows.source), size, rows.measures, join and join.rows
            self._compare_graph("evaluation", key, False, step.outputs)
            steps.append(step)
        return steps

    def _join_at(self, rows: RowRange, row: int) -> Join | None:
        return self.joins.source(rows, row).join

    def _report(self, on_progress: OnProgress | None, done: int, rows: RowRange, each: bool) -> None:
        is_late = rows.backward and time.perf_counter() - self._reported > REPORT_SECONDS
        if each or done == rows.count or is_late:
            self._reported = time.perf_counter()
            self.agreement.root(on_progress, done)
        if each and not rows.backward:
            self.agreement.settle()

    @property
    def runs(self) -> list[Any]:
        """All programs that were compiled so far."""
        return [*super().runs, *(step.run for step in self._micros.values()), *self.endings.values()]

    @property
    def exchanges(self) -> list[Exchange]:
        """What ranks exchange, for each size of batch."""
        return list(self._exchanges.values())

    # ---- a training step -------------------------------------------------------------------------------------

    def micro_settings(self, batch: RowRange, j: int) -> dict[str, Any]:
        return super().micro_settings(batch, j) | {"share": batch.micro_batch(j)[1] / batch.count}

    def _join(self, batch: RowRange) -> NotFinite | None:
        """Compute the joined rows of a batch: each rank the values of its micro-batches, and all the join of all."""
        join, ranks = self.joins.of(batch), self.ranks
        if join is None:
            return None
        mine: dict[int, list[np.ndarray] | str] = {}
        with self.agreement.own():
            for j in range(ranks.rank, batch.micro_batches, ranks.size):
                first, size = batch.micro_batch(j)
                batch.source.load(first, size, first + size, True)
                failed = join.run_values(size, self.micro_settings(batch, j))
                mine[j] = join.rows_of(first - batch.start, size) if failed is None else str(failed)
        everywhere = {j: values for theirs in ranks.gather(mine) for j, values in theirs.items()}
        values = [everywhere[j] for j in range(batch.micro_batches)]
        for one in values:
            if isinstance(one, str):
                return NotFinite(0, one, None, 0)
        for i, stored in enumerate(join.given):
            stored.write(np.concatenate([one[i] for one in values]))
        with self.agreement.own():
            return join.run_join(self.micro_settings(batch, 0))

    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
        with self.agreement.own():
            cause = self.joins.cause(rows.batch_at(left.start))  # the same on all ranks
        return cause or super()._cause(step, rows, left)

    def _compute(self, exchange: Exchange, batch: RowRange, j: int) -> None:
        with self.agreement.own():
            first, rows = batch.micro_batch(j)
            step, numbers = self._micro_for(batch, rows), exchange.numbers
            batch.source.load(first, rows, first + rows, True)
            outputs = exchange.run(step.run, self.micro_settings(batch, j))
            for array in numbers.values():
                array[...] = 0
            numbers["stop"][...] = self.agreement.is_stopping
            if outputs is None:
                return
            numbers["losses"][j], numbers["weights"][j] = outputs[0][0], outputs[1][0]
            numbers["parts"][j] = [array[0] for array in step.loss_outputs(outputs)]
            if step.has_predictions:
                at, ids = first - batch.start, self._ids(outputs, rows)
                numbers["predictions"][at * ids : (at + rows) * ids] = outputs[2].ravel()

    def _first_bad(self, batch: RowRange, j: int) -> str:
        with self.agreement.own():
            first, rows = batch.micro_batch(j)
            batch.source.load(first, rows, first + rows, True)
            return self._micro_for(batch, rows).first_bad(self.micro_settings(batch, j))

    def _summed(self, exchange: Exchange, batch: RowRange) -> tuple[CompiledBatch, list[np.ndarray]]:
        count, size, numbers = batch.micro_batches, batch.micro_batch(0)[1], exchange.numbers
        if numbers["stop"] != 0:
            self.agreement.settle()
        step = self._micro_for(batch, size)
        outputs = [numbers[name][:count].copy() for name in ("losses", "weights")]
        if step.has_predictions:
            rows = batch.count * self._ids(step.outputs, size)
            outputs.append(numbers["predictions"][:rows].astype(np.int32))
        return step, outputs + list(numbers["parts"][:count].T.copy())

    # ---- evaluation ------------------------------------------------------------------------------------------

    def _groups(self, rows: RowRange) -> Iterable[MicroBatches]:
        return super()._groups(rows) if rows.backward else cut(rows, self.joins.couples(rows), False, False)

    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        if rows.backward:
            batch = rows.batch_at(left.start)
            failed = self._join(batch)
            if failed is not None:
                return self._micro_for(batch, batch.micro_batch(0)[1]), 0, [], failed
            return super()._call(rows, left, result, each, on_progress)
        if left.start not in self._measured:
            with self.agreement.own():
                measure = self._measure_joined if self.joins.couples(rows) else self._measure
                mine = measure(rows, left.start, each, None if each else on_progress)
            self._measured = {at: outputs for theirs in self.ranks.gather(mine) for at, outputs in theirs.items()}
            self.agreement.settle()
        count = 1 if each else left.count
        columns = zip(*(self._measured.pop(left.start + i * left.rows) for i in range(count)), strict=True)
        return self.program_for(rows, left), count, [np.concatenate(column) for column in columns], None

    def _measure_joined(
        self, rows: RowRange, start: int, each: bool, on_progress: OnProgress | None
    ) -> dict[int, list[np.ndarray]]:
        """As _measure, of a BatchLoss: whole batches, of which each rank joins and measures its own."""
        ranks, measured = self.ranks, dict[int, list[np.ndarray]]()
        batches = list(rows.part(start, rows.stop).batches())
        for batch in batches[ranks.rank : ranks.size if each else None : ranks.size]:
            failed = self.joins.fill(batch)
            if failed is not None:
                raise failed
            for group in self._groups(batch):
                settings = self.settings_of(group, group.count, False)
                done, outputs = self.program_for(rows, group).run.run_many(group.count, settings)
                for i in range(done):
                    measured[group.start + i * group.rows] = [array[i : i + 1].copy() for array in outputs]
            if self.agreement.is_stopping:
                break  # `settle` follows
            self.agreement.root(on_progress, min(batch.stop - rows.start, rows.count - 1))
        return measured

    def _measure(
        self, rows: RowRange, start: int, each: bool, on_progress: OnProgress | None
    ) -> dict[int, list[np.ndarray]]:
        """The outputs of this rank's micro-batches from this row on, by their first rows; with `each`, of at most
        one."""
        ranks, first = self.ranks, (start - rows.start) // rows.micro_size
        stop = min(first + ranks.size, rows.micro_batches) if each else rows.micro_batches
        own = [j for j in range(first, stop) if j % ranks.size == ranks.rank]
        measured: dict[int, list[np.ndarray]] = {}
        while len(measured) < len(own):
            size = rows.micro_batch(own[len(measured)])[1]
            step = self.compiled_for(rows.source, size, False, False, rows.measures)
            alike = [j for j in own[len(measured) :] if rows.micro_batch(j)[1] == size]
            if rows.source.is_windowed:
                alike = alike[:1]
                rows.source.load(rows.micro_batch(alike[0])[0], size, rows.micro_batch(alike[0])[0] + size, False)
            at = np.array([rows.micro_batch(j)[0] for j in alike], np.int64)
            settings = {"position": at, **random_settings(self.seed, self.state.steps + 1)}
            done, outputs = step.run.run_many(len(alike), settings, CALL_SECONDS)
            for i in range(done):
                measured[int(at[i])] = [array[i : i + 1].copy() for array in outputs]
            if self.agreement.is_stopping:
                break  # `settle` follows
            if measured and len(measured) < len(own):
                count = min(len(measured) * ranks.size, stop - first) * rows.micro_size
                self.agreement.root(on_progress, min(count, rows.count - 1))
        return measured

    # ---- building --------------------------------------------------------------------------------------------

    def _exchange_for(self, rows: RowRange) -> Exchange:
        key: tuple[Hashable, ...] = (rows.source.key, rows.batch_size, rows.micro_size)

        def build() -> tuple[Exchange, list[Value]]:
            size = min(rows.micro_size, rows.source.n)
            graph, values = self._graph(self.joins.source(rows, rows.start), size)
            micros, ids = -(-rows.batch_size // rows.micro_size), self._ids(graph.outputs, size)
            numbers = {
                "stop": (), "losses": (micros,), "weights": (micros,),
                "predictions": (rows.batch_size * ids,), "parts": (micros, graph.layout.loss_size),
            }  # fmt: skip
            buffers = [stored_value(stored) for stored in list(values)[len(graph.parameters) :]]
            exchange = Exchange(self.ranks, graph.parameters, buffers, numbers, self.exchange)
            return exchange, [*values.values(), *graph.outputs[:2]]

        return self.cache.get(self._exchanges, key, True, lambda: self._built("exchange", key, build).join())

    def _micro_for(self, rows: RowRange, size: int) -> CompiledBatch:
        """The program of a micro-batch of `size` rows."""
        exchange = self._exchange_for(rows)
        source = self.joins.source(rows, rows.start)
        key = exchange, size, source.join

        def build() -> tuple[CompiledBatch, list[Value]]:
            graph, values = self._graph(source, size)
            if list(values) != [p.stored for p in (*exchange.parameters, *exchange.buffers)]:
                seen = f"the graph of {size} rows trains other parameters"
                raise GraphError(f"{seen} than that of {rows.micro_size} rows")
            step = self.micro_program(exchange, graph, values, graph.outputs)
            return step, [*values.values(), *graph.outputs[:2]]

        return self.cache.get(self._micros, key, True, lambda: self._built("micro-batch", key, build))

    def _graph(self, source: RowSource, rows: int) -> tuple[BatchGraph, dict[Stored, Value]]:
        """The graph of a micro-batch, its gradients, and its shares of the next values of buffers."""
        graph = self.objective.graph(source, rows, True)
        if not graph.adds_up:
            raise SettingError(NO_COMMON_WEIGHT)
        grads, nexts = exchanged(graph)
        return graph, grads | {stored: new * setting("share") for stored, new in nexts.items()}

    def _ids(self, outputs: Sequence[Any], rows: int) -> int:
        """Predicted ids per row."""
        return outputs[2].size // rows if self.objective.has_predictions else 0
