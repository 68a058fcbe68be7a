"""LocalSteps: the steps of one process. A step is one program, or an accumulation window of several micro-batches.

rows -> groups of equal micro-batches (batches.py) -> one program each -> native calls of 0.2 s -> Result
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.errors import GuardTripped, IndexOutOfRange, NotFinite, SettingError
from ..graph.stored import Stored, copies, replace
from ..step.step import random_settings
from .batches import CompiledBatch, MicroBatches, RowRange, cut
from .result import Mark, Result
from .source import FeedSource
from .steps import Call, OnProgress, Steps

CALL_SECONDS = 0.2  # the longest that one native call may take: progress and Ctrl-C are handled in between
CALL_BYTES = 64 << 20  # the most that it may record


class LocalSteps(Steps):
    """The steps of one process.

    An optimiser step is whole or nothing: when an accumulation window ends before its last micro-batch, running
    statistics and the Result are restored to what they were before its first one.
    """

    _before: dict[Stored, np.ndarray]  # running statistics when the window was opened
    _result: tuple[Result, Mark] | None  # the window's result, and what it held then

    def feed(self, source: FeedSource, result: Result, backward: bool) -> None:
        """Run one micro-batch of the caller's rows. Every `accumulate`-th one updates."""
        update = backward and self.build == "opt" and self.in_window + 1 == self.accumulate
        micro = MicroBatches(0, source.rows, 1, update, self.in_window == 0, self.window_rows)
        step = self.compiled_for(source, micro.rows, backward, update, result.measures)
        feeds = {k: v for k, v in source.feeds.items() if k in step.run.inputs}  # some losses take no labels
        try:
            _, _, outputs, failed = self._run(step, micro, 1, backward, result, feeds)
            if isinstance(failed, IndexOutOfRange):
                raise failed
            if failed is not None:
                raise self._stopped(self._first_bad(step, micro, backward))
        except BaseException:
            self._drop_window()
            raise
        self._count(step, micro, 1, backward)
        self._add(result, step, micro.rows, outputs, update, *source.arrays[1:])

    def prepare(self, rows: RowRange) -> list[CompiledBatch]:
        """Compile all that `run` of these rows runs."""
        groups = [group for batch in rows.ends() for group in self._groups(batch)]
        return [self._compiled(rows, group) for group in groups]

    def run(self, rows: RowRange, result: Result, each: bool, on_progress: OnProgress | None) -> None:
        """See Steps.run."""
        if rows.backward and self.build == "opt" and rows.micro_size < rows.batch_size and not self.keeps_gradients:
            raise SettingError(
                f"micro_batch_size={rows.micro_size} is smaller than batch_size={rows.batch_size}; need accumulate > 1 "
                "for that"
            )
        try:
            super().run(rows, result, each, on_progress)
        except BaseException:
            self._drop_window()
            raise

    def _groups(self, rows: RowRange) -> Iterator[MicroBatches]:
        return cut(rows, self.keeps_gradients, self.build == "opt", self.in_window > 0)

    def _compiled(self, rows: RowRange, group: MicroBatches) -> CompiledBatch:
        return self.compiled_for(rows.source, group.rows, rows.backward, group.update, rows.measures)

    def _call(
        self, rows: RowRange, left: MicroBatches, result: Result, each: bool, on_progress: OnProgress | None
    ) -> Call:
        step = self._compiled(rows, left)
        most = 1 if each else max(1, min(left.count, CALL_BYTES // max(1, step.run.record_bytes)))
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
        try:
            return step, *step.run.run_many(count, self._settings(micro, count, backward), CALL_SECONDS, feeds), None
        except KeyboardInterrupt as ended:
            done = getattr(ended, "steps_done", 0)
            if done and micro.update:
                self.done += self.window_rows + done * micro.rows
            self._count(step, micro, done, backward)
            raise
        except (GuardTripped, NotFinite, IndexOutOfRange) as failed:  # NotFinite: with check 2
            return step, failed.steps_done, failed.outputs, failed

    def _settings(self, micro: MicroBatches, count: int, backward: bool) -> dict[str, Any]:
        """The settings of `count` micro-batches, each a number or one for each."""
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

    def _cause(self, step: CompiledBatch, rows: RowRange, left: MicroBatches) -> str:
        return self._first_bad(step, left, rows.backward)

    def _first_bad(self, step: CompiledBatch, micro: MicroBatches, backward: bool) -> str:
        at = self._settings(micro, 1, backward)
        return step.first_bad({n: np.broadcast_to(np.asarray(value), (1,))[0] for n, value in at.items()})

    # ---- the accumulation window -----------------------------------------------------------------------------

    def _count(self, step: CompiledBatch, micro: MicroBatches, count: int, backward: bool) -> None:
        if not backward or not count:
            return
        self.held = self.in_window + count
        if micro.update:
            super()._count(step, micro, count, backward)
            self.state.window.clear()
            self._close_window()
        else:
            self.in_window += count
            self.window_rows += count * micro.rows

    def _skip(self, result: Result) -> None:
        self._drop_window()
        super()._skip(result)

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

    def reset(self) -> None:
        """Begin a new accumulation window."""
        super().reset()
        self._close_window()
