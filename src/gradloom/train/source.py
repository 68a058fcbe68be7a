"""Where a step's rows come from: gathered by the program itself out of a data set, or fed by the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np

from .. import ops
from ..base.arrays import as_array, check_no_tuple, check_whole, odd_object, uneven
from ..base.dtypes import DType, dtype, f32, i32
from ..base.errors import DataError, DTypeError, FileError, ShapeError
from ..base.reasons import unreadable
from ..base.structures import (
    Key,
    Structure,
    as_several,
    by_key,
    check_rows,
    is_plain,
    leaf_name,
    leaves,
    mapped_by_key,
    named,
    place,
)
from ..data.dataset import IGNORED, Dataset, Draw
from ..graph.leaves import constant, setting, stored_value
from ..graph.leaves import input as input_value
from ..graph.stored import Stored, trainable_changes
from ..graph.value import Value

Leaves = tuple[Structure, "Structure | None", "Value | None"]  # data, labels, weights
Kinds = dict[Key, DType]  # dtypes of data by key, where they differ from those of batch_kind

NO_KINDS: Kinds = {}

_GATHERED = ("uint8", "int8", "int32", "int64", "float32", "float64")  # what take_batch reads


def batch_kind(kind: DType) -> DType:
    """The dtype of a batch of data of this dtype: i32 for i32 and i64, which may be ids, else f32."""
    return i32 if kind.name in ("i32", "i64") else f32


def _narrow(data: Structure) -> list[Key]:
    """The keys of data that are f32 to a model, or i32 where it needs whole numbers."""
    return [key for key, one in by_key(data).items() if one.dtype.name in ("u8", "i8", "uint8", "int8")]


class Join(Protocol):
    """The join of a batch of `rows` rows, as a BatchLoss in micro-batches reads it; see joins.py."""

    @property
    def rows(self) -> int: ...

    @property
    def stored(self) -> list[Stored]:
        """Its buffers."""

    @property
    def programs(self) -> list[tuple[Any, int]]:
        """Each program (CompiledBatch), and how often it runs for a batch."""

    def leaves(self, rows: int) -> list[Value]:
        """The joined rows of a micro-batch of n rows."""


class RowSource:
    """Rows of a data set in some order: x[i] = data[order[position + i]], converted, with position a setting.

    join: of a BatchLoss, of the batches that these rows belong to; None: each batch is joined in its own program
    """

    join: Join | None = None
    is_windowed = False  # only some rows are ready at a time: see load
    begins = True  # a run of these rows begins a pass or resumes it: ranks compare their state
    called = "the order of the rows"  # in messages: what `compared` returns

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.set_up(data.n, data.has_ids)
        self._data = _wrapped_each("data", data.data)
        self._labels = None if data.labels is None else _wrapped_each("labels", data.labels)
        self._weights = None if data.weights is None else _wrapped("weights", data.weights)
        self._folds = None if data.folds is None else _wrapped("folds", data.folds)

    def arrange(self, order: np.ndarray, draw: Draw | None = None) -> None:
        """Set the order of the rows. draw: what random numbers of its training rows depend on, see MapDataset."""
        self.order.write(order)

    def reserve(self, rows: int) -> RowSource:
        """Itself, ready for steps that read up to n rows at once."""
        return self

    def load(self, first: int, rows: int, last: int, backward: bool) -> int:
        """Make rows first .. first + rows of the order ready, which a step reads. last: rows up to here follow; the
        number of them that are ready. backward: they are trained on."""
        return last - first

    def set_up(self, n: int, has_ids: bool) -> None:
        """The order of n rows."""
        self.n, self._has_ids = n, has_ids  # labels, if there is one array of them, are class ids
        self.order = Stored.deferred("order", (n,), lambda: np.arange(n), "i64")
        self._order = stored_value(self.order)

    @property
    def ahead_bytes(self) -> int:
        """Of memory for rows that are not ready yet."""
        return 0

    @property
    def all_count(self) -> bool:
        """Whether no label is ignored."""
        return self.data.all_count

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays of the data set, without what a run computes."""
        data = self.data
        labels = data.labels[..., : -data.computed] if data.computed and data.labels is not None else data.labels
        every = [*leaves(data.data), *leaves(labels), data.weights, data.folds]
        return [a for a in every if a is not None]

    @property
    def contents(self) -> list[Any]:
        """The arrays, after their names where data or labels are several: what identifies the data set."""
        data = self.data
        if is_plain(data.data) and is_plain(data.labels):
            return list(self.arrays)
        return [*named("data", data.data), *named("labels", data.labels), *self.arrays]

    @property
    def stored(self) -> list[Stored]:
        """The arrays of the data set as programs read them."""
        every = [*leaves(self._data), *leaves(self._labels), self._weights, self._folds]
        return [v.node.attrs["stored"] for v in every if v is not None]

    @property
    def narrow(self) -> list[Key]:
        """The keys of data of u8 and i8."""
        return _narrow(self._data)

    @property
    def key(self) -> Hashable:
        return ("rows", id(self._data), trainable_changes(), self.join)

    def joined_by(self, join: Join) -> RowSource:
        """The same rows, in batches of this join."""
        joined = copy(self)
        joined.join = join
        return joined

    def leaves(self, rows: int, kinds: Kinds = NO_KINDS) -> Leaves:
        """(data, labels, weights) of a batch of n rows. kinds: of the data, f32 or i32; by default that of batch_kind.
        DTypeError for floats where whole numbers are required."""

        def one(key: Key, leaf: Value) -> Value:
            kind = kinds.get(key) or batch_kind(leaf.dtype)
            if kind is i32 and leaf.dtype.is_float:
                seen = f"{place('data', key)}: {leaf.dtype.name}"
                raise DTypeError(f"{seen}, but the model's input is i32; need whole numbers")
            return self._gather(leaf, rows, ids=kind is i32)

        def label(key: Key, leaf: Value) -> Value:
            ids = self._has_ids if key is None else not leaf.dtype.is_float
            return self._gather(leaf, rows, ids)

        x = mapped_by_key(one, self._data)
        labels = None if self._labels is None else mapped_by_key(label, self._labels)
        weights = None if self._weights is None else self._gather(self._weights, rows, ids=False)
        return x, labels, weights

    def left_out(self, rows: int, members: int) -> Value | None:
        """1 where a member of an ensemble is not trained on a row of such a batch, and 0 elsewhere, f32 [rows,
        members]: member m leaves out fold m, modulo their number. None where the data set has no folds."""
        if self._folds is None or self.data.folds is None:
            return None
        own = constant(np.arange(members, dtype=np.int32) % (int(self.data.folds.max()) + 1), "i32")
        folds = ops.reshape(self._gather(self._folds, rows, ids=True), (rows, 1))
        return ops.where(ops.equal(folds, own), 1.0, 0.0)

    def _gather(self, leaf: Value, rows: int, ids: bool) -> Value:
        position = setting("position", "i64")
        return ops.take_batch(leaf, self._order, position, rows=rows, kind="i32" if ids else "f32")

    def reported(self, start: int, stop: int) -> tuple[np.ndarray, Structure | None]:
        """Numbers, i64 [n], and labels of these rows in the order, for callbacks."""
        return self.order.read()[start:stop].copy(), self.truth(start, stop)[0]

    def compared(self, start: int, stop: int) -> list[np.ndarray]:
        """Of these rows, the arrays that ranks compare before each run."""
        return [self.order.read()[start:stop]]

    def truth(self, start: int, stop: int) -> tuple[Structure | None, np.ndarray | None]:
        """Labels and weights of these rows."""
        rows, data = self.order.read()[start:stop], self.data
        return data.rows_of_labels(rows), None if data.weights is None else data.weights[rows]


