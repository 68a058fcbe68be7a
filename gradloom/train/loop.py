"""Loop: passes over the rows of a data set. fit and finetune are this loop, with data and words of their own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.interrupts import StopTraining
from ..data.dataset import Dataset
from .callbacks import BatchReports, Callback, Callbacks, Listeners
from .display import Display, StepDisplay
from .epoch import Listener, Progress, run_part
from .history import History
from .result import EpochResult, Result
from .source import RowSource
from .stopping import monitored
from .trainer import Trainer


class Loop:
    """Passes over training rows, each followed by validation and the listeners, up to a number of optimiser steps.

        train_rows (shuffled, in batches) -> val_rows -> listeners of the epoch -> the next pass

    train_rows, val_rows  rows of the data set; training rows are shuffled before each pass by (seed, its number)
    steps                 optimiser steps in all; the last pass may be cut
    validates_first       measure the validation rows before the first step, too
    before_pass           called before each pass, by each rank
    callbacks             gl.train.Callback, several: told of each optimiser step, pass, ...
    on_epoch              told of each EpochResult (one listener or several)
    on_progress           told of the state of a pass at least every 0.2 s; on_train_batch, on_eval_batch: after each
                          micro-batch. Any listener may raise StopTraining: the pass ends, its part is in the history,
                          and no pass follows

    `run` makes the passes that are left. What came of them: history (an EpochResult for each pass), before (validation
    before the first step), steps, rows (trained on), passes (begun), latest (the training Result of the last pass),
    stopped (a listener has ended it), training_seconds. Predictions are kept of the last pass alone.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Dataset,
        train_rows: np.ndarray,
        val_rows: np.ndarray,
        *,
        batch_size: int,
        micro_batch_size: int,
        steps: int,
        seed: int = 0,
        validates_first: bool = False,
        before_pass: Callable[[], None] | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        on_progress: Listener | None = None,
        on_train_batch: Listener | None = None,
        on_eval_batch: Listener | None = None,
    ) -> None:
        self.trainer, self.data, self.train_rows, self.val_rows = trainer, data, train_rows, val_rows
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size
        self.steps_total, self.seed, self.validates_first = steps, seed, validates_first
        self.before_pass, self.on_progress = before_pass, on_progress
        self.on_train_batch, self.on_eval_batch = on_train_batch, on_eval_batch
        self.callbacks = Callbacks(callbacks, on_epoch)
        self.history = History()
        self.before: Result | None = None
        self.latest = Result()
        self.steps = self.rows = self.passes = 0
        self.training_seconds = 0.0
        self.stopped = False
        self._first_pass = 0  # not 0 when an optimiser with a state of its own goes on
        self._counts = 0, 0, 0  # steps of the loop and of the optimiser when the pass began, steps of the pass
        trainer.train_state.register("loop", self._memory)
        if self.callbacks:
            trainer.train_state.register("callbacks", self.callbacks.state)

    def _memory(self) -> dict[str, Any]:
        """What it remembers from pass to pass, for the state of the run."""
        return {
            "seed": self.seed, "steps": self.steps, "steps_total": self.steps_total, "passes": self.passes,
            "first_pass": self._first_pass, "batch_size": self.batch_size, "micro_batch_size": self.micro_batch_size,
        }  # fmt: skip

    def order(self, number: int) -> np.ndarray:
        """The rows in the order of a pass, counted from 1: those that train, then those of validation."""
        return np.concatenate([self.data.order(self.seed, number, self.train_rows), self.val_rows])

    def run(self, display: Display | StepDisplay | None = None) -> None:
        """All passes that are left. After an interruption, called again, it goes on with a new pass."""
        trainer, source = self.trainer, self.trainer.source(self.data)
        self.stopped = False
        if not self.passes:
            self._first_pass = trainer.epoch
            self._tell("begin", self.callbacks.begin, self)
        with display or contextlib.nullcontext(), trainer.together(), trainer.claim:
            if self.validates_first and not self.passes and len(self.val_rows):
                source.order.write(self.order(self._first_pass + 1))
                self.before = Result()
                self._run_part(source, False, self.before, display, None)
                if display is not None:
                    display.before(self.before)
            if display is not None:
                display.begin(self)
            while self.steps < self.steps_total and not self.stopped:
                self._pass(source, display)
        self._tell("end", self.callbacks.end, self.history)

    def _pass(self, source: RowSource, display: Display | StepDisplay | None) -> None:
        """One pass over the training rows (the last may be cut by `steps`), then validation, then the listeners."""
        trainer = self.trainer
        if self.before_pass is not None:
            self.before_pass()
        if self.history:
            self.history[-1].drop_predictions()
        self.passes += 1
        number = self._first_pass + self.passes
        source.order.write(self.order(number))
        train, val, began = Result(), Result(), time.perf_counter()
        self.latest = train
        try:
            self._train(source, train, display)
            if len(self.val_rows):
                self._run_part(source, False, val, display, self.on_progress)
        except StopTraining:
            self.stopped = True
        seconds = time.perf_counter() - began
        measured = val if val.ndata else None
        rates = trainer.optimizer_state.rates(max(trainer.steps - 1, 0), number - 1) if train.ndata else {}
        result = EpochResult(number, train, measured, seconds, trainer.planned_bytes, rates)
        self.history.append(result)
        if display is not None:
            display.epoch(result)
        if self.stopped:
            return
        trainer.optimizer_state.observe(monitored(result))
        self._tell("on_epoch", self.callbacks.epoch, result)
        # The place for a checkpoint: no step is open, the schedule and the listeners have seen the epoch.

    def _tell(self, event: str, call: Callable[[Any], None], told: Any) -> None:
        """Tell the callbacks of an event between two steps; one that raises StopTraining ends the training."""
        try:
            self.trainer.tell(call if self.callbacks.hears(event) else None, told)
        except StopTraining:
            self.stopped = True

    def _train(self, source: RowSource, result: Result, display: Display | StepDisplay | None) -> None:
        rows = min(len(self.train_rows), (self.steps_total - self.steps) * self.batch_size)
        before, whole, began = self.steps, -(-rows // self.batch_size), time.perf_counter()
        reports = None
        if self.callbacks.hears("on_batch"):
            number = self._first_pass + self.passes
            reports = BatchReports(self.callbacks, source, result, number, self.batch_size, rows, self._steps_now)
        self._counts = before, self.trainer.steps, whole
        try:
            self._run_part(source, True, result, display, self.on_progress, rows, reports)
            self.steps = before + whole
        except BaseException:
            self.steps = self._steps_now()
            raise
        finally:
            self.rows += min((self.steps - before) * self.batch_size, rows)
            self.training_seconds += time.perf_counter() - began

    def _steps_now(self) -> int:
        """The steps of this loop while a pass is under way. A listener may use the optimiser: its own count says little
        about the rows of this pass, which alone decide when the loop is done."""
        before, count, whole = self._counts
        return before + min(max(self.trainer.steps - count, 0), whole)

    def _run_part(
        self,
        source: RowSource,
        training: bool,
        result: Result,
        display: Display | StepDisplay | None,
        on_progress: Listener | None,
        rows: int = 0,
        reports: BatchReports | None = None,
    ) -> None:
        """The training rows (so many of them) or the validation rows of a pass; display and listener are told."""

        def heard(at: Progress) -> None:
            if training:
                self.steps = self._steps_now()
            if display is not None:
                display.rows(at, self.steps)
            if on_progress is not None:
                on_progress(at)
            if self.callbacks.hears("on_progress"):
                self.callbacks.progress(at)
            if reports is not None:
                reports.look()

        run_part(
            self.trainer, source, 0 if training else len(self.train_rows), rows if training else source.n, result,
            training=training, batch_size=self.batch_size, micro_batch_size=self.micro_batch_size,
            on_batch=self.on_train_batch if training else self.on_eval_batch, on_progress=heard,
            each=reports is not None,
        )  # fmt: skip
