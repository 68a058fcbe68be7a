"""Callbacks: what a training tells others of itself, in one small protocol, and what they remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import SettingError, TrainError
from ..base.interrupts import StopTraining
from .epoch import Progress
from .result import EpochResult, Evaluation, Result
from .source import RowSource

Listeners = Callable[..., Any] | Sequence[Callable[..., Any]] | None


@dataclass(frozen=True)
class BatchResult:
    """The batch of one optimiser step, as `Callback.on_batch` gets it.

    step      the optimiser step of this training, from 1
    epoch     the pass, as EpochResult counts it
    rows      i64 [n]: which rows of the data set, in the order in which they were trained on
    loss      of these rows before the step: the weighted mean (for the loss "sum" the total); weight: what it weighs
    labels    of these rows, as the data set holds them: [n, ...], or None
    skipped   the step was left out (on_nonfinite="skip"): loss is nan, weight 0
    outputs   what the model gave for these rows, in its structure: arrays [n, ...]; None unless some callback says
              `needs_outputs = True`, and for a step that was left out
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
    """Base class of what listens to a training: `callbacks=[...]` of gl.fit, gl.train.Loop and gl.llm.finetune.

    Every method is optional:

        begin(loop)                 before the first pass; loop is the gl.train.Loop (loop.trainer, loop.steps, ...)
        on_batch(batch)             after each optimiser step, with its BatchResult
        on_progress(progress)       inside a pass, of training or validation, at least every 0.2 s, with its Progress:
                                    costs nothing per batch; with `every_steps = n` after every n-th optimiser step, too
        on_evaluation(evaluation)   after the validation sets were measured, at the end of an epoch or inside of it,
                                    with the Evaluation
        on_epoch(result)            after each pass and its validation, with the EpochResult
        on_part(result)             after a pass that StopTraining has ended inside, in place of on_epoch, with the
                                    EpochResult of what was done of it; not with stop_after=, where a resume goes on
        on_sample(sample)           after each text that a fine-tuning samples, with its gl.llm.SampledText
        on_checkpoint(path)         after a checkpoint of a run with a folder was written, with the path of its
                                    manifest; a later one may have removed it by then (keep=). Nobody hears of
                                    the one that an interruption or an error leaves
        end(history)                after the last pass, with all EpochResults

    StopTraining from any of them ends the training in order: from on_batch, and from on_evaluation inside of an epoch,
    at once, with a part of an epoch in the history; else when all callbacks have heard of the epoch. Any other error
    ends it as an error does. With ranks, rank 0 alone calls them; after begin, on_evaluation, on_epoch and end all
    ranks take over its weights and settings.

    With `needs_outputs = True` in the class, the step's program gives the model's outputs, too, and each BatchResult
    has them; SettingError with ranks, which hold the outputs of their own micro-batches alone.

    state() gives what the callback remembers: a dict of arrays, numbers, texts, booleans, None, and lists and dicts of
    plain values; load_state(values) takes it back after a resume, after begin. A class that overrides a method and not
    these two is refused where a training is to resume, unless it says `stateless = True`: it remembers nothing that
    decides what it does. A function that on_epoch= gets is taken to be stateless.
    """

    stateless = False
    steers = True  # False of one that only watches: a run may be resumed with it and without it
    needs_outputs = False
    every_steps: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def begin(self, loop: Any) -> None:
        """The training begins."""

    def on_batch(self, batch: BatchResult) -> None:
        """An optimiser step is done."""

    def on_progress(self, progress: Progress) -> None:
        """A pass has come so far."""

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

    def state(self) -> dict[str, Any]:
        """What it remembers."""
        return {}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""

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
    """A function that on_epoch= was given. It is taken to remember nothing, unless it has state() and load_state().
    One with begin(trainer) and end() is told of both."""

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


