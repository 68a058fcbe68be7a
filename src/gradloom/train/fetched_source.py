"""Rows of a MapDataset as the program of a step reads them: out of buffers that hold some rows of the order at a time.

rows first..last of the order -> workers make them -> slots position % capacity of the buffers -> take_batch
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ..base.structures import Structure, by_key, leaf_name, leaves, mapped_by_key
from ..data.dataset import Dataset, Draw
from ..data.fetched import Making, MapDataset
from ..graph.leaves import stored_value
from ..graph.stored import Stored
from ..graph.value import Value
from .source import RowSource

WINDOW_BYTES = 8 << 20  # of rows that are made together, where a batch has fewer
SLOT_BYTES = 8  # of memory for each row of the data set, besides its place in the order


class Slots(Stored):
    """The slot of each position of an order. rows(first, last): the rows of the data set at these positions."""

    __slots__ = ("rows",)
    rows: Callable[[int, int], np.ndarray]


class FetchedSource(RowSource):
    """The rows of a data set that are made when they are read.

    capacity  rows that the buffers hold: some batches. Position p of the order lies in slot p % capacity
    """

    is_windowed = True
    data: MapDataset

    def __init__(self, data: MapDataset) -> None:
        self.data, self.capacity = data, 0
        self.set_up(data.n, data.has_ids)
        self._draw: Draw | None = None
        self._next: Making | None = None  # rows that are made ahead
        self._held = np.empty(0, np.int64)  # the row in each slot, or -1
        self._held_draw: Draw | None = None
        self._columns: dict[str, Stored] = {}
        self._data: Structure = None
        self._labels: Structure = None
        self._weights: Value | None = None
        self._folds: Value | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """None: no array holds them."""
        return []

    @property
    def contents(self) -> list[Any]:
        return self.data.contents

    @property
    def stored(self) -> list[Stored]:
        return [*self._columns.values(), self._order.node.attrs["stored"]]

    @property
    def key(self) -> Hashable:
        return (super().key, self.capacity)

    @property
    def ahead_bytes(self) -> int:
        """Of memory beside the buffers: rows that are made ahead, and those that are being copied."""
        return 2 * sum(stored.bytes for stored in self._columns.values()) + SLOT_BYTES * self.n

    def arrange(self, order: np.ndarray, draw: Draw | None = None) -> None:
        self.order.write(order)
        self._draw = draw

    def reserve(self, rows: int) -> RowSource:
        rows = min(rows, self.n)
        if rows <= self.capacity:
            return self
        data = self.data
        of_row = sum(one.nbytes // data.n for one in (*leaves(data.data), *leaves(data.labels)))
        self.capacity = capacity = min(rows * max(WINDOW_BYTES // max(of_row * rows, 1), 1), data.n)
        self._held, self._columns = np.full(capacity, -1, np.int64), {}

        def buffer(name: str, like: np.ndarray) -> Value:
            kind = np.dtype(np.float32) if like.dtype == np.float16 else like.dtype
            shape = (capacity, *like.shape[1:])
            made = Stored.deferred(name, shape, lambda: np.zeros(shape, kind), kind.name)
            self._columns[name] = made
            return stored_value(made)

        self._data = mapped_by_key(lambda key, one: buffer(leaf_name("data", key), one), data.data)
        if data.labels is not None:
            self._labels = mapped_by_key(lambda key, one: buffer(leaf_name("labels", key), one), data.labels)
        self._weights = None if data.weights is None else buffer("weights", data.weights)
        self._folds = None if data.folds is None else buffer("folds", data.folds)
        n = self.n
        slots = Slots.deferred("slots", (n,), lambda: np.arange(n, dtype=np.int64) % capacity, "i64", "frozen")
        assert isinstance(slots, Slots)
        order = self.order
        slots.rows = lambda first, last: order.read()[first:last]
        self._order = stored_value(slots)
        return self

    def load(self, first: int, rows: int, last: int, backward: bool) -> int:
        order, draw = self.order.read(), self._draw if backward else None
        if draw is not self._held_draw:
            self._held[:], self._held_draw = -1, draw
        held = self._held[np.arange(first, min(first + self.capacity, last)) % self.capacity]
        differ = np.flatnonzero(held != order[first : first + len(held)])
        ready = int(differ[0]) if differ.size else len(held)
        if ready < min(rows, last - first):
            ready += self._fill(first + ready, self.capacity - ready, last, draw)
            following = first + ready
            if self.data.workers and following < last:  # the next steps leave ready % rows of these
                ahead = min(self.capacity - ready % rows, last - following)
                self._next = self.data.begin(order[following : following + ahead].copy(), draw)
        return ready

    def truth(self, start: int, stop: int) -> tuple[Structure | None, np.ndarray | None]:
        rows, data = self.order.read()[start:stop], self.data
        weights = None if data.weights is None else data.weights[rows]
        slots = np.arange(start, stop) % self.capacity
        if stop - start > self.capacity or not np.array_equal(self._held[slots], rows):
            return data.rows_of_labels(rows), weights
        labels = {key: self._columns[leaf_name("labels", key)].read()[slots] for key in by_key(data.labels)}
        return None if data.labels is None else mapped_by_key(lambda key, _: labels[key], data.labels), weights

    def _fill(self, first: int, room: int, last: int, draw: Draw | None) -> int:
        """Put rows into the slots of the positions from this one on: those made ahead, or all that there is room for;
        their number."""
        making, self._next = self._next, None
        rows = self.order.read()[first : min(first + room, last)].copy()
        if making is not None and making.draw is draw and np.array_equal(making.rows, rows[: len(making.rows)]):
            rows = making.rows
        else:
            if making is not None:
                making.cancel()
            making = self.data.begin(rows, draw)
        self._held[np.arange(first, first + len(rows)) % self.capacity] = -1
        for at, x, labels in making.pieces():
            count = len(leaves(x)[0])
            own = rows[at : at + count]
            for name, structure in (("data", x), ("labels", labels)):
                for key, one in by_key(structure).items():
                    self._put(leaf_name(name, key), first + at, one)
            for name, column in (("weights", self.data.weights), ("folds", self.data.folds)):
                if column is not None:
                    self._put(name, first + at, column[own])
            self._held[np.arange(first + at, first + at + count) % self.capacity] = own
        return len(rows)

    def _put(self, name: str, position: int, rows: np.ndarray) -> None:
        """Copy rows into the slots of these positions; they may go around the end of the buffer."""
        column, slot = self._columns[name], position % self.capacity
        before = min(len(rows), self.capacity - slot)
        column.write(rows[:before], slice(slot, slot + before))
        if before < len(rows):
            column.write(rows[before:], slice(0, len(rows) - before))


def source_of(data: Dataset) -> RowSource:
    """How a step's program reads this data set."""
    return FetchedSource(data) if isinstance(data, MapDataset) else RowSource(data)
