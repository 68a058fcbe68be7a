"""Trainer: one model, one loss, one optimiser, and the compiled steps that they need (ggml_opt_context)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from ..base.arguments import as_bool, as_whole, what_is
from ..base.arrays import check_no_tuple
from ..base.collector import paused
from ..base.errors import GradientError, SettingError
from ..base.habits import AttributeHints
from ..base.locks import Claim
from ..base.options import bits_of, taken, takes
from ..base.settings import switches
from ..base.training_options import TrainerOptions
from ..data.dataset import Dataset
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import builds_graphs
from ..nn.module import Module
from ..optim.average import Average
from ..optim.clip import check_max
from ..optim.names import optimizer_hint
from ..optim.optimizer import AdamW, Optimizer
from ..optim.state import OptimizerState
from ..parallel.agree import Agreement, is_root
from ..parallel.communicator import Communicator
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import DeviceBytes, device_bytes, device_of, device_of_rank
from ..run.budget import check_places
from ..runs.state import TrainState
from .arguments import budget_of, check_options, check_used, need_devices, with_backend
from .batches import CompiledBatch, RowRange
from .compile_cache import CompileCache
from .fetched_source import source_of
from .marked import MarkedGraph
from .metrics import NOTHING, Measures
from .objective import Model, Objective
from .output_losses import Losses, LossWeights, OutputLosses
from .outputs import Outputs, values_of
from .parts import TrainerParts
from .rank_steps import RankSteps
from .result import Result
from .source import FeedSource, RowSource
from .steps import Steps

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import StepArguments

P = ParamSpec("P")
R = TypeVar("R")


def _claims(method: Callable[P, R]) -> Callable[P, R]:
    """The method of a Trainer, which this thread alone uses meanwhile."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with args[0].claim:  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return run


