"""Trainer: one model, one loss, one optimiser, and the compiled steps that they need (ggml_opt_context)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .. import ops
from ..base.arguments import as_bool, as_whole, what_is
from ..base.errors import (
    GradientError,
    GraphError,
    GuardTripped,
    IndexOutOfRange,
    NotFinite,
    SettingError,
    ShapeError,
)
from ..base.locks import Claim
from ..data.dataset import Dataset
from ..graph.grad import gradients
from ..graph.graph import storage_leaf
from ..graph.leaves import Parameter
from ..graph.stored import Stored, next_serial
from ..graph.streams import fresh_streams
from ..graph.structure import structure
from ..graph.value import Value, builds_graphs, describe
from ..nn.module import Module, Outline, mode, set_by_forward
from ..optim.clip import check_max_norm
from ..optim.optimizer import AdamW, Optimizer
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator
from ..plan.plan import Plan
from ..run.diagnose import first_bad, stopped
from ..run.executable import compile as compile_program
from ..step.step import end_step, random_settings
from ..transform.substitute import with_batch
from .arguments import check_options
from .losses import loss_pair
from .outputs import Outputs, mapped, values_of
from .result import Result
from .session import Graph
from .source import FeedSource, RowSource
from .split import Split, check_exchange
from .trained import Freeze, check_freeze, made_since, matched, reached_parameters, refuse_untrained

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CALL_SECONDS = 0.2  # the longest that one native call may take: progress and Ctrl-C are answered in between
CALL_BYTES = 64 << 20  # and the most that it may write down

OUTLINES = 16  # of a model that changes: so many of its forms keep their compiled steps

_Built = tuple[list[Value], "list[Value] | None", tuple[Parameter, ...]]
Model = Module | Callable[[Value], Outputs] | Graph | tuple[Value, Outputs]


@dataclass(frozen=True)
class Step:
    """A compiled micro-batch: what to run and what its outputs are."""

    run: Any
    rows: int
    has_predictions: bool
    outputs: list[Value]
    updates: tuple[Value, ...]
    parameters: tuple[Parameter, ...] = ()  # those with a gradient


@dataclass(frozen=True)
class _Micro:
    """Micro-batches that one executable runs one after the other."""

    start: int  # first row
    rows: int  # of each
    count: int
    update: bool  # each ends with an optimiser step
    first: bool  # the first of them opens a new accumulation window
    offset: int  # of its first row inside the logical batch


def _claims(method: Callable[P, R]) -> Callable[P, R]:
    """The method of a Trainer, which this thread alone uses meanwhile."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with args[0].claim:  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return run


