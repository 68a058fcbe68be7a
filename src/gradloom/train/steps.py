"""Steps: the driver of training and evaluation: rows -> micro-batches -> compiled programs -> native calls -> Result.

StepPrograms    compiles micro-batches (step_programs.py)
Steps           one process: a step is one program, or an accumulation window of several micro-batches
SumSteps        several ranks: micro-batches are summed, and one program ends the step (sum_steps.py)
  RankSteps       the ranks share the micro-batches of a batch of rows (rank_steps.py)
  ReplicaSteps    each rank has one sample, for dp_train (replica_steps.py)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from ..base.errors import GuardTripped, IndexOutOfRange, NonFiniteError, NotFinite, SettingError, UserOpError
from ..base.structures import Structure
from ..graph.stored import Stored, copies, replace
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..run.diagnose import step_error
from ..step.exchange import Exchange
from ..step.step import random_settings
from .batches import CompiledBatch, MicroBatches, RowRange, cut
from .compile_cache import CompileCache
from .joins import BatchJoin, Joins
from .result import Mark, Result
from .source import FeedSource
from .step_programs import StepPrograms, written_by

Failed = GuardTripped | NotFinite | IndexOutOfRange | UserOpError  # why a micro-batch was not applied
# the program, micro-batches done, the outputs of each as in CompiledBatch.outputs, why the next one failed
Call = tuple[CompiledBatch, int, list[np.ndarray], Failed | None]
OnProgress = Callable[[int], None]  # called with the rows that are done

CALL_SECONDS = 0.2  # the longest that one native call may take: progress and Ctrl-C are handled in between
CALL_BYTES = 64 << 20  # the most that it may record


class Steps(StepPrograms):
    """Runs the micro-batches of an objective.

    skips      `run` leaves out a batch whose loss or gradient is not finite: its rows and its random step are
               consumed, the optimiser's step is not
    .done      rows that the last `run` of training rows has consumed: those of whole optimiser steps
    .held      micro-batches that the accumulators hold
    .in_window, .window_rows  micro-batches and rows of the open accumulation window
    .skipped   batches that were left out so far

    An optimiser step is whole or nothing: when an accumulation window ends before its last micro-batch, running
    statistics and the Result are restored to their state before its first one.
    """

    exchange = "none"  # how they sum up their gradients
    on_call: Callable[[CompiledBatch, dict[str, Any]], None] | None = None  # before a micro-batch of training, alone
    on_failed: Callable[[CompiledBatch, dict[str, Any], int], None] | None = None  # of one that is not finite, its rows
    _before: dict[Stored, np.ndarray]  # running statistics when the window was opened
    _result: tuple[Result, Mark] | None  # the window's result, and its mark then

    def __init__(
        self,
        objective: Any,  # an Objective, in dp_train a SampleObjective
        cache: CompileCache,
        state: OptimizerState,
        *,
        seed: int,
        skips: bool,
        **settings: Any,
    ) -> None:
        """settings: those of StepPrograms."""
        super().__init__(objective, cache, state, **settings)
        self.seed, self.skips = seed, skips
        self.joins = Joins(
            objective, cache, self.program, self.built_join, self.micro_settings, self.options, self.dynamic
        )
        self.done = self.skipped = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new accumulation window."""
        self._close_window()
        self.held = 0

    # ---- running -------------------------------------------------------------------------------------------

    def feed(self, source: FeedSource, result: Result, backward: bool) -> None:
        """Run one micro-batch of the caller's rows. Every `accumulate`-th one updates."""
        if backward and self.objective.couples and self.accumulate > 1:
            need = "1 with a BatchLoss, whose batch is the rows of a step; or gl.epoch, which cuts batches"
            raise SettingError(setting="accumulate", seen=self.accumulate, need=need, place="step")
        update = backward and self.build == "opt" and self.in_window + 1 == self.accumulate
        micro = MicroBatches(0, source.rows, 1, update, self.in_window == 0, self.window_rows)
        step = self.compiled_for(source, micro.rows, backward, update, result.measures)
        feeds = {k: v for k, v in source.feeds.items() if k in step.run.inputs}  # some losses take no labels
        try:
            _, _, outputs, failed = self._run(step, micro, 1, backward, result, feeds)
            if isinstance(failed, (IndexOutOfRange, UserOpError)):
                raise failed
            if failed is not None:
                raise self._stopped(self._diagnose(step, micro, backward))
        except BaseException:
            self._drop_window()
            raise
        self._count(step, micro, 1, backward)
        self._add(result, step, micro.rows, outputs, update, source.labels, source.weights)

    def prepare(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""

        def build(_: int) -> list[CompiledBatch]:
            steps = self.programs_of(rows)
            size = rows.batch_size if rows.backward and not self.keeps_gradients else rows.micro_size
            whole = max((step.run.record_bytes for step in steps), default=0) * -(-rows.count // size)
            self.result_bytes[rows.source, rows.backward] = 2 * whole + min(whole, CALL_BYTES)
            return steps

        return self.within_budget(build)

    def programs_of(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs, without regard to memory."""
        groups = [group for batch in rows.ends() for group in self._groups(batch)]
        return [self.program_for(rows, group) for group in groups]

    def run(self, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> None:
        """Train on these rows, or measure them. on_progress(rows done) is called after each call; each: a call computes
        one micro-batch."""
        adds_up = self.ranks is not None or self.keeps_gradients or self.build != "opt"
        if rows.backward and rows.micro_size < rows.batch_size and not adds_up:
            text = "{micro_batch_size} below {batch_size} requires {accumulate} > 1"
            sizes = {"micro_batch_size": rows.micro_size, "batch_size": rows.batch_size}
            raise SettingError(text, sizes, accumulate=...)
        try:
            each = self._begin(rows, each)
            if rows.backward:
                self.done = 0
            start = rows.start
            while start < rows.stop:  # again after a batch that was skipped
                start = self._run_from(start, rows, result, each, on_progress)
        except BaseException:
            self._drop_window()
            raise

    def _begin(self, rows: RowRange, each: bool) -> bool:
        """Compile first, so that errors come before any training; whether a call computes one micro-batch."""
        if not self.dynamic:
            self.prepare(rows)
        return each or self.dynamic

    def _run_from(self, start: int, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> int:
        """Run the rows from `start`, where a batch begins; the row after the last one, or after a skipped batch."""
        backward = rows.backward
        for group in self._groups(rows.part(start, rows.stop)):
            left = group
            while left.count:
                step, count, outputs, failed = self._call(rows, left, result, each, on_progress)
                self._count(step, left, count, backward)
                end = left.start + count * left.rows
                if count:
                    truth = rows.source.truth(left.start, end) if step.needs_truth else (None, None)
                    self._add(result, step, count * left.rows, outputs, backward and left.update, *truth)
                left = left.after(count)
                if backward and (not self.in_window or self.build == "grad"):
                    self.done = end - rows.start
                if failed is not None:
                    if isinstance(failed, (IndexOutOfRange, UserOpError)):
                        raise failed
                    if not self.skips or not backward:
                        raise self._stopped(self._cause(step, rows, left))
                    self._drop_window()
                    self.skipped += 1
                    result.skipped += 1
                    end = rows.batch_at(left.start).stop
                    self.done = end - rows.start
                self._report(on_progress, end - rows.start, rows, each)
                if failed is not None:
                    return end
        return rows.stop

    def _add(
        self,
        result: Result,
        step: CompiledBatch,
        rows: int,
        outputs: list[np.ndarray],
        steps: bool,
        labels: Structure | None,
        weights: np.ndarray | None,
    ) -> None:
        """Add the outputs of micro-batches to a result; steps: optimiser steps ended in them."""
        result.is_total = self.objective.is_total
        predictions = outputs[2] if step.has_predictions else None
        norms = outputs[-1] if steps else None
        losses = None
        if step.layout.losses:
            losses, result.factors = step.losses(step.loss_outputs(outputs)), dict(step.layout.factors)
        result.add(rows, outputs[0], outputs[1], predictions, labels, weights, norms, losses)
        if step.layout.size:
            result.measured.add(step.layout, step.extra(outputs), rows, labels, weights)

    def _stopped(self, cause: str) -> NonFiniteError:
        """The error of a training step whose loss or gradient is not finite."""
        return step_error(self.state.steps + 1, cause, self.state.epoch + 1)

    def _report(self, on_progress: OnProgress | None, done: int, rows: RowRange, each: bool) -> None:
        if on_progress is not None:
            on_progress(done)

    def _groups(self, rows: RowRange) -> Iterable[MicroBatches]:
        """The micro-batches of these rows in groups of equal size."""
        if not rows.backward:
            return cut(rows, self.joins.couples(rows), False, False)
        return cut(rows, self.keeps_gradients, self.build == "opt", self.in_window > 0)

    def program_for(self, rows: RowRange, group: MicroBatches) -> CompiledBatch:
        """The program of micro-batches of these rows."""
        source = self.joins.source(rows, group.start)
        return self.compiled_for(source, group.rows, rows.backward, group.update, rows.measures)

    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        """Compute some of these micro-batches, from the first one on."""
        step = self.program_for(rows, left)
        if step.join is not None and not left.offset:
            failed = self.joins.fill(rows.batch_at(left.start))
            if failed is not None:
                return step, 0, [], failed
        most = 1 if each else max(1, min(left.count, CALL_BYTES // max(1, step.run.record_bytes)))
        if rows.source.is_windowed:
            most = min(most, rows.source.load(left.start, left.rows, rows.stop, rows.backward) // left.rows)
        return self._run(step, left, most, rows.backward, result)

    def _run(
        self,
        step: CompiledBatch,
        micro: MicroBatches,
        count: int,
        backward: bool,
        result: Result,
        feeds: dict[str, Any] | None = None,
    ) -> Call:
        """One native call, of at most `count` micro-batches."""
        if backward and self.keeps_gradients:
            self.state.join(step.parameters, micro.first)
            if self.build == "opt" and not micro.update:
                self._keep(step, micro, result)
        settings = self.settings_of(micro, count, backward)
        if self.on_call is not None and backward and count == 1:
            self.on_call(step, _of_one(settings))
        try:
            return step, *step.run.run_many(count, settings, CALL_SECONDS, feeds), None
        except KeyboardInterrupt as ended:
            done = getattr(ended, "steps_done", 0)
            if done and micro.update:
                self.done += self.window_rows + done * micro.rows
            self._count(step, micro, done, backward)
            raise
        except (GuardTripped, NotFinite, IndexOutOfRange, UserOpError) as failed:  # NotFinite: with check 2
            return step, failed.steps_done, failed.outputs, failed

    def settings_of(self, micro: MicroBatches, count: int, backward: bool) -> dict[str, Any]:
        """The settings of `count` micro-batches, each a number or one for each."""
        each = np.arange(count)
        rows = micro.offset + (0 if micro.update else 1) * each * micro.rows
        settings = random_settings(self.seed, self.next_step + (each if micro.update else 0), rows)
        settings["position"] = micro.start + each * micro.rows
        if not backward:
            return settings
        settings["keep"] = np.where((each == 0) & micro.first, 0.0, 1.0)
        if not micro.update:
            return settings
        return settings | self.state.settings_ahead(count)

    def micro_settings(self, batch: RowRange, j: int) -> dict[str, Any]:
        """The settings of micro-batch j of a batch, besides those of its update."""
        first, _ = batch.micro_batch(j)
        return {"position": first, **random_settings(self.seed, self.next_step, first - batch.start)}

    @property
    def next_step(self) -> int:
        """The number of the next step for random numbers and watched values, from 1: skipped steps count."""
        return self.state.steps + self.skipped + 1

    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
        """Why the first of these micro-batches is not finite."""
        cause = None if step.join is None else self.joins.cause(rows.batch_at(left.start))
        if cause is None and self.on_failed is not None and rows.backward:
            self.on_failed(step, _of_one(self.settings_of(left, 1, True)), left.rows)
        return cause or self._diagnose(step, left, rows.backward)

    def _diagnose(self, step: CompiledBatch, micro: MicroBatches, backward: bool) -> str:
        at = self.settings_of(micro, 1, backward)
        return step.first_bad({n: np.broadcast_to(np.asarray(value), (1,))[0] for n, value in at.items()})

    # ---- the accumulation window -----------------------------------------------------------------------------

    def _count(self, step: CompiledBatch, micro: MicroBatches, count: int, backward: bool) -> None:
        """Count micro-batches that were done."""
        if not backward or not count:
            return
        self.held = self.in_window + count
        if micro.update:
            self.state.advance(step.updated, count)
            self.state.window.clear()
            self._close_window()
        else:
            self.in_window += count
            self.window_rows += count * micro.rows

    def _keep(self, step: CompiledBatch, micro: MicroBatches, result: Result) -> None:
        """Save values that the micro-batches of an open window modify before its optimiser step."""
        if micro.first:
            self._before, self._result = {}, (result, result.mark())
        new = [stored for stored in step.statistics if stored not in self._before]
        if new:
            self._before.update(zip(new, copies(new), strict=True))

    def _drop_window(self) -> None:
        """Undo the changes of an accumulation window whose optimiser step cannot be completed."""
        if self.build == "opt":
            if self._before:
                replace(self._before)
            if self._result is not None:
                result, mark = self._result
                result.cut(mark)
            self.state.window.clear()
            self._close_window()

    def _close_window(self) -> None:
        self.in_window = self.window_rows = 0
        self._before, self._result = {}, None

    # ---- one process and ranks -------------------------------------------------------------------------------

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Inside, Ctrl-C stops all ranks after the same step."""
        return contextlib.nullcontext()

    def notify(self, listener: Callable[..., None] | None, *results: Any) -> None:
        """Call a listener."""
        if listener is not None:
            listener(*results)

    def built_join(self, what: str, key: Hashable, build: Callable[[], tuple[BatchJoin, list[Value]]]) -> BatchJoin:
        """The join that `build` compiles."""
        return build()[0]

    @property
    def exchanges(self) -> list[Exchange]:
        """What ranks exchange, for each size of batch."""
        return []

    @property
    def runs(self) -> list[Any]:
        """All programs that were compiled so far."""
        steps = [*self.compiled.values(), *self.joins.compiled]
        return [run for step in steps for run in (step.run, step.watched) if run is not None]

    @property
    def plans(self) -> list[Any]:
        """The plans of these programs."""
        return [run.plan for run in self.runs if run.plan is not None]

    def written(self) -> list[Stored]:
        """Arrays that the steps so far wrote, but for those of the optimiser's moments."""
        buffers = [p.stored for exchange in self.exchanges for p in exchange.buffers]
        return [*(stored for step in self.compiled.values() for stored in written_by(step.run)), *buffers]


def _of_one(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a call of one micro-batch."""
    return {name: np.asarray(value).reshape(-1)[0] for name, value in settings.items()}