class PlannedSource(RowSource):
    """Rows of which only the number and the shapes are known: steps on them are planned and never run."""

    def __init__(self, n: int, row: Sequence[int], labels: Sequence[int], has_ids: bool = True) -> None:
        """row, labels: the shapes of a row of i32 data and of its labels, i32 ids, or f32."""
        self.set_up(n, has_ids)
        self._data = stored_value(Stored("data", np.broadcast_to(np.int32(0), (n, *row)), "i32"))
        zero, kind = (np.int32(0), "i32") if has_ids else (np.float32(0), "f32")
        self._labels = stored_value(Stored("labels", np.broadcast_to(zero, (n, *labels)), kind))
        self._weights = self._folds = None

    @property
    def all_count(self) -> bool:
        """Not known."""
        return False

    @property
    def arrays(self) -> list[np.ndarray]:
        """None: nothing is there."""
        return []

    @property
    def contents(self) -> list[Any]:
        """None."""
        return []


def _wrapped_each(name: str, arrays: Structure) -> Structure:
    return mapped_by_key(lambda key, array: _wrapped(leaf_name(name, key), array), arrays)


def _wrapped(name: str, array: np.ndarray) -> Value:
    if array.dtype.name not in _GATHERED or not array.flags.c_contiguous or not array.flags.aligned:
        array = np.require(array, np.float32 if array.dtype == np.float16 else None, ["C", "A"])
    stored = Stored.wrap(name, array, "state" if array.flags.writeable else "frozen")
    if isinstance(array, np.memmap) and array.filename is not None:
        stored.check = _check_of(array)
    return stored_value(stored)


