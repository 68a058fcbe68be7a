"""Batches split over ranks: every rank computes some of a batch's micro-batches, and all take the same step.

Every rank holds the data and the weights. A batch is cut into micro-batches as it is without ranks, and micro-batch j
goes to rank j mod N. What a step needs of a micro-batch is written to one flat array (FlatArrays): the gradient of the
loss *sum*, that sum and its weight, what it would leave in buffers (running statistics), and, for results, its loss and
predictions at places of their own. The flat arrays are folded in the order of j, whatever N is; then every rank runs
the same program on the sum: one guard, one update. So the micro-batches decide the bits, the ranks do not.

Running statistics start each micro-batch from their value before the step; after it they are the mean over the
micro-batches, by rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops
from ..base.errors import GraphError, GuardTripped, NotFinite, SettingError, TrainError
from ..base.settings import switches
from ..graph.leaves import Parameter, constant, setting, stored_value
from ..graph.stored import Stored, copies, replace
from ..graph.structure import structure
from ..graph.value import Value
from ..nn.module import Module
from ..parallel.agree import Agreement, agreed, same_settings, sampled
from ..parallel.communicator import Communicator, Reduction, checksum
from ..parallel.flat import FlatArrays, take_effects
from ..run.cpu_backend import choose_isa
from ..run.diagnose import OVERFLOW, stopped
from ..run.executable import compile as compile_program
from ..step.step import end_step, random_settings
from .result import Result
from .source import RowSource

if TYPE_CHECKING:
    from .trainer import Step, Trainer

EXCHANGES = ("ordered", "fast")
TELL_SECONDS = 0.1  # between two reports of a training pass
CALL_SECONDS = 0.2  # the longest native call of an evaluation: progress is shown in between
DATA_BYTES, WEIGHT_BYTES = 64 << 20, 1 << 20  # of a larger data set, or mapped weight, pieces of so many are compared


def check_exchange(exchange: str) -> str:
    """The word, or SettingError."""
    if exchange not in EXCHANGES:
        raise SettingError(f"exchange={exchange!r} is not known; need ordered (the same bits for any ranks) or fast")
    return exchange


@dataclass(frozen=True)
class Exchange:
    """What ranks exchange in an optimiser step of at most so many micro-batches, and the program that ends the step."""

    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    flat: FlatArrays  # of one micro-batch, then of the step: gradients, buffers, total, weight, and the _PLACES
    reduction: Reduction
    update: Any

    @cached_property
    def places(self) -> dict[str, np.ndarray]:
        """The pieces that no program reads: stop [], losses and weights [micro-batches], predictions [ids]."""
        first = len(self.parameters) + len(self.buffers) + 2
        return {name: s.array for name, s in zip(_PLACES, self.flat.stored[first:], strict=True)}


_PLACES = ("stop", "losses", "weights", "predictions")


class Split:
    """The ranks of a Trainer: how its batches are computed together. All ranks call the same methods in the same order.

    exchange   "ordered": folded in the order of the micro-batches; "fast": whatever order is quickest
    """

    def __init__(self, trainer: Trainer, communicator: Communicator, exchange: str = "ordered") -> None:
        self.trainer, self.communicator = trainer, communicator
        self.agreement = Agreement(communicator)
        self.exchange = check_exchange(exchange)
        self._exchanges: dict[Hashable, Exchange] = {}
        self._micros: dict[Hashable, tuple[Step, int]] = {}
        self._names: dict[Stored, Hashable] = {}

    # ---- the same on all ranks -------------------------------------------------------------------------------

    def compare_state(self) -> None:
        """What training changes: parameters, buffers, the optimiser's arrays and its count of steps."""
        trainer = self.trainer

        def bits() -> str:
            parts: list[Any] = [trainer.steps, trainer.epoch, repr(trainer.optimizer_state.memories)]
            parts += [s.array for s in self._state()]
            return checksum(*parts)

        self.agreement.compare("the training state", bits)

    def _state(self) -> list[Stored]:
        """Everything that an optimiser step writes."""
        written = {p.stored: None for found in self._exchanges.values() for p in (*found.parameters, *found.buffers)}
        if isinstance(self.trainer.model, Module):
            written |= {p.stored: None for _, p, _ in self.trainer.model.named_stored()}
        moments = [m.stored for s in written for m in self.trainer.state.get(s, {}).values()]
        return [*written, *moments]

    def share_state(self) -> None:
        """All ranks take over rank 0's parameters, buffers and optimiser state, and the numbers that are its rates."""
        with self.agreement.own():
            self.trainer.look(True)
        self.compare_model()
        for stored in self._state():
            (array,) = copies([stored])
            self.communicator.broadcast(array)
            replace({stored: array})
        rates = self.trainer.optimizer.settings
        rates |= self.communicator.gather({k: v for k, v in rates.items() if not callable(v)})[0]

    def tell(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener on rank 0; then all have its weights, and stop if it says so."""
        self.agreement.root(listener, *results)
        if self.communicator.gather(listener is not None)[0]:
            self.share_state()
        self.agreement.settle()

    def outline(self, values: list[Value]) -> str:
        """A graph as a checksum that is the same in another process: ops, attributes, shapes, wiring, arrays by name
        and mapped weights also by their bytes."""
        return checksum(repr(structure(values, self._called)))

    def _called(self, stored: Stored) -> Hashable:
        if stored not in self._names:
            known = (stored.name, stored.shape, stored.dtype.name, stored.role)
            self._names[stored] = known if stored.check is None else (*known, sampled(stored.array, WEIGHT_BYTES))
        return self._names[stored]

    def compare_model(self) -> None:
        """TrainError when the model has changed on some ranks alone."""
        ranks = self.communicator
        first, *others = ranks.gather(self.trainer.outline_number)
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                raise TrainError(
                    f"the model has changed on {ranks.kind} 0 otherwise than on {ranks.kind} {rank}; need the same "
                    f"change on all {ranks.size} (a listener is called on {ranks.kind} 0 alone)"
                )

    def _compare_settings(self, source: RowSource, batch: int, micro: int, backward: bool) -> None:
        """The trainer's settings, and the data set by checksum."""
        trainer, data = self.trainer, source.data
        with self.agreement.own():
            rates = {k.removeprefix("opt."): v for k, v in trainer.optimizer_state.settings().items()}
            schedules = {f"schedule of {k}": _shown(v) for k, v in trainer.optimizer.settings.items()}
            mine = {
                "batch_size": batch, "micro_batch_size": micro, "training": backward, "seed": trainer.seed,
                "max_norm": trainer.max_norm, "freeze": trainer.freeze,
                "loss": trainer.loss if isinstance(trainer.loss, str) else "a function", "exchange": self.exchange,
                "optimizer": type(trainer.optimizer).__name__, **rates, **schedules,
                "backend": trainer.options.get("backend", "cpu"), "isa": self._isa(),
            }  # fmt: skip
        same_settings(self.communicator, **mine)
        arrays = [a for a in (data.data, data.labels, data.weights) if a is not None]
        self.agreement.compare_once("the data", id(data), lambda: [sampled(a, DATA_BYTES) for a in arrays])

    def _isa(self) -> str | None:
        """The instruction set that programs are compiled for: others give other bits."""
        return choose_isa(switches(isa=self.trainer.options.get("isa")).isa)

    # ---- running ---------------------------------------------------------------------------------------------

    def run_rows(
        self,
        source: RowSource,
        start: int,
        stop: int,
        result: Result,
        batch_size: int,
        micro_size: int,
        backward: bool,
        each: bool,
        heard: Callable[[int], None] | None,
    ) -> None:
        """Trainer.run_rows on all ranks: the same rows, the same result everywhere."""
        with self.agreement.together():
            each = bool(self.communicator.gather(each)[0])
            self.prepare(source, start, stop, batch_size, micro_size, backward)
            self.agreement.compare("the order of the rows", lambda: source.order.array[start:stop])
            if backward or not self._exchanges:
                self.compare_state()
            if backward:
                told = time.perf_counter()
                for first in range(start, stop, batch_size):
                    end = min(first + batch_size, stop)
                    self._train(source, first, end, batch_size, micro_size, result)
                    if each or end == stop or time.perf_counter() - told > TELL_SECONDS:
                        told = time.perf_counter()
                        self.agreement.root(heard, end - start)
            else:
                self._evaluate(source, start, stop, micro_size, result, each, heard)
            self.agreement.settle()

    def prepare(
        self, source: RowSource, start: int, stop: int, batch_size: int, micro_size: int, backward: bool
    ) -> None:
        """Compile all that run_rows of these arguments runs."""
        self.compare_model()
        self._compare_settings(source, batch_size, micro_size, backward)
        if not backward:
            for rows in {min(micro_size, stop - start), (stop - start) % micro_size} - {0}:
                with agreed(self.communicator):
                    step = self.trainer._step_for(source, rows, False, False)
                self._compare_graph("evaluation", (id(source), rows), False, step.outputs)
            return
        self._exchange_for(source, batch_size, micro_size)
        last = (stop - start) % batch_size or batch_size
        batches = {min(batch_size, stop - start), last}
        for rows in sorted({min(micro_size, b) for b in batches} | {b % micro_size for b in batches} - {0}):
            self._micro_for(source, rows, batch_size, micro_size)

    @property
    def plans(self) -> list[Any]:
        """Of the programs that were compiled for training."""
        runs = [step.run for step, _ in self._micros.values()] + [found.update for found in self._exchanges.values()]
        return [run.plan for run in runs if run.plan is not None]

    @property
    def buffers(self) -> set[Stored]:
        """Running statistics that the steps so far wrote."""
        return {p.stored for found in self._exchanges.values() for p in found.buffers}

    @property
    def flats(self) -> list[FlatArrays]:
        """What this rank holds to exchange; the reductions' own buffers are `reduction_bytes`."""
        return [found.flat for found in self._exchanges.values()]

    @property
    def reduction_bytes(self) -> int:
        """What the reductions hold on this rank."""
        return sum(found.reduction.bytes for found in self._exchanges.values())

    # ---- a training step -------------------------------------------------------------------------------------

    def _train(self, source: RowSource, first: int, end: int, batch_size: int, micro_size: int, result: Result) -> None:
        """One optimiser step on rows first..end of the order."""
        ranks, trainer = self.communicator, self.trainer
        exchange = self._exchange_for(source, batch_size, micro_size)
        count = -(-(end - first) // micro_size)
        for base in range(0, count, ranks.size):
            j = base + ranks.rank
            if j < count:
                with self.agreement.own():
                    self._compute(exchange, source, first, end, batch_size, micro_size, j)
                exchange.reduction.add(exchange.flat.array)
            else:
                exchange.reduction.add(None)
        exchange.reduction.finish(exchange.flat.array)
        places = exchange.places
        if places["stop"] != 0:
            self.agreement.settle()
        settings = trainer.optimizer_state.settings()
        try:
            exchange.update.run_many(1, settings)
        except (GuardTripped, NotFinite):
            self._refuse(exchange, source, first, end, batch_size, micro_size)
        trainer.optimizer_state.steps += 1
        step, ids = self._micro_for(source, min(micro_size, end - first), batch_size, micro_size)
        truth = source.truth(first, end) if step.has_predictions else (None, None)
        predicted = places["predictions"][: (end - first) * ids].astype(np.int32) if step.has_predictions else None
        losses, weights = places["losses"][:count].copy(), places["weights"][:count].copy()
        result.is_total = trainer._is_total
        result.add(end - first, losses, weights, predicted, *truth)

    def _settings(self, first: int, end: int, micro_size: int, j: int) -> dict[str, Any]:
        at, rows = j * micro_size, min(micro_size, end - first - j * micro_size)
        return {
            "position": first + at, "share": rows / (end - first),
            **random_settings(self.trainer.seed, self.trainer.steps + 1, at),
        }  # fmt: skip

    def _compute(
        self, exchange: Exchange, source: RowSource, first: int, end: int, batch_size: int, micro_size: int, j: int
    ) -> tuple[Step, dict[str, Any]]:
        """Micro-batch j of rows first..end, into exchange.flat."""
        rows = min(micro_size, end - first - j * micro_size)
        step, ids = self._micro_for(source, rows, batch_size, micro_size)
        settings = self._settings(first, end, micro_size, j)
        places = exchange.places
        try:
            _, outputs = step.run.run_many(1, settings)
        except NotFinite:  # with check 2: the guard on the sums shall find it
            exchange.flat.stored[len(exchange.parameters) + len(exchange.buffers)].array[...] = np.nan  # the total
            places["stop"][...] = self.agreement.is_stopping
            return step, settings
        for array in places.values():
            array[...] = 0
        places["stop"][...] = self.agreement.is_stopping
        places["losses"][j], places["weights"][j] = outputs[0][0], outputs[1][0]
        if step.has_predictions:
            at = j * micro_size * ids
            places["predictions"][at : at + rows * ids] = outputs[2].ravel()
        return step, settings

    def _refuse(
        self, exchange: Exchange, source: RowSource, first: int, end: int, batch_size: int, micro_size: int
    ) -> None:
        """NonFiniteError on all ranks, naming the first bad row or node: each looks through its micro-batches again."""
        trainer, ranks = self.trainer, self.communicator
        found: tuple[int, str] | None = None
        with self.agreement.own():
            for j in range(ranks.rank, -(-(end - first) // micro_size), ranks.size):
                step, settings = self._compute(exchange, source, first, end, batch_size, micro_size, j)
                if not np.isfinite(exchange.flat.array).all():
                    found = (j, trainer.first_bad(step, settings))
                    break
        causes = [cause for cause in ranks.gather(found) if cause is not None]
        cause = min(causes)[1] if causes else OVERFLOW
        raise stopped(trainer.steps + 1, cause, trainer.epoch + 1) from None

    # ---- evaluation ------------------------------------------------------------------------------------------

    def _evaluate(
        self,
        source: RowSource,
        start: int,
        stop: int,
        micro_size: int,
        result: Result,
        each: bool,
        heard: Callable[[int], None] | None,
    ) -> None:
        ranks, trainer = self.communicator, self.trainer
        count = -(-(stop - start) // micro_size)
        span = ranks.size if each else count
        result.is_total = trainer._is_total
        for base in range(0, count, span):
            until = min(base + span, count)
            with self.agreement.own():
                mine = self._measure(source, start, stop, micro_size, base, until, None if each else heard)
            measured = sorted((one for found in ranks.gather(mine) for one in found), key=lambda one: one[0])
            for j, loss, weight, predicted in measured:
                first = start + j * micro_size
                end = min(first + micro_size, stop)
                truth = source.truth(first, end) if predicted is not None else (None, None)
                result.add(end - first, loss, weight, predicted, *truth)
                if each:
                    self.agreement.root(heard, end - start)
            if each:
                self.agreement.settle()
        if not each:
            self.agreement.root(heard, stop - start)

    def _measure(
        self,
        source: RowSource,
        start: int,
        stop: int,
        micro_size: int,
        base: int,
        until: int,
        heard: Callable[[int], None] | None,
    ) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]]:
        """(j, loss sum, weight, predictions) of this rank's micro-batches among base..until."""
        ranks, trainer = self.communicator, self.trainer
        own = [j for j in range(base, until) if j % ranks.size == ranks.rank]
        found: list[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]] = []
        while len(found) < len(own):
            first = own[len(found)]
            rows = min(micro_size, stop - start - first * micro_size)
            step = trainer._step_for(source, rows, False, False)
            group = [j for j in own[len(found) :] if start + (j + 1) * micro_size <= stop] or [first]
            at = np.array(group, np.int64) * micro_size
            settings = {"position": start + at, **random_settings(trainer.seed, trainer.steps + 1)}
            done, outputs = step.run.run_many(len(group), settings, CALL_SECONDS)
            for i in range(done):
                predicted = outputs[2][i].copy() if step.has_predictions else None
                found.append((group[i], outputs[0][i], outputs[1][i], predicted))
            if self.agreement.is_stopping:
                break  # `settle` follows
            if found and len(found) < len(own):
                self.agreement.root(
                    heard, min(min(len(found) * ranks.size, until - base) * micro_size, stop - start - 1)
                )
        return found

    # ---- building --------------------------------------------------------------------------------------------

    def _exchange_for(self, source: RowSource, batch_size: int, micro_size: int) -> Exchange:
        key = (source.key, batch_size, micro_size)

        def make() -> Exchange:
            with agreed(self.communicator):
                rows = min(micro_size, source.data.n)
                graph = _Graph(self.trainer, source, rows)
                flat = self._lay(graph, -(-batch_size // micro_size), batch_size)
                update, ended = self._ending(graph, flat)
            self._compare_graph("step", key, True, [*graph.values, *ended])
            reduction = self.communicator.reduction(flat.array.size, self.exchange == "ordered")
            return Exchange(graph.parameters, graph.buffers, flat, reduction, update)

        return self.trainer.kept(self._exchanges, key, True, make)

    def _compare_graph(self, what: str, key: Hashable, backward: bool, values: list[Value]) -> None:
        self.agreement.compare_once(
            "the graph", (what, self.trainer.outline_number[backward], key), self.outline, values
        )

    def _lay(self, graph: _Graph, micros: int, rows: int) -> FlatArrays:
        pieces: list[tuple[str, tuple[int, ...]]] = [(f"{p.stored.name}.grad", p.shape) for p in graph.parameters]
        pieces += [(f"{p.stored.name}.next", p.shape) for p in graph.buffers]
        shapes: tuple[tuple[int, ...], ...] = ((), (micros,), (micros,), (rows * graph.ids,))
        pieces += [("total", ()), ("weight", ()), *zip(_PLACES, shapes, strict=True)]
        return FlatArrays(pieces)

    def _ending(self, graph: _Graph, flat: FlatArrays) -> tuple[Any, list[Value]]:
        """The program that ends a step, on sums: a guard, the optimiser's update, the buffers."""
        trainer = self.trainer
        many, more = len(graph.parameters), len(graph.buffers)
        grads, nexts = flat.values[:many], flat.values[many : many + more]
        total, weight = flat.values[many + more : many + more + 2]
        divisor = constant(1.0) if trainer._is_total else None
        norm, updates = end_step(
            trainer.optimizer_state, graph.parameters, list(grads), total, weight,
            divisor=divisor, max_norm=trainer.max_norm,
        )  # fmt: skip
        if graph.buffers:
            updates += ops.assign(*(v for pair in zip(graph.buffers, nexts, strict=True) for v in pair))
        return compile_program([norm], updates, **trainer.options), [norm, *updates]

    def _micro_for(self, source: RowSource, rows: int, batch_size: int, micro_size: int) -> tuple[Step, int]:
        """The program of a micro-batch of so many rows, and the predicted ids of a row."""
        key = (source.key, batch_size, micro_size, rows)

        def make() -> tuple[Step, int]:
            from .trainer import Step

            exchange = self._exchange_for(source, batch_size, micro_size)
            with agreed(self.communicator):
                graph = _Graph(self.trainer, source, rows)
                if graph.written != [p.stored for p in (*exchange.parameters, *exchange.buffers)]:
                    raise GraphError(f"the graph of {rows} rows trains other parameters than that of {micro_size} rows")
                into = exchange.flat.values[: len(graph.values)]
                updates = ops.assign(*(v for pair in zip(into, graph.values, strict=True) for v in pair))
                run = compile_program(graph.outputs, updates, **self.trainer.options)
                step = Step(run, rows, graph.ids > 0, graph.outputs, updates)
            self._compare_graph("micro-batch", key, True, graph.values)
            return step, graph.ids

        return self.trainer.kept(self._micros, key, True, make)


class _Graph:
    """The graph of one micro-batch, with its updates of buffers taken off: they become values like the gradients.

    outputs: loss sum, weight and, for classes, predictions; ids: predictions per row. values: what is exchanged.
    """

    def __init__(self, trainer: Trainer, source: RowSource, rows: int) -> None:
        self.outputs, grads, self.parameters = trainer._build(source, rows, True)
        assert grads is not None
        self.ids = self.outputs[2].size // rows if len(self.outputs) > 2 else 0
        taken = take_effects([*self.outputs, *grads])
        self.buffers = tuple(stored_value(stored) for stored in taken)
        self.values = [*grads, *(new * setting("share") for new in taken.values()), *self.outputs[:2]]

    @property
    def written(self) -> list[Stored]:
        """What a step changes, apart from the optimiser's arrays."""
        return [p.stored for p in (*self.parameters, *self.buffers)]


def _shown(rate: Any) -> str:
    """A schedule as text that is the same in another process."""
    if not callable(rate):
        return "none"
    text = getattr(rate, "__qualname__", None) or repr(rate)
    return type(rate).__name__ if " at 0x" in text else text
