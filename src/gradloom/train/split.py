"""Split: batches split over ranks. Every rank computes some of a batch's micro-batches, and all take the same step.

Every rank holds the data and the weights. A batch is cut into micro-batches as it is without ranks, and micro-batch j
goes to rank j mod N; step/exchange.py says what they exchange and how the step ends. So the micro-batches decide the
bits, the ranks do not.

Running statistics start each micro-batch from their value before the step; after it they are the mean over the
micro-batches, by rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import GraphError, GuardTripped, NotFinite, SettingError, TrainError
from ..base.settings import switches
from ..graph.leaves import constant, setting, stored_value
from ..graph.stored import Stored
from ..graph.structure import named, structure
from ..graph.value import Value
from ..parallel.agree import Agreement, agreed, same_settings, sampled
from ..parallel.communicator import Communicator, checksum
from ..parallel.flat import FlatArrays, take_effects
from ..run.backend import make_of
from ..run.compile import compile as compile_program
from ..run.cpu_backend import isa_of
from ..run.diagnose import stopped
from ..runs.state import TrainState, shown
from ..step.exchange import Exchange, check_exchange
from ..step.step import random_settings
from .batches import CompiledBatch, RowRange
from .local import CALL_SECONDS, NO_COMMON_WEIGHT, LocalSteps
from .objective import BatchGraph
from .result import Result
from .source import RowSource

TELL_SECONDS = 0.1  # between two reports of a training pass
DATA_BYTES, WEIGHT_BYTES = 64 << 20, 1 << 20  # of a larger data set, or mapped weight, pieces of so many are compared


@dataclass(frozen=True)
class _Update:
    """What ranks exchange in an optimiser step of a batch, and the program that ends the step."""

    exchange: Exchange
    run: Any
    resting: tuple[Stored, ...]  # whose averages it moves beside those that it updates
    behind: tuple[Stored, ...]  # the parameters that had missed steps before it


@dataclass(frozen=True)
class _Measured:
    """What a rank measured of micro-batch j."""

    j: int
    loss: np.ndarray
    weight: np.ndarray
    predictions: np.ndarray | None
    extra: list[np.ndarray]  # what metrics need, [1, ...] each
    parts: dict[str, np.ndarray]  # of several losses: see CompiledBatch.losses


class Split:
    """How the ranks of a trainer compute its batches together. All call the same methods in the same order.

    local      this rank's own micro-batches
    state      what must be the same on all ranks: its parts "model", "optimizer" and "average"
    exchange   "ordered": folded in the order of the micro-batches; "fast": whatever order is quickest
    """

    def __init__(self, local: LocalSteps, state: TrainState, ranks: Communicator, exchange: str) -> None:
        self.local, self.state, self.ranks, self.exchange = local, state, ranks, check_exchange(exchange)
        self.agreement = Agreement(ranks)
        self._updates: dict[Hashable, _Update] = local.forms.cache()
        self._micros: dict[Hashable, tuple[CompiledBatch, int]] = local.forms.cache()
        self._names: dict[Stored, Hashable] = {}

    # ---- the same on all ranks -------------------------------------------------------------------------------

    def tell(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener on rank 0; then all have its weights, and stop if it says so."""
        self.agreement.root(listener, *results)
        if self.ranks.gather(listener is not None)[0]:
            self._share_state()
        self.agreement.settle()

    def _share_state(self) -> None:
        """All ranks take over rank 0's parameters, buffers and optimiser state, and the numbers that are its rates."""
        with self.agreement.own():
            self.local.forms.look(True)
        self._compare_model()
        for stored in self.state.arrays("model", "optimizer", "average").values():
            array = stored.numpy()
            self.ranks.broadcast(array)
            stored.assign(array)
        rates = self.local.state.optimizer.settings
        rates |= self.ranks.gather({k: v for k, v in rates.items() if not callable(v)})[0]

    def _compare_model(self) -> None:
        """TrainError when the model has changed on some ranks alone."""
        ranks = self.ranks
        first, *others = ranks.gather(self.local.forms.number)
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                raise TrainError(
                    f"the model has changed on {ranks.kind} 0 otherwise than on {ranks.kind} {rank}; need the same "
                    f"change on all {ranks.size} (a listener is called on {ranks.kind} 0 alone)"
                )

    def _compare_settings(self, rows: RowRange) -> None:
        """The trainer's settings, and the data set by checksum."""
        local, source = self.local, rows.source
        objective, optimizer = local.objective, local.state.optimizer
        with self.agreement.own():
            rates = {k.removeprefix("opt."): v for k, v in local.state.settings().items()}
            chosen = switches(**{name: local.options.get(name) for name in ("isa", "precision", "flush")})
            schedules = {f"schedule of {k}": shown(v) if callable(v) else "none" for k, v in optimizer.settings.items()}
            mine = {
                "batch_size": rows.batch_size, "micro_batch_size": rows.micro_size, "training": rows.backward,
                "seed": local.seed, "max_norm": local.max_norm, "max_value": local.max_value,
                "freeze": objective.freeze,
                "loss": objective.loss if isinstance(objective.loss, str) else "a function", "exchange": self.exchange,
                "optimizer": type(optimizer).__name__, **rates, **schedules,
                "device": make_of(local.options.get("backend", "cpu")),
                "isa": isa_of([local.options.get("backend", "cpu")], chosen.isa),  # others give other bits
                "precision": chosen.precision, "flush": chosen.flush,
            }  # fmt: skip
        same_settings(self.ranks, **mine)
        self.agreement.compare_once("the data", id(source), lambda: [sampled(a, DATA_BYTES) for a in source.arrays])

    def _compare_graph(self, what: str, key: Hashable, backward: bool, values: list[Value]) -> None:
        """The graph as a checksum that is the same in another process: arrays by name, mapped weights also by bytes."""
        number = self.local.forms.number[backward]
        self.agreement.compare_once(
            "the graph", (what, number, key), lambda: checksum(repr(structure(values, self._called)))
        )

    def _called(self, stored: Stored) -> Hashable:
        if stored not in self._names:
            known = named(stored)
            self._names[stored] = known if stored.check is None else (known, sampled(stored.read(), WEIGHT_BYTES))
        return self._names[stored]

    # ---- running ---------------------------------------------------------------------------------------------

    def run(self, rows: RowRange, result: Result, each: bool, heard: Callable[[int], None] | None) -> None:
        """LocalSteps.run on all ranks: the same rows, the same result everywhere. Rank 0 alone calls `heard`."""
        source = rows.source
        with self.agreement.together():
            each = bool(self.ranks.gather(each)[0])
            self.prepare(rows)
            self.agreement.compare("the order of the rows", lambda: source.order.read()[rows.start : rows.stop])
            if rows.backward or not self._updates:
                self.agreement.compare("the training state", self.state.digest, "model", "optimizer", "average")
            if rows.backward:
                self.local.done = 0
                told = time.perf_counter()
                for batch in rows.batches():
                    self._train(batch, result)
                    self.local.done = batch.stop - rows.start
                    if each or batch.stop == rows.stop or time.perf_counter() - told > TELL_SECONDS:
                        told = time.perf_counter()
                        self.agreement.root(heard, batch.stop - rows.start)
            else:
                self._evaluate(rows, result, each, heard)
            self.agreement.settle()

    def prepare(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""
        self._compare_model()
        self._compare_settings(rows)
        if not rows.backward:
            steps = []
            for size in {min(rows.micro_size, rows.count), rows.count % rows.micro_size} - {0}:
                with agreed(self.ranks):
                    step = self.local.compiled_for(rows.source, size, False, False, rows.measures)
                self._compare_graph("evaluation", (id(rows.source), size, rows.measures), False, step.outputs)
                steps.append(step)
            return steps
        self._update_for(rows)
        sizes = {batch.micro_batch(j)[1] for batch in rows.ends() for j in (0, batch.micro_batches - 1)}
        return [self._micro_for(rows, size)[0] for size in sorted(sizes)]

    @property
    def plans(self) -> list[Any]:
        """Of the programs that were compiled for training."""
        runs = [step.run for step, _ in self._micros.values()] + [update.run for update in self._updates.values()]
        return [run.plan for run in runs if run.plan is not None]

    @property
    def buffers(self) -> list[Stored]:
        """Running statistics that the steps so far wrote."""
        return [p.stored for update in self._updates.values() for p in update.exchange.buffers]

    @property
    def flats(self) -> list[FlatArrays]:
        """What this rank holds to exchange; the sums' own buffers are `reduction_bytes`."""
        return [update.exchange.flat for update in self._updates.values()]

    @property
    def reduction_bytes(self) -> int:
        """What the sums hold on this rank."""
        return sum(update.exchange.reduction_bytes for update in self._updates.values())

    # ---- a training step -------------------------------------------------------------------------------------

    def _train(self, batch: RowRange, result: Result) -> None:
        """One optimiser step on these rows."""
        local, update = self.local, self._update_for(batch)
        exchange, count = update.exchange, batch.micro_batches
        exchange.fold(count, lambda j: self._compute(exchange, batch, j))
        numbers = exchange.numbers
        if numbers["stop"] != 0:
            self.agreement.settle()
        settings = local.state.settings()
        try:
            _, outputs = update.run.run_many(1, settings)
        except (GuardTripped, NotFinite):
            if local.skips:  # nothing was written, on any rank
                local.skipped += 1
                result.skipped += 1
                return
            cause = exchange.cause(
                count, lambda j: self._compute(exchange, batch, j), lambda j: self._first_bad(batch, j)
            )
            raise stopped(local.state.steps + 1, cause, local.state.epoch + 1) from None
        local.state.advance(exchange.parameters)
        step, ids = self._micro_for(batch, batch.micro_batch(0)[1])
        truth = batch.source.truth(batch.start, batch.stop) if step.has_predictions else (None, None)
        predicted = numbers["predictions"][: batch.count * ids].astype(np.int32) if step.has_predictions else None
        losses, weights = numbers["losses"][:count].copy(), numbers["weights"][:count].copy()
        result.is_total = local.objective.is_total
        parts = step.losses(list(numbers["parts"][:count].T.copy()))
        result.add(batch.count, losses, weights, predicted, *truth, grad_norms=outputs[-1], parts=parts)

    def _settings(self, batch: RowRange, j: int) -> dict[str, Any]:
        first, rows = batch.micro_batch(j)
        random = random_settings(self.local.seed, self.local.state.steps + self.local.skipped + 1, first - batch.start)
        return {"position": first, "share": rows / batch.count, **random}

    def _compute(self, exchange: Exchange, batch: RowRange, j: int) -> None:
        """Micro-batch j of these rows, into the flat array of the exchange."""
        with self.agreement.own():
            first, rows = batch.micro_batch(j)
            step, ids = self._micro_for(batch, rows)
            try:
                _, outputs = step.run.run_many(1, self._settings(batch, j))
            except NotFinite:  # with check 2
                exchange.spoil()
                outputs = None
            numbers = exchange.numbers
            for array in numbers.values():
                array[...] = 0
            numbers["stop"][...] = self.agreement.is_stopping
            if outputs is None:
                return
            numbers["losses"][j], numbers["weights"][j] = outputs[0][0], outputs[1][0]
            numbers["parts"][j] = [array[0] for array in step.loss_outputs(outputs)]
            if step.has_predictions:
                at = (first - batch.start) * ids
                numbers["predictions"][at : at + rows * ids] = outputs[2].ravel()

    def _first_bad(self, batch: RowRange, j: int) -> str:
        with self.agreement.own():
            step, _ = self._micro_for(batch, batch.micro_batch(j)[1])
            return step.first_bad(self._settings(batch, j))

    # ---- evaluation ------------------------------------------------------------------------------------------

    def _evaluate(self, rows: RowRange, result: Result, each: bool, heard: Callable[[int], None] | None) -> None:
        ranks, source = self.ranks, rows.source
        span = ranks.size if each else rows.micro_batches
        result.is_total = self.local.objective.is_total
        for base in range(0, rows.micro_batches, span):
            until = min(base + span, rows.micro_batches)
            with self.agreement.own():
                mine = self._measure(rows, base, until, None if each else heard)
            for one in sorted((one for theirs in ranks.gather(mine) for one in theirs), key=lambda one: one.j):
                first, count = rows.micro_batch(one.j)
                truth = source.truth(first, first + count)
                result.add(count, one.loss, one.weight, one.predictions, *truth, parts=one.parts)
                if one.extra:
                    step = self.local.compiled_for(source, count, False, False, rows.measures)
                    result.measured.add(step.layout, one.extra, count, *truth)
                if each:
                    self.agreement.root(heard, first + count - rows.start)
            if each:
                self.agreement.settle()
        if not each:
            self.agreement.root(heard, rows.count)

    def _measure(self, rows: RowRange, base: int, until: int, heard: Callable[[int], None] | None) -> list[_Measured]:
        """What this rank's micro-batches among base..until measure."""
        ranks, local = self.ranks, self.local
        own = [j for j in range(base, until) if j % ranks.size == ranks.rank]
        measured: list[_Measured] = []
        while len(measured) < len(own):
            size = rows.micro_batch(own[len(measured)])[1]
            step = local.compiled_for(rows.source, size, False, False, rows.measures)
            alike = [j for j in own[len(measured) :] if rows.micro_batch(j)[1] == size]
            at = np.array([rows.micro_batch(j)[0] for j in alike], np.int64)
            settings = {"position": at, **random_settings(local.seed, local.state.steps + 1)}
            done, outputs = step.run.run_many(len(alike), settings, CALL_SECONDS)
            for i in range(done):
                predicted = outputs[2][i].copy() if step.has_predictions else None
                parts = step.losses([array[i : i + 1] for array in step.loss_outputs(outputs)])
                extra = [array[i : i + 1].copy() for array in step.extra(outputs)]
                measured.append(_Measured(alike[i], outputs[0][i], outputs[1][i], predicted, extra, parts))
            if self.agreement.is_stopping:
                break  # `settle` follows
            if measured and len(measured) < len(own):
                count = min(len(measured) * ranks.size, until - base) * rows.micro_size
                self.agreement.root(heard, min(count, rows.count - 1))
        return measured

    # ---- building --------------------------------------------------------------------------------------------

    def _update_for(self, rows: RowRange) -> _Update:
        key: tuple[Hashable, ...] = (rows.source.key, rows.batch_size, rows.micro_size)

        def make() -> _Update:
            local = self.local
            with agreed(self.ranks):
                graph = _MicroGraph(local, rows.source, min(rows.micro_size, rows.source.n))
                micros = -(-rows.batch_size // rows.micro_size)
                numbers = {
                    "stop": (), "losses": (micros,), "weights": (micros,),
                    "predictions": (rows.batch_size * graph.ids,), "parts": (micros, graph.layout.loss_size),
                }  # fmt: skip
                exchange = Exchange(self.ranks, graph.parameters, graph.buffers, numbers, self.exchange)
                made, nodes = self._ending(exchange)
            self._compare_graph("step", key, True, [*graph.values, *nodes])
            exchange.join()
            return made

        def make_again() -> _Update:
            with agreed(self.ranks):
                made, nodes = self._ending(update.exchange)
            self._compare_graph("step", again, True, nodes)
            return made

        update = self.local.forms.cached(self._updates, key, True, make)
        parameters, state = update.exchange.parameters, self.local.state
        again = (key, state.resting(parameters), state.behind(parameters))
        if again[1:] != (update.resting, update.behind):
            update = self.local.forms.cached(self._updates, again, True, make_again)
        return update

    def _ending(self, exchange: Exchange) -> tuple[_Update, list[Value]]:
        """The program that ends a step, and its nodes."""
        local = self.local
        norms, updates = exchange.ending(
            local.state,
            divisor=constant(1.0) if local.objective.is_total else None,
            max_norm=local.max_norm,
            max_value=local.max_value,
        )
        run = compile_program(norms, updates, **local.options)
        resting, behind = local.state.resting(exchange.parameters), local.state.behind(exchange.parameters)
        return _Update(exchange, run, resting, behind), [*norms, *updates]

    def _micro_for(self, rows: RowRange, size: int) -> tuple[CompiledBatch, int]:
        """The program of a micro-batch of so many rows, and the predicted ids of a row."""
        update, local = self._update_for(rows), self.local
        key = (rows.source.key, rows.batch_size, rows.micro_size, size, update.resting)

        def make() -> tuple[CompiledBatch, int]:
            exchange = update.exchange
            with agreed(self.ranks):
                graph = _MicroGraph(local, rows.source, size)
                if graph.written != [p.stored for p in (*exchange.parameters, *exchange.buffers)]:
                    seen = f"the graph of {size} rows trains other parameters"
                    raise GraphError(f"{seen} than that of {rows.micro_size} rows")
                updates = exchange.collect(graph.values)
                run = compile_program(graph.outputs, updates, **local.options)
                made = graph.outputs, updates, graph.parameters, graph.grads
                step = CompiledBatch(run, graph.ids > 0, *made, options=local.options, layout=graph.layout)
            self._compare_graph("micro-batch", key, True, graph.values)
            return step, graph.ids

        return self.local.forms.cached(self._micros, key, True, make)


class _MicroGraph:
    """The graph of one micro-batch, with its updates of buffers taken off: they become values like the gradients.

    outputs: loss sum, weight and, for classes, predictions; ids: predictions per row. values: what is exchanged.
    """

    def __init__(self, local: LocalSteps, source: RowSource, rows: int) -> None:
        graph: BatchGraph = local.objective.graph(source, rows, True)
        grads = self.grads = tuple(graph.grads or ())
        self.outputs, self.parameters = graph.outputs, graph.parameters
        if not graph.adds_up:
            raise SettingError(NO_COMMON_WEIGHT)
        self.ids = self.outputs[2].size // rows if local.objective.has_predictions else 0
        self.layout = graph.layout  # of each of several losses
        taken = take_effects([*self.outputs, *grads])
        self.buffers = tuple(stored_value(stored) for stored in taken)
        self.values = [*grads, *(new * setting("share") for new in taken.values()), *self.outputs[:2]]

    @property
    def written(self) -> list[Stored]:
        """What a step changes, apart from the optimiser's arrays."""
        return [p.stored for p in (*self.parameters, *self.buffers)]
