"""Callback protocol: events of a training run, and what callbacks remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import SettingError, TrainError
from ..runs.events import Contribution, Subscriber, stop_raised_by
from .epoch import Listener, Pass, Progress
from .result import EpochResult, Evaluation
from .source import RowSource

Listeners = Callable[..., Any] | Sequence[Callable[..., Any]] | None


@dataclass(frozen=True)
class BatchResult:
    """The batch of one optimiser step, as `Callback.on_batch` gets it.

    step      the optimiser step of this training, from 1
    epoch     the pass, as EpochResult counts it
    rows      i64 [n]: which rows of the data set, in the order in which they were trained on; of an iterable of
              batches their numbers in this pass, from 0
    loss      of these rows before the step: the weighted mean (for the loss "sum" the total); weight: of the batch
    labels    of these rows, as the data set holds them: [n, ...], or None
    skipped   the step was skipped (on_nonfinite="skip"): loss is nan, weight 0
    outputs   outputs of the model for these rows, in its structure: arrays [n, ...]; None unless some callback has
              `needs_outputs = True`, and for a skipped step
    """

    step: int
    epoch: int
    rows: np.ndarray
    loss: float
    weight: float
    labels: np.ndarray | None
    skipped: bool = False
    outputs: Any = None


class Callback:
    """Base class of callbacks: `callbacks=[...]` of gl.fit, gl.train.Loop and gl.llm.finetune.

    Every method is optional:

        begin(loop)                 before the first pass; loop is the gl.train.Loop (loop.trainer, loop.steps, ...)
        on_batch(batch)             after each optimiser step, with its BatchResult
        on_progress(progress)       inside a pass, of training or validation, at least every 0.2 s, with its Progress:
                                    costs nothing per batch; with `every_steps = n` after every n-th optimiser step, too
        on_evaluation(evaluation)   after the validation sets were measured, at the end of an epoch or inside of it,
                                    with the Evaluation
        on_epoch(result)            after each pass and its validation, with the EpochResult
        on_part(result)             after a pass that StopTraining has ended inside, in place of on_epoch, with the
                                    EpochResult of its trained part; not with stop_after=, where a resume continues it
        on_sample(sample)           after each text that a fine-tuning samples, with its gl.llm.SampledText
        on_checkpoint(path)         after a checkpoint of a run with a folder was written, with the path of its
                                    manifest; a later one may have removed it by then (keep=). Not called for the
                                    checkpoint that an interruption or an error leaves
        end(history)                after the last pass, with all EpochResults

    StopTraining from any of them ends the training in order: from on_batch, and from on_evaluation inside of an epoch,
    at once, with a part of an epoch in the history; else when all callbacks have received the event. Any other
    exception ends it as an error does. With ranks, rank 0 alone calls them; after begin, on_evaluation, on_epoch and
    end its weights and settings are copied to all ranks.

    With `needs_outputs = True` in the class, the step's program gives the model's outputs, too, and each BatchResult
    has them; SettingError with ranks, which hold the outputs of their own micro-batches alone.

    state() returns the callback's state: a dict of arrays, numbers, texts, booleans, None, and lists and dicts
    of plain values; load_state(values) restores it after a resume, after begin. A class that overrides a method and not
    these two is rejected when a training is resumed, unless it has `stateless = True`: it has no state that affects
    its actions. A function of on_epoch= is taken to be stateless.
    """

    stateless = False
    steers = True  # False: it does not affect the training; a run may be resumed with it and without it
    needs_outputs = False
    every_steps: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def begin(self, loop: Any) -> None:
        """The training begins."""

    def on_batch(self, batch: BatchResult) -> None:
        """An optimiser step is done."""

    def on_progress(self, progress: Progress) -> None:
        """Progress inside a pass."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """The validation sets were measured."""

    def on_epoch(self, result: EpochResult) -> None:
        """A pass and its validation are done."""

    def on_part(self, result: EpochResult) -> None:
        """A pass has ended before its last step or its validation was done."""

    def on_sample(self, sample: Any) -> None:
        """A fine-tuning has sampled a text."""

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint was written."""

    def end(self, history: list[EpochResult]) -> None:
        """The training has ended, whole or stopped."""

    def copied_bytes(self, weights: int, state: int) -> int:
        """The most bytes of copies that it holds at once, where the weights and buffers of the model have `weights`
        bytes, and all arrays of a checkpoint `state`: for a memory budget (memory=)."""
        return 0

    def state(self) -> dict[str, Any]:
        """State of the callback, saved in checkpoints."""
        return {}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`."""

    def check_state(self, values: Mapping[str, Any]) -> None:
        """Called before anything of a checkpoint is loaded: raise TrainError where `load_state` cannot take these
        values. Optional: without it they go to `load_state` unchecked."""


_EVENTS = (
    "begin",
    "on_batch",
    "on_progress",
    "on_evaluation",
    "on_epoch",
    "on_part",
    "on_sample",
    "on_checkpoint",
    "end",
)


def overrides(callback: Callback, name: str) -> bool:
    """The callback has a method of its own."""
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)


class _Listener(Callback):
    """A function of on_epoch=. It is stateless, unless it has state() and load_state(); its begin(trainer) and end()
    are called, where it has them."""

    stateless = True

    def __init__(self, function: Any) -> None:
        self.function = function

    def begin(self, loop: Any) -> None:
        if hasattr(self.function, "begin"):
            self.function.begin(loop.trainer)

    def on_epoch(self, result: EpochResult) -> None:
        self.function(result)

    def end(self, history: list[EpochResult]) -> None:
        if hasattr(self.function, "end"):
            self.function.end()

    def state(self) -> dict[str, Any]:
        return self.function.state() if self.keeps() else {}

    def load_state(self, values: Mapping[str, Any]) -> None:
        if self.keeps():
            self.function.load_state(values)

    def check_state(self, values: Mapping[str, Any]) -> None:
        if self.keeps() and hasattr(self.function, "check_state"):
            self.function.check_state(values)

    def keeps(self) -> bool:
        """The function has a state."""
        return all(callable(getattr(self.function, name, None)) for name in ("state", "load_state"))


class Callbacks(Subscriber):
    """Subscriber that passes events on to callbacks: those of on_epoch= first, then those of callbacks=.

    With ranks, rank 0 alone calls them; after events between two steps all ranks have its weights and settings.
    on_progress, on_train_batch, on_eval_batch: functions of a Progress, called before the callbacks.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] | Callback | None = None,
        on_epoch: Listeners = None,
        on_progress: Listener | None = None,
        on_train_batch: Listener | None = None,
        on_eval_batch: Listener | None = None,
    ) -> None:
        self._each = [*_listeners(on_epoch), *_callbacks(callbacks)]
        self._receivers = {event: [c for c in self._each if overrides(c, event)] for event in _EVENTS}
        self._on_progress, self._on_batch = on_progress, {True: on_train_batch, False: on_eval_batch}
        self.needs_outputs = any(each.needs_outputs for each in self._receivers["on_batch"])
        self.has_begun = False  # on all ranks
        self._loop: Any = None
        self._reports: BatchReports | None = None  # of the open pass
        self._loaded: Mapping[str, Any] | None = None  # a state that waits for `begin`

    def copied_bytes(self, weights: int, state: int) -> int:
        return sum(each.copied_bytes(weights, state) for each in self._each)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._each)

    def __bool__(self) -> bool:
        return bool(self._each)

    def receives(self, event: str) -> bool:
        """Some callback has this method, or waits for its state at `begin`."""
        return bool(self._receivers[event]) or (event == "begin" and self._loaded is not None)

    def notify(self, event: str, value: Any) -> None:
        """Call this method of all callbacks; StopTraining, if any of them raises it, when all were called. Another
        exception is raised at once, with the attribute `of_callback`: some were called, and some were not."""
        try:
            stops = [stop_raised_by(getattr(each, event), value) for each in self._receivers[event]]
        except BaseException as error:
            error.of_callback = True  # type: ignore[attr-defined]
            raise
        for stop in filter(None, stops):
            raise stop
        if event == "begin" and self._loaded is not None:
            values, self._loaded = self._loaded, None
            self._restore(values)

    # ---- events of the loop ----------------------------------------------------------------------------------

    @property
    def ends(self) -> Sequence[int]:
        return [each.every_steps for each in self._each if each.every_steps]

    def every_batch(self, training: bool) -> bool:
        return self._on_batch[training] is not None or (training and self.receives("on_batch"))

    def begin(self, loop: Any) -> None:
        self._loop = loop
        if not self.has_begun:
            self.has_begun = True
            self._notify_root("begin", loop)

    def begin_pass(self, source: RowSource, open_pass: Pass) -> None:
        self._reports = None
        if self.receives("on_batch"):
            self._reports = BatchReports(self, source, open_pass, self._loop)

    def on_progress(self, progress: Progress) -> None:
        if self._reports is not None and progress.training:  # before a function may end the pass: the step is done
            self._reports.look(self._loop.steps)
        before_first_step = self._loop.is_between_passes
        for function in (self._on_batch[progress.training], None if before_first_step else self._on_progress):
            if function is not None:
                function(progress)
        self.notify("on_progress", progress)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._notify_root("on_evaluation", evaluation)

    def on_part(self, result: EpochResult) -> None:
        self._notify_root("on_part", result)

    def on_epoch(self, result: EpochResult) -> None:
        self._notify_root("on_epoch", result)

    def on_sample(self, sample: Any) -> None:
        self.notify("on_sample", sample)

    def on_checkpoint(self, path: Path) -> None:
        self.notify("on_checkpoint", path)

    def end(self, history: list[EpochResult]) -> None:
        self._notify_root("end", history)

    def _notify_root(self, event: str, value: Any) -> None:
        """Notify the callbacks between two steps, with ranks on rank 0; all ranks call this."""
        self._loop.trainer.tell(partial(self.notify, event) if self.receives(event) else None, value)

    # ---- what callbacks add to a run -------------------------------------------------------------------------

    def _contributions(self) -> list[Contribution]:
        return [each for each in self._each if isinstance(each, Contribution)]

    def about(self) -> dict[str, Any]:
        return {name: value for each in self._contributions() for name, value in each.about().items()}

    def contents(self) -> dict[str, Callable[[], Sequence[Any]]]:
        return {name: value for each in self._contributions() for name, value in each.contents().items()}

    def files(self) -> dict[str, Callable[[], bytes]]:
        return {name: value for each in self._contributions() for name, value in each.files().items()}

    def earlier_about(self, folder: Path) -> dict[str, Any]:
        return {name: value for each in self._contributions() for name, value in each.earlier_about(folder).items()}

    # ---- their state -----------------------------------------------------------------------------------------

    def check_resumable(self) -> None:
        """SettingError naming a callback that may have a state and cannot save it."""
        for each in self._each:
            kept = overrides(each, "state") and overrides(each, "load_state")
            if not kept and not each.stateless and any(overrides(each, event) for event in _EVENTS):
                raise SettingError(
                    f"callbacks: {type(each).__name__} cannot resume: it has no state() and load_state(); need both, "
                    "or stateless = True in a class that remembers nothing"
                )

    def remembers_evaluations(self) -> Callback | None:
        """The first callback that steers, receives results of evaluations, and has a state."""
        events = ("on_evaluation", "on_epoch", "on_progress")
        for each in self._each:
            keeps = each.keeps() if isinstance(each, _Listener) else overrides(each, "state")
            if each.steers and keeps and any(overrides(each, event) for event in events):
                return each
        return None

    def state(self) -> dict[str, Any]:
        """Part of the state of a run: "number.name" -> value, for each value of the state of a callback."""
        if self._loaded is not None:
            return dict(self._loaded)
        states = [(f"{i}.{name}", value) for i, each in enumerate(self._each) for name, value in each.state().items()]
        return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in states}

    def check_state(self, values: Mapping[str, Any]) -> None:
        """TrainError where a callback cannot take these values, as `state` gives them; SettingError for one that cannot
        resume. Nothing is changed."""
        self.check_resumable()
        numbers = {int(name.partition(".")[0]) for name in values}
        if any(i >= len(self._each) for i in numbers):
            raise TrainError(f"load: callbacks: of {max(numbers) + 1} callbacks, and there are {len(self._each)}")
        for each, mine in self._mine(values):
            each.check_state(mine)

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore each callback's state, immediately or at `begin`."""
        if self.has_begun:
            self._restore(values)
        else:
            self._loaded = values

    def _restore(self, values: Mapping[str, Any]) -> None:
        for each, mine in self._mine(values):
            each.load_state(mine)

    def _mine(self, values: Mapping[str, Any]) -> Iterator[tuple[Callback, dict[str, Any]]]:
        """Each callback whose state is restored, with its values."""
        for i, each in enumerate(self._each):
            prefix = f"{i}."
            mine = {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}
            if mine or each.steers:
                yield each, mine


def _listeners(on_epoch: Listeners) -> Iterator[Callback]:
    several: Iterable[Any] = on_epoch if isinstance(on_epoch, (list, tuple)) else [on_epoch]
    for each in several:
        if isinstance(each, Callback):
            yield each
        elif callable(each):
            yield _Listener(each)
        elif each is not None:
            raise SettingError(f"on_epoch: got {type(each).__name__}; need a function of an EpochResult, or several")


def several(callbacks: Any) -> list[Any]:
    """What callbacks= was given, as a list: one callback, several or none."""
    one = isinstance(callbacks, Callback) or (callable(callbacks) and not isinstance(callbacks, Iterable))
    return [callbacks] if one else list(callbacks or ())


def _callbacks(callbacks: Any) -> Iterator[Callback]:
    for each in several(callbacks):
        if not isinstance(each, Callback):
            hint = "a function of an EpochResult goes to on_epoch=" if callable(each) else "see gl.train.Callback"
            raise SettingError(f"callbacks: got {what_is(each)}; need instances of gl.train.Callback ({hint})")
        yield each


class BatchReports:
    """Notifies callbacks after each optimiser step of a pass. Called after each micro-batch, it compares the Result of
    the pass with the reported one."""

    def __init__(self, callbacks: Callbacks, source: RowSource, open_pass: Pass, loop: Any) -> None:
        self._callbacks, self._source, self._pass, self._loop = callbacks, source, open_pass, loop
        result = open_pass.train
        self._rows, self._batches, self._skipped = loop.rows_done(open_pass), result.batches, result.skipped

    def look(self, step: int) -> None:
        """Report the step that has ended, if one has. step: optimiser steps of the training that are done."""
        result, first, rows = self._pass.train, self._rows, self._loop.rows_done(self._pass)
        if rows == first:
            return  # inside of an accumulation window
        skipped = result.skipped > self._skipped
        loss, weight = (math.nan, 0.0) if skipped else result.latest(result.batches - self._batches)
        self._rows, self._batches, self._skipped = rows, result.batches, result.skipped
        outputs = result.measured.take_outputs() if result.measures.outputs else None
        ids, labels = self._source.reported(first, rows)
        batch = BatchResult(step, self._pass.number, ids, loss, weight, labels, skipped, outputs)
        self._callbacks.notify("on_batch", batch)
