"""LocalSteps: the training steps of one process, from rows to updated weights.

rows of a pass -> groups of micro-batches (batches.py) -> one compiled program each -> native calls of 0.2 s -> Result
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.errors import GuardTripped, IndexOutOfRange, NotFinite, SettingError
from ..graph.graph import reachable, storage_leaf
from ..graph.leaves import Parameter
from ..graph.stored import Stored, copies, replace
from ..graph.structure import structure
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..run.compile import compile as compile_program
from ..run.diagnose import stopped
from ..step.step import end_step, random_settings
from .batches import CompiledBatch, MicroBatches, RowRange, cut
from .forms import Forms
from .metrics import NOTHING, Measures
from .objective import BatchGraph, Objective
from .result import Mark, Result
from .source import FeedSource, RowSource

Failed = GuardTripped | NotFinite | IndexOutOfRange  # why a micro-batch was not applied

CALL_SECONDS = 0.2  # the longest that one native call may take: progress and Ctrl-C are answered in between
CALL_BYTES = 64 << 20  # and the most that it may write down


NO_COMMON_WEIGHT = (
    "the losses have different weights (labels that are ignored, masks): their means do not add up over micro-batches "
    "or ranks; need micro_batch_size=batch_size in one process, or one value per row with row weights of the data"
)


class LocalSteps:
    """Compiles and runs the micro-batches of an objective.

    build      "grad": gradients into accumulators, no update; "opt": the whole step
    accumulate micro-batches per optimiser step
    skips      a batch whose loss or gradient is not finite is left out by `run`: its rows and its random step are
               consumed, the optimiser's step is not
    .done      rows that the last `run` of training rows has consumed: those of whole optimiser steps
    .held      micro-batches that the accumulators hold
    .skipped   batches that were left out so far

    An optimiser step is whole or nothing: when one ends before its last micro-batch, running statistics and the Result
    are what they were before its first.
    """

    def __init__(
        self,
        objective: Objective,
        forms: Forms,
        state: OptimizerState,
        *,
        build: str,
        accumulate: int,
        dynamic: bool,
        seed: int,
        max_norm: float,
        max_value: float,
        skips: bool,
        options: dict[str, Any],
    ) -> None:
        self.objective, self.forms, self.state = objective, forms, state
        self.build, self.accumulate, self.dynamic, self.skips = build, accumulate, dynamic, skips
        self.seed, self.options = seed, options
        self.max_norm, self.max_value = max_norm, max_value
        self.keeps_gradients = build == "grad" or accumulate > 1
        self.compiled: dict[Hashable, CompiledBatch] = forms.cache()
        self.done = self.held = self.skipped = 0
        self.in_window = 0  # micro-batches in the accumulation window so far
        self.window_rows = 0
        self._before: dict[Stored, np.ndarray] = {}  # running statistics when the window was opened
        self._result: tuple[Result, Mark] | None = None  # what gets the window's losses, and what it held then

    # ---- running -------------------------------------------------------------------------------------------

    def feed(self, source: FeedSource, result: Result, backward: bool) -> None:
        """One micro-batch that the caller hands over. Every `accumulate`-th one updates."""
        update = backward and self.build == "opt" and self.in_window + 1 == self.accumulate
        micro = MicroBatches(0, source.rows, 1, update, self.in_window == 0, self.window_rows)
        step = self.compiled_for(source, micro.rows, backward, update, result.measures)
        feeds = {k: v for k, v in source.feeds.items() if k in step.run.inputs}  # some losses take no labels
        try:
            _, outputs, failed = self._run(step, micro, 1, backward, result, feeds)
            if failed is not None:
                raise self._error(failed, step, micro, backward)
        except BaseException:
            self._drop_window()
            raise
        self._count(step, micro, 1, backward)
        self._add(result, step, micro.rows, outputs, update, *source.arrays[1:])

    def prepare(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""
        groups = [group for batch in rows.ends() for group in self._cut(batch)]
        return [
            self.compiled_for(rows.source, group.rows, rows.backward, group.update, rows.measures) for group in groups
        ]

    def run(self, rows: RowRange, result: Result, each: bool, heard: Callable[[int], None] | None) -> None:
        """Train on these rows, or measure them; heard(rows done) is called after each native call."""
        if rows.backward and self.build == "opt" and rows.micro_size < rows.batch_size and not self.keeps_gradients:
            text = "{micro_batch_size} below {batch_size} requires {accumulate} > 1"
            sizes = {"micro_batch_size": rows.micro_size, "batch_size": rows.batch_size}
            raise SettingError(text, sizes, accumulate=...)
        try:
            self._run_groups(rows, result, each or self.dynamic, heard)
        except BaseException:
            self._drop_window()
            raise

    def _run_groups(self, rows: RowRange, result: Result, each: bool, heard: Callable[[int], None] | None) -> None:
        if not self.dynamic:  # what cannot be built is said before anything is trained
            self.prepare(rows)
        if rows.backward:
            self.done = 0
        start = rows.start
        while start < rows.stop:  # again after a batch that was skipped
            start = self._run_from(start, rows, result, each, heard)

    def _run_from(
        self, start: int, rows: RowRange, result: Result, each: bool, heard: Callable[[int], None] | None
    ) -> int:
        """Run the rows from `start`, where a batch begins; the row after the last one, or after a skipped batch."""
        source, backward = rows.source, rows.backward
        for group in self._cut(rows.part(start, rows.stop)):
            left = group
            while left.count:
                step = self.compiled_for(source, left.rows, backward, left.update, rows.measures)
                most = 1 if each else max(1, min(left.count, CALL_BYTES // max(1, step.run.record_bytes)))
                count, outputs, failed = self._run(step, left, most, backward, result)
                self._count(step, left, count, backward)
                end = left.start + count * left.rows
                if count:
                    truth = source.truth(left.start, end) if step.needs_truth else (None, None)
                    self._add(result, step, count * left.rows, outputs, backward and left.update, *truth)
                left = left.after(count)
                if backward and (not self.in_window or self.build == "grad"):
                    self.done = end - rows.start
                if failed is not None:
                    if not self.skips or not backward or isinstance(failed, IndexOutOfRange):
                        raise self._error(failed, step, left, backward)
                    self._skip(result)
                    end = rows.batch_end(left.start)
                    self.done = end - rows.start
                if heard is not None:
                    heard(end - rows.start)
                if failed is not None:
                    return end
        return rows.stop

    def _cut(self, rows: RowRange) -> Iterator[MicroBatches]:
        return cut(rows, self.keeps_gradients, self.build == "opt", self.in_window > 0)

    def _run(
        self,
        step: CompiledBatch,
        micro: MicroBatches,
        count: int,
        backward: bool,
        result: Result,
        feeds: dict[str, Any] | None = None,
    ) -> tuple[int, list[np.ndarray], Failed | None]:
        """(micro-batches done, the outputs of each, why the next one failed) of one native call."""
        if backward and self.keeps_gradients:
            self.state.join(step.parameters, micro.first)
            if self.build == "opt" and not micro.update:
                self._keep(step, micro, result)
        try:
            return *step.run.run_many(count, self._settings(micro, count, backward), CALL_SECONDS, feeds), None
        except KeyboardInterrupt as ended:
            done = getattr(ended, "steps_done", 0)
            if done and micro.update:
                self.done += self.window_rows + done * micro.rows
            self._count(step, micro, done, backward)
            raise
        except (GuardTripped, NotFinite, IndexOutOfRange) as failed:  # NotFinite: with check 2
            return failed.steps_done, failed.outputs, failed

    def _error(self, failed: Failed, step: CompiledBatch, micro: MicroBatches, backward: bool) -> Exception:
        """What to raise for the first of these micro-batches, which has failed."""
        if isinstance(failed, IndexOutOfRange):
            return failed
        at = self._settings(micro, 1, backward)
        one = {name: np.broadcast_to(np.asarray(value), (1,))[0] for name, value in at.items()}
        return stopped(self.state.steps + 1, step.first_bad(one), self.state.epoch + 1)

    def _keep(self, step: CompiledBatch, micro: MicroBatches, result: Result) -> None:
        """Keep what the micro-batches of an open window change before its optimiser step."""
        if micro.first:
            self._before, self._result = {}, (result, result.mark())
        new = [stored for stored in step.statistics if stored not in self._before]
        if new:
            self._before.update(zip(new, copies(new), strict=True))

    def _skip(self, result: Result) -> None:
        """Leave out the batch of which a micro-batch was not finite."""
        self._drop_window()
        self.skipped += 1
        result.skipped += 1

    def _settings(self, micro: MicroBatches, count: int, backward: bool) -> dict[str, Any]:
        """The settings of so many micro-batches, each a number or one for each."""
        each = np.arange(count)
        rows = micro.offset + (0 if micro.update else 1) * each * micro.rows
        first = self.state.steps + self.skipped + 1
        settings = random_settings(self.seed, first + (each if micro.update else 0), rows)
        settings["position"] = micro.start + each * micro.rows
        if not backward:
            return settings
        settings["keep"] = np.where((each == 0) & micro.first, 0.0, 1.0)
        if not micro.update:
            return settings
        return settings | self.state.settings_ahead(count)

    def _count(self, step: CompiledBatch, micro: MicroBatches, count: int, backward: bool) -> None:
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

    def _add(
        self,
        result: Result,
        step: CompiledBatch,
        rows: int,
        outputs: list[np.ndarray],
        steps: bool,
        labels: np.ndarray | None,
        weights: np.ndarray | None,
    ) -> None:
        result.is_total = self.objective.is_total
        predictions = outputs[2] if step.has_predictions else None
        norms = outputs[-1] if steps else None  # of optimiser steps
        losses = step.losses(step.loss_outputs(outputs)) if step.layout.losses else None
        result.add(rows, outputs[0], outputs[1], predictions, labels, weights, norms, losses)
        if step.layout.size:
            result.measured.add(step.layout, step.extra(outputs), rows, labels, weights)

    def _drop_window(self) -> None:
        """Undo what an accumulation window has changed when its optimiser step cannot be completed."""
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

    def reset(self) -> None:
        """Begin a new accumulation window."""
        self._close_window()
        self.held = 0

    # ---- building ------------------------------------------------------------------------------------------

    def compiled_for(
        self,
        source: RowSource | FeedSource,
        rows: int,
        backward: bool,
        update: bool,
        measures: Measures = NOTHING,
    ) -> CompiledBatch:
        """The compiled micro-batch of so many rows; update: it ends with an optimiser step; measures: what it gives
        beside the loss."""
        key: tuple[Hashable, ...] = (source.key, rows, backward, update, measures)
        if self.dynamic:
            graph = self.objective.graph(source, rows, backward, measures)
            others, resting = self._others(graph.parameters, update)
            nodes = reachable(graph.outputs)
            carried = [v for node in nodes for v in node.effects]  # running statistics
            wires = structure([*graph.outputs, *(graph.grads or []), *carried])
            behind = self._behind(graph.parameters, others, update)
            said = tuple(node.device for node in nodes)  # their gradients run where they do
            key = (*key, wires, said, tuple(p.stored for p in others), resting, behind)
            if key not in self.compiled:
                self.compiled[key] = self._compile(graph, update, others)
            return self.compiled[key]

        def make() -> CompiledBatch:
            return self._compile(self.objective.graph(source, rows, backward, measures), update, others)

        others = ()
        step = self.forms.cached(self.compiled, key, backward, make)
        others, resting = self._others(step.parameters, update)
        behind = self._behind(step.parameters, others, update)
        if others or (resting, behind) != (step.resting, step.behind):
            key = (*key, tuple(p.stored for p in others), resting, behind)
            step = self.forms.cached(self.compiled, key, backward, make)
        return step

    def _others(
        self, parameters: Sequence[Parameter], update: bool
    ) -> tuple[tuple[Parameter, ...], tuple[Stored, ...]]:
        """What an update finds in the open window besides these (another graph's parameters may be there, too), and of
        what is left as it is whose average moves."""
        if not update:
            return (), ()
        others = self.state.others(parameters) if self.in_window else ()
        return others, self.state.resting((*parameters, *others))

    def _behind(self, parameters: Sequence[Parameter], others: Sequence[Parameter], update: bool) -> tuple[Stored, ...]:
        return self.state.behind((*parameters, *others)) if update else ()

    def _compile(self, graph: BatchGraph, update: bool, others: Sequence[Parameter]) -> CompiledBatch:
        outputs = graph.outputs
        updates: tuple[Value, ...] = ()
        updated = (*graph.parameters, *others) if update else ()
        resting: tuple[Stored, ...] = ()
        if graph.grads is not None:
            if self.keeps_gradients and not graph.adds_up:
                raise SettingError(NO_COMMON_WEIGHT)
            total, weight = outputs[:2]
            norms, updates = end_step(
                self.state, graph.parameters, graph.grads, total, weight,
                divisor=weight if self.objective.is_total else None, accumulates=self.keeps_gradients,
                updates=update, others=others, max_norm=self.max_norm, max_value=self.max_value,
            )  # fmt: skip
            outputs = [*outputs, *norms]
            resting = self.state.resting((*graph.parameters, *others)) if update else ()
        run = compile_program(outputs, updates, **self.options)
        has_predictions = self.objective.has_predictions
        return CompiledBatch(
            run, has_predictions, outputs, updates, graph.parameters, tuple(graph.grads or ()), updated,
            self.state.behind(updated), self.options, self._statistics(run, update), resting, graph.layout,
        )  # fmt: skip

    def _statistics(self, run: Any, update: bool) -> tuple[Stored, ...]:
        """What a micro-batch without an update writes besides the sums of its window."""
        if update:
            return ()
        sums = {p.stored for p in (*self.state.sums.values(), self.state.weight)}
        leaves = [storage_leaf(value) for value in run.program.effects]
        written = dict.fromkeys(leaf.stored for leaf in leaves if isinstance(leaf, Parameter))
        return tuple(stored for stored in written if stored not in sums)