def _check_of(array: np.memmap[Any, Any]) -> Callable[[], None]:
    """FileError where the file of a mapped array is too short, which would end the process with a signal, or, where it
    is mapped for reading only, has changed since this call."""
    path, need = os.fspath(array.filename or ""), array.offset + array.nbytes

    def state() -> tuple[int, int]:
        try:
            found = os.stat(path)
        except OSError as error:
            raise FileError(f"{path}: {unreadable(error)}") from None
        return found.st_size, found.st_mtime_ns if array.mode == "r" else 0

    first = state()

    def check() -> None:
        size, written = state()
        if size < need or written != first[1]:
            raise FileError(f"{path}: has changed since it was mapped; map it again")

    check()
    return check


class FeedSource:
    """Rows that the caller hands over with each step: batch [rows, ...], labels [rows, ...], weights [rows]; batch and
    labels may be dicts or tuples of arrays.

    kinds: the dtypes of the model's inputs, f32 or i32, where it declares them. looks: the computation depends on
    whether labels are ignored.
    """

    join = None  # the rows are a whole batch

    def __init__(
        self, x: Any, labels: Any = None, weights: Any = None, kinds: Kinds = NO_KINDS, looks: bool = False
    ) -> None:
        self.data = _fed_each("batch", x, lambda key, data: _as_batch(data, key, kinds.get(key)))
        self.rows = rows = check_rows("batch", self.data)
        self.labels = self.weights = None
        self.all_count = looks
        if labels is not None:
            self.labels = _fed_each("labels", labels, lambda key, given: _as_fed_labels(given, key, rows))
            self.all_count = looks and not any(bool(np.any(fed == IGNORED)) for fed in leaves(self.labels))
        if weights is not None:
            per_row = self.weights = _as_fed("weights", numbers("weights", weights), ids=False)
            if per_row.shape != (rows,):
                raise ShapeError(f"weights: shape {list(per_row.shape)}; need [{rows}], one for each row of the batch")
            bad = np.flatnonzero(~(np.isfinite(per_row) & (per_row >= 0)))
            if bad.size:
                row = int(bad[0])
                raise DataError(f"weights: {per_row.flat[row]} in row {row}; need finite numbers of at least 0")
        self.feeds: dict[str, np.ndarray] = {}
        for what, one in (("batch", self.data), ("labels", self.labels), ("weights", self.weights)):
            if one is not None:
                self.feeds |= {what: one} if is_plain(one) else named(what, one)

    @property
    def narrow(self) -> list[Key]:
        """As RowSource.narrow."""
        return _narrow(self.data)

    @property
    def key(self) -> Hashable:
        kinds = [(name, a.shape, a.dtype.str) for name, a in self.feeds.items()]
        return ("feed", trainable_changes(), self.all_count, *kinds)

    def leaves(self, rows: int, kinds: Kinds = NO_KINDS) -> Leaves:
        """As RowSource.leaves."""

        def one(key: Key, array: np.ndarray) -> Value:
            own = f32 if array.dtype.itemsize == 1 else dtype(array.dtype)
            return input_value(leaf_name("batch", key), array.shape, kinds.get(key) or own)

        def label(key: Key, array: np.ndarray) -> Value:
            return input_value(leaf_name("labels", key), array.shape, dtype(array.dtype))

        x = mapped_by_key(one, self.data)
        labels = None if self.labels is None else mapped_by_key(label, self.labels)
        weights = None if self.weights is None else input_value("weights", self.weights.shape, f32)
        return x, labels, weights

    def left_out(self, rows: int, members: int) -> None:
        """None: rows that are handed over are in no fold."""


