"""Loop: passes over the rows of a data set. gl.fit and finetune are built on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import NonFiniteError, SettingError
from ..base.interrupts import StopTraining
from ..base.interval import Interval
from ..data.dataset import Dataset, Draw
from ..plan.memory_map import program_maps
from ..runs.events import Notices, Subscriber, TimeIsUp, stop_raised_by
from ..runs.identity import Identity
from ..runs.module_state import attributes_kept
from .callbacks import Callback, Callbacks, Listeners
from .epoch import Listener, Pass, Progress, run_part
from .evaluation import EvaluatedSet, Evaluator
from .identity import identity_of
from .loop_state import LoopState
from .metric import Metrics, checked_metrics
from .metrics import Measures
from .prediction import duration_of
from .result import EpochResult, Evaluation, Result
from .source import RowSource
from .stopping import monitored, restored
from .trainer import Trainer

ORDER_BYTES = 24  # of memory for each row: its place in the order of a pass, in this and two arrays that it is made of


def copied_bytes(trainer: Trainer, held: Callable[[int, int], int]) -> int:
    """Bytes of copies of the arrays of a trainer while it trains: those of subscribers, held(weights, state) as in
    Subscriber.copied_bytes, and one for the average of the weights. Complete once its steps are compiled."""
    weights, state = (
        [stored.bytes for stored in trainer.train_state.arrays(*parts).values()] for parts in (("model",), ())
    )
    return held(sum(weights), sum(state)) + max(weights, default=0) * (trainer.optimizer_state.average is not None)


class Loop(LoopState):
    """Passes over training rows, each followed by validation, up to a number of optimiser steps.

        train_rows (shuffled, in batches) -> val_rows -> subscribers of the epoch -> the next pass

    train_rows, val_rows  rows of the data set; training rows are shuffled before each pass by (seed, its number)
    val_sets              further validation sets by name; eval_every: "200steps" evaluates inside of epochs, too,
                          "2epochs" at the end of every second one; eval_rows: maximum rows of each set. See
                          Evaluator
    metrics               name -> gl.train.Metric, or its function: measured by evaluations in addition to the loss
    steps                 optimiser steps in all, skipped ones included; the last pass may be cut
    validates_first       measure the validation rows before the first step, too
    before_pass           called before each pass, on each rank
    callbacks             gl.train.Callback, several: notified of each optimiser step, pass, ...
    on_epoch              called with each EpochResult (one listener or several)
    on_progress           called with the Progress of a pass at least every 0.2 s; on_train_batch, on_eval_batch: after
                          each micro-batch. Any listener may raise StopTraining: the pass ends, its part is in the
                          history, and no pass follows
    saver                 gl.train.Saver: writes checkpoints and resumes from one, where the run has a folder. Then
                          Ctrl-C ends the run between two steps, after 0.2 s or one step; a second one at once
    subscribers           receive the events of the loop on each rank, in the order that runs/events.py documents
    about                 settings that must be equal when the run is resumed, in addition to the loop's own

    `run` makes the passes that are left. Results: see LoopState. Predictions are those of the last pass. A pass is
    trained in segments, which end at multiples of the `ends` of subscribers, with the same bits as in one piece.
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
        val_sets: Mapping[str, Dataset | EvaluatedSet] | None = None,
        eval_every: str | Interval = "1epoch",
        eval_rows: int | None = None,
        metrics: Metrics | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        on_progress: Listener | None = None,
        on_train_batch: Listener | None = None,
        on_eval_batch: Listener | None = None,
        saver: Subscriber | None = None,
        subscribers: Sequence[Subscriber] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        passed_on = Callbacks(callbacks, on_epoch, on_progress, on_train_batch, on_eval_batch)
        measures = Measures(checked_metrics(metrics, trainer.objective.named_losses))
        evaluator = Evaluator(
            trainer, data, train_rows, val_rows, val_sets, every=eval_every, rows=eval_rows, seed=seed,
            measures=measures, batch_size=batch_size,
        )  # fmt: skip
        of_training = Measures(measures.of_training, passed_on.needs_outputs)
        if of_training and trainer.driver.ranks is not None:
            raise SettingError("callbacks that need outputs, and metrics of training, require one process")
        super().__init__(
            trainer, data, train_rows, val_rows, evaluator, of_training,
            [passed_on, *subscribers, *([] if saver is None else [saver])], passed_on, about,
            batch_size=batch_size, micro_batch_size=micro_batch_size, steps=steps, seed=seed,
        )  # fmt: skip
        self.validates_first, self.before_pass = validates_first, before_pass
        self._receivers: list[Subscriber] = []  # the display of this call of `run`, then the subscribers
        self._ends: list[int] = []

    # ---- events ----------------------------------------------------------------------------------------------

    def emit(self, event: str, *values: Any) -> None:
        """Call this method of each subscriber, in order. Subscribers use it, too: for on_sample and on_checkpoint."""
        for each in self._receivers:
            getattr(each, event)(*values)

    def _emit_to_all(self, event: str, *values: Any) -> StopTraining | None:
        """Likewise; StopTraining is returned, if one raises it, after all were called."""
        stops = [stop_raised_by(getattr(each, event), *values) for each in self._receivers]
        return next(filter(None, stops), None)

    def every_batch(self, training: bool) -> bool:
        """A subscriber requires on_progress after each micro-batch of training, or of validation."""
        return any(each.every_batch(training) for each in self._receivers)

    def _announce(self, event: str, *values: Any) -> None:
        """Likewise, of an event outside of the steps of a pass: StopTraining ends the run there."""
        if self._emit_to_all(event, *values) is not None:
            self.stopped = True

    def identity(self) -> Identity:
        """The identity of the run; the steps and evaluations are compiled for it."""
        return identity_of(self)

    # ---- compiling -------------------------------------------------------------------------------------------

    def prepare(self, smaller: Sequence[int] = (), may_shrink: bool = True) -> None:
        """Compile the steps of a pass and of evaluations; nothing runs. With a memory budget they are planned together.

        smaller: numbers of rows to compute at once, in place of micro_batch_size, where the budget is too small for it.
        not may_shrink: the error may name them, instead. BudgetError where none is small enough."""
        trainer, rows = self.trainer, len(self.train_rows)

        def build(size: int) -> None:
            if size != self.micro_batch_size:
                self.micro_batch_size = size
                trainer.set_accumulate(-(-self.batch_size // size))
            self.programs(rows)
            self.evaluator.prepare(size)

        def held(weights: int, state: int) -> int:
            return sum(each.copied_bytes(weights, state) for each in self.subscribers)

        def more() -> int:
            read = sum(each.freed_bytes for each in self.subscribers)
            ahead = trainer.source(self.data).ahead_bytes
            return max(copied_bytes(trainer, held) - read, 0) + ORDER_BYTES * self.data.n + ahead

        sizes = [self.micro_batch_size, *(smaller if may_shrink else ())]
        trainer.driver.within_budget(build, sizes, more, () if may_shrink else smaller)

    # ---- running ---------------------------------------------------------------------------------------------

    def run(self, display: Subscriber | None = None) -> None:
        """All passes that are left. After a state was loaded, it continues where that was taken; after an interruption,
        called again, with a new pass."""
        trainer, source = self.trainer, self.trainer.source(self.data)
        self._receivers = [display or Notices(), *self.subscribers]
        every = [] if self.evaluator.steps is None or not self.evaluator else [self.evaluator.steps]
        self._ends = [*every, *(steps for each in self.subscribers for steps in each.ends)]
        if not self.passes:
            self._first_pass = trainer.epoch
        self.restored = None
        self.stopped = False
        if trainer.driver.budget is not None:
            self.prepare()
        self._announce("begin", self)
        if trainer.driver.watching is not None:
            trainer.driver.watching.check(self.steps_total)
        with contextlib.ExitStack() as stack:
            for context in (*(each.running() for each in self._receivers), trainer.together(), trainer.claim):
                stack.enter_context(context)
            stack.enter_context(trainer.training())
            self._announce("restore")
            self._predict()
            if self.validates_first and not self.passes and self.evaluator and self.before is None:
                self._validate_first(source)
            self._announce("start")
            try:
                while (self._pass is not None or self.is_unfinished) and not self.stopped:
                    self._run_pass(source)
            except BaseException as error:
                self._emit_to_all("on_stop", error)
                self._pass = None
                raise
            self._emit_to_all("finish")
        self._emit_to_all("end", self.history)
        self.restored = restored(self.callbacks, trainer.driver.ranks)
        self.history.kept = self.kept
        self.history.programs = program_maps(trainer.plans)

    def _predict(self) -> None:
        """Emit the predicted duration of the run, if it is long."""
        self.predicted = None
        with contextlib.suppress(Exception):  # of compilation: raised again where the first step is compiled
            self.predicted = duration_of(self, self.validates_first)
        if self.predicted is not None:
            self._announce("on_predicted", self.predicted)

    def _validate_first(self, source: RowSource) -> None:
        source.arrange(self.order(self._first_pass + 1))
        before: dict[str, Result] = {}
        try:
            self._measure(before)
            self.before = next(iter(before.values()))
        except StopTraining as error:
            self._stop(error)
        if self.before is not None:
            self._announce("on_before", self.before)

    def _stop(self, error: StopTraining) -> None:
        self._emit_to_all("on_stop", error)
        self.stopped = True

    def _run_pass(self, source: RowSource) -> None:
        """The rest of a pass over the training rows (the last may be cut by `steps`), validation, events of its end."""
        if self.before_pass is not None:
            self.before_pass()
        now = self._pass = self._pass or self._begin_pass()
        source.arrange(self.order(now.number), Draw(self.seed, now.number, self.train_rows))
        began = time.perf_counter() - now.seconds
        self.latest, inside, stop, is_part = now.train, None, None, False
        try:
            self._train(source, now, began)
            inside = sum(one.step < self.steps for one in now.evaluations)
            is_due = self.evaluator.due_at_end(now.number, not self.is_unfinished)
            if is_due and inside == len(now.evaluations):  # else it was made before a resume
                stop = self._evaluate(now)
        except StopTraining as error:
            self._stop(error)
            is_part = not isinstance(error, TimeIsUp)
        ended = None if inside is None else next(iter(now.evaluations[inside:]), None)
        is_cut = self.stopped
        result = self._close(now, ended, time.perf_counter() - began)
        if is_part:
            self._emit_to_all("on_part", result)
        if is_cut:
            return
        if not self.evaluator or (ended is not None and self.evaluator.due_at_end(now.number, False)):
            self.trainer.optimizer_state.observe(monitored(result))
        self._announce("on_epoch", result)
        self.stopped = self.stopped or stop is not None
        self._announce("between_steps", "epoch")

    def _begin_pass(self) -> Pass:
        if self.history:
            self.history[-1].drop_predictions()
        self.passes += 1
        return Pass(self.epoch, self.rows_of_pass(self.steps), self.steps, train=Result(self.measures))

    def _close(self, now: Pass, ended: Evaluation | None, seconds: float) -> EpochResult:
        """Close a pass: its result joins the history. ended: the evaluation at its end."""
        trainer, train = self.trainer, now.train
        rates = trainer.optimizer_state.rates(max(trainer.steps - 1, 0), now.number - 1) if train.ndata else {}
        train.settle()
        averages = ended is not None and trainer.optimizer_state.average is not None
        result = EpochResult(
            now.number, train, None if ended is None else ended.val, seconds, trainer.planned_bytes, rates, averages,
            tuple(now.evaluations),
        )  # fmt: skip
        self.history.append(result)
        self._pass = None
        self._announce("on_pass", result)
        if train.skipped and trainer.is_root:
            batches = min(self._batches(now), now.done) if not self.has_rows else self._batches(now)
            self.emit("on_notice", f"epoch {now.number}: {train.skipped} of {batches} batches skipped: not finite")
        return result

    # ---- training rows ---------------------------------------------------------------------------------------

    def _train(self, source: RowSource, now: Pass, began: float) -> None:
        """The remaining training rows of a pass, segment by segment."""
        trainer, batches = self.trainer, self._batches(now)
        if trainer.driver.watching is not None:
            trainer.driver.watching.first = trainer.driver.next_step - 1 - self.steps
        if stop := self._emit_to_all("begin_pass", source, now):
            raise stop
        if self._ends and now.done < batches:  # errors of compilation are raised before anything is trained
            with attributes_kept(trainer.model, trainer.loss) if trainer.dynamic else contextlib.nullcontext():
                self.programs(now.rows)
        if now.done:  # the state that was loaded may be of a moment before the event that follows its last step
            self.emit("on_segment")
        while self._has_next(now):
            if now.done and self._is_due(now):
                stops = self._evaluate(now), self._emit_to_all("between_steps", "evaluation")
                if stop := next(filter(None, stops), None):
                    raise stop
            left = min((every - self.steps % every for every in self._ends), default=batches)
            now.segment = min(now.done + left, batches)
            self._train_segment(source, now, began)
            if now.train.skipped == batches:
                raise NonFiniteError(f"epoch {now.number}: none of its {batches} batches was finite; all were skipped")
            self.emit("on_segment")
            if stop := self._emit_to_all("between_steps", "segment"):
                raise stop

    def _batches(self, now: Pass) -> int:
        """The number of optimiser steps of a pass."""
        return -(-now.rows // self.batch_size)

    def _has_next(self, now: Pass) -> bool:
        """Optimiser steps of a pass are left."""
        return now.done < self._batches(now)

    def _train_segment(self, source: RowSource, now: Pass, began: float) -> None:
        """The optimiser steps of a pass up to `now.segment`."""
        first, start, local = time.perf_counter(), now.done, self.trainer.driver

        def count() -> None:
            """By consumed rows: a callback may use the optimiser, too."""
            done = start + -(-local.done // self.batch_size)
            self.rows += min(done * self.batch_size, now.rows) - min(now.done * self.batch_size, now.rows)
            now.done, self.steps = done, now.before + done
            now.seconds = time.perf_counter() - began

        def on_progress(progress: Progress) -> None:
            count()
            self.emit("on_progress", progress)

        local.done = 0
        try:
            run_part(
                self.trainer, source, 0, now.rows, now.train,
                training=True, batch_size=self.batch_size, micro_batch_size=self.micro_batch_size,
                on_progress=on_progress, each=self.every_batch(True),
                start=start * self.batch_size, stop=min(now.segment * self.batch_size, now.rows), seconds=first - began,
            )  # fmt: skip
        finally:
            count()
            if not self.rows_left:
                self.trainer.epoch += 1
            self.training_seconds += time.perf_counter() - first

    # ---- evaluation ------------------------------------------------------------------------------------------

    def _is_due(self, now: Pass) -> bool:
        """An evaluation inside the pass is due, and was not made before a resume."""
        return self.evaluator.due(self.steps) and all(one.step != self.steps for one in now.evaluations)

    def _evaluate(self, now: Pass) -> StopTraining | None:
        """Measure the validation sets and emit the event; returns StopTraining that a callback has raised."""
        evaluation = Evaluation(self.steps, now.number, {})
        try:
            self._measure(evaluation.results)
        except StopTraining as stop:
            if not isinstance(stop, TimeIsUp):  # of a callback: the results so far count
                now.evaluations.append(evaluation)
            raise
        now.evaluations.append(evaluation)
        stopped = self._emit_to_all("on_evaluation", evaluation)
        if self.rows_left:
            evaluation.drop_predictions()
        return stopped

    def _measure(self, results: dict[str, Result]) -> None:
        """Measure the validation sets with the present weights."""
        each = self.every_batch(False)
        self.evaluator.measure(results, self.micro_batch_size, lambda at: self.emit("on_progress", at), each)
