"""Data sets in memory or mapped from files, their order, and batches of them.

A data set never copies its rows: a batch is gathered and converted when it is asked for. Rows are grouped into shards
of `shard_size` consecutive rows; a shard is the unit of shuffling, so that rows which belong together stay together.
Nothing has to divide anything: the last shard and the last batch are simply shorter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import what_is
from ..base.arrays import as_array, check_no_tuple, check_whole, odd_object, uneven
from ..base.errors import DataError, DTypeError, SettingError, ShapeError
from ..base.habits import AttributeHints, KeywordHints
from ..base.schema import shown
from ..base.structures import (
    Key,
    Structure,
    as_several,
    at,
    check_rows,
    leaves,
    mapped,
    mapped_by_key,
    named,
    place,
)

_DATA = ("uint8", "int8", "int32", "int64", "float32", "float64", "float16")
_WIDENED = {"bool": "uint8", "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
IGNORED = -100  # the label id of a row that counts for nothing

# Streams of random numbers drawn from one seed; each use has its own, so that none of them repeats another.
_SPLIT, _ORDER, _FOLDS, _ROW = 1, 2, 4, 5


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A generator that depends on nothing but the seed and the stream."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(setting="seed", seen=seed, need="a whole number of at least 0")
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=stream))


class Draw(NamedTuple):
    """What random numbers of a training row depend on, besides the row: the seed, the number of the epoch, and all
    training rows, from which a row may be mixed with another."""

    seed: int
    epoch: int
    rows: np.ndarray

    def of_row(self, row: int) -> np.random.Generator:
        """The random numbers of this row."""
        return generator(self.seed, _ROW, self.epoch, int(row))


class Batch(NamedTuple):
    """Rows of a data set, converted: data f32 (or i32 ids), labels i32 ids or f32 rows or None, weights f32 or None.
    Data and labels of several arrays are dicts or tuples of such."""

    data: Structure
    labels: Structure | None
    weights: np.ndarray | None


class Dataset(KeywordHints, AttributeHints):
    """Rows of `data`, with labels and row weights when there are some.

    data     (n, ...) u8 i8 i32 i64 f16 f32 f64; an array, a memory-mapped array, or anything NumPy makes an array of;
             a copy of other whole numbers: i16 and u16 as i32, u32 and u64 as i64, bool as u8, and of swapped bytes.
             To a model u8 and i8 are f32, or i32 where it needs ids
    labels   (n,) whole-number class ids; or (n, ...) ids, one for each position, or yes-or-no labels; or (n, ...) float
             label rows or targets; or None. Whole numbers of -100 are ignored
    weights  (n,) finite and not negative, or None: every row weighs 1; labels of a sequence weigh what their row does

    Of a model with several inputs `data` is a dict of arrays by the names of its parameters, or a tuple of arrays in
    their order; `labels` likewise, by the keys or positions of the outputs. All have n rows. The order of the keys of a
    dict is of no importance. A tuple of numbers or lists is one array.

        Dataset({"u": u, "v": v}, {"class": ids, "value": targets}),  Dataset((u, v), ids)

    A row of weight 0, or whose ids are all -100, does not count; DataError when no row does. ShapeError for arrays of
    different numbers of rows, and for a tuple as data without labels, which could be (x, y); DTypeError for other
    dtypes.
    """

    has_known_labels = True  # not made with the rows when these are read: see MapDataset

    def __init__(
        self,
        data: object,
        labels: object | None = None,
        shard_size: int = 1,
        weights: object | None = None,
    ) -> None:
        self.data: Any = _each("data", data, _as_data)
        if isinstance(self.data, tuple) and labels is None:
            seen = f"data: a tuple of {len(self.data)} arrays, without labels"
            raise ShapeError(f"{seen}; need labels as an argument: (x, y) as x, y; or several inputs as a dict")
        self.n = check_rows("data", self.data)
        if self.n == 0:
            raise DataError("data: 0 rows; need at least 1")
        if isinstance(shard_size, bool) or not isinstance(shard_size, (int, np.integer)) or shard_size < 1:
            raise SettingError(setting="shard_size", seen=shard_size, need="a whole number of at least 1")
        self.shard_size = int(shard_size)
        self.labels: Any = None if labels is None else self._labels(labels)
        self.weights = None if weights is None else _as_weights(weights, self.n)
        self._all_count: bool | None = None
        self._idle = self._find_idle()
        self.check_counted()
        self.folds: np.ndarray | None = None  # see in_folds
        self.computed = 0  # last columns of labels that a run computes: they do not identify the data
        self.records: dict[str, dict[str, Any]] = {}  # the encoding of the rows, see gl.train.identity
        self._order = np.arange(self.shards, dtype=np.int64)

    def _labels(self, what: object) -> Structure:
        return _each("labels", what, lambda one, name: _as_labels(one, name, self.n))

    def _find_idle(self) -> np.ndarray | None:
        """Which rows do not count, bool [n]; None where all do."""
        idle = np.zeros(self.n, bool)
        found = leaves(self.labels)
        if found and all(array.dtype.kind == "i" for array in found):
            idle |= np.logical_and.reduce([(array == IGNORED).reshape(self.n, -1).all(axis=1) for array in found])
        if self.weights is not None:
            idle |= self.weights == 0
        return idle if idle.any() else None

    def check_counted(self, rows: np.ndarray | None = None, what: str = "data") -> None:
        """DataError when none of these rows (of all when None) counts: there is no loss to measure."""
        if self._idle is None or (rows is not None and not len(rows)):
            return
        if (self._idle if rows is None else self._idle[rows]).all():
            reasons = [f"labels of {IGNORED}"] * self.has_ids + ["weights of 0"] * (self.weights is not None)
            count = self.n if rows is None else len(rows)
            raise DataError(
                f"{what}: no row of {count} counts ({' or '.join(reasons)}); need at least one row that counts"
            )

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        every = named("data", self.data) | named("labels", self.labels)
        arrays = ", ".join(f"{name} {array.dtype}{list(array.shape[1:])}" for name, array in every.items())
        labels = ", no labels" if self.labels is None else ""
        return f"Dataset({self.n} rows, {arrays}{labels}, {self.shards} shards)"

    @property
    def shape(self) -> Any:
        """Shape of one row of the data; of several arrays a dict or tuple of shapes."""
        return mapped(_row_shape, self.data)

    @property
    def label_shape(self) -> Any:
        """Shape of one row of the labels: () for ids; of several arrays a dict or tuple of shapes."""
        return () if self.labels is None else mapped(_row_shape, self.labels)

    @property
    def has_ids(self) -> bool:
        """True when the labels are class ids, all of several."""
        return self.labels is not None and all(map(is_ids, leaves(self.labels)))

    @property
    def all_count(self) -> bool:
        """True when no label is ignored (-100)."""
        if self._all_count is None:
            self._all_count = not any(bool((one == IGNORED).any()) for one in leaves(self.labels) if is_ids(one))
        return self._all_count

    @property
    def shards(self) -> int:
        """Number of shards; the last one may be shorter."""
        return -(-self.n // self.shard_size)

    # -- order ---------------------------------------------------------------------------------------------------

    def shuffle(self, rng: np.random.Generator, shards: int | None = None) -> None:
        """Permute the first `shards` shards of the current order (all of them when None); the rest stay."""
        count = self.shards if shards is None else int(shards)
        if not 0 <= count <= self.shards:
            raise SettingError(setting="shards", seen=shards, need=f"0..{self.shards}, the shards of this data set")
        order = self._order.copy()  # who reads the old one meanwhile keeps it
        order[:count] = rng.permutation(order[:count])
        self._order = order

    def permutation(self, rng: np.random.Generator) -> np.ndarray:
        """A fresh order of all rows, i64: shards permuted, the rows inside a shard in their own order."""
        return self._rows(rng.permutation(self.shards).astype(np.int64))

    def rows(self) -> np.ndarray:
        """The current order of all rows, i64."""
        return self._rows(self._order)

    def order(self, seed: int, epoch: int, rows: np.ndarray | None = None) -> np.ndarray:
        """The order of the rows in this epoch, i64: a function of seed and epoch only.

        rows: the part of the data set to order (a training part); runs of rows of one shard stay together.
        """
        rng = generator(seed, _ORDER, int(epoch))
        if rows is None:
            return self.permutation(rng)
        rows = np.asarray(rows, dtype=np.int64)
        if self.shard_size == 1 or rows.size == 0:
            return rng.permutation(rows)
        shard = rows // self.shard_size
        start = np.flatnonzero(np.concatenate(([True], shard[1:] != shard[:-1])))
        length = np.diff(np.append(start, rows.size))
        pick = rng.permutation(start.size)
        # position of each row: its run's start, plus 0, 1, 2, ... inside the run
        inside = np.arange(rows.size) - np.repeat(np.cumsum(length[pick]) - length[pick], length[pick])
        return rows[np.repeat(start[pick], length[pick]) + inside]

    def split(self, val_split: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(training rows, validation rows), i64: one permutation by the seed, its last val_split share for validation.

        Whole shards go to one side or the other; both sides get at least one.
        """
        return split_rows(self.n, val_split, seed, self.shard_size)

    def in_folds(self, count: int, seed: int) -> Dataset:
        """The same rows with `folds`, i32 [n]: `count` folds of equal size, drawn by the seed. Rows of a shard are in
        one fold."""
        if not 2 <= count <= self.shards:
            raise DataError(f"folds={count}: {self.n} rows in {self.shards} shards; need from 2 to {self.shards}")
        of_shard = np.empty(self.shards, np.int32)
        of_shard[generator(seed, _FOLDS).permutation(self.shards)] = np.arange(self.shards) % count
        made = copy.copy(self)
        made.folds = np.repeat(of_shard, self.shard_size)[: self.n]
        return made

    def state(self) -> dict[str, Any]:
        """The current order: "order", i64 [shards]."""
        return {"order": self._order.copy()}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`; DataError for the order of another data set."""
        order = values.get("order")
        is_order = isinstance(order, np.ndarray) and order.dtype == np.int64 and order.shape == (self.shards,)
        if order is None or not is_order or not np.array_equal(np.sort(order), np.arange(self.shards)):
            seen = shown(order)
            raise DataError(f"load: order of a data set: {seen}; need each of {self.shards} shards once, i64")
        self._order = order.copy()

    def _rows(self, shards: np.ndarray) -> np.ndarray:
        if self.shard_size == 1:
            return shards.copy()
        return _shard_rows(shards, self.shard_size, self.n)

    # -- batches -------------------------------------------------------------------------------------------------

    def batch(self, i0: int, rows: int, order: np.ndarray | None = None, dtype: str | None = None) -> Batch:
        """Rows i0 .. i0 + rows of an order (the current one when None), converted; fewer at the end of the data set.

        dtype: "f32", or "i32" for data that holds ids; by default f32, and each of several arrays i32 where it is i32
        or i64, else f32.
        """
        if dtype not in ("f32", "i32", None):
            raise DTypeError(f"batch: dtype {dtype!r} is not usable; need f32 or i32")
        total = self.n if order is None else len(order)
        if i0 < 0 or rows < 1 or i0 >= total:
            raise DataError(
                f"batch: rows {i0}..{i0 + rows} of {total}; need a start in 0..{total - 1} and at least 1 row"
            )
        if order is not None:
            pick = np.asarray(order[i0 : i0 + rows], dtype=np.int64)
        elif self.shard_size == 1:
            pick = self._order[i0 : i0 + rows]
        else:
            pick = self.rows()[i0 : i0 + rows]
        return self.take(pick, dtype)

    def take(self, rows: np.ndarray, dtype: str | None = None, draw: Draw | None = None) -> Batch:
        """These rows, converted. draw: of training rows, see MapDataset."""

        def label(taken: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(taken, dtype=np.int32 if is_ids(taken) else np.float32)

        def row(key: Key, taken: np.ndarray) -> np.ndarray:
            as_ids = dtype == "i32" or (dtype is None and key is not None and taken.dtype in (np.int32, np.int64))
            kind = np.int32 if as_ids else np.float32
            if as_ids:
                need = "need ids of i32, or features as floats: data.astype(np.float32)"
                check_whole(place("data", key), taken, kind, need)
            return np.ascontiguousarray(taken, dtype=kind)

        weights = None if self.weights is None else self.weights[rows]
        data, labels = self.read(rows, draw)
        return Batch(mapped_by_key(row, data), None if labels is None else mapped(label, labels), weights)

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> tuple[Structure, Structure | None]:
        """(data, labels) of these rows, as they are stored."""
        return mapped(lambda array: array[rows], self.data), self.rows_of_labels(rows)

    def rows_of_labels(self, rows: Any) -> Structure | None:
        """The labels of these rows as they are stored; None without labels."""
        return None if self.labels is None else mapped(lambda array: array[rows], self.labels)

    def get_batch(self, ibatch: int, batch_size: int, dtype: str | None = None) -> Batch:
        """Batch number ibatch of the current order; the last one may be shorter."""
        return self.batch(ibatch * batch_size, batch_size, None, dtype)

    def check_labels(self, classes: int, key: Key = None) -> None:
        """Refuse label ids outside 0..classes-1 (-100 marks an ignored row) and label rows of another length. key: of
        several labels."""
        labels, name = at(self.labels, key), place("labels", key)
        if labels is None:
            raise DataError(f"{name}: there are none; need ids 0..{classes - 1} or rows of {classes} numbers")
        if not is_ids(labels):
            if _row_shape(labels) != (classes,):
                seen = list(labels.shape)
                raise ShapeError(f"{name}: shape {seen}; need ids 0..{classes - 1} or rows [{self.n}, {classes}]")
            return
        bad = np.flatnonzero(((labels < 0) & (labels != IGNORED)) | (labels >= classes))
        if bad.size:
            first = int(bad[0])
            row = first * self.n // labels.size
            raise DataError(
                f"{name}: id {int(labels.flat[first])} in row {row}; need 0..{classes - 1} for {classes} classes,"
                f" or {IGNORED} for a row to ignore"
            )


def is_ids(labels: np.ndarray) -> bool:
    """Whether they are class ids."""
    return labels.dtype.kind in "iu"


def _row_shape(array: np.ndarray) -> tuple[int, ...]:
    return tuple(int(s) for s in array.shape[1:])


def split_rows(
    n: int, share: float, seed: int, shard_size: int = 1, stream: int = _SPLIT, called: str = "val_split"
) -> tuple[np.ndarray, np.ndarray]:
    """(first rows, last share of the rows) of one permutation of n rows by the seed; both sides i64 and not empty.
    Errors call the share as it is `called`."""
    if not isinstance(share, (int, float, np.floating)) or not 0 <= share < 1:
        raise SettingError(setting=called, seen=share, need="a number in [0, 1)")
    shards = -(-n // shard_size)
    order = generator(seed, stream).permutation(shards).astype(np.int64)
    last = round(shards * float(share))
    if share > 0:
        if shards < 2:
            raise DataError(
                f"{called}={share}: {n} rows in {shards} shard cannot be split; need at least 2 shards, or 0"
            )
        last = min(max(last, 1), shards - 1)
    first, held = order[: shards - last], order[shards - last :]
    if shard_size == 1:
        return first, held
    return _shard_rows(first, shard_size, n), _shard_rows(held, shard_size, n)


def _shard_rows(shards: np.ndarray, size: int, n: int) -> np.ndarray:
    rows = (shards[:, None] * size + np.arange(size, dtype=np.int64)).ravel()
    return rows[rows < n]


_IDS_OF_TEXTS = "; classes, ids = numpy.unique(labels, return_inverse=True) makes ids of texts"


def _each(name: str, what: object, one: Any) -> Structure:
    """one(array, its name) for one array, or for each of several."""
    found = as_several(name, what)
    return one(what, name) if found is None else mapped_by_key(lambda key, each: one(each, place(name, key)), found)


def _as_array(what: object, name: str) -> np.ndarray:
    check_no_tuple(name, what)
    try:
        array = as_array(name, what)
        if isinstance(what, np.ndarray) and not isinstance(what, np.ma.MaskedArray):
            array = what  # keeps a memory-mapped array, or one that reads as it is sliced
    except ValueError:
        raise ShapeError(f"{name}: rows of different lengths: {uneven(what)}; need one array") from None
    if array.ndim == 0:
        raise ShapeError(f"{name}: {what_is(what)}; need an array whose first axis counts the rows")
    if array.dtype == object:
        seen = odd_object(array) or ", numbers: .astype(float) makes an array of them"
        is_label = name.startswith("labels")
        need = _IDS_OF_TEXTS if is_label else "; need an array of numbers, or gl.data.read_table for a table"
        raise DTypeError(f"{name}: dtype object{seen}{need}")
    return array


def _as_data(what: object, name: str) -> np.ndarray:
    array = _as_array(what, name)
    kind = _WIDENED.get(array.dtype.name, array.dtype.name)
    if kind not in _DATA:
        hint = "; gl.data.read_table makes numbers of a table's texts and dates" * (array.dtype.kind in "OUSM")
        raise DTypeError(f"{name}: dtype {array.dtype}; must be one of {' '.join((*_WIDENED, *_DATA))}{hint}")
    if array.dtype == kind:
        return array
    check_whole(name, array, kind)
    return array.view(kind) if array.dtype.itemsize == 1 else array.astype(kind)


def _as_labels(what: object, name: str, n: int) -> np.ndarray:
    labels = _as_array(what, name)
    check_rows(name, labels, n, "one for each row of the data")
    if labels.dtype.kind == "f":
        return labels if labels.dtype.name in _DATA and labels.dtype.isnative else labels.astype(np.float32)
    if labels.dtype.kind not in "iub":
        texts = _IDS_OF_TEXTS if labels.dtype.kind in "UST" else ""
        raise DTypeError(f"{name}: dtype {labels.dtype}; need whole-number class ids or float rows{texts}")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_whole(name, labels, np.int32)
    if labels.dtype.name in ("uint8", "int32", "int64") and labels.dtype.isnative:
        return labels
    return labels.astype(np.int32)


def _as_weights(what: object, n: int) -> np.ndarray:
    weights = np.ascontiguousarray(_as_array(what, "weights"))
    if weights.dtype.kind not in "fiub":
        raise DTypeError(f"weights: dtype {weights.dtype}; need numbers")
    weights = weights.astype(np.float32)
    if weights.shape != (n,):
        raise ShapeError(f"weights: shape {list(weights.shape)}; need [{n}], one for each row of the data")
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if bad.size:
        row = int(bad[0])
        raise DataError(f"weights: {weights[row]} in row {row}; need finite numbers of at least 0")
    return weights
