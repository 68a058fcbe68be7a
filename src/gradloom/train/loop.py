"""Loop: passes over the rows of a data set. fit and finetune are this loop, with data and words of their own."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import NonFiniteError, SettingError, TrainError
from ..base.interrupts import Held, StopTraining, held_back
from ..base.interval import Interval
from ..base.terminal import to_stderr
from ..data.dataset import Dataset
from ..step.state import check_equal
from .callbacks import BatchReports, Callback, Callbacks, Listeners
from .display import Display, StepDisplay
from .epoch import Listener, Pass, Progress, run_part
from .evaluation import Evaluator
from .history import History
from .metrics import Measures, Metrics, checked_metrics
from .module_state import attributes_kept
from .parts import register_draws
from .records import packed, unpacked
from .result import EpochResult, Evaluation, Result, under
from .saver import Saver, TimeIsUp
from .source import RowSource
from .state_schemas import CALLBACKS, LOOP, TIMES
from .stopping import monitored, restored
from .trainer import Trainer


class Loop:
    """Passes over training rows, each followed by validation and the listeners, up to a number of optimiser steps.

        train_rows (shuffled, in batches) -> val_rows -> listeners of the epoch -> the next pass

    train_rows, val_rows  rows of the data set; training rows are shuffled before each pass by (seed, its number)
    val_sets              further validation sets by name; eval_every: "200steps" evaluates inside of epochs, too,
                          "2epochs" at the end of every second one; eval_rows: at most so many rows of each set. See
                          Evaluator
    metrics               name -> gl.train.Metric, or its function: what evaluations measure beside the loss
    steps                 optimiser steps in all, skipped ones included; the last pass may be cut
    validates_first       measure the validation rows before the first step, too
    before_pass           called before each pass, by each rank
    callbacks             gl.train.Callback, several: told of each optimiser step, pass, ...
    on_epoch              told of each EpochResult (one listener or several)
    on_progress           told of the state of a pass at least every 0.2 s; on_train_batch, on_eval_batch: after each
                          micro-batch. Any listener may raise StopTraining: the pass ends, its part is in the history,
                          and no pass follows
    saver                 writes checkpoints and resumes from one, where the run has a folder. Then Ctrl-C ends the run
                          between two steps, after 0.2 s or one step; a second one at once

    `run` makes the passes that are left. What came of them: history (an EpochResult for each pass), before (validation
    before the first step), steps, rows (trained on), passes (begun), latest (the training Result of the last pass),
    stopped (by a listener), restored (EarlyStopping gave weights back), training_seconds. Predictions: of the last.

    A pass is trained in segments that end where `ends` says, with the same bits as in one piece.
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
        val_sets: Mapping[str, Dataset] | None = None,
        eval_every: str | Interval = "1epoch",
        eval_rows: int | None = None,
        metrics: Metrics | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        on_progress: Listener | None = None,
        on_train_batch: Listener | None = None,
        on_eval_batch: Listener | None = None,
        saver: Saver | None = None,
    ) -> None:
        self.trainer, self.data, self.train_rows, self.val_rows = trainer, data, train_rows, val_rows
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size
        self.steps_total, self.seed, self.validates_first = steps, seed, validates_first
        self.before_pass, self.on_progress = before_pass, on_progress
        self.on_train_batch, self.on_eval_batch = on_train_batch, on_eval_batch
        self.callbacks = Callbacks(callbacks, on_epoch)
        self.saver = saver
        measures = Measures(checked_metrics(metrics))
        self.evaluator = Evaluator(
            trainer,
            data,
            train_rows,
            val_rows,
            val_sets,
            every=eval_every,
            rows=eval_rows,
            seed=seed,
            measures=measures,
        )
        self.measures = Measures(measures.of_training, self.callbacks.needs_outputs)  # of training
        if self.measures and trainer.split is not None:
            raise SettingError("callbacks that need outputs, and metrics of training, require one process")
        self.history = History()
        self.before: Result | None = None
        self.latest = Result()
        self.steps = self.rows = self.passes = 0
        self.training_seconds = 0.0
        self.stopped = False
        # segments end at multiples of these, in steps of the loop
        self.ends = [each.every_steps for each in self.callbacks if each.every_steps]
        if self.evaluator and self.evaluator.steps is not None:
            self.ends.append(self.evaluator.steps)
        self.between_steps: list[Callable[[], None]] = []  # called where a segment has ended
        self.about: dict[str, Any] = {}  # what else a resumed run must have in common with this one
        self.contents: dict[str, Callable[[], Sequence[Any]]] = {}  # likewise, of which digests are compared
        self._first_pass = self._loaded_epochs = 0  # passes of an optimiser's own state; epochs of a state to load
        self._pass: Pass | None = None  # the one under way
        self.restored: tuple[int, int | None] | None = None  # epoch and step of earlier weights that are back
        self._held = Held()  # signals that wait for the end of a step
        trainer.train_state.register("loop", self._memory, self._load, schema=LOOP)
        register_draws(trainer.train_state)
        trainer.train_state.register("time", self._times, self._load_times, schema=TIMES)
        if self.callbacks:
            trainer.train_state.register("callbacks", self.callbacks.state, self._load_callbacks, schema=CALLBACKS)

    # ---- its state -------------------------------------------------------------------------------------------

    def _memory(self) -> dict[str, Any]:
        """What it remembers from step to step, for the state of the run."""
        evaluations = [one for each in (*self.history, self._pass) if each is not None for one in each.evaluations]
        kept: dict[str, Any] = {
            "seed": self.seed, "steps": self.steps, "steps_total": self.steps_total, "passes": self.passes,
            "first_pass": self._first_pass, "batch_size": self.batch_size, "micro_batch_size": self.micro_batch_size,
            "rows": self.rows, "stopped": self.stopped,
            "history": packed([epoch.state() for epoch in self.history]), "has_before": self.before is not None,
            "pass": None, "evaluations": packed([one.state() for one in evaluations]),
        }  # fmt: skip
        if self.before is not None:
            kept |= {f"before.{name}": value for name, value in self.before.state().items()}
        if self._pass is not None:
            now = self._pass
            kept["pass"] = {"number": now.number, "rows": now.rows, "before": now.before, "done": now.done}
            kept |= {f"train.{name}": value for name, value in now.train.state().items()}
        return kept

    def _load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        mine = self._memory()
        check_equal("loop", values, {name: mine[name] for name in ("seed", "batch_size", "micro_batch_size")})
        made = [Evaluation.of_state(one) for one in unpacked(values["evaluations"])]
        if not values["stopped"]:
            self.evaluator.check_heard(made, self.steps_total, self.callbacks.remembers_evaluations())
        evaluations = iter(made)
        history = [
            EpochResult.of_state(epoch, tuple(itertools.islice(evaluations, epoch["evaluations"])), 0.0)
            for epoch in unpacked(values["history"])
        ]
        before = Result.of_state(under(values, "before.")) if values["has_before"] else None
        now, self._loaded_epochs = None, len(history)
        if values["pass"] is not None:
            train = Result.of_state(under(values, "train."), self.measures)
            now = Pass(**values["pass"], train=train, evaluations=list(evaluations))
            now.rows = self._rows_of_pass(now.before)  # there may be more steps in all than there were

        def load() -> None:
            self.history[:], self.before, self._pass = history, before, now
            self.latest = now.train if now is not None else history[-1].train if history else Result()
            self.steps, self.passes, self._first_pass = values["steps"], values["passes"], values["first_pass"]
            self.rows, self.stopped = values["rows"], values["stopped"]

        return load

    def _times(self) -> dict[str, Any]:
        """Seconds: of training, of the pass under way, of each epoch. They decide nothing."""
        epochs = np.array([epoch.seconds for epoch in self.history], np.float64)
        return {"training": self.training_seconds, "pass": self._pass.seconds if self._pass else 0.0, "epochs": epochs}

    def _load_times(self, values: Mapping[str, Any]) -> Callable[[], None]:
        if len(values["epochs"]) != self._loaded_epochs:
            raise TrainError(f"load: time.epochs: {len(values['epochs'])}; need one for each of {self._loaded_epochs}")

        def load() -> None:  # after the loop's own part
            self.training_seconds = values["training"]
            if self._pass is not None:
                self._pass.seconds = values["pass"]
            pairs = zip(self.history, values["epochs"].tolist(), strict=True)
            self.history[:] = [replace(epoch, seconds=seconds) for epoch, seconds in pairs]

        return load

    def _load_callbacks(self, values: Mapping[str, Any]) -> Callable[[], None]:
        self.callbacks.check_state(values)
        return lambda: self.callbacks.load_state(values) if self.trainer.is_root else None

    @property
    def epoch(self) -> int:
        """The pass under way, or the last one, as EpochResult counts it."""
        return self._first_pass + self.passes

    def order(self, number: int) -> np.ndarray:
        """The rows in the order of a pass, counted from 1: those that train, then those of validation."""
        return np.concatenate([self.data.order(self.seed, number, self.train_rows), self.val_rows])

    # ---- running ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Loop({self.trainer!r}, {self.steps} of {self.steps_total} steps)"

    def run(self, display: Display | StepDisplay | None = None) -> None:
        """All passes that are left. After a state was loaded, it goes on where that was taken; after an interruption,
        called again, with a new pass."""
        trainer, source = self.trainer, self.trainer.source(self.data)
        self.stopped, self.restored = False, None
        if not self.passes:
            self._first_pass = trainer.epoch
        if not self.callbacks.has_begun:
            self.callbacks.has_begun = True
            self.stopped = self._tell("begin", self) is not None
        with contextlib.ExitStack() as stack:
            for each in (display or contextlib.nullcontext(), trainer.together(), trainer.claim, trainer.training()):
                stack.enter_context(each)
            if self.saver is not None:
                self._held = stack.enter_context(held_back()) if trainer.split is None else self._held
                self.saver.begin(self)
            if self.validates_first and not self.passes and self.evaluator and self.before is None:
                source.order.write(self.order(self._first_pass + 1))
                before: dict[str, Result] = {}
                try:
                    self._measure(before, display, None)
                    self.before = next(iter(before.values()))
                except StopTraining as error:
                    self._stop(error)
                if display is not None and self.before is not None:
                    display.before(self.before)
            if display is not None:
                display.begin(self)
            try:
                while (self._pass is not None or self.steps < self.steps_total) and not self.stopped:
                    self._run_pass(source, display)
            except BaseException as error:
                if self.saver is not None:
                    self.saver.stopped(self, error)
                self._pass = None
                raise
            if self.saver is not None:
                self.saver.finish(self)
                self._tell("on_checkpoint", self, self.saver.tell_all)
        self._tell("end", self.history)
        self.restored = restored(self.callbacks, trainer.split)
        self.history.kept = self.kept

    @property
    def kept(self) -> EpochResult | None:
        """What was measured of the weights as they are now; None before the first step."""
        done = self.history
        return done.at(*self.restored) if self.restored else done.at_step(self.epoch, self.steps, self.latest)

    def _stop(self, error: StopTraining) -> None:
        """A listener, or the time, ends the training."""
        if self.saver is not None and isinstance(error, TimeIsUp):
            self.saver.stopped(self, error)
        self.stopped = True

    @property
    def is_between_passes(self) -> bool:
        """No pass is under way."""
        return self._pass is None

    def _run_pass(self, source: RowSource, display: Display | StepDisplay | None) -> None:
        """What is left of a pass over the training rows (the last may be cut by `steps`), then validation, then the
        listeners."""
        trainer = self.trainer
        if self.before_pass is not None:
            self.before_pass()
        now = self._pass = self._pass or self._begin_pass()
        source.order.write(self.order(now.number))
        train, began = now.train, time.perf_counter() - now.seconds
        self.latest, inside, stop, is_part = train, None, None, False
        try:
            self._train(source, now, began, display)
            inside = sum(one.step < self.steps for one in now.evaluations)
            is_due = self.evaluator.due_at_end(now.number, self.steps >= self.steps_total)
            if is_due and inside == len(now.evaluations):  # else it was made before a resume
                stop = self._evaluate(now, display)
        except StopTraining as error:
            self._stop(error)
            is_part = not isinstance(error, TimeIsUp)
        seconds = time.perf_counter() - began
        ended = None if inside is None else next(iter(now.evaluations[inside:]), None)
        rates = trainer.optimizer_state.rates(max(trainer.steps - 1, 0), now.number - 1) if train.ndata else {}
        train.settle()
        averages = ended is not None and trainer.optimizer_state.average is not None
        result = EpochResult(
            now.number, train, None if ended is None else ended.val, seconds, trainer.planned_bytes, rates, averages,
            tuple(now.evaluations),
        )  # fmt: skip
        self.history.append(result)
        self._pass = None
        if display is not None:
            display.epoch(result)
        if train.skipped and trainer.is_root:
            whole = -(-now.rows // self.batch_size)
            text = f"epoch {now.number}: {train.skipped} of {whole} batches skipped: not finite"
            to_stderr(text) if display is None else display.say(text)
        if is_part:
            self._tell("on_part", result)
        if self.stopped:
            return
        if not self.evaluator or (ended is not None and self.evaluator.due_at_end(now.number, False)):
            trainer.optimizer_state.observe(monitored(result))
        if self._tell("on_epoch", result) or stop:
            self.stopped = True
        if self.saver is not None:
            self.saver.at_epoch(self)
        self._held.check()

    def _tell(self, event: str, told: Any, call: Callable[[Any], None] | None = None) -> StopTraining | None:
        """Tell the callbacks of an event between two steps, by this call if one is given; what one of them has raised
        to end the training, if any."""
        call = call or partial(self.callbacks.tell, event)
        try:
            self.trainer.tell(call if self.callbacks.hears(event) else None, told)
        except StopTraining as stop:
            return stop
        return None

    def _begin_pass(self) -> Pass:
        if self.history:
            self.history[-1].drop_predictions()
        self.passes += 1
        return Pass(self.epoch, self._rows_of_pass(self.steps), self.steps, train=Result(self.measures))

    def _rows_of_pass(self, before: int) -> int:
        """The rows that a pass trains on which begins after so many steps."""
        return min(len(self.train_rows), (self.steps_total - before) * self.batch_size)

    def _train(self, source: RowSource, now: Pass, began: float, display: Display | StepDisplay | None) -> None:
        """The training rows that are left of a pass, segment by segment."""
        whole = -(-now.rows // self.batch_size)
        reports = None
        if self.callbacks.hears("on_batch"):
            reports = BatchReports(self.callbacks, source, now.train, now.number, now.done * self.batch_size)
        if self.ends and now.done < whole:  # what cannot be built is said before anything is trained
            trainer = self.trainer
            with attributes_kept(trainer.model, trainer.loss) if trainer.dynamic else contextlib.nullcontext():
                trainer.prepare(
                    source, 0, now.rows, batch_size=self.batch_size, micro_batch_size=self.micro_batch_size,
                    measures=self.measures,
                )  # fmt: skip
        if now.done:  # the state that was loaded may be of a moment before what belongs after its last step
            for each in self.between_steps:
                each()
        while now.done < whole:
            if now.done and self._is_due(now):
                stop = self._evaluate(now, display)
                if self.saver is not None:
                    self.saver.at_evaluation(self, now.evaluations)
                if stop is not None:
                    raise stop
            left = min((every - self.steps % every for every in self.ends), default=whole)
            self._segment(source, now, min(now.done + left, whole), began, display, reports)
            if now.train.skipped == whole:
                raise NonFiniteError(f"epoch {now.number}: none of its {whole} batches was finite; all were skipped")
            for each in self.between_steps:
                each()
            if self.saver is not None:
                self.saver.at_step(self)

    def _segment(
        self,
        source: RowSource,
        now: Pass,
        stop: int,
        began: float,
        display: Display | StepDisplay | None,
        reports: BatchReports | None,
    ) -> None:
        """The steps of a pass up to `stop`."""
        first, start = time.perf_counter(), now.done

        def heard(at: Progress) -> None:
            self._count(now, start)
            if display is not None:
                display.rows(at, self.steps)
            if reports is not None:  # before a listener may end the pass: the step is done
                reports.look(min(now.done * self.batch_size, now.rows), self.steps)
            for listener in (self.on_train_batch, self.on_progress):
                if listener is not None:
                    listener(at)
            if self.callbacks.hears("on_progress"):
                self.callbacks.tell("on_progress", at)
            if self.saver is not None:
                now.seconds = time.perf_counter() - began
                self._held.check()
                if not self.trainer.local.in_window:
                    self.saver.check_time()
                    self.saver.tell(self)
                    if now.done < stop:
                        self.saver.inside(self)

        self.trainer.local.done = 0
        try:
            run_part(
                self.trainer, source, 0, now.rows, now.train,
                training=True, batch_size=self.batch_size, micro_batch_size=self.micro_batch_size,
                on_progress=heard, each=reports is not None or self.on_train_batch is not None,
                start=start * self.batch_size, stop=min(stop * self.batch_size, now.rows), seconds=first - began,
            )  # fmt: skip
        finally:
            self._count(now, start)
            if now.done * self.batch_size >= now.rows:  # the pass is trained
                self.trainer.epoch += 1
            now.seconds = time.perf_counter() - began
            self.training_seconds += time.perf_counter() - first

    def _count(self, now: Pass, start: int) -> None:
        """Count the steps of a segment that began at this step of its pass. Its rows alone tell how many there were: a
        listener may use the optimiser, too."""
        done = start + -(-self.trainer.local.done // self.batch_size)
        self.rows += min(done * self.batch_size, now.rows) - min(now.done * self.batch_size, now.rows)
        now.done, self.steps = done, now.before + done

    def _is_due(self, now: Pass) -> bool:
        """An evaluation belongs here, inside of the pass, and was not made before a resume."""
        return self.evaluator.due(self.steps) and all(one.step != self.steps for one in now.evaluations)

    def _evaluate(self, now: Pass, display: Display | StepDisplay | None) -> StopTraining | None:
        """Measure the validation sets and tell the callbacks; what one of them has raised to end the training."""
        evaluation = Evaluation(self.steps, now.number, {})
        try:
            self._measure(evaluation.results, display, self.on_progress)
        except StopTraining as stop:
            if not isinstance(stop, TimeIsUp):  # of a listener: what was measured so far counts
                now.evaluations.append(evaluation)
            raise
        now.evaluations.append(evaluation)
        is_inside = now.done * self.batch_size < now.rows
        if display is not None and is_inside:
            display.evaluation(evaluation)
        told = self._tell("on_evaluation", evaluation)
        if is_inside:
            evaluation.drop_predictions()
        return told

    def _measure(
        self, results: dict[str, Result], display: Display | StepDisplay | None, on_progress: Listener | None
    ) -> None:
        """Measure the validation sets with the weights as they are."""

        def heard(at: Progress) -> None:
            if display is not None:
                display.rows(at, self.steps)
            if on_progress is not None:
                on_progress(at)
            if self.callbacks.hears("on_progress"):
                self.callbacks.tell("on_progress", at)
            if self.saver is not None:
                self._held.check()
                if self.steps:  # a run that is stopped has something to go on from
                    self.saver.check_time()

        self.evaluator.measure(results, self.micro_batch_size, self.on_eval_batch, heard)
