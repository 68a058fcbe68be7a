"""Where a step's rows come from: gathered by the program itself out of a data set, or fed by the caller."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np

from .. import ops
from ..base.arrays import as_array, check_no_tuple, check_whole, odd_object, uneven
from ..base.dtypes import DType, dtype, f32, i32
from ..base.errors import DataError, DTypeError, ShapeError
from ..data.dataset import IGNORED, Dataset
from ..graph.leaves import constant, setting, stored_value
from ..graph.leaves import input as input_value
from ..graph.stored import Stored, trainable_changes
from ..graph.value import Value

Leaves = tuple[Value, "Value | None", "Value | None"]

_GATHERED = ("uint8", "int8", "int32", "int64", "float32", "float64")  # what take_batch reads


def batch_kind(kind: DType) -> DType:
    """The dtype of a batch of data of this dtype: i32 for i32 and i64, which may be ids, else f32."""
    return i32 if kind.name in ("i32", "i64") else f32


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

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self._begin(data.n, data.has_ids)
        self._data = _wrapped("data", data.data)
        self._labels = None if data.labels is None else _wrapped("labels", data.labels)
        self._weights = None if data.weights is None else _wrapped("weights", data.weights)
        self._folds = None if data.folds is None else _wrapped("folds", data.folds)

    def _begin(self, n: int, has_ids: bool) -> None:
        self.n, self._has_ids = n, has_ids  # labels are class ids
        self.order = Stored.deferred("order", (n,), lambda: np.arange(n), "i64")
        self._order = stored_value(self.order)

    @property
    def all_count(self) -> bool:
        """Whether no label is ignored."""
        return not self._has_ids or self.data.all_count

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays of the data set, without what a run computes."""
        data = self.data
        labels = data.labels[..., : -data.computed] if data.computed and data.labels is not None else data.labels
        return [a for a in (data.data, labels, data.weights, data.folds) if a is not None]

    @property
    def stored(self) -> list[Stored]:
        """The arrays of the data set as programs read them."""
        return [v.node.attrs["stored"] for v in (self._data, self._labels, self._weights, self._folds) if v is not None]

    @property
    def key(self) -> Hashable:
        return ("rows", id(self._data), trainable_changes(), self.join)

    def joined_by(self, join: Join) -> RowSource:
        """The same rows, in batches of this join."""
        joined = copy(self)
        joined.join = join
        return joined

    def leaves(self, rows: int, kind: DType | None = None) -> Leaves:
        """(data, labels, weights) of a batch of n rows. kind: of the data, f32 or i32; by default that of batch_kind.
        DTypeError for floats where whole numbers are required."""
        if kind is None:
            kind = batch_kind(self._data.dtype)
        if kind is i32 and self._data.dtype.is_float:
            raise DTypeError(f"data: {self._data.dtype.name}, but the model's input is i32; need whole numbers")
        x = self._gather(self._data, rows, ids=kind is i32)
        labels = None if self._labels is None else self._gather(self._labels, rows, ids=self._has_ids)
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

    def truth(self, start: int, stop: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Labels and weights of these rows."""
        rows, data = self.order.read()[start:stop], self.data
        return None if data.labels is None else data.labels[rows], None if data.weights is None else data.weights[rows]


class PlannedSource(RowSource):
    """Rows of which only the number and the shapes are known: steps on them are planned and never run."""

    def __init__(self, n: int, row: Sequence[int], labels: Sequence[int], has_ids: bool = True) -> None:
        """row, labels: the shapes of a row of i32 data and of its labels, i32 ids, or f32."""
        self._begin(n, has_ids)
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


def _wrapped(name: str, array: np.ndarray) -> Value:
    if array.dtype.name not in _GATHERED or not array.flags.c_contiguous or not array.flags.aligned:
        array = np.require(array, np.float32 if array.dtype == np.float16 else None, ["C", "A"])
    return stored_value(Stored.wrap(name, array, "state" if array.flags.writeable else "frozen"))


class FeedSource:
    """Rows that the caller hands over with each step: batch [rows, ...], labels [rows, ...], weights [rows].

    kind: the dtype of the model's input, f32 or i32, where it declares one. looks: the computation depends on whether
    labels are ignored.
    """

    join = None  # the rows are a whole batch

    def __init__(
        self, x: Any, labels: Any = None, weights: Any = None, kind: DType | None = None, looks: bool = False
    ) -> None:
        data = numbers("batch", x)
        if data.ndim == 0 or data.shape[0] == 0:
            raise ShapeError(f"batch: shape {list(data.shape)}; need rows along the first axis")
        self.arrays: list[np.ndarray | None] = [_as_batch(data, kind), None, None]
        self.all_count = looks
        if labels is not None:
            given = numbers("labels", labels)
            if given.ndim == 0 or len(given) != len(data):
                raise ShapeError(f"labels: shape {list(given.shape)}; need {len(data)} rows, one for each of the batch")
            fed = self.arrays[1] = _as_fed("labels", given, ids=given.dtype.kind in "iub")
            self.all_count = looks and not bool(np.any(fed == IGNORED))
        if weights is not None:
            per_row = self.arrays[2] = _as_fed("weights", numbers("weights", weights), ids=False)
            if per_row.shape != (len(data),):
                raise ShapeError(
                    f"weights: shape {list(per_row.shape)}; need [{len(data)}], one for each row of the batch"
                )
            bad = np.flatnonzero(~(np.isfinite(per_row) & (per_row >= 0)))
            if bad.size:
                row = int(bad[0])
                raise DataError(f"weights: {per_row.flat[row]} in row {row}; need finite numbers of at least 0")

    @property
    def key(self) -> Hashable:
        kinds = [None if a is None else (a.shape, a.dtype.str) for a in self.arrays]
        return ("feed", trainable_changes(), self.all_count, *kinds)

    def leaves(self, rows: int, kind: DType | None = None) -> Leaves:
        """As RowSource.leaves."""
        x, labels, weights = (
            None if a is None else input_value(name, a.shape, (name == "batch" and kind) or dtype(a.dtype))
            for name, a in zip(("batch", "labels", "weights"), self.arrays, strict=True)
        )
        assert x is not None
        return x, labels, weights

    def left_out(self, rows: int, members: int) -> None:
        """None: rows that are handed over are in no fold."""

    @property
    def rows(self) -> int:
        assert self.arrays[0] is not None
        return len(self.arrays[0])

    @property
    def feeds(self) -> dict[str, Any]:
        return {n: a for n, a in zip(("batch", "labels", "weights"), self.arrays, strict=True) if a is not None}


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


def _as_batch(data: np.ndarray, kind: DType | None) -> np.ndarray:
    """The data as they are fed: whole numbers beyond i32 as i64, where the model's input declares no dtype."""
    if kind is None:
        wide = data.dtype == np.int64 and data.size and not -(1 << 31) <= data.min() <= data.max() < 1 << 31
        if wide:
            return np.ascontiguousarray(data)
        return _as_fed("batch", data, data.dtype.name in ("int32", "int64"))
    return _as_fed("batch", data, kind is i32 and data.dtype.kind in "iub")