@takes(TrainerOptions)
class Trainer(AttributeHints):
    """Trains a model batch by batch.

    model      a Module, a function from batch value to outputs, or a graph: a gl.Graph with one input (and, with
               marked losses, inputs "labels" and "weights" where it reads them), or a pair (input, outputs). A graph
               takes batches of other lengths than it was made for, unless it mixes rows. Outputs are a value, or
               a tuple, list or dict of values, which a loss function gets as they are. A dict of data calls
               model(**batch): keys are names of parameters, or of inputs of a gl.Graph; a tuple calls model(*batch)
    loss       a name ("mse") or an object (gl.losses.Huber(delta=2.0)) of gl.losses, a function (see
               gradloom.train.losses.loss_pair), or a gl.train.BatchLoss, which couples the rows of a step; by default
               the marked losses of a gl.Graph (gl.set_loss), which add up, else "cross_entropy". Of several outputs a
               dict by key, or a tuple (None: not trained on): each loss reads the output and the label of its key and
               is a weighted mean; trained is the sum of these, times loss_weights
    loss_weights  a finite number for each loss of a dict or tuple, by key or position; 1 where there is none
    optimizer  AdamW() when not given; one with parameters trains only those, and keeps its state
    build      "forward": losses only; "grad": gradients into accumulators, no update; "opt": the whole step
    accumulate micro-batches per optimiser step
    dynamic    the model's graph may change from call to call: it is built each time, and compiled once for each
               distinct graph
    communicator   this rank among those that train together: run_rows (and so epoch) splits each batch over them, see
                   train/rank_steps.py
    class_weights  f32 [classes] (by output: a dict): factor of each label's loss, times its row's; not of accuracies

    {options}

    The other arguments are those of gl.compile; BackendError for a device that is not there.

    One thread at a time uses a trainer (or several trainers of one optimiser with parameters): while it is in a call of
    one, another thread gets TrainError.

    A model that is a Module may change between passes (run_rows, epoch) and calls of step: before each the trainer sees
    which modules and parameters there are, their modes and trainable, and their attributes: numbers, strings, None, and
    tuples, lists, sets and dicts of such by content, other objects (arrays, functions) by identity.
    A changed model is built and compiled anew, and reused when it changes back; parameters that are new join the
    optimiser, those that are gone leave it. It does not see into objects (an array that is written, a field of a
    configuration), nor what a function (as a model or loss) reads from elsewhere, nor what forward itself sets: for
    those dynamic=True. With ranks a change must be made on all of them, else TrainError.

    A parameter that the loss reaches is trained, or declared frozen (by trainable=False, by freeze, or by an optimiser
    with other parameters); one that is neither is a GraphError when the step is built.
    """

    @paused()
    def __init__(
        self,
        model: Model,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        build: str = "opt",
        accumulate: int = 1,
        *,
        dynamic: bool = False,
        communicator: Communicator | None = None,
        class_weights: np.ndarray | dict[Any, np.ndarray] | None = None,
        loss_weights: LossWeights = None,
        **settings: Unpack[StepArguments],
    ) -> None:
        use, options = taken(TrainerOptions, settings)
        check_options("Trainer", options, Trainer)
        options = with_backend("Trainer", options)
        if build not in ("forward", "grad", "opt"):
            raise SettingError(setting="build", seen=build, need="forward, grad or opt")
        accumulate, seed = as_whole("accumulate", accumulate, 1), use.seed
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            text = (
                f"{{optimizer}} is {what_is(optimizer)}; must be one of gl.optim, such as {optimizer_hint(optimizer)}"
            )
            raise SettingError(text, setting="optimizer")
        self.optimizer = optimizer if optimizer is not None else AdamW()
        self.optimizer_state = self.optimizer.state or OptimizerState(self.optimizer)
        self.build, self.accumulate, self.seed, self.options = build, accumulate, seed, options
        self.dynamic = as_bool("dynamic", dynamic)
        self.max_norm, self.max_value = check_max("max_norm", use.max_norm), check_max("max_value", use.max_value)
        state = self.optimizer_state
        if use.ema != (0.0 if state.average is None else state.average.decay):
            state.average = Average(use.ema) if use.ema else None
        check_used(use, build, loss, communicator, class_weights)
        check_places("", use.memory, options)
        if communicator is not None and "backend" in options:
            with Agreement(communicator).own():
                options["backend"] = device_of_rank(options["backend"], communicator.rank)
                need_devices(options)
        else:
            need_devices(options)
        has_devices = isinstance(model, Module) and any(p.stored.device for _, p, _ in model.named_stored())
        budget = budget_of(use.memory, options, communicator, self.dynamic, has_devices)
        if communicator is not None and ("devices" in options or (has_devices and "backend" not in options)):
            name = "devices" if "devices" in options else "Module.to"
            raise SettingError(
                f"{{{name}}} requires one process; a rank computes on one {{device}}", {name: ..., "device": ...}
            )
        if communicator is not None and (dynamic or build == "grad"):
            name, seen = ("dynamic", True) if dynamic else ("build", build)
            raise SettingError(f"{{{name}}} requires one process: ranks exchange whole steps", {name: seen})
        self.objective = Objective(model, loss, use.freeze, self.optimizer_state, class_weights, loss_weights)
        if isinstance(model, Module):
            model.ensure_init(seed)
            if self.optimizer_state.chosen is None:
                self.optimizer_state.register(model.parameters())
                if self.optimizer.placing is not None:
                    self.optimizer_state.place(self.objective.named().items())
        self.model, self.loss = self.objective.model, self.objective.loss
        self.cache = CompileCache(self.objective, seed, self.dynamic)
        self.train_state = TrainState()
        given = self.objective, self.cache, state
        of_steps: dict[str, Any] = {
            "build": build, "accumulate": accumulate, "dynamic": self.dynamic, "seed": seed, "max_norm": self.max_norm,
            "max_value": self.max_value, "skips": use.on_nonfinite == "skip", "options": options, "budget": budget,
        }  # fmt: skip
        self.driver: Steps = (
            Steps(*given, **of_steps) if communicator is None
            else RankSteps(*given, communicator, use.exchange, self.train_state, **of_steps)
        )  # fmt: skip
        parts = TrainerParts(self.objective, state, self.driver, self.written)
        parts.register(self.train_state)
        self.modules = parts.modules
        self.bits = bits_of(use, TrainerOptions) | {  # compared by a resume
            "max_norm": self.max_norm, "max_value": self.max_value,
            "freeze": list(self.objective.freeze), "exchange": self.driver.exchange,
        }  # fmt: skip
        self._predicting: dict[Hashable, tuple[Outputs, Any]] = self.cache.table()
        self._sources: dict[int, RowSource] = {}

    def __repr__(self) -> str:
        model, state = type(self.model).__name__, self.optimizer_state
        loss = getattr(self.loss, "__name__", type(self.loss).__name__)
        loss = str(self.loss) if isinstance(self.loss, (str, OutputLosses)) else loss
        loss = loss if isinstance(self.model, MarkedGraph) else f"loss {loss}"
        return f"Trainer({model}, {loss}, {self.optimizer!r}, {state.steps} steps done)"

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
        """One micro-batch: forward, and with `backward` the rest of `build`. Every `accumulate`-th one updates.

        batch [rows, ...]; labels ids [rows] or rows of numbers (both may be several, see Dataset); weights [rows]. Adds
        to `result` (a new one by default) and returns it. The weights may change; NonFiniteError leaves them as they
        were.
        """
        if self.driver.ranks is not None:
            raise SettingError("step: a batch in memory cannot be split over ranks; use run_rows or epoch")
        if labels is None:
            check_no_tuple("batch", batch)
        source = FeedSource(batch, labels, weights, self.objective.input_kinds, self.objective.looks_at_labels)
        result = Result() if result is None else result
        backward = backward and self.build != "forward"
        with self._weights(averaged=not backward):
            self.cache.refresh(backward)
            self.driver.feed(source, result, backward)
        return result

    @builds_graphs
    def predict(self, batch: Any) -> tuple[Outputs, list[np.ndarray]]:
        """(the model's outputs as it gives them, their numbers in order) for a batch (see step), in eval mode.
        ShapeError for an output without the rows along its first axis."""
        source = FeedSource(batch, kinds=self.objective.input_kinds)
        outputs, run = self.prepare_predict(source)
        with self._weights(averaged=True):
            return outputs, run(**{k: v for k, v in source.feeds.items() if k in run.inputs})

    @builds_graphs
    def prepare_predict(self, source: FeedSource) -> tuple[Outputs, Any]:
        """(outputs, program) of `predict` for such rows, which is compiled and does not run."""
        self.cache.refresh(False)
        if self.dynamic:
            self._predicting.clear()
        return self.driver.within_budget(
            lambda _: self.cache.get(self._predicting, source.key, False, lambda: self._prediction(source))
        )

    def _prediction(self, source: FeedSource) -> tuple[Outputs, Any]:
        outputs = self.objective.predicted(source)
        return outputs, self.driver.program(values_of(outputs))

    # ---- rows of a data set ------------------------------------------------------------------------------

    def source(self, data: Dataset, made: RowSource | None = None) -> RowSource:
        """The data set as a step's program reads it; `arrange` sets its order. made: its source from now on."""
        if id(data) not in self._sources:
            self._sources[id(data)] = made or source_of(data)
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
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """Train (or with backward=False evaluate) on rows start..stop of the source's order, all of them.

        batch_size rows form one optimiser step, in micro-batches of at most micro_batch_size; in an evaluation they are
        the rows that a BatchLoss couples. `on_progress(rows done)`
        is called after each native call: at least every 0.2 s, or after every micro-batch with `each`. With ranks, rank
        0 alone calls it, and in training after optimiser steps.
        """
        with self._weights(averaged=not backward):
            rows = self._rows(source, start, stop, batch_size, micro_batch_size, backward, result.measures)
            self.driver.run(rows, result, each, on_progress)

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
        measures: Measures = NOTHING,
    ) -> list[CompiledBatch]:
        """Compile and return the steps that run_rows of the same arguments needs. Nothing runs; planned_bytes is known
        from then on."""
        rows = self._rows(source, start, stop, batch_size, micro_batch_size, backward, measures)
        return self.driver.prepare(rows)

    def _rows(
        self, source: RowSource, start: int, stop: int, batch_size: int, micro_batch_size: int | None, backward: bool,
        measures: Measures,
    ) -> RowRange:  # fmt: skip
        """The rows of a pass; the structure of the model is read again."""
        backward = backward and self.build != "forward"
        self.cache.refresh(backward)
        micro = min(micro_batch_size or batch_size, batch_size)
        size = batch_size if backward or self.objective.couples else micro
        return RowRange(source.reserve(size), start, stop, size, micro, backward, measures)

    @_claims
    @builds_graphs
    def whole_step(self, source: RowSource, rows: int) -> CompiledBatch:
        """The program of a step on `rows` rows, with its update."""
        self._rows(source, 0, rows, rows, None, True, NOTHING)
        return self.driver.compiled_for(source, rows, True, True)

    # ---- compiled steps ----------------------------------------------------------------------------------

    @property
    def compiled(self) -> list[CompiledBatch]:
        """The micro-batches that were compiled so far; with ranks those of evaluations."""
        return [*self.driver.compiled.values(), *self.driver.joins.compiled]

    @property
    def runs(self) -> list[Any]:
        """All programs that were compiled so far."""
        return self.driver.runs

    @property
    def plans(self) -> list[Plan | Schedule]:
        """The plans, on several devices the schedules, of the steps that were compiled so far."""
        return self.driver.plans

    @property
    def planned_bytes(self) -> int:
        """The largest arena, with the scratch of all threads, that a compiled step of this trainer plans for."""
        return max((p.peak_bytes for p in self.plans), default=0)

    @property
    def on_device(self) -> DeviceBytes | None:
        """What these steps hold on their device, of several on the first GPU; None where they compute in this process's
        memory."""
        return device_bytes(device_of(self.plans, self.options.get("backend", "cpu")), self.plans, switches())

    @property
    def state(self) -> dict[Stored, dict[str, Parameter]]:
        """The optimiser's arrays by name, for each parameter that was trained so far."""
        return self.optimizer_state.moments

    @property
    def accumulators(self) -> list[Stored]:
        """The arrays that hold gradients from micro-batch to micro-batch."""
        return [p.stored for p in self.optimizer_state.sums.values()]

    def written(self) -> list[Stored]:
        """Arrays of the model that the steps so far wrote: its trained parameters and its running statistics."""
        own = {p.stored for arrays in self.state.values() for p in arrays.values()}
        own |= {*self.accumulators, self.optimizer_state.weight.stored}
        if self.optimizer_state.average is not None:
            own |= {mean.stored for mean in self.optimizer_state.average.arrays.values()}
        return [stored for stored in dict.fromkeys([*self.state, *self.driver.written()]) if stored not in own]

    # ---- the average of the weights ----------------------------------------------------------------------------

    def show_average(self, shown: bool = True) -> None:
        """Let the model hold the moving average of its weights, or with False those that are trained. Without ema=
        there is one set of weights only."""
        if self.optimizer_state.average is not None:
            self.optimizer_state.average.show(shown)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Inside, the model holds the weights that are trained; afterwards their average, where there is one."""
        self.show_average(False)
        try:
            yield
        finally:
            self.show_average(True)

    @contextlib.contextmanager
    def _weights(self, averaged: bool) -> Iterator[None]:
        """Inside, the model holds the average of its weights or those that are trained."""
        average = self.optimizer_state.average
        before = average is not None and average.is_shown
        self.show_average(averaged)
        try:
            yield
        finally:
            self.show_average(before)

    # ---- ranks -----------------------------------------------------------------------------------------------

    @property
    def is_root(self) -> bool:
        """Whether this process shows progress and writes files: rank 0, or the only one."""
        return is_root(self.driver.ranks)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """With ranks, Ctrl-C inside stops all of them after the same step."""
        return self.driver.together()

    def tell(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener; with ranks on rank 0 only, then all copy its weights, and stop if it asks for that."""
        with self._weights(averaged=True):
            self.driver.notify(listener, *results)

    def set_accumulate(self, accumulate: int) -> None:
        """Let `accumulate` micro-batches make a step: before the first one."""
        self.accumulate = self.driver.accumulate = accumulate
        self.driver.keeps_gradients = self.build == "grad" or accumulate > 1

    # ---- reading and resetting -----------------------------------------------------------------------------

    def grad_acc(self, name: str) -> np.ndarray:
        """The accumulated gradient of a parameter, divided by the weight of the whole window.

        While the window is open, its weight is taken to be that of `accumulate` micro-batches like those so far.
        """
        if not self.driver.keeps_gradients:
            raise GradientError(f"grad_acc: gradients are not kept; need build='grad' or accumulate > 1 for {name}")
        sums = self.optimizer_state.sums
        named = {s.name: a for s, a in sums.items()}
        if isinstance(self.model, Module):
            named = {n: sums[p.stored] for n, p in self.model.named_parameters().items() if p.stored in sums}
        if name not in named:
            raise GradientError(f"grad_acc: no gradient of {name!r}; there are {', '.join(named) or 'none yet'}")
        total = named[name].numpy()
        weight = float(self.optimizer_state.weight.stored.read())
        if self.objective.is_total or not weight:
            return total
        return total / np.float32(weight * max(self.accumulate, self.driver.held) / self.driver.held)

    @_claims
    def reset(self, optimizer: bool = False) -> None:
        """Begin a new accumulation window; with `optimizer`, also forget its moments and its step count."""
        self.driver.reset()
        self.optimizer_state.drop_sums()
        if optimizer:
            self.optimizer_state.reset()
            if self.optimizer_state.average is not None:
                self.optimizer_state.average.restart()
