"""StreamLoop: passes over the batches of an iterable; each batch is one optimiser step. gl.fit uses it for a Stream.

A batch is copied into a buffer of its size, and the programs of a Loop gather their rows from there: the results have
the bits of a data set with these rows in this order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from ..base.errors import IndexOutOfRange, NonFiniteError
from ..base.interrupts import StopTraining
from ..base.messages import log
from ..base.structures import Structure, mapped
from ..graph.stored import replace
from ..runs.saver import Saver
from ..runs.schemas import MOST
from .batches import CompiledBatch
from .duration import Work
from .epoch import Listener, Pass, Progress
from .evaluation import EvaluatedSet
from .fetched_source import source_of
from .loop import Loop
from .metrics import Measures
from .result import Evaluation, Result
from .source import RowSource
from .stream import SIZES, STREAM, Batch, Stream
from .trainer import Trainer

SECONDS = 0.1  # between two events on_progress


class StreamSource(RowSource):
    """The rows of one batch, in buffers that the next batch of this size replaces.

    rows, all_count: of the batches. begins: see RowSource; the first batch of a segment.
    """

    called = "the batch"

    def __init__(self, like: Batch, rows: int, all_count: bool, contents: list[Any]) -> None:
        """Zeros, with the arrays of `like`."""

        def zeros(array: np.ndarray) -> np.ndarray:
            return np.zeros((rows, *array.shape[1:]), array.dtype)

        labels = None if like.labels is None else mapped(zeros, like.labels)
        self.blank = Batch(mapped(zeros, like.data), labels, weights=None if like.weights is None else np.ones(rows))
        self._all_count, self._contents = all_count, contents
        self._batch = self.blank
        super().__init__(self.blank)

    @property
    def all_count(self) -> bool:
        return self._all_count

    @property
    def contents(self) -> list[Any]:
        """Of the data set of a gl.data.DataLoader; else none: the batches do not identify a run."""
        return self._contents

    def put(self, batch: Batch) -> None:
        """Copy a batch into the buffers."""
        self.data = self._batch = batch
        replace(dict(zip(self.stored, batch.arrays.values(), strict=True)))

    def reported(self, start: int, stop: int) -> tuple[np.ndarray, Structure | None]:
        return np.arange(start, stop), self.data.rows_of_labels(slice(None))

    def compared(self, start: int, stop: int) -> list[np.ndarray]:
        return [*self._batch.arrays.values()]


class Sources:
    """A StreamSource for each size of batches.

    looks: the graph depends on whether labels are ignored
    """

    def __init__(self, stream: Stream, looks: bool) -> None:
        self.stream, self._looks = stream, looks
        self._table: dict[Hashable, StreamSource] = {}
        self.contents: list[Any] = [] if stream.dataset is None else source_of(stream.dataset).contents
        self._taken: StreamSource | None = None
        self._said = False

    def first(self) -> StreamSource:
        """That of the first batch of the run, which has not to be there."""
        return self._of(self.stream.example(), *self.stream.first_of_run())

    def next(self) -> StreamSource:
        """That of the next batch, whose rows are in its buffers. The batch is not consumed."""
        batch = self.stream.example()
        source = self._of(batch, batch.n, batch.all_count)
        source.put(batch)
        return source

    def take(self) -> StreamSource:
        """Take the next batch."""
        batch = self.stream.take()
        source = self._of(batch, batch.n, batch.all_count)
        source.put(batch)
        self._taken = source
        if len(self.stream.sizes) > SIZES and not self._said:
            self._said = True
            text = f"{self.stream.name}: batches of more than {SIZES} sizes; programs are compiled for each of them"
            log.warning(f"{text}: use batches of equal size")
        return source

    def reported(self, start: int, stop: int) -> tuple[np.ndarray, Structure | None]:
        """RowSource.reported, of the batch that was taken last."""
        assert self._taken is not None
        return self._taken.reported(start, stop)

    def _of(self, like: Batch, rows: int, all_count: bool) -> StreamSource:
        key = rows, all_count or not self._looks
        if key not in self._table:
            self._table[key] = StreamSource(like, *key, self.contents)
        return self._table[key]


class StreamSet(EvaluatedSet):
    """The batches of an iterable, all of an iteration each time."""

    rows = "those of an iterable"

    def __init__(self, trainer: Trainer, stream: Stream) -> None:
        self._trainer, self._stream = trainer, stream
        self._sources = Sources(stream, trainer.objective.looks_at_labels)

    @property
    def contents(self) -> list[Any]:
        return self._sources.contents

    def prepare(self, batch_size: int, micro_batch_size: int, measures: Measures) -> list[CompiledBatch]:
        source = self._sources.next()
        return self._trainer.prepare(
            source, 0, source.n, batch_size=source.n, micro_batch_size=micro_batch_size, backward=False,
            measures=measures,
        )  # fmt: skip

    def measure(
        self, result: Result, batch_size: int, micro_batch_size: int, on_progress: Listener | None, each: bool
    ) -> None:
        self._stream.next_iteration()
        measure(self._trainer, self._sources, result, micro_batch_size, on_progress, each)

    def work(self, batch_size: int, micro_batch_size: int, measures: Measures) -> Work:
        """Not known: the number of rows is not."""
        return []


def measure(
    trainer: Trainer, sources: Sources, result: Result, micro_batch_size: int | None,
    on_progress: Listener | None = None, each: bool = False,
) -> None:  # fmt: skip
    """Measure the batches of an iteration. DataError where there is none."""
    began, done, stream = time.perf_counter(), 0, sources.stream
    while stream.peek() is not None:
        source = sources.take()
        source.begins = not done

        def report(rows: int, before: int = done) -> None:
            if on_progress is not None:
                on_progress(Progress(False, before + rows, None, time.perf_counter() - began, result))

        trainer.run_rows(
            source, 0, source.n, result, batch_size=source.n, micro_batch_size=micro_batch_size, backward=False,
            each=each, on_progress=report,
        )  # fmt: skip
        stream.consumed()
        done += source.n
    if not done:
        raise stream.empty()


class StreamLoop(Loop):
    """A Loop over the batches of a Stream.

    epochs     passes
    per_epoch  batches of a pass, which then continues the iteration of the one before, and begins another where it
               ends; None: a pass is an iteration
    micro_batch_size  maximum number of rows computed at once; None: those of the batch, or the share of a rank
    settings   of a Loop

    Attributes of rows are those of the first batch of the run: batch_size, train_rows, data.
    """

    has_rows = False

    def __init__(
        self, trainer: Trainer, sources: Sources, *, epochs: int, per_epoch: int | None,
        micro_batch_size: int | None, share: Callable[[int], int], saver: Saver | None, **settings: Any,
    ) -> None:  # fmt: skip
        self.stream, self._sources = sources.stream, sources
        self.epochs, self.per_epoch, self._share = epochs, per_epoch, share
        self._ended = self._is_exhausted = False  # the open pass has no more batches; nor has any other one
        source = sources.first()
        trainer.source(source.blank, source)
        super().__init__(
            trainer, source.blank, np.arange(source.n), np.zeros(0, np.int64), batch_size=source.n,
            micro_batch_size=micro_batch_size or share(source.n), steps=0, saver=saver, **settings,
        )  # fmt: skip
        trainer.train_state.register("stream", self._position, lambda values: lambda: None, schema=STREAM)
        if saver is not None and saver.entries is not None:
            self._ended = bool(saver.entries["stream.is_pass_over"])

    # ---- where it is -----------------------------------------------------------------------------------------

    def _known_total(self) -> int | None:
        per_epoch = self.per_epoch or self.stream.count
        if not self.is_unfinished and (self.open_pass is None or self._ended):
            return self.steps
        if per_epoch is None:
            return None
        now = self.open_pass
        before, left = (self.steps, self.epochs) if now is None else (now.before, self.epochs + 1)
        return max(before + per_epoch * (left - self.passes), self.steps)

    @property
    def is_unfinished(self) -> bool:
        return self.passes < self.epochs and not self._is_exhausted

    @property
    def rows_left(self) -> int:
        """1 where the open pass may have more batches, else 0."""
        return int(self.open_pass is not None and not self._ended)

    def rows_done(self, now: Pass) -> int:
        return now.rows

    def rows_of_pass(self, before: int) -> int:
        """None yet: they are counted when they are trained on."""
        return 0

    def order(self, number: int) -> np.ndarray:
        return np.arange(self.data.n)

    def programs(self, rows: int) -> list[CompiledBatch]:
        """Of the first batch of the run."""
        return super().programs(self.data.n)

    def _batches(self, now: Pass) -> int:
        return self.per_epoch or MOST

    def _position(self) -> dict[str, Any]:
        return self.stream.state() | {"is_pass_over": self._ended}

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"batch_size": max(self.stream.most, self.batch_size)}

    def _rows_of_restored(self, now: Pass) -> int:
        return now.rows

    def _check_repeated(self, made: list[Evaluation], values: Mapping[str, Any]) -> None:  # type: ignore[override]
        is_over = values["passes"] >= self.epochs
        self.evaluator.check_repeated(
            made, values["steps"] if is_over else MOST, self.callbacks.remembers_evaluations()
        )

    # ---- a pass ----------------------------------------------------------------------------------------------

    def _predict(self) -> None:
        """The duration is not predicted: it depends on the iterable."""

    def _begin_pass(self) -> Pass:
        if self.per_epoch is None:
            self.stream.next_iteration()
        self._ended = False
        return super()._begin_pass()

    def _has_next(self, now: Pass) -> bool:
        """Reads one batch ahead."""
        if not self._ended and now.done < self._batches(now):
            if self.stream.peek() is not None:
                return True
            if not self.stream.batches:
                raise self.stream.empty()
            if self.per_epoch is not None:
                return self._next_iteration(now)
        if not self._ended:
            self._ended = True
            self.trainer.epoch += 1
            self._check_count(now)
            if self.stream.is_once and self.is_unfinished and self.stream.peek() is None:
                self._exhaust(now)
        return False

    def _next_iteration(self, now: Pass) -> bool:
        """The open pass continues in the next iteration."""
        if self.stream.is_once:
            raise StopTraining(self._exhaust(now))
        self.stream.next_iteration()
        if self.stream.peek() is None:
            raise self.stream.empty()
        return True

    def _check_count(self, now: Pass) -> None:
        """A notice where an iteration has other batches than its len()."""
        stream, count = self.stream, self.stream.count
        if self.per_epoch is None and count is not None and count != now.done:
            stream.count = now.done
            text = f"{stream.name}: {now.done} batches, but its len() is {count}; all of them were used"
            if self.trainer.is_root:
                self.emit("on_notice", text)

    def _exhaust(self, now: Pass) -> str:
        """The iterator has ended, and passes are left: they are not made."""
        self._is_exhausted = True
        text = f"{self.stream.name}: the iterator has ended after {now.before + now.done} batches"
        need = f"{self.epochs} epochs of {self.per_epoch} batches need {self.epochs * (self.per_epoch or 0)}"
        if self.trainer.is_root:
            self.emit("on_notice", f"{text}; {need}: training ends here")
        return text

    def _train(self, source: RowSource, now: Pass, began: float) -> None:
        super()._train(self._sources, now, began)  # type: ignore[arg-type]  # of events: the source of the last batch
        if now.done and now.train.skipped == now.done:
            raise NonFiniteError(f"epoch {now.number}: none of its {now.done} batches was finite; all were skipped")

    def _train_segment(self, source: RowSource, now: Pass, began: float) -> None:
        first = time.perf_counter()
        each = self.every_batch(True)
        is_first = True
        try:
            while now.done < now.segment and self._has_next(now):
                self._train_batch(now, began, is_first, each)
                is_first = False
        finally:
            self.training_seconds += time.perf_counter() - first

    def _train_batch(self, now: Pass, began: float, is_first: bool, each: bool) -> None:
        """The optimiser step on the next batch. is_first: of the segment."""
        trainer, before = self.trainer, now.rows
        source = self._sources.take()
        source.begins = is_first
        is_counted = False

        def count() -> None:
            nonlocal is_counted
            now.seconds = time.perf_counter() - began
            if trainer.driver.done and not is_counted:
                is_counted = True
                self.stream.consumed()
                self.rows, now.rows, now.done = self.rows + source.n, before + source.n, now.done + 1
                self.steps = now.before + now.done

        def on_progress(rows: int) -> None:
            count()
            at = time.perf_counter()
            if each or at - self._reported >= SECONDS or now.done >= now.segment:
                self._reported = at
                self.emit("on_progress", Progress(True, before + rows, None, now.seconds, now.train))

        trainer.driver.done = 0
        try:
            trainer.run_rows(
                source, 0, source.n, now.train, batch_size=source.n, micro_batch_size=self._micro(source.n), each=each,
                on_progress=on_progress,
            )  # fmt: skip
        except (NonFiniteError, IndexOutOfRange) as error:
            raise error.extended(f"{self.stream.name}: batch {self.stream.batches + 1}: ") from None
        finally:
            count()

    _reported = 0.0  # when on_progress was emitted

    def _micro(self, rows: int) -> int:
        """Rows of a batch that are computed at once."""
        is_limited = self.micro_batch_size != self._share(self.batch_size)
        return min(self.micro_batch_size, rows) if is_limited else self._share(rows)
