"""Joins: the parts of a BatchLoss that come before the gradients of a step of several micro-batches.

values of micro-batch j -> rows of the buffers "values" [batch_rows, ...]     one program for each size of micro-batch
join of these buffers   -> buffers "joined" [batch_rows, ...]                 one program
loss of micro-batch j   reads its rows of "joined": its source is BatchJoin.source, see Objective.graph
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..base.dtypes import i32
from ..base.errors import DataError, IndexOutOfRange, NotFinite, SettingError, ShapeError
from ..graph.leaves import setting, stored_value
from ..graph.stored import Stored, bring_home
from ..graph.streams import fresh_streams
from ..graph.value import Value, describe
from .batch_loss import joined_values
from .batches import CompiledBatch, RowRange
from .compile_cache import CompileCache
from .source import RowSource

EXACT = 1 << 24  # whole numbers below it are exact in f32
AT = "row"  # the setting with the first row of a micro-batch in its batch, also of random numbers

Settings = Callable[[RowRange, int], dict[str, Any]]  # (batch, j): of micro-batch j
Compile = Callable[[Sequence[Value], Sequence[Value]], Any]  # outputs, updates
Failed = NotFinite | IndexOutOfRange  # why a program ended early


@dataclass(frozen=True, eq=False)
class BatchJoin:
    """The join of batches of `rows` rows in micro-batches of `micro`.

    values  size of a micro-batch -> the program that writes its values
    join    the program over the whole batch
    given, joined  the buffers f32 [rows, ...]; whole: for each of `given`, whether it holds whole numbers
    order   i64 [rows]: 0, 1, 2, ...
    """

    rows: int
    micro: int
    values: Mapping[int, CompiledBatch]
    join: CompiledBatch
    given: tuple[Stored, ...]
    joined: tuple[Stored, ...]
    whole: tuple[bool, ...]
    order: Stored

    def leaves(self, rows: int) -> list[Value]:
        """The joined rows of a micro-batch of n rows."""
        order, at = stored_value(self.order), setting(AT, "i64")
        return [ops.take_batch(stored_value(one), order, at, rows=rows) for one in self.joined]

    @property
    def stored(self) -> list[Stored]:
        return [*self.given, *self.joined, self.order]

    @property
    def programs(self) -> list[tuple[CompiledBatch, int]]:
        """Each program, and how often it runs for a batch."""
        whole, rest = divmod(self.rows, self.micro)
        counts = {self.micro: whole, rest: 1}
        return [*((one, counts[size]) for size, one in self.values.items()), (self.join, 1)]

    def run_values(self, size: int, settings: Mapping[str, Any]) -> NotFinite | None:
        """Write the values of a micro-batch; why that failed, with check 2."""
        try:
            self.values[size].run.run_many(1, settings)
        except NotFinite as failed:
            return failed
        return None

    def run_join(self, settings: Mapping[str, Any]) -> NotFinite | None:
        """Write the joined rows, when all values are there. DataError for whole numbers that f32 does not hold."""
        for stored, is_whole in zip(self.given, self.whole, strict=True):
            if is_whole:
                numbers = np.abs(_contents(stored))
                if numbers.max() >= EXACT:
                    row = int(np.unravel_index(np.argmax(numbers), numbers.shape)[0])
                    seen = f"{stored.name} has {numbers.max():.0f} in row {row} of the batch"
                    raise DataError(f"loss: {seen}; need whole numbers below {EXACT}")
        try:
            self.join.run.run_many(1, settings)
        except NotFinite as failed:
            return failed
        return None

    def rows_of(self, first: int, size: int) -> list[np.ndarray]:
        """Copies of the values of a micro-batch, by its first row in the batch."""
        return [_contents(stored)[first : first + size].copy() for stored in self.given]


class Joins:
    """The joins of a trainer, by source, batch and micro-batch.

    compile   the programs of a trainer, see StepPrograms.program
    built     (what, key, build) -> the first result of `build`, whose second one is the values that it built
    settings  those that the micro-batches of a batch run with
    """

    def __init__(
        self,
        objective: Any,  # an Objective, in dp_train a SampleObjective
        cache: CompileCache,
        compile: Compile,
        built: Callable[[str, Hashable, Callable[[], tuple[BatchJoin, list[Value]]]], BatchJoin],
        settings: Settings,
        options: dict[str, Any],
        dynamic: bool,
    ) -> None:
        self._objective, self._cache, self._compile, self._built = objective, cache, compile, built
        self._settings, self._options, self._dynamic = settings, options, dynamic
        self._table: dict[Hashable, BatchJoin] = cache.table()

    @property
    def compiled(self) -> list[CompiledBatch]:
        """The programs that were compiled so far."""
        return [step for join in self._table.values() for step, _ in join.programs]

    def couples(self, rows: RowRange) -> bool:
        """Whether batches of several micro-batches are joined."""
        return bool(self._objective.couples) and rows.micro_size < rows.batch_size

    def of(self, batch: RowRange) -> BatchJoin | None:
        """That of a batch; None where it is a single micro-batch, or nothing couples its rows."""
        if not self._objective.couples or batch.count <= batch.micro_size:
            return None
        if self._dynamic:
            text = "{dynamic} with a BatchLoss requires {micro_batch_size} = {batch_size}"
            raise SettingError(text, dynamic=True, micro_batch_size=..., batch_size=...)
        key = batch.source.key, batch.count, batch.micro_size, batch.backward
        return self._cache.get(
            self._table, key, batch.backward, lambda: self._built("join", key, lambda: self._build(batch))
        )

    def source(self, rows: RowRange, row: int) -> RowSource:
        """Where the micro-batches of the batch that contains this row take their rows from."""
        join = self.of(rows.batch_at(row)) if self.couples(rows) else None
        return rows.source if join is None else rows.source.joined_by(join)

    def fill(self, batch: RowRange) -> Failed | None:
        """Compute the joined rows of a batch; why that failed, where a value is not finite (with check 2) or an index
        is out of range."""
        join = self.of(batch)
        if join is None:
            return None
        try:
            batch.source.load(batch.start, batch.count, batch.stop, batch.backward)
            for j in range(batch.micro_batches):
                failed = join.run_values(batch.micro_batch(j)[1], self._settings(batch, j))
                if failed is not None:
                    return failed
            return join.run_join(self._settings(batch, 0))
        except IndexOutOfRange as failed:
            return failed

    def cause(self, batch: RowRange) -> str | None:
        """Where values or joined rows of a batch are not finite: computed again, the first node that is not. None where
        they are."""
        join = self.of(batch)
        if join is None:
            return None
        for j in range(batch.micro_batches):
            (first, size), at = batch.micro_batch(j), self._settings(batch, j)
            failed = join.run_values(size, at)
            if failed is not None or not all(np.isfinite(a).all() for a in join.rows_of(first - batch.start, size)):
                return join.values[size].first_bad(at)
        at = self._settings(batch, 0)
        if join.run_join(at) is not None or not all(np.isfinite(_contents(one)).all() for one in join.joined):
            return join.join.first_bad(at)
        return None

    def _build(self, batch: RowRange) -> tuple[BatchJoin, list[Value]]:
        """The programs of such a batch, and their values."""
        rows, micro, objective = batch.count, batch.micro_size, self._objective
        sizes = dict.fromkeys(batch.micro_batch(j)[1] for j in (0, batch.micro_batches - 1))
        graphs = {size: objective.values(batch.source, size, batch.backward) for size in sizes}
        first = graphs[micro]
        for size, values in graphs.items():
            if [(v.shape[1:], v.dtype) for v in values] != [(v.shape[1:], v.dtype) for v in first]:
                seen = ", ".join(describe(v) for v in values)
                raise ShapeError(f"loss: the values of {size} rows are {seen}; need the shapes of those of {micro}")
        given = _buffers("values", first, rows)
        written = {
            size: tuple(
                ops.set_rows(stored_value(one), ops.cast(v, "f32") if v.dtype is i32 else v, setting(AT, "i64"))
                for one, v in zip(given, values, strict=True)
            )
            for size, values in graphs.items()
        }
        whole = tuple(v.dtype is i32 for v in first)
        leaves = [stored_value(one) for one in given]
        read = [ops.cast(leaf, "i32") if is_whole else leaf for leaf, is_whole in zip(leaves, whole, strict=True)]
        with fresh_streams():
            values = joined_values(objective.loss, read, rows)
        joined = _buffers("joined", values, rows)
        pairs = zip(joined, values, strict=True)
        updates = ops.assign(*(v for one, new in pairs for v in (stored_value(one), new)))
        order = Stored("rows of the batch", np.arange(rows), "i64", "frozen")
        join = BatchJoin(
            rows, micro, {size: self._compiled(one) for size, one in written.items()}, self._compiled(updates),
            given, joined, whole, order,
        )  # fmt: skip
        return join, [*(v for one in written.values() for v in one), *updates]

    def _compiled(self, updates: Sequence[Value]) -> CompiledBatch:
        return CompiledBatch(self._compile([], updates), False, [], tuple(updates), options=self._options)


def _buffers(name: str, values: Sequence[Value], rows: int) -> tuple[Stored, ...]:
    """A buffer of n rows for each value, whose memory is allocated at first use."""
    shapes = [(rows, *v.shape[1:]) for v in values]
    return tuple(Stored.deferred(f"{name} {i}", s, partial(np.zeros, s, np.float32)) for i, s in enumerate(shapes))


def _contents(stored: Stored) -> np.ndarray:
    bring_home((stored,))
    return stored.read()