class Trainer:
    """Trains a model batch by batch.

    model      a Module, a function from batch value to outputs, or a graph: a gl.Graph with one input, or a pair
               (input, outputs). A graph takes batches of other lengths than it was made for, unless it mixes rows.
               Outputs are a value, or a tuple, list or dict of values, which a loss function gets as they are
    loss       "cross_entropy", "mse", "mean", "sum", or a function (see gradloom.train.losses.loss_pair)
    optimizer  AdamW() when not given; one with parameters trains only those, and its own state goes on
    build      "forward": losses only; "grad": gradients into accumulators, no update; "opt": the whole step
    accumulate micro-batches per optimiser step
    dynamic    the model's graph may change from call to call: it is built each time, and compiled once for each
               distinct graph
    seed       of the parameters that are not initialised yet, and of dropout
    communicator  this rank among those that train together: run_rows (and so epoch) splits each batch over them, see
               train/split.py; exchange: "ordered", the same bits for any number of ranks, or "fast"
    max_norm   an optimiser step divides its gradients, if their global norm is above this, down to it
    freeze     patterns of names, such as "embed*": parameters that stay as they are
    The other arguments are those of gl.compile.

    One thread at a time uses a trainer (or several trainers of one optimiser with parameters): while it is in a call of
    one, another thread gets TrainError.

    A model that is a Module may change between passes (run_rows, epoch) and calls of step: before each the trainer sees
    which modules and parameters there are, their modes and trainable, and their attributes: numbers, strings, None, and
    tuples, lists, sets and dicts of such by what they hold, other objects (arrays, functions) by which object it is.
    What differs is built and compiled anew, and found again when it changes back; parameters that are new join the
    optimiser, those that are gone leave it. It does not see into objects (an array that is written, a field of a
    configuration), nor what a function (as a model or loss) reads from elsewhere, nor what forward itself sets: for
    those dynamic=True. With ranks a change must be made on all of them, else TrainError.

    What the loss reaches is trained, or declared frozen (by trainable=False, by freeze, or by an optimiser with other
    parameters); a parameter that is neither is a GraphError when the step is built.
    """

    def __init__(
        self,
        model: Model,
        loss: str | Callable[..., Any] = "cross_entropy",
        optimizer: Optimizer | None = None,
        build: str = "opt",
        accumulate: int = 1,
        *,
        dynamic: bool = False,
        seed: int = 0,
        communicator: Communicator | None = None,
        exchange: str = "ordered",
        max_norm: float = math.inf,
        freeze: Freeze = (),
        **options: Any,
    ) -> None:
        check_options("Trainer", options, Trainer)
        if build not in ("forward", "grad", "opt"):
            raise SettingError(f"build: {build!r} is not known; need forward, grad or opt")
        accumulate, seed = as_whole("accumulate", accumulate, 1), as_whole("seed", seed, 0)
        self.model, self.loss, self.build, self.accumulate = _usable_model(model), loss, build, accumulate
        self.loss_pair = loss_pair(loss)
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise SettingError(f"optimizer: got {what_is(optimizer)}; need one of gl.optim, such as AdamW(lr=1e-3)")
        self.optimizer = optimizer if optimizer is not None else AdamW()
        self.dynamic, self.seed, self.options = as_bool("dynamic", dynamic), seed, options
        self.max_norm = check_max_norm(max_norm)
        self.freeze = check_freeze(freeze)
        self.optimizer_state = self.optimizer.state or OptimizerState(self.optimizer)
        if isinstance(model, Module):
            model.ensure_init(seed)
            if self.optimizer_state.chosen is None:
                self.optimizer_state.register(model.parameters())
        self._keeps_gradients = build == "grad" or accumulate > 1
        self._steps: dict[Hashable, Step] = {}
        self._predicting: dict[Hashable, tuple[Outputs, Any]] = {}
        self._sources: dict[int, RowSource] = {}
        self._outline: dict[bool, Outline] = {False: {}, True: {}}  # of the model in evaluation and in training
        self._numbers: dict[Hashable, int] = {}  # of the outlines that were seen, the last one at the end
        self._seen = 0  # how many there were
        self.outline_number = {False: 0, True: 0}
        self._set_by_forward: set[tuple[Module, str]] = set()  # attributes that ask for no new graph
        self._is_total = loss == "sum"  # a total is never divided by a weight
        self._in_window = 0  # micro-batches in the accumulation window so far
        self._held = 0  # micro-batches that the accumulators hold
        self._window_rows = 0
        check_exchange(exchange)
        if communicator is not None and (dynamic or build == "grad"):
            asked = "dynamic=True" if dynamic else "build='grad'"
            raise SettingError(f"{asked}: ranks exchange whole steps of one graph; need one process for that")
        self.split = None if communicator is None else Split(self, communicator, exchange)

    @property
    def claim(self) -> Claim:
        """`with trainer.claim:` no other thread uses this trainer meanwhile; it gets TrainError."""
        return self.optimizer_state.claim

    @property
    def steps(self) -> int:
        """Optimiser steps since the last reset of the optimiser."""
        return self.optimizer_state.steps

    @property
    def epoch(self) -> int:
        """Passes over the data, for schedules; `gl.epoch` counts it up."""
        return self.optimizer_state.epoch

    @epoch.setter
    def epoch(self, passes: int) -> None:
        self.optimizer_state.epoch = passes

    # ---- one batch ---------------------------------------------------------------------------------------

    @_claims
    @builds_graphs
    def step(
        self,
        batch: Any,
        labels: Any = None,
        weights: Any = None,
        result: Result | None = None,
        backward: bool = True,
    ) -> Result:
        """One micro-batch: forward, and with `backward` what `build` says. Every `accumulate`-th one updates.

        batch [rows, ...]; labels ids [rows] or rows of numbers; weights [rows]. Adds to `result` (a new one by default)
        and returns it. The weights may change; NonFiniteError leaves them as they were.
        """
        if self.split is not None:
            raise SettingError("step: a batch that is handed over cannot be split over ranks; need run_rows or epoch")
        source = FeedSource(batch, labels, weights)
        result = Result() if result is None else result
        backward = backward and self.build != "forward"
        self.look(backward)
        update = backward and self.build == "opt" and self._in_window + 1 == self.accumulate
        micro = _Micro(0, source.rows, 1, update, self._in_window == 0, self._window_rows)
        step = self._step_for(source, micro.rows, backward, update)
        feeds = {k: v for k, v in source.feeds.items() if k in step.run.inputs}  # some losses take no labels
        try:
            _, outputs = self._run(step, micro, 1, backward, feeds)
        except BaseException:
            self._drop_window()
            raise
        self._count(micro, 1, backward)
        self._add(result, step, micro.rows, outputs, *source.arrays[1:])
        return result

    @builds_graphs
    def predict(self, batch: Any) -> tuple[Outputs, list[np.ndarray]]:
        """(the model's outputs as it gives them, their numbers in order) for a batch [rows, ...], in eval mode.

        ShapeError for an output without the rows along its first axis.
        """
        source = FeedSource(batch)
        self.look(False)
        if self.dynamic:
            self._predicting.clear()
        outputs, run = self.kept(self._predicting, source.key, False, lambda: self._prediction(source))
        return outputs, run(**{k: v for k, v in source.feeds.items() if k in run.inputs})

    def _prediction(self, source: FeedSource) -> tuple[Outputs, Any]:
        outputs = self._outputs(source.leaves(source.rows)[0], False)
        values = values_of(outputs)
        for v in values:
            if v.shape[:1] != (source.rows,):
                seen = f"an output {describe(v)} of a batch of {source.rows} rows"
                raise ShapeError(f"predict: {seen}; need the rows along the first axis; node {v.node.label}")
        return outputs, compile_program(values, **self.options)

    # ---- rows of a data set ------------------------------------------------------------------------------

    def source(self, data: Dataset) -> RowSource:
        """The data set as the tape reads it; set_order before training on it."""
        if id(data) not in self._sources:
            self._sources[id(data)] = RowSource(data)
        return self._sources[id(data)]

    @_claims
    @builds_graphs
    def run_rows(
        self,
        source: RowSource,
        start: int,
        stop: int,
        result: Result,
        *,
        batch_size: int,
        micro_batch_size: int | None = None,
        backward: bool = True,
        each: bool = False,
        heard: Callable[[int], None] | None = None,
    ) -> None:
        """Train (or with backward=False evaluate) on rows start..stop of the source's order, all of them.

        batch_size rows make one optimiser step, in micro-batches of at most micro_batch_size. `heard(rows done)` is
        called after each native call: at least every 0.2 s, or after every micro-batch with `each`. With ranks, rank 0
        alone calls it, and in training after optimiser steps.
        """
        backward = backward and self.build != "forward"
        micro_size = min(micro_batch_size or batch_size, batch_size)
        self.look(backward)
        if self.split is not None:
            self.split.run_rows(source, start, stop, result, batch_size, micro_size, backward, each, heard)
            return
        if backward and self.build == "opt" and micro_size < batch_size and not self._keeps_gradients:
            raise SettingError(
                f"micro_batch_size={micro_size} is smaller than batch_size={batch_size}; need accumulate > 1 for that"
            )
        try:
            self._run_groups(source, start, stop, result, batch_size, micro_size, backward, each or self.dynamic, heard)
        except BaseException:
            self._drop_window()
            raise

    @_claims
    @builds_graphs
    def prepare(
        self,
        source: RowSource,
        start: int,
        stop: int,
        *,
        batch_size: int,
        micro_batch_size: int | None = None,
        backward: bool = True,
    ) -> None:
        """Compile what run_rows of the same arguments needs; nothing runs. Then planned_bytes is known."""
        backward = backward and self.build != "forward"
        micro_size = min(micro_batch_size or batch_size, batch_size)
        self.look(backward)
        if self.split is not None:
            self.split.prepare(source, start, stop, batch_size, micro_size, backward)
            return
        self._compile_all(source, start, stop, batch_size, micro_size, backward)

    @_claims
    @builds_graphs
    def whole_step(self, source: RowSource, rows: int) -> Step:
        """A step on so many rows with its update: what it computes, and the executable."""
        self.look(True)
        return self._step_for(source, rows, True, True)

    def _compile_all(
        self, source: RowSource, start: int, stop: int, batch_size: int, micro_size: int, backward: bool
    ) -> None:
        last = start + (stop - start - 1) // batch_size * batch_size
        for first, end in ((start, min(start + batch_size, stop)), (last, stop)):
            for group in self._micros(first, end, batch_size, micro_size, backward):
                self._step_for(source, group.rows, backward, group.update)

    def _run_groups(
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
        if not self.dynamic:  # what cannot be built is said before anything is trained
            self._compile_all(source, start, stop, batch_size, micro_size, backward)
        for group in self._micros(start, stop, batch_size, micro_size, backward):
            done = 0
            while done < group.count:
                step = self._step_for(source, group.rows, backward, group.update)
                most = 1 if each else max(1, min(group.count - done, CALL_BYTES // max(1, step.run.record_bytes)))
                count, outputs = self._run(step, self._at(group, done), most, backward)
                self._count(self._at(group, done), count, backward)
                first = group.start + done * group.rows
                truth = source.truth(first, first + count * group.rows) if step.has_predictions else (None, None)
                self._add(result, step, count * group.rows, outputs, *truth)
                done += count
                if heard is not None:
                    heard(first + count * group.rows - start)

    def _micros(self, start: int, stop: int, batch: int, micro: int, backward: bool) -> Iterable[_Micro]:
        """Groups of equal micro-batches. Whole batches without accumulation form one long group."""
        if not backward or not self._keeps_gradients:
            size = batch if backward else micro
            whole = (stop - start) // size
            if whole:
                yield _Micro(start, size, whole, backward, True, 0)
            rest = stop - start - whole * size
            if rest:
                yield _Micro(stop - rest, rest, 1, backward, True, 0)
            return
        at = start
        while at < stop:
            end = min(at + batch, stop)
            offset = 0
            while at < end:
                rows = min(micro, end - at)
                count = max(1, (end - at - 1) // rows) if end - at > rows else 1
                last = at + rows == end
                first = offset == 0 and self._in_window == 0
                yield _Micro(at, rows, count, last and self.build == "opt", first, offset)
                at += rows * count
                offset += rows * count

    @staticmethod
    def _at(group: _Micro, done: int) -> _Micro:
        if not done:
            return group
        rows = done * group.rows
        offset = group.offset + (0 if group.update else rows)
        return _Micro(group.start + rows, group.rows, group.count - done, group.update, False, offset)

    # ---- running -------------------------------------------------------------------------------------------

    def _run(
        self, step: Step, micro: _Micro, count: int, backward: bool, feeds: dict[str, Any] | None = None
    ) -> tuple[int, list[np.ndarray]]:
        if backward and self._keeps_gradients:
            self.optimizer_state.join(step.parameters, micro.first)
        settings = self._settings(micro, count, backward)
        try:
            return step.run.run_many(count, settings, CALL_SECONDS, feeds)
        except (IndexOutOfRange, KeyboardInterrupt) as ended:
            self._count(micro, getattr(ended, "steps_done", 0), backward)
            raise
        except (GuardTripped, NotFinite) as tripped:  # NotFinite: with check 2
            at = tripped.steps_done
            self._count(micro, at, backward)
            one = {k: np.broadcast_to(np.asarray(v), (count,))[at] for k, v in settings.items()}
            raise stopped(self.steps + 1, self.first_bad(step, one), self.epoch + 1) from None

    def _settings(self, micro: _Micro, count: int, backward: bool) -> dict[str, Any]:
        each = np.arange(count)
        rows = micro.offset + (0 if micro.update else 1) * each * micro.rows
        settings = random_settings(self.seed, self.steps + 1 + (each if micro.update else 0), rows)
        settings["position"] = micro.start + each * micro.rows
        if not backward:
            return settings
        settings["keep"] = np.where((each == 0) & micro.first, 0.0, 1.0)
        if not micro.update:
            return settings
        return settings | self.optimizer_state.settings_ahead(count)

    def _count(self, micro: _Micro, count: int, backward: bool) -> None:
        if not backward or not count:
            return
        self._held = self._in_window + count
        if micro.update:
            self.optimizer_state.steps += count
            self.optimizer_state.window.clear()
            self._in_window = self._window_rows = 0
        else:
            self._in_window += count
            self._window_rows += count * micro.rows

    def _drop_window(self) -> None:
        """What an accumulation window holds when its optimiser step cannot be completed."""
        if self.build == "opt":
            self._in_window = self._window_rows = 0

    def first_bad(self, step: Step, settings: dict[str, Any]) -> str:
        """What is not finite first in a step that has just failed with these settings."""
        return first_bad(step.run, step.outputs, step.updates, settings, **self.options)

    def _add(
        self,
        result: Result,
        step: Step,
        rows: int,
        outputs: list[np.ndarray],
        labels: np.ndarray | None,
        weights: np.ndarray | None,
    ) -> None:
        result.is_total = self._is_total
        predictions = outputs[2] if step.has_predictions else None
        result.add(rows, outputs[0], outputs[1], predictions, labels, weights)

    # ---- building ------------------------------------------------------------------------------------------

    def look(self, backward: bool) -> None:
        """See what the model is now: what was built for another form of it is not used until it is that again."""
        outline: Outline = {}
        if isinstance(self.model, Module):
            with self._mode(backward):
                outline |= self.model.outline()
        if isinstance(self.loss, Module):
            outline |= self.loss.outline()
        if outline == self._outline[backward]:
            return
        self._outline[backward] = outline
        if isinstance(self.model, Module):
            self.model.ensure_init(self.seed)
            if self.optimizer_state.chosen is None:
                self.optimizer_state.follow(p for _, p in self._named())
        if not self.dynamic:
            self._find_number(backward)

    def _find_number(self, backward: bool) -> None:
        key = tuple((at, token) for at, token in self._outline[backward].items() if at not in self._set_by_forward)
        number = self._numbers.pop(key, None)
        if number is None:
            number = self._seen = self._seen + 1
        self.outline_number[backward] = self._numbers[key] = number
        if len(self._numbers) > OUTLINES:
            oldest = self._numbers.pop(next(iter(self._numbers)))
            for cache in (self._steps, self._predicting):
                for old in [k for k in cache if isinstance(k, tuple) and k[0] == oldest]:
                    del cache[old]

    def kept(self, cache: dict[Hashable, T], key: Hashable, backward: bool, make: Callable[[], T]) -> T:
        """What was made for this key and the model as it is; made now, if there is nothing yet."""
        found = cache.get((self.outline_number[backward], key))
        if found is not None:
            return found
        self.look(backward)  # it may have changed since the pass began
        found = cache.get((self.outline_number[backward], key))
        if found is None:
            before = self._outline[backward]
            found = make()
            self.look(backward)
            own = set_by_forward(before, self._outline[backward]) - self._set_by_forward
            if own:
                self._set_by_forward |= own
                self._find_number(backward)
            cache[self.outline_number[backward], key] = found
        return found

    def _step_for(self, source: RowSource | FeedSource, rows: int, backward: bool, update: bool) -> Step:
        key: tuple[Hashable, ...] = (source.key, rows, backward, update)
        if self.dynamic:
            built = self._build(source, rows, backward)
            others = self._others(built[2], update)
            wires = structure([*built[0], *([] if built[1] is None else built[1])])
            key = (*key, wires, tuple(p.stored for p in others))
            if key not in self._steps:
                self._steps[key] = self._compile(built, rows, update, others)
            return self._steps[key]

        def make() -> Step:
            return self._compile(self._build(source, rows, backward), rows, update, others)

        others = ()
        step = self.kept(self._steps, key, backward, make)
        others = self._others(step.parameters, update)
        if others:
            step = self.kept(self._steps, (*key, tuple(p.stored for p in others)), backward, make)
        return step

    def _others(self, parameters: Sequence[Parameter], update: bool) -> tuple[Parameter, ...]:
        """What an update finds in the open window besides these: another graph's parameters may be there, too."""
        return self.optimizer_state.others(parameters) if update and self._in_window else ()

    def _mode(self, backward: bool) -> contextlib.AbstractContextManager[None]:
        """The mode in which the model builds: training, where parts in eval mode stay as they are, or evaluation."""
        as_set = isinstance(self.model, Module) and backward and self.model.training
        return contextlib.nullcontext() if as_set else mode(backward)

    def _outputs(self, x: Value, backward: bool) -> Outputs:
        if isinstance(self.model, Module):
            with self._mode(backward):
                found = self.model(x)
        elif isinstance(self.model, tuple):
            leaf, outputs = self.model
            new = iter(with_batch(values_of(outputs), leaf, x))
            return mapped(lambda _: next(new), outputs)
        else:
            found = self.model(x)
        values_of(found)
        return found

    def _build(self, source: RowSource | FeedSource, rows: int, backward: bool) -> _Built:
        """(loss, weight[, predictions]), gradients of the loss sum or None, parameters."""
        mark = next_serial()
        pred, total, weight = self._graph(source, rows, backward)
        if backward and made_since(mark, total):  # once, to be kept, or at each call
            mark = next_serial()
            pred, total, weight = self._graph(source, rows, backward)
        outputs = [total, weight]
        if self.loss == "cross_entropy":
            self._check_classes(source, pred)
            outputs.append(ops.argmax(pred, -1))
        if not backward:
            return outputs, None, ()
        trained = self._trained(total)
        anew = made_since(mark, total)
        if anew:
            raise GraphError(
                f"train: a parameter is made anew at each call of the model or the loss: {describe(anew[0])} "
                f"{anew[0].node.label}; need it made once, outside of them"
            )
        grads = gradients(total, trained)
        reached = [(p, g) for p, g in zip(trained, grads, strict=True) if g is not None]
        if not reached:
            raise GradientError("train: the loss depends on no trainable parameter; need at least one")
        return outputs, [g for _, g in reached], tuple(p for p, _ in reached)

    def _graph(self, source: RowSource | FeedSource, rows: int, backward: bool) -> tuple[Value, Value, Value]:
        """(outputs, loss sum, weight) of a batch."""
        x, labels, weights = source.leaves(rows)
        with fresh_streams():
            pred = self._outputs(x, backward)
            return pred, *self.loss_pair(pred, labels, weights)

    def _named(self) -> list[tuple[str, Parameter]]:
        """The parameters and buffers of a Module, trainable or not; a function has none."""
        model = self.model
        return [*model.named_parameters().items(), *model.named_buffers().items()] if isinstance(model, Module) else []

    def _trained(self, total: Value) -> list[Parameter]:
        """The parameters that this loss is to train; GraphError for one that it reaches and that nobody trains."""
        named = [(p.name, p) for p in reached_parameters(total)]
        own = self._named()
        mine = {p.stored for _, p in own}
        named = own + [(name, p) for name, p in named if p.stored not in mine]
        hits = matched(self.freeze, [name for name, _ in named])
        frozen = {p.stored for name, p in named if name in hits}
        chosen = self.optimizer_state.chosen
        if chosen is None and isinstance(self.model, Module):
            refuse_untrained("train", total, mine | frozen)
            chosen = frozenset(mine)
        free = [p for _, p in named if p.trainable and p.stored not in frozen]
        return [p for p in free if chosen is None or p.stored in chosen]

    def _check_classes(self, source: RowSource | FeedSource, pred: Value) -> None:
        if isinstance(source, RowSource) and (pred.ndim == 2 or source.data.has_ids):
            source.data.check_labels(pred.shape[-1])

    def _compile(self, built: _Built, rows: int, update: bool, others: tuple[Parameter, ...] = ()) -> Step:
        outputs, grads, parameters = built
        updates: tuple[Value, ...] = ()
        if grads is not None:
            total, weight = outputs[0], outputs[1]
            norm, updates = end_step(
                self.optimizer_state, parameters, grads, total, weight,
                divisor=weight if self._is_total else None, accumulates=self._keeps_gradients, updates=update,
                others=others, max_norm=self.max_norm,
            )  # fmt: skip
            outputs = [*outputs, norm]
        run = compile_program(outputs, updates, **self.options)
        return Step(run, rows, self.loss == "cross_entropy", outputs, updates, parameters)

    @property
    def plans(self) -> list[Plan]:
        """The plans of the steps that were compiled so far."""
        found = [s.run.plan for s in self._steps.values() if s.run.plan is not None]
        return found if self.split is None else [*found, *self.split.plans]

    @property
    def planned_bytes(self) -> int:
        """The largest arena, with the scratch of all threads, that a compiled step of this trainer plans for."""
        return max((p.peak_bytes for p in self.plans), default=0)

    @property
    def state(self) -> dict[Stored, dict[str, Parameter]]:
        """The optimiser's arrays by name, for each parameter that was trained so far."""
        return self.optimizer_state.moments

    @property
    def accumulators(self) -> list[Stored]:
        """The arrays that hold gradients from micro-batch to micro-batch."""
        return [p.stored for p in self.optimizer_state.sums.values()]

    def written(self) -> set[Stored]:
        """What the steps so far wrote of the model: its trained parameters and its running statistics."""
        state = {p.stored for arrays in self.state.values() for p in arrays.values()}
        state |= {*self.accumulators, self.optimizer_state.weight.stored}
        effects = [v for step in self._steps.values() for v in step.run.program.effects]
        written = {_stored(storage_leaf(v)) for v in effects} | set(self.state)
        if self.split is not None:
            written |= self.split.buffers
        return written - state

    # ---- ranks -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """With ranks, Ctrl-C inside stops all of them after the same step."""
        with contextlib.nullcontext() if self.split is None else self.split.agreement.together():
            yield

    def tell(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener; with ranks on rank 0 alone, then all take over its weights, and stop if it says so."""
        if self.split is not None:
            self.split.tell(listener, *results)
        elif listener is not None:
            listener(*results)

    # ---- reading and resetting -----------------------------------------------------------------------------

    def grad_acc(self, name: str) -> np.ndarray:
        """The accumulated gradient of a parameter, divided by the weight of the whole window.

        While the window is open, its weight is taken to be that of `accumulate` micro-batches like those so far.
        """
        if not self._keeps_gradients:
            raise GradientError(f"grad_acc: gradients are not kept; need build='grad' or accumulate > 1 for {name}")
        sums = self.optimizer_state.sums
        found = {s.name: a for s, a in sums.items()}
        if isinstance(self.model, Module):
            found = {n: sums[p.stored] for n, p in self.model.named_parameters().items() if p.stored in sums}
        if name not in found:
            raise GradientError(f"grad_acc: no gradient of {name!r}; there are {', '.join(found) or 'none yet'}")
        total = found[name].numpy()
        weight = float(self.optimizer_state.weight.stored.read())
        if self._is_total or not weight:
            return total
        return total / np.float32(weight * max(self.accumulate, self._held) / self._held)

    @_claims
    def reset(self, optimizer: bool = False) -> None:
        """Begin a new accumulation window; with `optimizer`, also forget its moments and its step count."""
        self._in_window = self._window_rows = self._held = 0
        self.optimizer_state.drop_sums()
        if optimizer:
            self.optimizer_state.reset()


def _usable_model(model: Any) -> Module | Callable[[Value], Outputs] | tuple[Value, Outputs]:
    """A Graph as its (input, outputs), anything else as it is; GraphError for what is no model."""
    if isinstance(model, Graph):
        return model.as_pair()
    if isinstance(model, type):
        raise GraphError(f"model: got the class {model.__name__}; need one that is made: {model.__name__}(...)")
    is_pair = isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Value)
    if not callable(model) and not is_pair:
        need = "a module, a function, a gl.Graph or a pair (input, outputs)"
        raise GraphError(f"model: got {type(model).__name__}; need {need}")
    if is_pair:
        values_of(model[1])
        if model[0].node.op.name != "input":
            raise GraphError(f"model: the first of the pair is {describe(model[0])}, no input; need gl.input(...)")
    return model


def _stored(value: Value | None) -> Stored:
    assert value is not None
    return value.node.attrs["stored"]