class Callbacks:
    """The callbacks of a training: those of on_epoch= first, then those of callbacks=."""

    def __init__(self, callbacks: Sequence[Callback] | Callback | None = None, on_epoch: Listeners = None) -> None:
        self._each = [*_listeners(on_epoch), *_callbacks(callbacks)]
        self._hearing = {event: [c for c in self._each if overrides(c, event)] for event in _EVENTS}
        self.needs_outputs = any(each.needs_outputs for each in self._hearing["on_batch"])
        self.has_begun = False  # the loop says so, on all ranks
        self._loaded: Mapping[str, Any] | None = None  # a state that waits for `begin`

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._each)

    def __bool__(self) -> bool:
        return bool(self._each)

    def hears(self, event: str) -> bool:
        """Somebody is to be told of this event: some callback has the method, or waits for its state."""
        return bool(self._hearing[event]) or (event == "begin" and self._loaded is not None)

    def tell(self, event: str, told: Any) -> None:
        """Call this method of all; StopTraining, if any of them raises it, when all have heard. Another exception goes
        on at once, with the attribute `of_callback`: some have heard, and some have not."""
        stops = [stop for each in self._hearing[event] if (stop := _stop(getattr(each, event), told)) is not None]
        if stops:
            raise stops[0]
        if event == "begin" and self._loaded is not None:  # then they take the state that was loaded
            values, self._loaded = self._loaded, None
            self._give(values)

    def check_resumable(self) -> None:
        """SettingError naming a callback that may remember what it cannot save."""
        for each in self._each:
            kept = overrides(each, "state") and overrides(each, "load_state")
            if not kept and not each.stateless and any(overrides(each, event) for event in _EVENTS):
                raise SettingError(
                    f"callbacks: {type(each).__name__} cannot resume: it has no state() and load_state(); need both, "
                    "or stateless = True in a class that remembers nothing"
                )

    def remembers_evaluations(self) -> Callback | None:
        """One that steers, hears of evaluations and remembers something, if there is one."""
        events = ("on_evaluation", "on_epoch", "on_progress")
        for each in self._each:
            keeps = each.keeps() if isinstance(each, _Listener) else overrides(each, "state")
            if each.steers and keeps and any(overrides(each, event) for event in events):
                return each
        return None

    def state(self) -> dict[str, Any]:
        """What they remember, for the state of the run: "number.name" -> value."""
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
        """Give each what it remembered: now, or when `begin` has been called."""
        if self.has_begun:
            self._give(values)
        else:
            self._loaded = values

    def _give(self, values: Mapping[str, Any]) -> None:
        for each, mine in self._mine(values):
            each.load_state(mine)

    def _mine(self, values: Mapping[str, Any]) -> Iterator[tuple[Callback, dict[str, Any]]]:
        """Each callback that is to take its values, with them."""
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


def _stop(method: Callable[[Any], None], told: Any) -> StopTraining | None:
    try:
        method(told)
    except StopTraining as stop:
        return stop
    except BaseException as error:
        error.of_callback = True  # type: ignore[attr-defined]
        raise
    return None


class BatchReports:
    """Tells callbacks of each optimiser step of a pass: called after each micro-batch, it looks at what the Result of
    the pass has gained.

    rows: of the pass that were consumed before.
    """

    def __init__(self, callbacks: Callbacks, source: RowSource, result: Result, epoch: int, rows: int) -> None:
        self._callbacks, self._source, self._result, self._epoch = callbacks, source, result, epoch
        self._rows, self._batches, self._skipped = rows, result.batches, result.skipped

    def look(self, rows: int, step: int) -> None:
        """Report the step that has ended, if one has. rows: of the pass that whole steps have consumed; step: how many
        steps of the training are done."""
        result, source, first = self._result, self._source, self._rows
        if rows == first:
            return  # inside of an accumulation window
        skipped = result.skipped > self._skipped
        loss, weight = (math.nan, 0.0) if skipped else result.latest(result.batches - self._batches)
        self._rows, self._batches, self._skipped = rows, result.batches, result.skipped
        outputs = result.measured.take_outputs() if result.measures.outputs else None
        ids = source.order.read()[first:rows].copy()
        labels = None if source.data.labels is None else source.data.labels[ids]
        self._callbacks.tell("on_batch", BatchResult(step, self._epoch, ids, loss, weight, labels, skipped, outputs))