def _fed_each(name: str, what: Any, one: Callable[[Key, np.ndarray], np.ndarray]) -> Structure:
    """one(key, array) of one array or of each of several."""
    found = None if what.__class__ is np.ndarray else as_several(name, what)
    if found is None:
        return one(None, numbers(name, what))
    return mapped_by_key(lambda key, each: one(key, numbers(place(name, key), each)), found)


def numbers(name: str, what: Any, also: Collection[str] = ()) -> np.ndarray:
    """An array of numbers; ShapeError for rows of different lengths, DTypeError for anything but NumPy's numbers and
    the dtypes in `also`."""
    check_no_tuple(name, what)
    try:
        array = as_array(name, what)
    except ValueError:
        raise ShapeError(f"{name}: rows of different lengths: {uneven(what)}; need one array") from None
    if array.dtype == object:
        raise DTypeError(f"{name}: dtype object{odd_object(array)}; need an array of numbers")
    if array.dtype.kind not in "fiub" and array.dtype.name not in also:
        raise DTypeError(f"{name}: dtype {array.dtype}; need numbers")
    return array


def check_ids(name: str, array: np.ndarray, kind: Any) -> None:
    """IndexOutOfRange for ids that do not fit into this dtype."""
    check_whole(name, array, kind, f"need ids below {np.iinfo(kind).max + 1}")


def _as_fed(name: str, array: np.ndarray, ids: bool) -> np.ndarray:
    if ids:
        check_ids(name, array, np.int32)
    return np.ascontiguousarray(array, np.int32 if ids else np.float32)


def _as_batch(data: np.ndarray, key: Key, kind: DType | None) -> np.ndarray:
    """The data as they are fed: where the model's input declares no dtype, u8, i8 and bool as they are, wider whole
    numbers as i32, or beyond it as i64."""
    name = place("batch", key)
    if data.ndim == 0 or data.shape[0] == 0:
        raise ShapeError(f"{name}: shape {list(data.shape)}; need rows along the first axis")
    whole = data.dtype.kind in "iub"
    if kind is not None or not whole:
        return _as_fed(name, data, kind is i32 and whole)
    if data.dtype.itemsize == 1:
        return np.ascontiguousarray(data.view(np.uint8) if data.dtype == bool else data)
    if data.dtype.itemsize < 4 or not data.size or -(1 << 31) <= data.min() <= data.max() < 1 << 31:
        return _as_fed(name, data, ids=True)
    check_whole(name, data, np.int64)
    return np.ascontiguousarray(data, np.int64)


def _as_fed_labels(given: np.ndarray, key: Key, rows: int) -> np.ndarray:
    name = place("labels", key)
    if given.ndim == 0 or len(given) != rows:
        raise ShapeError(f"{name}: shape {list(given.shape)}; need {rows} rows, one for each of the batch")
    return _as_fed(name, given, ids=given.dtype.kind in "iub")
