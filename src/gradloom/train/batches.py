"""How rows become micro-batches: the rows of a pass, groups of equal micro-batches, and one compiled micro-batch."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import Value
from ..run.diagnose import Namer, first_bad, row_of
from .metrics import EMPTY, NOTHING, Measures, MetricLayout
from .source import Join

T = TypeVar("T")


@dataclass(slots=True)  # not frozen: several are created in each pass
class RowRange:
    """Rows start..stop of a source's order: batch_size of them form an optimiser step, micro_size a micro-batch.

    backward: train on them, else measure only. measures: the metrics of these rows.
    """

    source: Any  # a RowSource, in dp_train a SampleSource
    start: int
    stop: int
    batch_size: int
    micro_size: int
    backward: bool
    measures: Measures = NOTHING

    def part(self, start: int, stop: int) -> RowRange:
        """A part of these rows, in batches of the same sizes."""
        return RowRange(self.source, start, stop, self.batch_size, self.micro_size, self.backward, self.measures)

    @property
    def count(self) -> int:
        return self.stop - self.start

    def batches(self) -> Iterator[RowRange]:
        """The rows of each optimiser step; the last may be fewer."""
        for first in range(self.start, self.stop, self.batch_size):
            end = min(first + self.batch_size, self.stop)
            yield self.part(first, end)

    def batch_at(self, row: int) -> RowRange:
        """The batch that contains this row."""
        first = row - (row - self.start) % self.batch_size
        return self.part(first, min(first + self.batch_size, self.stop))

    def ends(self) -> list[RowRange]:
        """The first and the last batch: they have all sizes that occur."""
        last = self.start + (self.count - 1) // self.batch_size * self.batch_size
        cuts = ((self.start, min(self.start + self.batch_size, self.stop)), (last, self.stop))
        return [self.part(a, b) for a, b in cuts]

    @property
    def batch_count(self) -> int:
        return -(-self.count // self.batch_size)

    @property
    def micro_batches(self) -> int:
        return -(-self.count // self.micro_size)

    def micro_batch(self, j: int) -> tuple[int, int]:
        """(first row, rows) of micro-batch j."""
        first = self.start + j * self.micro_size
        return first, min(self.micro_size, self.stop - first)


@dataclass(slots=True)
class MicroBatches:
    """Equal micro-batches that one executable runs one after the other."""

    start: int  # first row
    rows: int  # of each
    count: int
    update: bool  # each ends with an optimiser step
    first: bool  # the first of them opens a new accumulation window
    offset: int  # of its first row inside the optimiser step's rows

    def after(self, done: int) -> MicroBatches:
        """Those that are left when `done` are done."""
        if not done:
            return self
        rows = done * self.rows
        offset = self.offset + (0 if self.update else rows)
        return MicroBatches(self.start + rows, self.rows, self.count - done, self.update, False, offset)


def cut(rows: RowRange, accumulates: bool, updates: bool, is_open: bool) -> Iterator[MicroBatches]:
    """The micro-batches of these rows, in groups. Whole batches without accumulation form one long group.

    accumulates: the micro-batches of a batch belong together: their gradients are summed, or a BatchLoss couples them;
    updates: the last of them updates; is_open: the window holds micro-batches already.
    """
    if not accumulates:
        size = rows.batch_size if rows.backward else rows.micro_size
        whole, rest = divmod(rows.count, size)
        if whole:
            yield MicroBatches(rows.start, size, whole, rows.backward, True, 0)
        if rest:
            yield MicroBatches(rows.stop - rest, rest, 1, rows.backward, True, 0)
        return
    for batch in rows.batches():
        at = batch.start
        while at < batch.stop:
            left = batch.stop - at
            size = min(rows.micro_size, left)
            count = max(1, (left - 1) // size) if left > size else 1
            first = at == batch.start and (not is_open if at == rows.start else updates)
            offset = at - batch.start
            yield MicroBatches(at, size, count, size == left and updates, first, offset)
            at += size * count


@dataclass(frozen=True)
class CompiledBatch:
    """A compiled micro-batch: what to run and what its outputs are."""

    run: Any
    has_predictions: bool
    outputs: list[Value]  # loss sum, weight, predictions of classes, those of the layout, norms as in step.end_step
    updates: tuple[Value, ...]
    parameters: tuple[Parameter, ...] = ()  # those with a gradient
    grads: tuple[Value, ...] = ()  # of the loss sum, by them
    updated: tuple[Parameter, ...] = ()  # those that its optimiser step updates
    update_key: Hashable = False  # what its update depends on besides `parameters`
    options: dict[str, Any] = field(default_factory=dict)  # of compile
    statistics: tuple[Stored, ...] = ()  # arrays of the model that it writes before its optimiser step
    layout: MetricLayout = EMPTY  # of the outputs after loss, weight and predictions
    join: Join | None = None  # whose joined rows it reads
    watched: Any = None  # the program of its watched values

    @property
    def needs_truth(self) -> bool:
        """Whether its outputs are compared with labels and row weights: those of metrics that are pairs are not."""
        return self.has_predictions or bool(self.layout.per_row) or self.layout.outputs is not None

    def extra(self, outputs: list[T]) -> list[T]:
        """The outputs of metrics, among the outputs or their arrays."""
        first = (3 if self.has_predictions else 2) + self.layout.loss_size
        return outputs[first : first + self.layout.size]

    def loss_outputs(self, outputs: list[T]) -> list[T]:
        """The pairs of several losses, among the outputs or their arrays."""
        first = 3 if self.has_predictions else 2
        return outputs[first : first + self.layout.loss_size]

    def losses(self, columns: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The pairs of several losses by name, [micro-batches, pairs, 2] with sum and weight; columns: loss_outputs."""
        left = iter(columns)
        return {
            name: np.stack([next(left).reshape(-1) for _ in range(2 * pairs)], axis=1).reshape(-1, pairs, 2)
            for name, pairs in self.layout.losses
        }

    def first_bad(self, settings: dict[str, Any], place: Namer = row_of) -> str:
        """The first value that is not finite in this step, which has just failed with these settings. place: see
        diagnose.first_bad."""
        return first_bad(self.run, self.outputs, self.updates, settings, place, **self.options)
